# SPDX-License-Identifier: Apache-2.0
"""One tick: a snapshot of what is known, the decision about it, its application, and its report.

No main loop, no clock of its own and no waiting: ``loop.py`` calls ``run(now, wall)``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from swift_governor.act.reconciler import Reconciler
from swift_governor.config import Config
from swift_governor.decide.decide import decide
from swift_governor.decide.layout import tier_slice
from swift_governor.decide.memory import Memory
from swift_governor.jobs.grouping import group
from swift_governor.jobs.roles import Registered
from swift_governor.link.sessions import Sessions
from swift_governor.model import (
    Decision,
    GpuReading,
    Job,
    Node,
    Note,
    Orders,
    ProcessId,
    SamplerStatus,
    Severity,
    Snapshot,
    TrainerReport,
    UnitReading,
)
from swift_governor.report import changes
from swift_governor.report.cpu_rates import CpuRates
from swift_governor.report.journal import Journal
from swift_governor.report.self_state import SelfState
from swift_governor.report.snapshot import make
from swift_governor.sense.accounts import Accounts
from swift_governor.sense.cgroups import TOP_SLICE, find_units, read_unit
from swift_governor.sense.pressure import read_pressure
from swift_governor.sense.process_table import ProcessTable
from swift_governor.sense.reader_client import ReaderClient
from swift_governor.version import VERSION

GPU_STALE_S = 10.0
"""Readings older than this are not shown as current."""


class Tick:
    """Holds what one tick hands to the next. ``config`` may be replaced between ticks."""

    def __init__(
        self,
        config: Config,
        node: Node,
        table: ProcessTable,
        reader: ReaderClient,
        sessions: Sessions,
        reconciler: Reconciler,
        journal: Journal,
        accounts: Accounts,
        started: float,
    ) -> None:
        self.config = config
        self.node = node
        self.orders = Orders()
        self.gpus = GpuReading(SamplerStatus.ABSENT)
        self.jobs: tuple[Job, ...] = ()
        self.config_generation = 1
        self.config_reload_failures = 0
        self.refusals: dict[str, int] = {}
        self.link_clients = 0
        self.events_live = False
        self.ticks = 0
        self._started = started
        self._table = table
        self._reader = reader
        self._sessions = sessions
        self._reconciler = reconciler
        self._journal = journal
        self._accounts = accounts
        self._rates = CpuRates()
        self._memory = Memory()
        self._trainers: Mapping[ProcessId, TrainerReport] = {}
        self._last: tuple[Snapshot, Decision] | None = None
        self._told: dict[str, Any] | None = None
        self._tick_s = 0.0
        self._tick_total_s = 0.0
        self._overruns = 0
        self._cores: Mapping[str, float] = {}

    @property
    def trainers(self) -> Mapping[ProcessId, TrainerReport]:
        """The trainers that were linked at the last tick."""
        return self._trainers

    @property
    def decision(self) -> Decision:
        """The last tick's."""
        return self._last[1] if self._last else Decision()

    def run(self, now: float, wall: float, soon: bool = False) -> None:
        """Sense, decide, act, report. ``soon``: out of turn, for what is new; known units and the
        pressure are then not read again, since a new process waits for this.
        """
        begun = time.perf_counter()
        snapshot, before = self._sense(now, wall, soon), (self.jobs, self._trainers)
        decision, self._memory = decide(self.config, snapshot, self._memory)
        self._sessions.wish(decision.micro_batches)
        self._reconciler.apply(decision, now)
        self.jobs, self._trainers = snapshot.jobs, snapshot.trainers
        self._last, self._told = (snapshot, decision), None
        self.ticks += 1
        if not soon:
            self._cores = self._rates.update(snapshot)
        for note in self._notes(before[0], before[1], snapshot, decision):
            self._journal.tell(note)
        self._journal.end_tick()
        self._tick_s = time.perf_counter() - begun
        self._tick_total_s += self._tick_s
        self._overruns += self._tick_s > self.config.tick.period_s

    def _sense(self, now: float, wall: float, soon: bool) -> Snapshot:
        last = self._last[0] if self._last and soon else None
        self._accounts.refresh()
        self._look_where_they_are()
        processes = self._table.processes()
        trainers = self._sessions.reports()
        registered = {process: _registered(report) for process, report in trainers.items()}
        jobs = group(processes, self.jobs, registered)
        trainers = _of_jobs(trainers, jobs)
        cgroups = {m.process.cgroup or "" for job in jobs for m in job.members}
        return Snapshot(
            now=now,
            wall=wall,
            node=self.node,
            jobs=jobs,
            gpus=self.gpus,
            units=_read_units(last.units if last else {}),
            trainers=trainers,
            pressure=last.pressure if last else read_pressure(),
            users=self._accounts.users(),
            groups=self._accounts.groups(),
            session_leaders=self._accounts.session_leaders(cgroups),
            orders=_orders_of(self.orders, jobs),
        )

    def _look_where_they_are(self) -> None:
        """Processes that were not in a unit of ours when last looked at: they may be moved now."""
        self._table.refresh_cgroups(
            pid
            for pid, process in self._table.processes().items()
            if not (process.cgroup or "").startswith(f"/{TOP_SLICE}/")
        )

    def _notes(
        self,
        jobs: Sequence[Job],
        trainers: Mapping[ProcessId, TrainerReport],
        snapshot: Snapshot,
        decision: Decision,
    ) -> Iterator[Note]:
        yield from changes.job_notes(jobs, snapshot.jobs, decision, snapshot.users)
        yield from decision.notes
        yield from changes.trainer_notes(trainers, snapshot.trainers, snapshot.jobs)
        yield from changes.left_alone_notes(decision.left_alone)
        at = snapshot.gpus.at
        age = None if at is None else snapshot.now - at
        yield from changes.sampler_notes(snapshot.gpus, age, self.config.control.stale_after_s)
        yield from changes.reading_notes(self._reader.trouble, self._table.unreadable)
        yield from changes.observed_notes(decision.observed)

    def refuse(self, reason: str, sentence: str) -> None:
        """A client of the socket did something wrong: counted, and told once in a while."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        self._journal.tell(
            # NOTICE: it is over as soon as it happened, and need not be told as over later.
            Note("refused", "socket", sentence, Severity.NOTICE, key=f"{reason} {sentence}"[:200])
        )

    def tell(self, note: Note) -> None:
        """To the journal, outside a tick's own notes."""
        self._journal.tell(note)

    def snapshot(self) -> dict[str, Any]:
        """The last tick as JSON; made when asked for, once a tick."""
        if self._told is None and self._last is not None:
            act = self._reconciler.state()
            self._told = make(self._last[0], self._last[1], act, self._self_state())
        return self._told or {}

    def _self_state(self) -> SelfState:
        table = self._table
        return SelfState(
            version=VERSION,
            mode=self.config.mode,
            started=self._started,
            ticks=self.ticks,
            tick_s=self._tick_s,
            tick_total_s=self._tick_total_s,
            tick_period_s=self.config.tick.period_s,
            overruns_total=self._overruns,
            event_overruns_total=table.overruns,
            events_live=self.events_live,
            reader_stuck=self._reader.stuck > 0,
            reader_timeouts_total=self._reader.timeouts,
            refusals=dict(self.refusals),
            notes_total=self._journal.counts,
            journal_lost_total=self._journal.lost_total,
            link_clients=self.link_clients,
            config_generation=self.config_generation,
            config_reload_failures_total=self.config_reload_failures,
            gpu_stale_s=GPU_STALE_S,
            cpu_cores=self._cores,
            tier_slices={name: tier_slice(name) for name in self.config.tiers},
            recent=self._journal.recent,
        )


def _read_units(known: Mapping[str, UnitReading]) -> Mapping[str, UnitReading]:
    """All units that exist; what is in ``known`` is taken from there."""
    readings = (
        (name, known.get(name) or read_unit(name, path)) for name, path in find_units().items()
    )
    return {name: reading for name, reading in readings if reading is not None}


def _registered(report: TrainerReport) -> Registered:
    return Registered(
        rank=report.rank,
        local_rank=report.local_rank,
        world_size=report.world_size,
        local_world_size=report.local_world_size,
        workers=report.workers,
    )


def _of_jobs(
    trainers: Mapping[ProcessId, TrainerReport], jobs: Sequence[Job]
) -> Mapping[ProcessId, TrainerReport]:
    """A process speaks for the job that it is in, and for none otherwise."""
    members = {member.id for job in jobs for member in job.members}
    return {process: report for process, report in trainers.items() if process in members}


def _orders_of(orders: Orders, jobs: Sequence[Job]) -> Orders:
    """Orders about jobs that have ended are dropped."""
    names = {job.name for job in jobs}
    kept = {name: size for name, size in orders.micro_batches.items() if name in names}
    return Orders(orders.loops, kept)
