# SPDX-License-Identifier: Apache-2.0
"""Nice value and I/O class for every thread of the wished processes, and back.

setpriority(2) on a PID reaches its main thread only (gamemode#140), so /proc/PID/task is walked
until it stops changing, and again when the thread count differs. A child or thread born later has
inherited our value: what was found before us is then that of its process's main thread, or of its
job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from swift_governor.act.ledger import Ledger, ProcessForgotten, ThreadRecord
from swift_governor.act.processes import is_same, read_stat, thread_ids
from swift_governor.act.telling import Once
from swift_governor.act.threads import (
    BEST_EFFORT,
    IDLE,
    MOST_WALKS,
    NONE,
    Priority,
    lowered,
    read_priority,
    restore_process,
    write_priority,
)
from swift_governor.model import IoClass, Note, PriorityWish, ProcessId, Severity

_IO_CLASSES = {IoClass.NONE: NONE, IoClass.BEST_EFFORT: BEST_EFFORT, IoClass.IDLE: IDLE}
_RECHECK_S = 30.0


@dataclass
class _Seen:
    wish: PriorityWish
    threads: int
    recheck_at: float


class Priorities:
    """Holds wished priorities. ``drift`` counts values that somebody else raised, ``writes``
    ours."""

    def __init__(self, ledger: Ledger, proc_root: str, note: Callable[[Note], None]) -> None:
        self.drift = self.writes = self.failures = 0
        self._ledger = ledger
        self._proc_root = proc_root
        self._once = Once(note)
        self._seen: dict[ProcessId, _Seen] = {}
        self._job_origin: dict[str, ThreadRecord] = {}
        for threads in ledger.book.threads.values():
            for record in threads.values():
                self._remember_origin(record)

    @property
    def thread_count(self) -> int:
        """Threads whose priority is ours now."""
        return sum(len(threads) for threads in self._ledger.book.threads.values())

    def apply(self, wishes: Iterable[PriorityWish], now: float) -> None:
        wished = {w.process: w for w in wishes}
        for wish in wished.values():
            self._hold(wish, now)
        for pid, start in tuple(self._ledger.book.threads):
            if ProcessId(pid, start) not in wished:
                self._give_back(pid, start)
        self._seen = {i: s for i, s in self._seen.items() if i in wished}
        jobs = {w.job for w in wished.values()}
        self._job_origin = {j: r for j, r in self._job_origin.items() if j in jobs}

    def _hold(self, wish: PriorityWish, now: float) -> None:
        pid, start = wish.process.pid, wish.process.start_ticks
        stat = read_stat(self._proc_root, pid)
        if stat is None or not stat.alive or stat.start_ticks != start:
            if (pid, start) in self._ledger.book.threads:
                self._ledger.forget([ProcessForgotten(pid, start)])
            return
        seen = self._seen.get(wish.process)
        if seen and seen.wish == wish and seen.threads == stat.threads and now < seen.recheck_at:
            return
        done: set[int] = set()
        for _ in range(MOST_WALKS):
            # The main thread first: what was found there stands in for threads that inherited ours.
            new = sorted(set(thread_ids(self._proc_root, pid)) - done, key=lambda t: (t != pid, t))
            if not new:
                break
            done.update(new)
            if not all(self._hold_thread(wish, tid) for tid in new):
                return  # not on file, so not done: tried again at the next tick
        self._seen[wish.process] = _Seen(wish, len(done), now + _RECHECK_S)

    def _hold_thread(self, wish: PriorityWish, tid: int) -> bool:
        thread = read_stat(self._proc_root, wish.process.pid, tid)
        if thread is None:
            return True
        try:
            current = read_priority(tid)
        except OSError:
            return True
        record = self._record_of(wish.process, tid, thread.start_ticks)
        found = self._found(wish, record, current)
        new = self._aimed(wish, record, found, current)
        ours = ThreadRecord(
            pid=wish.process.pid,
            pid_start=wish.process.start_ticks,
            tid=tid,
            tid_start=thread.start_ticks,
            job=wish.job,
            nice=found.nice,
            ioprio=found.ioprio,
            set_nice=new.nice,
            set_ioprio=new.ioprio,
        )
        if record is not None:
            # What the user chose meanwhile does not become ours by being left as it is.
            ours = replace(
                ours,
                set_nice=record.set_nice if new.nice == current.nice else new.nice,
                set_ioprio=record.set_ioprio if new.ioprio == current.ioprio else new.ioprio,
            )
        if found != new and ours != record:
            if not self._ledger.add([ours]):
                self._trouble(wish, "the ledger can't be written", self._ledger.trouble)
                return False
            self._remember_origin(ours)
        return new == current or self._write(wish, tid, current, new)

    def _write(self, wish: PriorityWish, tid: int, current: Priority, new: Priority) -> bool:
        try:
            write_priority(tid, current, new)
        except ProcessLookupError:
            return True
        except OSError as error:
            self.failures += 1
            self._trouble(wish, f"the priority of thread {tid} can't be set", str(error.strerror))
            return True
        self.writes += 1
        return True

    def _record_of(self, process: ProcessId, tid: int, tid_start: int) -> ThreadRecord | None:
        threads = self._ledger.book.threads.get((process.pid, process.start_ticks), {})
        return threads.get((tid, tid_start))

    def _found(
        self, wish: PriorityWish, record: ThreadRecord | None, current: Priority
    ) -> Priority:
        """The priority before us. A value that is exactly ours on an unknown thread was
        inherited."""
        if record is not None:
            return Priority(record.nice, record.ioprio)
        threads = self._ledger.book.threads.get((wish.process.pid, wish.process.start_ticks), {})
        main = [r for r in threads.values() if r.tid == wish.process.pid]
        for relative in (*main, self._job_origin.get(wish.job)):
            if relative and current == Priority(relative.set_nice, relative.set_ioprio):
                return Priority(relative.nice, relative.ioprio)
        return current

    def _aimed(
        self, wish: PriorityWish, record: ThreadRecord | None, found: Priority, current: Priority
    ) -> Priority:
        """The wish, save where the user has since gone lower than it himself."""
        target = lowered(found, wish.nice, _IO_CLASSES[wish.io_class])
        if record is None or current == Priority(record.set_nice, record.set_ioprio):
            return target
        kept = lowered(current, target.nice, _IO_CLASSES[wish.io_class])
        if current.nice == record.set_nice or current.nice == record.nice:
            kept = Priority(target.nice, kept.ioprio)
        if current.ioprio in (record.set_ioprio, record.ioprio):
            kept = Priority(kept.nice, target.ioprio)
        self.drift += kept != current
        return kept

    def _give_back(self, pid: int, start: int) -> None:
        records = self._ledger.book.threads[(pid, start)].values()
        if is_same(self._proc_root, pid, start):
            troubles = restore_process(self._proc_root, pid, start, records)
            if troubles:
                self.failures += 1
                job = next(iter(records)).job
                note = f"priorities could not be given back: {troubles[0]}"
                self._once.tell(Note("refused", job, note, Severity.WARNING, key=f"restore-{pid}"))
                return
            self.writes += len(records)
        self._ledger.forget([ProcessForgotten(pid, start)])

    def _remember_origin(self, record: ThreadRecord) -> None:
        """A job's children inherit from its first process's main thread, as far as can be known."""
        first = self._job_origin.get(record.job, record)
        if record.tid == record.pid == first.pid:
            self._job_origin[record.job] = record

    def _trouble(self, wish: PriorityWish, what: str, why: str) -> None:
        remedy = "is there space left in /run?" if "ledger" in what else ""
        message = f"process {wish.process.pid}: {what}: {why}"
        self._once.tell(Note("refused", wish.job, message, Severity.WARNING, what[:20], remedy))
