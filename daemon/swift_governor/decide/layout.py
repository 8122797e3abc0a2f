# SPDX-License-Identifier: Apache-2.0
"""Which unit each process belongs in, and which GPU each rank drives. Pure.

    msswift.slice / msswift-TIER.slice / msswift-TIER-uUID.slice / msswift-TIER-uUID-JOB.slice
        msswift-JOB-main.scope      launcher, agents, ranks, helpers
        msswift-JOB-gpuN.scope      the loader processes that feed GPU N

A dash in a slice's name is a level of the tree, systemd.slice(5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swift_governor.jobs.ownership import keep_out
from swift_governor.model import (
    GpuReading,
    Job,
    LeftAlone,
    Member,
    Placement,
    ProcessId,
    Role,
)

ROOT_SLICE = "msswift.slice"
# Below msswift.slice only: a user may name cgroups of their own as they like.
_ADOPTED = re.compile(
    r"/msswift\.slice/(?:[^/]+\.slice/)*msswift-([a-z]+)-u\d+-([a-z0-9]+)\.slice(?:/|$)"
)
_ADOPTED_LOADER = re.compile(
    r"/msswift\.slice/(?:[^/]+\.slice/)*msswift-([a-z0-9]+)-gpu(\d{1,4})\.scope(?:/|$)"
)


def tier_slice(tier: str) -> str:
    """The slice of a whole tier."""
    return f"msswift-{tier}.slice"


def user_slice(tier: str, uid: int) -> str:
    """The slice of one user within a tier: tenants share fairly."""
    return f"msswift-{tier}-u{uid}.slice"


def job_slice(tier: str, job: Job) -> str:
    """The slice of one job."""
    return f"msswift-{tier}-u{job.uid}-{job.name}.slice"


def main_scope(job: str) -> str:
    """The scope of launcher, agents, ranks and helpers."""
    return f"msswift-{job}-main.scope"


def loader_scope(job: str, gpu: int) -> str:
    """The scope of the loaders that feed one GPU."""
    return f"msswift-{job}-gpu{gpu}.scope"


def adopted_tier(job: Job) -> str | None:
    """The tier in whose slice the job already is: after a restart of the daemon it stays there."""
    for member in job.members:
        found = _ADOPTED.match(member.process.cgroup or "")
        if found and found.group(2) == job.name:
            return found.group(1)
    return None


def adopted_gpus(job: Job) -> Mapping[int, int]:
    """local rank → GPU index, as the scopes say that the job's loaders are in already.

    After a restart of the daemon NVML may say nothing for a while: without this the loaders would
    be moved to the main scope, and back with the first reading.
    """
    found: dict[int, int] = {}
    for member in job.with_role(Role.LOADER):
        scope = _ADOPTED_LOADER.match(member.process.cgroup or "")
        if scope and scope.group(1) == job.name:
            found[member.local_rank or 0] = int(scope.group(2))
    return found


def origin_units(job: Job) -> tuple[str, ...]:
    """Names of the units that the job's processes are in now, ours left out; sorted."""
    units = set()
    for member in job.members:
        for part in (member.process.cgroup or "").split("/"):
            if part.endswith((".service", ".scope")) and not part.startswith("msswift-"):
                units.add(part)
    return tuple(sorted(units))


def rank_gpus(job: Job, gpus: GpuReading, remembered: Mapping[int, int]) -> Mapping[int, int]:
    """local rank → GPU index as NVML counts. A rank without local_rank counts as 0.

    NVML's own process list says it best; then what was known before; then CUDA_VISIBLE_DEVICES, by
    UUID or index (CUDA numbers FASTEST_FIRST by default and NVML by PCI bus: for boards of one kind
    they agree), and only for a GPU that is there.
    """
    by_pid = {p.pid: g.index for g in gpus.gpus for p in g.processes}
    by_uuid = {g.uuid: g.index for g in gpus.gpus}
    present = {g.index for g in gpus.gpus}
    found: dict[int, int] = {}
    for member in job.with_role(Role.RANK):
        local = member.local_rank or 0
        index = by_pid.get(member.process.pid)
        if index is None:
            index = remembered.get(local)
        if index is None and member.gpu_hint is not None:
            index = _hinted(member.gpu_hint, by_uuid, present)
        if index is not None:
            found[local] = index
    return found


def _hinted(hint: str, by_uuid: Mapping[str, int], present: set[int]) -> int | None:
    if hint in by_uuid:
        return by_uuid[hint]
    if hint.isascii() and hint.isdigit() and len(hint) < 4 and int(hint) in present:
        return int(hint)
    return None


@dataclass(frozen=True)
class Layout:
    """Where a job's processes belong. ``loop_units``: GPU index → the unit that its loop moves."""

    slice: str
    placements: tuple[Placement, ...]
    left_alone: tuple[LeftAlone, ...]
    loop_units: Mapping[int, str]

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(p.unit for p in self.placements)


def lay_out(
    job: Job,
    tier: str,
    gpu_of_rank: Mapping[int, int],
    carriers: Sequence[str],
    leaders: frozenset[int],
) -> Layout:
    """``leaders``: PIDs of logind session leaders, which are never moved."""
    in_slice = job_slice(tier, job)
    left: list[LeftAlone] = []
    by_unit: dict[str, list[ProcessId]] = {}
    loop_units: dict[int, str] = {}
    for member in job.members:
        process = member.process
        if process.cgroup is None:
            continue
        reason = keep_out(process.cgroup, process.pid in leaders, carriers)
        if reason is not None:
            left.append(LeftAlone(process.id, job.name, process.cgroup, reason))
            continue
        by_unit.setdefault(_unit_of(job, member, gpu_of_rank), []).append(process.id)
    main = main_scope(job.name)
    for index in sorted(set(gpu_of_rank.values())):
        loaders = loader_scope(job.name, index)
        if loaders in by_unit:
            loop_units[index] = loaders
        elif main in by_unit and main not in loop_units.values():
            # One writer a knob: of the GPUs that share the main scope, the first one's loop has it.
            loop_units[index] = main
    placements = tuple(
        Placement(unit, in_slice, job.name, _description(job, unit), tuple(sorted(pids)))
        for unit, pids in sorted(
            by_unit.items(), key=lambda item: not item[0].endswith("-main.scope")
        )
    )
    return Layout(in_slice, placements, tuple(left), loop_units)


def _unit_of(job: Job, member: Member, gpu_of_rank: Mapping[int, int]) -> str:
    if member.role is Role.LOADER:
        index = gpu_of_rank.get(member.local_rank or 0)
        if index is not None:
            return loader_scope(job.name, index)
    return main_scope(job.name)


def _description(job: Job, unit: str) -> str:
    what = "launcher and ranks" if unit == main_scope(job.name) else "data loaders"
    return f"ms-swift {job.verb} of uid {job.uid}, PID {job.root.pid}: {what}"
