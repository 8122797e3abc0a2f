# SPDX-License-Identifier: Apache-2.0
"""Serves the governor's last snapshot as Prometheus metrics: an unprivileged program of its own."""
