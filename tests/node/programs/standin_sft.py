# SPDX-License-Identifier: Apache-2.0
"""Runs in the VM as ``…/swift/cli/sft.py``: a job with real loader processes and a simulated GPU.

    sft.py ACTIVITY BURN_MS COMPUTE_MS LOADERS

Each loader burns BURN_MS of its own CPU time for a row and puts it into a queue that holds four.
The main process takes a row and "computes": the simulated GPU (activity.py beside this file) is
busy for COMPUTE_MS while it sleeps, so that it needs next to no CPU itself. Where the loaders'
quota binds, rows per second are quota / BURN_MS, and the GPU's utilisation rows times COMPUTE_MS.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

from activity import Activity

ROW_BYTES = 1024
QUEUE_BYTES = 4096  # a pipe's least: four rows, and a write of one is atomic (pipe(7))


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def load(rows: int, burn_s: float) -> None:
    """A loader, named as PyTorch names its workers; it ends with its queue."""
    Path("/proc/self/comm").write_text("pt_data_worker")
    while True:
        burn(burn_s)
        os.write(rows, bytes(ROW_BYTES))


def main() -> None:
    path, burn_ms, compute_ms, loaders = sys.argv[1], *map(int, sys.argv[2:5])
    taken, given = os.pipe()
    fcntl.fcntl(given, 1031, QUEUE_BYTES)  # F_SETPIPE_SZ; Python names it from 3.10 on
    for _ in range(loaders):
        if os.fork() == 0:
            os.close(taken)
            load(given, burn_ms / 1e3)
    os.close(given)
    gpu = Activity(path)
    gpu.set_memory(8 << 30)
    while os.read(taken, ROW_BYTES):
        gpu.begin()
        time.sleep(compute_ms / 1e3)
        gpu.end()


if __name__ == "__main__":
    main()
