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


def is_frozen(cgroup_dir: str) -> bool:
    """Whether this cgroup itself was asked to freeze (a frozen ancestor does not show here)."""
    return _number(f"{cgroup_dir}/cgroup.freeze") == 1


def controllers(cgroup_dir: str) -> frozenset[str]:
    """The controllers that this cgroup may use."""
    text = read_small(f"{cgroup_dir}/cgroup.controllers") or b""
    return frozenset(text.decode("ascii", "replace").split())


def members(cgroup_dir: str) -> tuple[int, ...]:
    """PIDs of the processes directly in this cgroup."""
    text = read_small(f"{cgroup_dir}/cgroup.procs", 1 << 22) or b""
    return tuple(int(p) for p in text.split() if p.isdigit())


def walk(cgroup_dir: str) -> Iterator[str]:
    """The cgroup and all below it, parents first; what vanishes on the way is passed over."""
    if os.path.isdir(cgroup_dir):  # noqa: PTH112 - paths here are strings from cgroupfs
        yield cgroup_dir
    try:
        with os.scandir(cgroup_dir) as entries:
            below = sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return
    for path in below:
        yield from walk(path)


def _number(path: str) -> int | None:
    text = (read_small(path) or b"").strip()
    return int(text) if text.isdigit() else None
