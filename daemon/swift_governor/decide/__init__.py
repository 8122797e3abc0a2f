# SPDX-License-Identifier: Apache-2.0
"""Deciding: pure functions from a snapshot to wishes. No clock, no file, no process, no network."""
