# SPDX-License-Identifier: Apache-2.0
"""Tells what the other rooms saw, decided and did; changes nothing."""
