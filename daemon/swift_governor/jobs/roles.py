# SPDX-License-Identifier: Apache-2.0
"""What each process of one job is, by its command line, its family and what the trainer reported.

A loader worker is known by the name that torch gives it, or because the linked trainer reports
it. A torch from before the middle of 2024 names none: then the forked copies of a rank are
loaders where there are as many as ``--dataloader_num_workers`` asks for; a ``datasets.map`` pool
looks the same and has as many as ``--dataset_num_proc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swift_governor.jobs.environment import Place, gpu_hint, read_place
from swift_governor.jobs.family import Family
from swift_governor.jobs.rules import LOADER_COMM
from swift_governor.model import Member, Process, ProcessId, Role

# ms-swift's own defaults.
DEFAULT_LOADERS = 1
DEFAULT_MAP_PROCESSES = 1
TORCH_NAME_PREFIX = "pt_"

REGISTERED = "registered"
REPORTED_WORKER = "reported-worker"
NAMED_WORKER = "named-worker"
COUNTED_COPY = "counted-copy"
FORKED_COPY = "forked-copy"
DESCENDANT = "descendant"
REMEMBERED = "remembered"


@dataclass(frozen=True)
class Registered:
    """What a linked trainer said of its process: its place, and the PIDs of its loader workers."""

    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    workers: tuple[int, ...] = ()


class Roles:
    """The roles within one job: ``processes`` are its own, ``before`` its members one snapshot
    ago.
    """

    def __init__(
        self,
        family: Family,
        processes: Sequence[Process],
        before: Iterable[Member],
        registered: Mapping[ProcessId, Registered],
    ) -> None:
        self._family = family
        self._own = {process.pid for process in processes}
        self._before = {member.id: member for member in before}
        self._registered = {p.id: registered[p.id] for p in processes if p.id in registered}
        # A trainer can only speak of its own job's processes.
        self._reported = {pid for r in self._registered.values() for pid in r.workers} & self._own
        self._torch_names = any(
            process.comm.startswith(TORCH_NAME_PREFIX)
            for process in (*processes, *(member.process for member in self._before.values()))
        )
        self._copies: dict[int, int] = {}
        for process in processes:
            if self._is_unnamed_copy_of_rank(process):
                self._copies[process.ppid] = self._copies.get(process.ppid, 0) + 1

    def member(self, process: Process) -> Member:
        """The process as a member, with its own place or its rank's."""
        role, rule = self._role(process)
        if role in (Role.LAUNCHER, Role.AGENT):
            return Member(process, role, rule)
        rank = process if role is Role.RANK else self._rank_above(process)
        place = self.place(process)
        if place.local_rank is None and rank is not None:
            place = self.place(rank)
        hint = None
        if rank is not None or role is Role.LOADER:
            source = process if process.environ is not None else rank
            hint = gpu_hint(source.environ, place.local_rank) if source is not None else None
        return Member(process, role, rule, place.rank, place.local_rank, hint)

    def place(self, process: Process) -> Place:
        """From its environment; where that says nothing, as its trainer said when registering."""
        place = read_place(process.environ)
        said = self._registered.get(process.id)
        if said is None or place.rank is not None:
            return place
        return Place(said.rank, said.local_rank, said.world_size, said.local_world_size)

    def _role(self, process: Process) -> tuple[Role, str]:
        found = self._family.match(process)
        if process.pid in self._reported and process.id not in self._registered:
            return Role.LOADER, REPORTED_WORKER
        if found.role is Role.LOADER:
            return Role.LOADER, found.rule
        if process.comm == LOADER_COMM:
            return Role.LOADER, NAMED_WORKER
        if process.id in self._registered:
            return Role.RANK, found.rule if found.role is Role.RANK else REGISTERED
        if found.role is None:
            return Role.HELPER, DESCENDANT
        if self._family.is_copy(process):
            return self._role_of_copy(process)
        remembered = self._before.get(process.id)
        if found.role is Role.RANK and remembered is not None:
            # An agent's child is its copy until it execs, and a rank from then on.
            same_program = remembered.process.argv == process.argv
            if same_program and self._is_orphan_copy(remembered):
                return remembered.role, REMEMBERED
        return found.role, found.rule

    def _role_of_copy(self, process: Process) -> tuple[Role, str]:
        remembered = self._before.get(process.id)
        if remembered is not None and remembered.rule == COUNTED_COPY and not self._torch_names:
            return Role.LOADER, COUNTED_COPY
        parent = self._family.parent(process)
        if (
            parent is None
            or parent.id in self._registered
            or self._torch_names
            or not self._is_unnamed_copy_of_rank(process)
        ):
            return Role.HELPER, FORKED_COPY
        loaders = _number_after(process.argv or (), "--dataloader_num_workers", DEFAULT_LOADERS)
        mappers = _number_after(process.argv or (), "--dataset_num_proc", DEFAULT_MAP_PROCESSES)
        if self._copies[parent.pid] == loaders and (loaders != mappers or mappers == 1):
            return Role.LOADER, COUNTED_COPY
        return Role.HELPER, FORKED_COPY

    def _is_orphan_copy(self, remembered: Member) -> bool:
        """A loader or helper that has lost its parent reads as a rank, and is still none."""
        return remembered.role in (Role.LOADER, Role.HELPER) and remembered.rule in (
            FORKED_COPY,
            COUNTED_COPY,
            REPORTED_WORKER,
            REMEMBERED,
        )

    def _is_unnamed_copy_of_rank(self, process: Process) -> bool:
        parent = self._family.parent(process)
        return (
            parent is not None
            and parent.pid in self._own
            and self._family.match(process).role is Role.RANK
            and self._family.is_copy(process)
            and not self._family.is_copy(parent)
        )

    def _rank_above(self, process: Process) -> Process | None:
        for ancestor in self._family.ancestors(process):
            if ancestor.pid not in self._own:
                return None
            is_rank = self._family.match(ancestor).role is Role.RANK
            if ancestor.id in self._registered or (is_rank and not self._family.is_copy(ancestor)):
                return ancestor
        return None


def _number_after(argv: Sequence[str], option: str, default: int) -> int:
    """The value of an option of ms-swift; ``default`` where it is not there or no small number."""
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name == option:
            text = value if equals else (argv[position + 1] if position + 1 < len(argv) else "")
            return int(text) if text.isdecimal() and len(text) < 5 else default
    return default
