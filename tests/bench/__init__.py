# SPDX-License-Identifier: Apache-2.0
"""``make bench``: the figures of the installed package on a real node, a throw-away VM.

Everything is timed from outside the governor, by a small C program in the guest.
"""
