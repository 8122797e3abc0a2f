# SPDX-License-Identifier: Apache-2.0
"""Runs in the VM: starts a Python program several times at once, and stays as their parent.

    many.py COUNT PROGRAM ARGUMENT…

No part of what it starts: only its command line is, and that names no program of ms-swift first.
"""

from __future__ import annotations

import subprocess
import sys

count, *program = sys.argv[1:]
children = [subprocess.Popen([sys.executable, *program]) for _ in range(int(count))]
for child in children:
    child.wait()
