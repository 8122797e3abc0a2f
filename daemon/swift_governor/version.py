# SPDX-License-Identifier: Apache-2.0
"""The one home of the version."""

VERSION = "0.1.0"
