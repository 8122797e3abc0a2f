# SPDX-License-Identifier: Apache-2.0
"""Makes model.Placement true: each process in its delegated scope, as /proc/PID/cgroup shows it.

Whose a process is, is looked at right before it is moved, and where it is right after: a second
StartTransientUnit would steal it silently (systemd#26925). A scope is never stopped: that would end
the job in it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from swift_governor.act.calls import Answering, Reply, Steps, run
from swift_governor.act.processes import cgroup_of, is_same, session_leader
from swift_governor.act.scopes import DEAD, ScopeMaker
from swift_governor.act.systemd_api import SystemdApi
from swift_governor.act.telling import Backoff, Once
from swift_governor.act.units import is_scope, slice_path, unit_of
from swift_governor.jobs.ownership import keep_out
from swift_governor.model import Note, Placement, ProcessId, Severity

_LATENCIES_KEPT = 1000
# A process that ended between our look and systemd's.
_GONE = frozenset({"UnixProcessIdUnknown", "NoSuchProcess"})
_ATTEMPTS = 3


@dataclass
class _Scope:
    busy: bool = False
    dead: bool = False  # started and dead at once, with its processes inside (systemd#36781)
    backoff: Backoff = field(default_factory=Backoff)


class Placer:
    """Holds processes in their scopes. ``contained`` is what the kernel said at the last look."""

    def __init__(
        self,
        systemd: SystemdApi,
        proc_root: str,
        cgroup_root: str,
        carriers: Sequence[str],
        note: Callable[[Note], None],
        sessions_root: str = "/run/systemd/sessions",
    ) -> None:
        self.drift = self.writes = self.failures = self.timeouts = self.pending = 0
        self.carriers = carriers
        self.contained: dict[ProcessId, str] = {}
        self.latencies: deque[float] = deque(maxlen=_LATENCIES_KEPT)
        self.errors: dict[str, str] = {}
        self._scopes: dict[str, _Scope] = {}
        self._first_seen: dict[ProcessId, float] = {}
        self._maker = ScopeMaker(systemd, cgroup_root)
        self._systemd = systemd
        self._proc_root = proc_root
        self._cgroup_root = cgroup_root
        self._sessions_root = sessions_root
        self._once = Once(note)
        self._now = 0.0

    def apply(self, placements: Iterable[Placement], now: float) -> None:
        self._now = now
        wished = {p.unit: p for p in placements if is_scope(p.unit)}
        everyone = {i for p in wished.values() for i in p.pids}
        self._first_seen = {i: t for i, t in self._first_seen.items() if i in everyone}
        self.contained = {i: u for i, u in self.contained.items() if i in everyone}
        self._scopes = {n: s for n, s in self._scopes.items() if n in wished or s.busy}
        self.errors = {n: e for n, e in self.errors.items() if n in wished}
        self.pending = 0
        for placement in wished.values():
            scope = self._scopes.setdefault(placement.unit, _Scope())
            outside = self._outside(placement, scope.dead)
            self.pending += len(outside)
            if outside and not scope.busy and scope.backoff.ready(now):
                scope.busy = True
                run(self._place(placement, scope), self._bug(placement.unit, scope))

    def verify_scopes(self) -> None:
        """After a daemon-reload: what lost its PIDs is found by the next look; try at once."""
        for scope in self._scopes.values():
            scope.backoff.worked()

    def _outside(self, placement: Placement, everyone: bool = False) -> list[int]:
        """The PIDs that have to be moved, having noted where each of the processes is."""
        outside = []
        for process in placement.pids:
            cgroup = cgroup_of(self._proc_root, process.pid)
            if cgroup is None:
                self.contained.pop(process, None)
                continue
            if unit_of(cgroup) == placement.unit and not everyone:
                self._note_contained(process, placement, cgroup)
                continue
            if not is_same(self._proc_root, process.pid, process.start_ticks):
                self.contained.pop(process, None)
                continue
            self._note_moved_away(process, placement, cgroup)
            leader = session_leader(cgroup, self._sessions_root) == process.pid
            reason = keep_out(cgroup, leader, self.carriers)
            if reason is None:
                self._first_seen.setdefault(process, self._now)
                outside.append(process.pid)
            else:
                message = f"process {process.pid} stays where it is: {reason}"
                key = str(process.pid)
                self._once.tell(Note("left-alone", placement.job, message, key=key))
        return outside

    def _note_contained(self, process: ProcessId, placement: Placement, cgroup: str) -> None:
        if process in self.contained:
            return
        if not is_same(self._proc_root, process.pid, process.start_ticks):
            return
        self.contained[process] = placement.unit
        begun = self._first_seen.pop(process, None)
        if begun is not None:
            self.latencies.append(max(time.monotonic() - begun, 0.0))
        if f"/{placement.slice}/" not in cgroup:
            message = f"stays in {cgroup} until it ends: a running scope can't change its slice"
            self._once.tell(Note("stays", placement.unit, message, Severity.NOTICE))

    def _note_moved_away(self, process: ProcessId, placement: Placement, cgroup: str) -> None:
        if self.contained.pop(process, "") == placement.unit and unit_of(cgroup) != placement.unit:
            self.drift += 1
            message = f"process {process.pid} was moved to {cgroup} by somebody else; moved back"
            self._once.say(Note("drift", placement.unit, message, Severity.WARNING, "moved"))

    def _place(self, placement: Placement, scope: _Scope) -> Steps:
        """Tries until all who live are in, or more than a vanished process is in the way."""
        try:
            reply = Reply()
            moved: set[int] = set()
            for _ in range(_ATTEMPTS):
                pids = self._outside(placement, scope.dead)
                if not pids:
                    break
                reply = yield from self._move(placement, pids, scope.dead)
                moved.update(pids)
                if reply.error not in _GONE:
                    break
            scope.dead = reply.error == DEAD
            self._judge(placement, scope, reply, moved)
        finally:
            scope.busy = False

    def _move(self, placement: Placement, pids: list[int], dead: bool) -> Answering:
        directory = f"{self._cgroup_root}{slice_path(placement.slice)}/{placement.unit}"
        reply = Reply(error="NoSuchUnit")
        if os.path.isdir(directory) and not dead:  # noqa: PTH112
            reply = yield self._systemd.attach(placement.unit, pids)
        if reply.error in ("NoSuchUnit", "UnitInactive"):
            reply = yield from self._maker.start(placement, pids)
        if reply.error == "UnitExists":
            # Ours by its name: from before a restart of the daemon, or in the slice of another
            # tier.
            reply = yield self._systemd.attach(placement.unit, pids)
        self.writes += reply.ok
        return reply

    def _judge(self, placement: Placement, scope: _Scope, reply: Reply, moved: set[int]) -> None:
        """The kernel's word counts: a call that failed may have worked, and the reverse."""
        outside = self._outside(placement, scope.dead)
        self.timeouts += reply.error == "Timeout"
        if not outside:
            scope.backoff.worked()
            self.errors.pop(placement.unit, None)
            self._once.gone("refused", placement.unit)
            arrived = sorted(i.pid for i in self.contained if i.pid in moved)
            if arrived:
                pids = " ".join(map(str, arrived))
                what = "process" if len(arrived) == 1 else "processes"
                verb = "is" if len(arrived) == 1 else "are"
                message = f"{len(arrived)} {what} of {placement.job} {verb} in {placement.slice}"
                fields = {"UNIT": placement.unit, "PIDS": pids}
                self._once.say(
                    Note("placed", placement.unit, message, key=pids[:80], fields=fields)
                )
            return
        scope.backoff.failed(self._now)
        self.failures += 1
        error = f"{reply.error}: {reply.message}" if reply.error else "accepted and not done"
        self.errors[placement.unit] = f"{len(outside)} processes are not placed: {error}"
        subject = "systemd" if reply.error == "Disconnected" else placement.unit
        note = Note("refused", subject, self.errors[placement.unit], Severity.WARNING, reply.error)
        self._once.tell(note)

    def _bug(self, name: str, scope: _Scope) -> Callable[[Exception], None]:
        def failed(error: Exception) -> None:
            scope.busy = False
            scope.backoff.failed(self._now)
            self.failures += 1
            self.errors[name] = f"{type(error).__name__}: {error}"
            self._once.tell(Note("bug", name, self.errors[name], Severity.ERROR))

        return failed
