# SPDX-License-Identifier: Apache-2.0
"""Declared, applied, read back, mended: each tick's Decision made true on the node, or its lack
told.

A wish that vanished (its job ended, or is only observed now) is given back. With no wishes and an
empty ledger nothing is called and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swift_governor.act.ledger import Ledger
from swift_governor.act.limits import UnitLimits
from swift_governor.act.placement import Placer
from swift_governor.act.priorities import Priorities
from swift_governor.act.systemd_api import SystemdApi
from swift_governor.act.telling import Once
from swift_governor.model import ActState, Decision, Note, Severity


class Reconciler:
    """``apply`` starts what has to be done and returns; ``state`` is what is known to be done.

    ``note`` gets what an operator should read; ``carriers`` may be replaced when the config is
    reloaded.
    """

    def __init__(
        self,
        systemd: SystemdApi,
        ledger: Ledger,
        proc_root: str = "/proc",
        cgroup_root: str = "/sys/fs/cgroup",
        carriers: Sequence[str] = (),
        note: Callable[[Note], None] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._once = Once(note)
        self._bugs = 0
        self._placer = Placer(systemd, proc_root, cgroup_root, carriers, note)
        self._limits = UnitLimits(systemd, ledger, cgroup_root, note)
        self._priorities = Priorities(ledger, proc_root, note)
        systemd.reloaded = self._reloaded
        if ledger.book.damaged:
            message = f"{ledger.path} is damaged in {ledger.book.damaged} places"
            remedy = "what they told can't be given back by record; `release` looks at cgroupfs too"
            self._once.tell(Note("ledger", "ledger", message, Severity.WARNING, remedy=remedy))

    @property
    def carriers(self) -> Sequence[str]:
        return self._placer.carriers

    @carriers.setter
    def carriers(self, carriers: Sequence[str]) -> None:
        self._placer.carriers = carriers

    def apply(self, decision: Decision, now: float) -> None:
        """Begins to make ``decision`` true. Never blocks, never raises; the same again changes
        nothing."""
        self._guarded("placement", lambda: self._placer.apply(decision.placements, now))
        self._guarded("limits", lambda: self._limits.apply(decision.limits, now))
        self._guarded("priorities", lambda: self._priorities.apply(decision.priorities, now))

    def state(self) -> ActState:
        placer, limits, priorities = self._placer, self._limits, self._priorities
        return ActState(
            contained=dict(placer.contained),
            pending=placer.pending,
            drift_total=placer.drift + limits.drift + priorities.drift,
            writes_total=placer.writes + limits.writes + priorities.writes,
            failures_total=placer.failures + limits.failures + priorities.failures + self._bugs,
            timeouts_total=placer.timeouts + limits.timeouts,
            prioritised_threads=priorities.thread_count,
            admin_properties=limits.admin_properties,
            containment_s=tuple(placer.latencies),
            errors={**limits.errors, **placer.errors},
        )

    def _guarded(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - one room's bug must not end the tick
            self._bugs += 1
            message = f"{what}: {type(error).__name__}: {error}"
            self._once.tell(Note("bug", "act", message, Severity.ERROR, what))

    def _reloaded(self) -> None:
        self._limits.recheck_files()
        self._placer.verify_scopes()
