# SPDX-License-Identifier: Apache-2.0
"""Which processes belong together: from one snapshot of processes to jobs. Pure.

A process belongs to the job of the launcher it descends from (or of the topmost agent or rank,
where there was no launcher), whatever it is. Parents get lost: a torchrun or launcher that is
killed leaves its ranks to PID 1, workers outlive ranks. Then the job it was in before counts, and
the scope it lives in, which also holds after a restart of the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swift_governor.jobs.family import NOT_THROUGH, Family
from swift_governor.jobs.names import job_name, name_in_cgroup, read_name
from swift_governor.jobs.roles import REGISTERED, Registered, Roles
from swift_governor.model import Engine, Job, Member, Process, ProcessId, Role

# A trainer that was started through the Python API shows no verb; only training registers.
REGISTERED_VERB = "sft"


def group(
    processes: Mapping[int, Process],
    previous: Sequence[Job] = (),
    registered: Mapping[ProcessId, Registered] | None = None,
) -> tuple[Job, ...]:
    """The jobs among ``processes`` (by PID), ordered by root.

    ``previous`` is what this function returned last, empty after a start; ``registered`` holds the
    processes whose trainers are linked.
    """
    registered = registered or {}
    family = Family(processes)
    names = _Names(family, previous, registered)
    belonging: dict[str, list[Process]] = {}
    for process in sorted(processes.values(), key=lambda process: process.id):
        name = names.of(process)
        if name is not None:
            belonging.setdefault(name, []).append(process)
    before = {job.name: job for job in previous}
    jobs = (
        _build(name, members, family, before.get(name), registered)
        for name, members in belonging.items()
    )
    return tuple(sorted(jobs, key=lambda job: (job.root, job.name)))


class _Names:
    """The name of the job that each process is in."""

    def __init__(
        self,
        family: Family,
        previous: Sequence[Job],
        registered: Mapping[ProcessId, Registered],
    ) -> None:
        self._family = family
        self._before = {member.id: job.name for job in previous for member in job.members}
        self._registered = registered
        # Ranks that one unknown launcher started share its PID and their rendezvous.
        self._shared = {
            key: job.name
            for job in previous
            for member in job.members
            if member.rule == REGISTERED and (key := _rendezvous(member.process)) is not None
        }

    def of(self, process: Process) -> str | None:
        root = self._family.root(process)
        if root is not None:
            return self._of_root(root)
        for kin in (process, *self._family.ancestors(process)):
            name = self._remembered(kin)
            if name is not None:
                return name
            if kin.id in self._registered:
                return self._of_registered(kin)
        return None

    def _of_root(self, root: Process) -> str:
        found = self._family.match(root)
        verb = found.verb or REGISTERED_VERB
        fresh = job_name(verb, root.id)
        if found.role is Role.LAUNCHER:
            return fresh
        name = self._remembered(root)
        # A training that a page started was the page's child, in the page's scope, and is its own
        # job.
        if name is None or _verb_in(name) in NOT_THROUGH - {verb}:
            return fresh
        return name

    def _remembered(self, process: Process) -> str | None:
        return self._before.get(process.id) or name_in_cgroup(process.cgroup)

    def _of_registered(self, process: Process) -> str:
        fresh = job_name(REGISTERED_VERB, process.id)
        key = _rendezvous(process)
        return fresh if key is None else self._shared.setdefault(key, fresh)


def _rendezvous(process: Process) -> tuple[int, int, str, str] | None:
    # With its user: PID 1 is the parent of many, and 127.0.0.1:29500 everybody's default.
    environ = process.environ or {}
    port = environ.get("MASTER_PORT")
    return (process.uid, process.ppid, environ.get("MASTER_ADDR", ""), port) if port else None


def _verb_in(name: str) -> str | None:
    found = read_name(name)
    return found[0] if found else None


def _build(
    name: str,
    processes: Sequence[Process],
    family: Family,
    before: Job | None,
    registered: Mapping[ProcessId, Registered],
) -> Job:
    verb, root = read_name(name) or (REGISTERED_VERB, processes[0].id)
    roles = Roles(family, processes, before.members if before else (), registered)
    members = tuple(roles.member(process) for process in processes)
    world_size, local_world_size = _sizes(members, roles, before)
    return Job(
        name=name,
        verb=verb,
        engine=_engine(processes, family, before),
        uid=_uid(root, processes, before),
        root=root,
        members=members,
        world_size=world_size,
        local_world_size=local_world_size,
        registered=any(process.id in registered for process in processes),
    )


def _engine(processes: Sequence[Process], family: Family, before: Job | None) -> Engine:
    for process in processes:
        engine = family.match(process).engine
        if engine is not None:
            return engine
    return before.engine if before else Engine.SWIFT


def _uid(root: ProcessId, processes: Sequence[Process], before: Job | None) -> int:
    """The root's user; where the root has gone, as before, or that of the eldest still there."""
    for process in processes:
        if process.id == root:
            return process.uid
    return before.uid if before else processes[0].uid


def _sizes(
    members: Sequence[Member], roles: Roles, before: Job | None
) -> tuple[int | None, int | None]:
    """World sizes from the ranks.

    deepspeed does not tell how many of them are on this node: then those seen are counted. Until
    all have started that makes a job look as if it spanned nodes, which is the careful side.
    """
    places = [roles.place(member.process) for member in members if member.role is Role.RANK]
    world = next((place.world_size for place in places if place.world_size is not None), None)
    if world is None:
        return (before.world_size, before.local_world_size) if before else (None, None)
    local = next((p.local_world_size for p in places if p.local_world_size is not None), None)
    if local is None:
        seen = len({place.local_rank for place in places if place.local_rank is not None})
        local = max(seen, 1, (before.local_world_size or 0) if before else 0)
    return world, min(local, world)
