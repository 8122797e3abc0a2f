# SPDX-License-Identifier: Apache-2.0
"""What the kernel has in force, read from cgroupfs: cgroup-v2.rst, "CPU Interface Files".

Read back after each change: ``systemctl show`` said one value while the kernel kept another
(systemd#22211). Nothing here writes: a raw write is put back by the next reload (systemd#15496).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from swift_governor.act.processes import read_small
from swift_governor.act.units import is_ours, is_slice

WEIGHT, QUOTA = "CPUWeight", "CPUQuotaPerSecUSec"  # the names of the D-Bus properties
UNLIMITED = (1 << 64) - 1  # how systemd says "infinity" and "not set" on D-Bus
DEFAULT_WEIGHT = 100
USEC_PER_SEC = 1_000_000
_KERNEL_MINIMUM_USEC = 1_000  # a smaller quota per period is EINVAL


@dataclass(frozen=True)
class CpuMax:
    """``cpu.max``: quota per period in µs; quota None is "max"."""

    quota_usec: int | None
    period_usec: int

    def shows(self, quota_per_sec_usec: int) -> bool:
        """Whether this is what systemd makes of CPUQuotaPerSecUSec with the period in force."""
        if quota_per_sec_usec == UNLIMITED:
            return self.quota_usec is None
        if self.quota_usec is None:
            return False
        expected = quota_per_sec_usec * self.period_usec // USEC_PER_SEC
        return abs(max(expected, _KERNEL_MINIMUM_USEC) - self.quota_usec) <= 1


def read_cpu_max(cgroup_dir: str) -> CpuMax | None:
    """None when the cgroup is gone or its parent has no cpu controller switched on."""
    fields = (read_small(f"{cgroup_dir}/cpu.max") or b"").split()
    try:
        quota = None if fields[0] == b"max" else int(fields[0])
        return CpuMax(quota, int(fields[1]))
    except (IndexError, ValueError):
        return None


def read_cpu_weight(cgroup_dir: str) -> int | None:
    """1-10000, 0 for idle (cpu.idle); None when the cgroup or the controller is missing."""
    if (read_small(f"{cgroup_dir}/cpu.idle") or b"").strip() == b"1":
        return 0
    return _number(f"{cgroup_dir}/cpu.weight")


def in_force(cgroup_dir: str, name: str, value: int) -> bool:
    """Whether the kernel shows ``value``. Without the file nothing limits, so "not set" is in
    force."""
    if name == WEIGHT:
        weight = read_cpu_weight(cgroup_dir)
        default = DEFAULT_WEIGHT if value == UNLIMITED else value
        return weight == default or (weight is None and value == UNLIMITED)
    cpu_max = read_cpu_max(cgroup_dir)
    return value == UNLIMITED if cpu_max is None else cpu_max.shows(value)


def is_frozen(cgroup_dir: str) -> bool:
    """Whether this cgroup itself was asked to freeze (a frozen ancestor does not show here)."""
    return _number(f"{cgroup_dir}/cgroup.freeze") == 1


def units_below(root: str) -> dict[str, str]:
    """Unit → directory, parents first. What users make below their delegated scopes is not looked
    at."""
    found = {os.path.basename(root): root} if os.path.isdir(root) else {}  # noqa: PTH112,PTH119
    pending = list(found.values())
    while pending:
        try:
            with os.scandir(pending.pop(0)) as entries:
                # Most entries are the kernel's files: the type comes with the entry, for nothing.
                below = [e for e in entries if e.is_dir(follow_symlinks=False) and is_ours(e.name)]
            for entry in sorted(below, key=lambda e: e.name):
                found[entry.name] = entry.path
                if is_slice(entry.name):
                    pending.append(entry.path)
        except OSError:
            continue  # it has gone
    return found


def processes_below(cgroup_dir: str) -> Iterator[int]:
    """PIDs in this cgroup and, whoever made them, in all below it."""
    text = read_small(f"{cgroup_dir}/cgroup.procs", 1 << 22) or b""
    yield from (int(p) for p in text.split() if p.isdigit())
    try:
        with os.scandir(cgroup_dir) as entries:
            below = [e.path for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for path in below:
        yield from processes_below(path)


def _number(path: str) -> int | None:
    text = (read_small(path) or b"").strip()
    return int(text) if text.isdigit() else None
