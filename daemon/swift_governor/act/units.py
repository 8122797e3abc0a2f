# SPDX-License-Identifier: Apache-2.0
"""The closed set of units that may be changed, and where they live in cgroupfs. Pure.

msswift.slice / msswift-TIER.slice / msswift-TIER-uUID.slice / msswift-TIER-uUID-JOB.slice
"""

from __future__ import annotations

import re

ROOT = "msswift.slice"
_SLICE = re.compile(r"msswift(?:-[A-Za-z0-9_]+)*\.slice")
_SCOPE = re.compile(r"msswift(?:-[A-Za-z0-9_]+)+\.scope")
_LONGEST_NAME = 255  # UNIT_NAME_MAX of systemd, which is also NAME_MAX of cgroupfs
_TIER_DEPTH = 2  # msswift.slice and its tiers are unit files; what is below them comes and goes


class ForbiddenError(ValueError):
    """A unit, method or property outside the closed list was asked for: a bug, and nothing was
    sent."""


def is_slice(name: str) -> bool:
    """Whether this is a slice of ours."""
    return len(name) <= _LONGEST_NAME and _SLICE.fullmatch(name) is not None


def is_scope(name: str) -> bool:
    """Whether this is a scope of ours."""
    return len(name) <= _LONGEST_NAME and _SCOPE.fullmatch(name) is not None


def is_ours(name: str) -> bool:
    """Whether this unit may be changed at all."""
    return is_slice(name) or is_scope(name)


def require_ours(name: str) -> str:
    """The name itself. Raises ForbiddenError for any other unit."""
    if not is_ours(name):
        raise ForbiddenError(f"unit {name!r} is not one of ours")
    return name


def lineage(slice_name: str) -> tuple[str, ...]:
    """A slice and its ancestors, outermost first: a dash is a level of the tree,
    systemd.slice(5)."""
    parts = slice_name.removesuffix(".slice").split("-")
    return tuple("-".join(parts[: n + 1]) + ".slice" for n in range(len(parts)))


def is_transient(name: str) -> bool:
    """Whether a unit ends with its job: scopes, and the slices of users and jobs."""
    return is_scope(name) or (is_slice(name) and len(lineage(name)) > _TIER_DEPTH)


def slice_path(slice_name: str) -> str:
    """The path below the cgroup2 mount: ``msswift-a.slice`` →
    ``/msswift.slice/msswift-a.slice``."""
    return "/" + "/".join(lineage(slice_name))


def unit_of(cgroup: str) -> str | None:
    """Our innermost unit in a path of /proc/PID/cgroup, None when it is not below msswift.slice."""
    segments = [s for s in cgroup.removesuffix(" (deleted)").split("/") if s]
    if not segments or segments[0] != ROOT:
        return None
    ours = [s for s in segments if is_ours(s)]
    return ours[-1]
