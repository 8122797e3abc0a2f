# SPDX-License-Identifier: Apache-2.0
"""Stands in for ms-swift's trainer in the VM: idle, with forked loader workers named as torch's.

    python3 …/swift/cli/sft.py [--loaders N]

Each process has a second thread, since priorities are a thread's. SIGUSR1 forks one more loader;
any other argument is ignored.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

LOADER_COMM = b"pt_data_worker"
PR_SET_NAME = 15


def rest() -> None:
    """A second thread, and nothing to do."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    while True:
        signal.pause()


def start_loader(*_: object) -> None:
    if os.fork() == 0:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(PR_SET_NAME, LOADER_COMM, 0, 0, 0)
        rest()


def main() -> None:
    arguments = sys.argv[1:]
    loaders = int(arguments[arguments.index("--loaders") + 1]) if "--loaders" in arguments else 0
    for _ in range(loaders):
        start_loader()
    signal.signal(signal.SIGUSR1, start_loader)
    rest()


main()
