# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH112
# No pathlib: a tick reads eight files of each unit, and pathlib took half of that time.
"""What cgroupfs says of our units: kernel Documentation/admin-guide/cgroup-v2.

The path of a unit follows from its name for slices, and is found by walking below msswift.slice for
scopes. Everything here may be gone by the time it is read; that is None, and no error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from swift_governor.model import UnitReading

ROOT = "/sys/fs/cgroup"
TOP_SLICE = "msswift.slice"
UNIT_SUFFIXES = (".slice", ".scope")
MICROSECONDS = 1_000_000
READ_BYTES = 65536


def find_units(root: str = ROOT) -> Mapping[str, str]:
    """Our units that exist now: name → path below ``root``, beginning with "/".

    Delegated scopes may have cgroups of the job's own making inside, which are not looked into: a
    directory there named like a unit is none.
    """
    return dict(_walk(root, "/" + TOP_SLICE)) if os.path.isdir(f"{root}/{TOP_SLICE}") else {}


def _walk(root: str, path: str) -> Iterator[tuple[str, str]]:
    name = path.rsplit("/", 1)[-1]
    yield name, path
    if not name.endswith(".slice"):
        return
    try:
        with os.scandir(root + path) as entries:
            children = sorted(entry.name for entry in entries if entry.name.endswith(UNIT_SUFFIXES))
    except OSError:
        return
    for child in children:
        yield from _walk(root, f"{path}/{child}")


def pids_below(root: str = ROOT) -> list[int]:
    """The processes in our units, cgroups of a job's own making within its scopes included."""
    found: list[int] = []
    for directory, _, _ in os.walk(f"{root}/{TOP_SLICE}"):
        found.extend(_pids(directory))
    return found


def read_unit(name: str, path: str, root: str = ROOT) -> UnitReading | None:
    """One unit's state; None when it has no cgroup (any more)."""
    directory = root + path
    events = _keyed(directory + "/cgroup.events")
    if events is None:
        return None
    quota, period = _cpu_max(directory + "/cpu.max")
    stat = _keyed(directory + "/cpu.stat") or {}
    return UnitReading(
        unit=name,
        cgroup=path,
        populated=events.get("populated", 0) == 1,
        pids=tuple(_pids(directory)),
        cpu_quota_cores=quota,
        cpu_period_s=period,
        cpu_weight=_cpu_weight(directory),
        cpu_usage_s=_seconds(stat.get("usage_usec")),
        nr_periods=stat.get("nr_periods"),
        nr_throttled=stat.get("nr_throttled"),
        throttled_s=_seconds(stat.get("throttled_usec")),
        memory_bytes=_integer(_text(directory + "/memory.current")),
    )


def _pids(directory: str) -> list[int]:
    words = (_text(directory + "/cgroup.procs") or "").split()
    return [int(word) for word in words if word.isdecimal()]


def _cpu_max(path: str) -> tuple[float | None, float | None]:
    """``200000 1000000`` is 0.2 of one core each 1 s; ``max`` is no quota."""
    words = (_text(path) or "").split()
    if len(words) != 2:
        return None, None
    quota, period = _integer(words[0]), _integer(words[1])
    if not period:
        return None, None
    return (None if quota is None else quota / period), period / MICROSECONDS


def _cpu_weight(directory: str) -> int | None:
    """cpu.weight, or 0 where cpu.idle says that the unit only runs when nothing else does."""
    if _integer(_text(directory + "/cpu.idle")) == 1:
        return 0
    return _integer(_text(directory + "/cpu.weight"))


def _keyed(path: str) -> dict[str, int] | None:
    text = _text(path)
    if text is None:
        return None
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / MICROSECONDS


def _integer(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isdecimal() else None


def _text(path: str) -> str | None:
    """A file of cgroupfs; None when it is not there (any more)."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(file, READ_BYTES):
            parts.append(part)
        return b"".join(parts).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(file)
