# SPDX-License-Identifier: Apache-2.0
"""The processes that matter: ms-swift's, and everything they started.

Kept up by the proc connector's events, and checked against /proc by ``poll``, which also does all
the work where there are no events. A process that once belonged stays until it ends, whoever its
parent is by then. What can hang is read through the reader child; stat, status and cgroup are
read here, since they wait for no lock of the process.

A process is a candidate by its name (``CANDIDATE``) and becomes relevant by its command line, as
``is_job`` judges it, by its parent, by living in one of our units, or because a trainer registered.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Callable, NamedTuple, Protocol

from swift_governor.model import Process, ProcessId
from swift_governor.sense import cgroups
from swift_governor.sense.proc_events import Comm, Event, Exec, Exit, Fork, Overrun
from swift_governor.sense.reader_child import Reading
from swift_governor.sense.stat import Stat, list_pids, read_cgroup, read_stat, read_uid

# After an exec the name is that of the program's file: an interpreter, or a console script.
CANDIDATE = re.compile(r"\.?(?:python|pypy|swift|megatron|torchrun|accelerate|deepspeed|ds\Z|pt_)")

MAX_RETRIES = 3
RESTLESS = "it ran another program each time it was read"


class Reader(Protocol):
    """What the table asks of ``reader_client.ReaderClient``."""

    def read(self, pids: Iterable[int], callback: Callable[[Reading], None]) -> None: ...
    def forget(self, pid: int) -> None: ...


class Seen(NamedTuple):
    """What tells that a process is still the one, and runs still the program, that was read."""

    start_ticks: int
    comm: str
    arg_start: int

    @classmethod
    def of(cls, stat: Stat) -> Seen:
        return cls(stat.start_ticks, stat.comm, stat.arg_start)


class ProcessTable:
    """Relevant processes by PID. ``on_change`` is called once, until ``processes`` is called
    next.
    """

    def __init__(
        self,
        reader: Reader,
        is_job: Callable[[Process], bool],
        on_change: Callable[[], None] = lambda: None,
        proc: str = "/proc",
        cgroup_root: str = cgroups.ROOT,
    ) -> None:
        self._reader = reader
        self._is_job = is_job
        self._on_change = on_change
        self._proc = proc
        self._cgroup_root = cgroup_root
        self._kept: dict[int, Process] = {}
        self._seen: dict[int, Seen] = {}  # of those kept, and of candidates judged irrelevant
        self._included: set[int] = set()
        # In the reader: PID → whether it belongs whatever its command line says.
        self._pending: dict[int, bool] = {}
        self._retries: dict[int, int] = {}
        # Descendants of processes that are being read, and their parents. Some wait for nothing any
        # more: each poll begins afresh.
        self._waiting: dict[int, int] = {}
        # Events since the last flush: what has come and gone in between is never looked at.
        self._forked: dict[int, int] = {}
        self._executed: dict[int, bool] = {}
        self._orphaned_by: set[int] = set()
        self._rescan = False
        # Asked for by one poll: shown together, or a rank would be grouped without its launcher.
        self._settling: set[int] = set()
        self._shown: dict[int, Process] = {}
        self.changed = False
        self._told = False
        self.overruns = 0
        self.unreadable: dict[int, str] = {}

    def processes(self) -> Mapping[int, Process]:
        """The table as it is; the copy never changes.

        While a poll's answers are still coming in it is what it was before: half a tree would be
        taken for another one.
        """
        if not self._settling:
            self.changed = self._told = False
            self._shown = dict(self._kept)
        return self._shown

    def include(self, pid: int) -> None:
        """Keeps a process whatever its command line: a trainer in it has registered."""
        self._included.add(pid)
        if pid not in self._kept:
            self._request([pid], belongs=True)

    # ------------------------------------------------------------------------------------ events

    def handle_event(self, event: Event) -> None:
        """Notes an event; ``flush`` acts on all that were noted."""
        if isinstance(event, Fork):
            self._note_fork(event.parent_pid, event.pid)
        elif isinstance(event, Exec):
            belongs = event.pid in self._kept or self._forked.pop(event.pid, None) is not None
            self._executed[event.pid] = belongs or self._executed.get(event.pid, False)
        elif isinstance(event, Comm):
            self._note_comm(event.pid, event.comm)
        elif isinstance(event, Exit):
            self._note_exit(event.pid)
        elif isinstance(event, Overrun):
            self.overruns += 1
            self._rescan = True

    def _note_fork(self, parent: int, pid: int) -> None:
        if parent in self._kept or parent in self._forked:
            self._forked[pid] = parent
        elif self._executed.get(parent, False) or self._pending.get(parent, False):
            self._executed[pid] = True
        elif parent in self._pending or parent in self._executed or parent in self._waiting:
            self._waiting[pid] = parent

    def _note_comm(self, pid: int, comm: str) -> None:
        kept = self._kept.get(pid)
        if kept is not None:
            self._keep(dataclasses.replace(kept, comm=comm))
        elif pid not in self._forked and comm.startswith("pt_"):
            self._executed.setdefault(pid, False)  # its fork was missed

    def _note_exit(self, pid: int) -> None:
        for noted in (self._forked, self._executed, self._waiting):
            noted.pop(pid, None)
        if pid in self._kept:
            self._orphaned_by.add(pid)
        self._drop(pid)

    def flush(self) -> None:
        """Acts on the events noted, reading nothing that can hang; tells when the table changed."""
        if self._rescan:
            self.poll()
            return
        if self._orphaned_by:
            self._find_new_parents()
        forked, self._forked = self._forked, {}
        for pid, parent in forked.items():
            self._adopt_copy(pid, parent)
        executed, self._executed = self._executed, {}
        for pid, belongs in executed.items():
            if belongs or self._is_candidate(pid):
                self._request([pid], belongs)
        self._tell()

    def _is_candidate(self, pid: int) -> bool:
        stat = read_stat(self._proc, pid)
        return stat is not None and CANDIDATE.match(stat.comm) is not None

    def _find_new_parents(self) -> None:
        """Children of those that ended: the kernel has given them to a reaper already."""
        for pid, process in list(self._kept.items()):
            if process.ppid in self._orphaned_by:
                stat = read_stat(self._proc, pid)
                if stat is None or stat.start_ticks != process.id.start_ticks:
                    self._drop(pid)
                else:
                    self._keep(dataclasses.replace(process, ppid=stat.ppid))
        self._orphaned_by.clear()

    def _adopt_copy(self, pid: int, parent_pid: int) -> None:
        """A forked child has its parent's memory, and so its argv and environ, until it execs."""
        parent = self._kept.get(parent_pid)
        stat = read_stat(self._proc, pid)
        if stat is None:
            return
        if parent is None or stat.arg_start != self._seen[parent_pid].arg_start:
            self._request([pid], belongs=True)
            return
        self._seen[pid] = Seen.of(stat)
        self._keep(
            dataclasses.replace(
                parent,
                id=ProcessId(pid, stat.start_ticks),
                ppid=stat.ppid,
                comm=stat.comm,
                cgroup=read_cgroup(self._proc, pid),
            )
        )

    # ----------------------------------------------------------------------------------- reading

    def _request(self, pids: Iterable[int], belongs: bool) -> None:
        fresh = []
        for pid in pids:
            if pid not in self._pending:
                fresh.append(pid)
            self._pending[pid] = belongs or self._pending.get(pid, False)
        if fresh:
            self._reader.read(fresh, self._on_reading)

    def _on_reading(self, reading: Reading) -> None:
        pid = reading.pid
        belongs = self._pending.pop(pid, False)
        stat = read_stat(self._proc, pid)
        uid = read_uid(self._proc, pid)
        if stat is None or uid is None:
            self._drop(pid)
        elif not reading.available or _is_about(reading, stat):
            self._retries.pop(pid, None)
            self._judge(reading, stat, uid, belongs)
        elif self._retries.get(pid, 0) < MAX_RETRIES:
            self._ask_again(pid, stat, belongs)
            return
        else:
            self._judge(Reading(pid, available=False, reason=RESTLESS), stat, uid, belongs)
        if pid in self._kept:
            self._bring_in_descendants(pid)
        self._settling.discard(pid)
        self._tell()

    def _ask_again(self, pid: int, stat: Stat, belongs: bool) -> None:
        """What was read is of the last bearer of this PID, or of the program before an exec."""
        kept = self._kept.get(pid)
        if kept is not None and kept.id.start_ticks != stat.start_ticks:
            self._drop(pid)
            belongs = False
        self._retries[pid] = self._retries.get(pid, 0) + 1
        self._settling.discard(pid)  # nobody can hold back the table by one exec after another
        self._request([pid], belongs)
        self._tell()

    def _judge(self, reading: Reading, stat: Stat, uid: int, belongs: bool) -> None:
        pid = reading.pid
        process = Process(
            id=ProcessId(pid, stat.start_ticks),
            ppid=stat.ppid,
            uid=uid,
            comm=stat.comm,
            exe=reading.exe,
            argv=reading.argv,
            environ=reading.environ,
            cgroup=reading.cgroup if reading.available else read_cgroup(self._proc, pid),
            script_names_swift=reading.names_swift,
        )
        if reading.available:
            self._seen[pid] = Seen.of(stat)
            self.unreadable.pop(pid, None)
        else:
            self._seen.pop(pid, None)  # so that the next poll asks again
            self.unreadable[pid] = reading.reason
        if belongs or self._is_relevant(process):
            self._keep(process)

    def _is_relevant(self, process: Process) -> bool:
        return (
            process.ppid in self._kept
            or process.pid in self._included
            or (process.cgroup or "").startswith(f"/{cgroups.TOP_SLICE}/")
            or self._is_job(process)
        )

    def _bring_in_descendants(self, ancestor: int) -> None:
        """Those that were started while it was being read: they belong as it does."""
        if ancestor not in self._waiting.values():
            return
        children: dict[int, list[int]] = {}
        for pid, parent in self._waiting.items():
            children.setdefault(parent, []).append(pid)
        descendants: list[int] = []
        todo = [ancestor]
        while todo:
            for pid in children.get(todo.pop(), ()):
                # Already taken: a reused PID can make a circle.
                if self._waiting.pop(pid, None) is not None:
                    descendants.append(pid)
                    todo.append(pid)
        self._request([pid for pid in descendants if pid not in self._kept], belongs=True)

    # ----------------------------------------------------------------------------------- polling

    def poll(self) -> None:
        """Checks everything against /proc; asks the reader only about what was not seen before."""
        self._rescan = False
        for noted in (self._forked, self._executed, self._orphaned_by, self._waiting):
            noted.clear()
        stats = {pid: stat for pid in list_pids(self._proc) if (stat := read_stat(self._proc, pid))}
        self._forget_ended(stats)
        for pid in list(self._kept):
            self._refresh(pid, stats[pid])
        ours = set(cgroups.pids_below(self._cgroup_root))
        candidates = [
            pid
            for pid, stat in stats.items()
            if (CANDIDATE.match(stat.comm) or pid in ours or pid in self._included)
            and pid not in self._kept
            and pid not in self._pending
            and self._seen.get(pid) != Seen.of(stat)
        ]
        self._request(candidates, belongs=False)
        self._find_descendants(stats)
        self._settling.update(self._pending)
        self._tell()

    def _forget_ended(self, stats: Mapping[int, Stat]) -> None:
        for pid in list(self._seen):
            stat = stats.get(pid)
            if stat is None or stat.start_ticks != self._seen[pid].start_ticks:
                self._drop(pid)
        for pid, process in list(self._kept.items()):
            if pid not in stats or stats[pid].start_ticks != process.id.start_ticks:
                self._drop(pid)
        for pid in [pid for pid in self.unreadable if pid not in stats]:
            self._drop(pid)

    def _refresh(self, pid: int, stat: Stat) -> None:
        process = self._kept[pid]
        self._keep(
            dataclasses.replace(
                process,
                ppid=stat.ppid,
                comm=stat.comm,
                cgroup=read_cgroup(self._proc, pid) or process.cgroup,
            )
        )
        seen = self._seen.get(pid)
        if seen is None or seen.arg_start != stat.arg_start:
            self._request([pid], belongs=True)

    def _find_descendants(self, stats: Mapping[int, Stat]) -> None:
        """Processes below one that is kept or being read, whose fork was not seen."""
        children: dict[int, list[int]] = {}
        for pid, stat in stats.items():
            children.setdefault(stat.ppid, []).append(pid)
        todo = [(pid, pid) for pid in (*self._kept, *self._pending)]
        visited: set[int] = set()
        while todo:
            pid, root = todo.pop()
            for child in children.get(pid, ()):
                if child in visited or child in self._kept:
                    continue
                visited.add(child)
                if root in self._kept:
                    self._request([child], belongs=True)
                else:
                    self._waiting[child] = pid
                todo.append((child, root))

    # ------------------------------------------------------------------------------------ keeping

    def refresh_cgroups(self, pids: Iterable[int]) -> None:
        """Reads again where these processes are, after they were moved."""
        for pid in pids:
            process = self._kept.get(pid)
            cgroup = read_cgroup(self._proc, pid) if process is not None else None
            if process is not None and cgroup is not None:
                self._keep(dataclasses.replace(process, cgroup=cgroup))
        self._tell()

    def _keep(self, process: Process) -> None:
        if self._kept.get(process.pid) != process:
            self._kept[process.pid] = process
            self.changed = True

    def _drop(self, pid: int) -> None:
        self._seen.pop(pid, None)
        self._included.discard(pid)
        self._retries.pop(pid, None)
        self.unreadable.pop(pid, None)
        self._reader.forget(pid)
        if self._kept.pop(pid, None) is not None:
            self.changed = True

    def _tell(self) -> None:
        if self.changed and not self._told and not self._settling:
            self._told = True
            self._on_change()


def _is_about(reading: Reading, stat: Stat) -> bool:
    return (reading.start_ticks, reading.arg_start) == (stat.start_ticks, stat.arg_start)
