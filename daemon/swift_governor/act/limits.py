# SPDX-License-Identifier: Apache-2.0
"""CPU weight and quota of our units: set through systemd, read back from cgroupfs, mended, given
back.

One writer a knob, and it is systemd. A property that the admin sets in /etc is never written. The
period stays systemd's. Before a property's first change its old value is in the ledger; a wish of
None puts that value back.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swift_governor.act import cgroupfs
from swift_governor.act.calls import Reply, Steps, run
from swift_governor.act.cgroupfs import QUOTA, WEIGHT, in_force
from swift_governor.act.ledger import Ledger, UnitForgotten, UnitRecord
from swift_governor.act.systemd_api import SystemdApi
from swift_governor.act.telling import Backoff, Once
from swift_governor.act.unitfile import set_by_admin
from swift_governor.act.units import ROOT, is_transient, require_ours
from swift_governor.model import Limits, Note, Severity

_SMALLEST_QUOTA_USEC = 10_000  # per second: the kernel takes no less than 1 ms per period of 100 ms
_FILES = {WEIGHT: "cpu.weight", QUOTA: "cpu.max"}


def properties_of(limits: Limits) -> dict[str, int]:
    """The D-Bus properties that say what is wished. Raises ValueError for what is not a number."""
    wished: dict[str, int] = {}
    if limits.cpu_weight is not None:
        wished[WEIGHT] = min(max(int(limits.cpu_weight), 0), 10_000)
    if limits.cpu_quota_cores is not None:
        if math.isnan(limits.cpu_quota_cores):
            raise ValueError("a quota of NaN cores")
        if math.isinf(limits.cpu_quota_cores):
            wished[QUOTA] = cgroupfs.UNLIMITED
        else:
            usec = round(limits.cpu_quota_cores * cgroupfs.USEC_PER_SEC)
            wished[QUOTA] = max(usec, _SMALLEST_QUOTA_USEC)
    return wished


@dataclass
class _Unit:
    busy: bool = False
    path: str = ""
    admin: Mapping[str, str] | None = None
    verified: dict[str, int] = field(default_factory=dict)
    backoff: Backoff = field(default_factory=Backoff)


class UnitLimits:
    """Holds the wished limits. ``drift`` counts values changed by others since they were
    verified."""

    def __init__(
        self,
        systemd: SystemdApi,
        ledger: Ledger,
        cgroup_root: str,
        note: Callable[[Note], None],
    ) -> None:
        self.drift = self.writes = self.failures = self.timeouts = 0
        self.errors: dict[str, str] = {}
        self._systemd = systemd
        self._ledger = ledger
        self._cgroup_root = cgroup_root
        self._once = Once(note)
        self._units: dict[str, _Unit] = {}
        self._now = 0.0

    @property
    def admin_properties(self) -> Mapping[str, tuple[str, ...]]:
        return {name: tuple(sorted(u.admin)) for name, u in self._units.items() if u.admin}

    def recheck_files(self) -> None:
        """After a daemon-reload: files may have changed, and runtime properties may be lost."""
        for unit in self._units.values():
            unit.admin = None
            unit.backoff.worked()

    def apply(self, limits: Mapping[str, Limits], now: float) -> None:
        self._now = now
        recorded: dict[str, dict[str, int]] = {}
        for (name, prop), old in self._ledger.book.units.items():
            recorded.setdefault(name, {})[prop] = old
        if not limits and not recorded:
            self._units.clear()
            return
        present = cgroupfs.units_below(f"{self._cgroup_root}/{ROOT}")
        for name in {*limits, *recorded}:
            try:
                wished = properties_of(limits[name]) if name in limits else {}
                given_back = {p: v for p, v in recorded.get(name, {}).items() if p not in wished}
                self._tend(require_ours(name), present.get(name), wished, given_back)
            except ValueError as error:  # one impossible wish must not keep the others from being
                self.failures += 1
                self.errors[name] = str(error)
                self._once.tell(Note("bug", name, str(error), Severity.ERROR))
        for name in [n for n in self._units if n not in limits and n not in recorded]:
            if not self._units[name].busy:
                del self._units[name]
                self.errors.pop(name, None)

    def _tend(
        self, name: str, cgroup_dir: str | None, wished: dict[str, int], given_back: dict[str, int]
    ) -> None:
        unit = self._units.setdefault(name, _Unit())
        if unit.busy:
            return
        if cgroup_dir is None:
            unit.verified.clear()
            if is_transient(name):
                self._forget(name, [p for n, p in self._ledger.book.units if n == name])
                return
            wished = {}  # a tier's slice that has not begun: set when it has
        differing = self._differing(cgroup_dir, {**wished, **given_back})
        self._forget(name, [p for p in given_back if p not in differing])
        admin = unit.admin or {}
        for prop in [p for p in wished if p in differing and unit.verified.get(p) == wished[p]]:
            if prop in admin:
                continue
            self.drift += 1
            message = (
                f"{prop} was changed by somebody else; put back. Limits of ours belong in /etc."
            )
            self._once.say(Note("drift", name, message, Severity.WARNING, prop))
            unit.admin = None
        unit.verified = {p: v for p, v in wished.items() if p not in differing}
        # What /etc sets stays recorded: our runtime drop-in from before lies beneath it, and would
        # be in force again when the admin's file goes.
        to_write = {p: v for p, v in differing.items() if p not in (unit.admin or {})}
        if to_write and unit.backoff.ready(self._now):
            unit.busy = True
            run(self._set(name, unit, cgroup_dir, to_write, set(given_back)), self._bug(name, unit))

    def _differing(self, cgroup_dir: str | None, values: dict[str, int]) -> dict[str, int]:
        if cgroup_dir is None:
            return values
        return {p: v for p, v in values.items() if not in_force(cgroup_dir, p, v)}

    def _set(
        self,
        name: str,
        unit: _Unit,
        cgroup_dir: str | None,
        values: dict[str, int],
        given_back: set[str],
    ) -> Steps:
        try:
            if not unit.path:
                reply = yield self._systemd.get_unit(name)
                # A tier that is not loaded still has our runtime drop-in: giving back loads it.
                unloaded = reply.error == "NoSuchUnit" and cgroup_dir is None
                if not reply.ok and not unloaded:
                    self._failed(name, unit, reply)
                    return
                unit.path = str(reply.value) if reply.ok else ""
            if unit.admin is None and unit.path:
                fragment = yield self._systemd.get_property(name, unit.path, "FragmentPath")
                drop_ins = yield self._systemd.get_property(name, unit.path, "DropInPaths")
                if not (fragment.ok and drop_ins.ok):
                    self._failed(name, unit, drop_ins if fragment.ok else fragment)
                    return
                unit.admin = set_by_admin(str(fragment.value), list(drop_ins.value))
                self._tell_admin(name, unit.admin)
            values = {p: v for p, v in values.items() if p not in (unit.admin or {})}
            for prop in [p for p in values if (name, p) not in self._ledger.book.units]:
                old = yield self._systemd.get_property(name, unit.path, prop)
                if not old.ok:
                    self._failed(name, unit, old)
                    return
                if not self._ledger.add([UnitRecord(name, prop, int(old.value))]):
                    trouble = Reply(error="Ledger", message=self._ledger.trouble)
                    self._failed(name, unit, trouble)
                    return
            if not values:
                return
            reply = yield self._systemd.set_properties(name, values)
            if not reply.ok:
                self._failed(name, unit, reply)
                return
            self.writes += 1
            self._check(name, unit, cgroup_dir, values, given_back)
        finally:
            unit.busy = False

    def _check(
        self,
        name: str,
        unit: _Unit,
        cgroup_dir: str | None,
        values: dict[str, int],
        given_back: set[str],
    ) -> None:
        """What systemd accepted is true when the kernel shows it."""
        differing = self._differing(cgroup_dir, values) if cgroup_dir else {}
        self._forget(name, [p for p in values if p in given_back and p not in differing])
        unit.verified.update(
            {p: v for p, v in values.items() if p not in given_back and p not in differing}
        )
        if not differing:
            unit.backoff.worked()
            self.errors.pop(name, None)
            self._once.gone("refused", name)
            self._once.gone("not-in-force", name)
            return
        self.failures += 1
        unit.backoff.failed(self._now)
        missing = sorted(_FILES[p] for p in differing if not self._has(cgroup_dir, _FILES[p]))
        what = (
            f"{', '.join(sorted(differing))}: accepted by systemd, and the kernel does not show it"
        )
        remedy = ""
        if missing:
            what = f"the cpu controller is not on for this unit ({', '.join(missing)} missing)"
            remedy = (
                "cat /sys/fs/cgroup/cgroup.controllers /sys/fs/cgroup/cgroup.subtree_control; "
                "a real-time process outside the root cgroup keeps cpu off"
            )
        self.errors[name] = what
        self._once.tell(Note("not-in-force", name, what, Severity.WARNING, remedy=remedy))

    @staticmethod
    def _has(cgroup_dir: str | None, file: str) -> bool:
        return os.path.exists(f"{cgroup_dir}/{file}")  # noqa: PTH110

    def _forget(self, name: str, properties: list[str]) -> None:
        known = [p for p in properties if (name, p) in self._ledger.book.units]
        self._ledger.forget(UnitForgotten(name, p) for p in known)

    def _failed(self, name: str, unit: _Unit, reply: Reply) -> None:
        unit.path = ""
        unit.backoff.failed(self._now)
        if reply.error == "NoSuchUnit":
            return  # gone between the look and the call, which is how jobs end
        self.timeouts += reply.error == "Timeout"
        self.failures += 1
        self.errors[name] = f"{reply.error}: {reply.message}"
        message = f"limits can't be set: {self.errors[name]}"
        subject = "systemd" if reply.error == "Disconnected" else name
        self._once.tell(Note("refused", subject, message, Severity.WARNING, reply.error))

    def _tell_admin(self, name: str, admin: Mapping[str, str]) -> None:
        for prop, path in admin.items():
            message = f"{prop} is set in {path}, and left as it is there"
            self._once.tell(Note("admin-property", name, message, Severity.NOTICE, prop))

    def _bug(self, name: str, unit: _Unit) -> Callable[[Exception], None]:
        def failed(error: Exception) -> None:
            unit.busy = False
            self._failed(name, unit, Reply(error=type(error).__name__, message=str(error)))

        return failed
