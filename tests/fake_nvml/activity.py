# SPDX-License-Identifier: Apache-2.0
"""Tells the fake NVML library when a trainer computes, and how much GPU memory it holds.

A trainer opens one file for its GPU (``0.activity PATH`` in the library's state file names it) and
calls begin() and end() around what would run on the GPU. The library works out the utilisation of
the last second from the intervals written here, as the driver does from running kernels; nobody
sleeps, polls or samples to get it.

The file (little-endian, 64-bit words; README.md beside this file has the same table):

    word 0      magic, the bytes "FNVMLAC1"
    word 1      sequence: odd while the writer is between two consistent states (a seqlock)
    word 2      pid of the trainer; 0 after close()
    word 3      its start time, field 22 of proc_pid_stat(5): a reused pid is not this trainer
    word 4      busy_total_ns: all finished intervals, added up
    word 5      busy_since_ns: CLOCK_MONOTONIC when the running interval began; 0 = idle
    word 6      memory_bytes
    word 7      intervals: how many were finished; the newest is slot (intervals - 1) % 256
    word 8 ...  256 slots of (begin_ns, end_ns)

One writer a file: two ranks that share a GPU have a file and an ``activity`` line each.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

MAGIC = b"FNVMLAC1"
SLOTS = 256
SIZE = 8 * (8 + 2 * SLOTS)

_SEQUENCE, _PID, _START_TICKS, _BUSY_TOTAL, _BUSY_SINCE, _MEMORY, _INTERVALS, _RING = range(1, 9)


class Activity:
    """The writing end. ``pid`` is the process in NVML's process list, by default the caller.

    Raises OSError if the file can't be made or no process has that pid.
    """

    def __init__(self, path: str, pid: int | None = None) -> None:
        self.path = path
        shown = os.getpid() if pid is None else pid
        fresh = f"{path}.{os.getpid()}.new"
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(descriptor, 0o644)  # whatever the umask: the sampler's user has to read it
            head = struct.pack("<8sQQQ", MAGIC, 0, shown, _start_ticks(shown))
            os.pwrite(descriptor, head.ljust(SIZE, b"\0"), 0)
            self._map = mmap.mmap(descriptor, SIZE)
            os.rename(fresh, path)  # noqa: PTH104  the library never sees a file half made
        except BaseException:
            os.unlink(fresh)  # noqa: PTH108
            raise
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("Q")

    def begin(self) -> None:
        """The GPU is busy from now on. Does nothing if it is already."""
        if self._words[_BUSY_SINCE] == 0:
            self._words[_BUSY_SINCE] = time.monotonic_ns()  # one aligned word: no seqlock needed

    def end(self) -> None:
        """The GPU is idle from now on. Does nothing if it is already."""
        words = self._words
        since = words[_BUSY_SINCE]
        if since == 0:
            return
        now = time.monotonic_ns()
        slot = _RING + 2 * (words[_INTERVALS] % SLOTS)
        words[_SEQUENCE] += 1
        words[slot] = since
        words[slot + 1] = now
        words[_INTERVALS] += 1
        words[_BUSY_TOTAL] += now - since
        words[_BUSY_SINCE] = 0
        words[_SEQUENCE] += 1

    def set_memory(self, bytes: int) -> None:  # noqa: A002
        """GPU memory that this process holds from now on."""
        self._words[_MEMORY] = bytes

    @property
    def busy_total_ns(self) -> int:
        """Busy time up to now, the running interval included, to compare readings with."""
        since = self._words[_BUSY_SINCE]
        running = time.monotonic_ns() - since if since else 0
        return self._words[_BUSY_TOTAL] + running

    def close(self) -> None:
        """Idle, no memory, out of the process list. The file stays, for the library to read."""
        self.end()
        self._words[_MEMORY] = 0
        self._words[_PID] = 0
        self._words.release()
        self._map.close()


def _start_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        after_comm = stat.read().rpartition(b")")[2].split()
    return int(after_comm[19])
