# SPDX-License-Identifier: Apache-2.0
"""Runs in the VM as ``…/swift/cli/sft.py``: a process that is ms-swift by its name, and rests.

With a number it first forks so many loader workers. Given ``--launched`` it starts itself once
more as the rank, as the console script does, and waits for it: launcher, rank and loaders.
"""

import os
import signal
import subprocess
import sys

if "--launched" in sys.argv:
    sys.exit(subprocess.call([sys.executable, __file__, sys.argv[-1]]))
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 0):
    if os.fork() == 0:
        with open("/proc/self/comm", "w") as comm:
            comm.write("pt_data_worker")
        signal.pause()
signal.pause()
