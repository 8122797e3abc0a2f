# SPDX-License-Identifier: Apache-2.0
"""Reads the node, and changes nothing: processes and their events, pressure, units."""
