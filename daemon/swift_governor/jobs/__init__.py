# SPDX-License-Identifier: Apache-2.0
"""Which processes are ms-swift, and which belong together: processes in, jobs out. Pure."""
