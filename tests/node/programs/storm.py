# SPDX-License-Identifier: Apache-2.0
"""Runs in the VM: COUNT processes that look like trainers by name and argv, and are gone at once.

storm.py COUNT PROGRAM
"""

from __future__ import annotations

import os
import sys

count, program = int(sys.argv[1]), sys.argv[2]
for n in range(count):
    if os.fork() == 0:
        if n % 2:
            os._exit(0)  # a copy that never execs
        os.execv("/tmp/python3", ["python3", program, "--n", str(n)])
    if n % 20 == 19:
        for _ in range(20):
            os.wait()
