# SPDX-License-Identifier: Apache-2.0
"""Priorities of processes below msswift.slice that the ledger does not know. Standard library only.

They were forked since the last tick, and inherited what was set; or their records are lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from swift_governor.act.ledger import ThreadRecord
from swift_governor.act.processes import cgroup_of, thread_ids
from swift_governor.act.threads import (
    IDLE,
    MOST_WALKS,
    io_class_of,
    read_priority,
    restore_thread,
)

_JOB = re.compile(r"/msswift-([A-Za-z0-9]+)-[A-Za-z0-9]+\.scope(?:/|$| )")


def job_of(cgroup: str) -> str:
    """The job whose scope this is, "" for none."""
    found = _JOB.search(cgroup)
    return found.group(1) if found else ""


def restore_strangers(
    proc_root: str, pids: Iterable[int], known: Sequence[ThreadRecord], unknown_too: bool
) -> list[str]:
    """Restores threads of ``pids`` by the records of their job; returns what could not be restored.

    ``unknown_too``: there are no records at all, and what is below the default goes back to it.
    """
    mains: dict[str, list[ThreadRecord]] = {}
    for record in known:
        if record.tid == record.pid:
            mains.setdefault(record.job, []).append(record)
    troubles: list[str] = []
    for pid in pids:
        relatives = mains.get(job_of(cgroup_of(proc_root, pid) or ""), [])
        if not relatives and not unknown_too:
            continue
        done: set[int] = set()
        for _ in range(MOST_WALKS):
            new = set(thread_ids(proc_root, pid)) - done
            if not new:
                break
            done |= new
            troubles += filter(None, (_restore(pid, tid, relatives, unknown_too) for tid in new))
    return troubles


def _restore(pid: int, tid: int, relatives: Sequence[ThreadRecord], unknown_too: bool) -> str:
    try:
        current = read_priority(tid)
    except OSError:
        return ""
    for record in relatives:
        if (record.set_nice, record.set_ioprio) == (current.nice, current.ioprio):
            return restore_thread(tid, record)
    if not unknown_too:
        return ""
    idle = io_class_of(current.ioprio) == IDLE
    return restore_thread(
        tid,
        ThreadRecord(
            pid=pid,
            pid_start=0,
            tid=tid,
            tid_start=0,
            job="",
            nice=min(current.nice, 0),
            ioprio=0 if idle else current.ioprio,
            set_nice=current.nice,
            set_ioprio=current.ioprio,
        ),
    )
