# SPDX-License-Identifier: Apache-2.0
"""Nice value and I/O priority of one thread. Standard library only: ``release`` runs on this.

On Linux both belong to a thread and not to a process: setpriority(2), NOTES; ioprio_set(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass

from swift_governor.act.ledger import ThreadRecord
from swift_governor.act.processes import read_stat, thread_ids

NONE, REALTIME, BEST_EFFORT, IDLE = range(4)
_CLASS_SHIFT = 13
_LEVEL_MASK = 7
_MIDDLE_LEVEL = 4
_WHO_PROCESS = 1
MOST_WALKS = 32  # through a process's threads until they stop changing: a fork storm may never

# libc has no function for these: numbers of (ioprio_set, ioprio_get), asm/unistd.h.
_SYSCALLS = {"x86_64": (251, 252), "aarch64": (30, 31)}
_SET, _GET = _SYSCALLS.get(platform.machine(), (0, 0))
IOPRIO_SUPPORTED = bool(_SET)
_libc = ctypes.CDLL(None, use_errno=True)


def ioprio(io_class: int, level: int = 0) -> int:
    """One spelling for each priority: "none" takes no level (EINVAL), and idle's means nothing."""
    return io_class << _CLASS_SHIFT | (level if io_class in (REALTIME, BEST_EFFORT) else 0)


def io_class_of(value: int) -> int:
    """The class of an I/O priority."""
    return value >> _CLASS_SHIFT


def get_ioprio(tid: int) -> int:
    """Raises OSError. A thread without a priority of its own may read as none with level 4."""
    if not IOPRIO_SUPPORTED:
        return 0
    value = int(_libc.syscall(_GET, _WHO_PROCESS, tid))
    if value < 0:
        raise OSError(ctypes.get_errno(), "ioprio_get")
    return ioprio(io_class_of(value), value & _LEVEL_MASK)


def set_ioprio(tid: int, value: int) -> None:
    """Raises OSError. Does nothing where the architecture's numbers are not known."""
    if IOPRIO_SUPPORTED and _libc.syscall(_SET, _WHO_PROCESS, tid, value) < 0:
        raise OSError(ctypes.get_errno(), "ioprio_set")


@dataclass(frozen=True)
class Priority:
    """Both priorities of one thread; ``ioprio`` as ioprio_get(2) encodes it, "none" without
    level."""

    nice: int
    ioprio: int


def read_priority(tid: int) -> Priority:
    """Raises OSError, ProcessLookupError when the thread has gone."""
    return Priority(os.getpriority(os.PRIO_PROCESS, tid), get_ioprio(tid))


def write_priority(tid: int, old: Priority, new: Priority) -> None:
    """Writes what differs. Raises OSError."""
    if new.nice != old.nice:
        os.setpriority(os.PRIO_PROCESS, tid, new.nice)
    if new.ioprio != old.ioprio:
        set_ioprio(tid, new.ioprio)


def order(priority: Priority) -> int:
    """Where the I/O scheduler puts it: greater is later. Class none follows nice, ioprio_set(2)."""
    io_class, level = io_class_of(priority.ioprio), priority.ioprio & _LEVEL_MASK
    if io_class == NONE:
        io_class, level = BEST_EFFORT, (priority.nice + 20) // 5
    return io_class * (_LEVEL_MASK + 1) + level


def lowered(found: Priority, nice: int, io_class: int) -> Priority:
    """``found`` brought down to the wish; what the user set lower than that himself is
    respected."""
    level = found.ioprio
    wished = ioprio(io_class, _MIDDLE_LEVEL)
    if io_class != NONE and order(found) < order(Priority(found.nice, wished)):
        level = wished
    return Priority(max(found.nice, nice), level)


def restore_process(
    proc_root: str, pid: int, pid_start: int, records: Iterable[ThreadRecord]
) -> list[str]:
    """Puts each thread back to what was found, where it is still the same thread and the value
    still ours.

    Threads that are not in ``records`` were born since, and inherited ours: they get what their
    main thread gets. Returns what could not be restored; a thread that has gone needs nothing.
    """
    stat = read_stat(proc_root, pid)
    if stat is None or stat.start_ticks != pid_start:
        return []
    known = {(r.tid, r.tid_start): r for r in records}
    stand_in = next((r for r in known.values() if r.tid == pid), None) or next(
        iter(known.values()), None
    )
    troubles: list[str] = []
    done: set[int] = set()
    for _ in range(MOST_WALKS):
        new = set(thread_ids(proc_root, pid)) - done
        if not new:
            break
        done |= new
        for tid in new:
            thread = read_stat(proc_root, pid, tid)
            record = known.get((tid, thread.start_ticks)) if thread else None
            record = record or stand_in
            if thread is None or record is None:
                continue
            trouble = restore_thread(tid, record)
            if trouble:
                troubles.append(trouble)
    return troubles


def restore_thread(tid: int, record: ThreadRecord) -> str:
    """Restores one thread by ``record``; "" when there is nothing left to do."""
    try:
        current = read_priority(tid)
        wanted = Priority(
            record.nice if current.nice == record.set_nice else current.nice,
            record.ioprio if current.ioprio == record.set_ioprio else current.ioprio,
        )
        write_priority(tid, current, wanted)
    except ProcessLookupError:
        return ""
    except OSError as error:
        return f"thread {tid} of process {record.pid}: {error.strerror}"
    return ""
