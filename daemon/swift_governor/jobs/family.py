# SPDX-License-Identifier: Apache-2.0
"""Kinship of processes within one snapshot: who descends from whom, and which began as a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from swift_governor.jobs.rules import match_process
from swift_governor.model import Match, Process, Role

# Their children are jobs of their own: a person starts trainings from the page.
NOT_THROUGH = frozenset({"web-ui", "app"})
MAX_DEPTH = 4096


class Family:
    """The processes of one snapshot with how each reads, and their ancestors."""

    def __init__(self, processes: Mapping[int, Process]) -> None:
        self.processes = processes
        self._matches: dict[int, Match] = {pid: match_process(p) for pid, p in processes.items()}

    def match(self, process: Process) -> Match:
        return self._matches[process.pid]

    def parent(self, process: Process) -> Process | None:
        """Its parent, where known. One that started later is a stranger with a reused PID."""
        parent = self.processes.get(process.ppid)
        if parent is None or parent.id.start_ticks > process.id.start_ticks:
            return None
        return None if parent.pid == process.pid else parent

    def ancestors(self, process: Process) -> Iterator[Process]:
        """Parent, grandparent and so on; ends even where hostile data forms a circle."""
        ancestor = self.parent(process)
        for _ in range(MAX_DEPTH):
            if ancestor is None:
                return
            yield ancestor
            ancestor = self.parent(ancestor)

    def is_copy(self, process: Process) -> bool:
        """Whether it was forked by its parent and has not exec'd: their arguments are the same."""
        parent = self.parent(process)
        return parent is not None and bool(process.argv) and parent.argv == process.argv

    def _has_agent(self, process: Process) -> bool:
        parent = self.parent(process)
        return parent is not None and self.match(parent).role is Role.AGENT

    def root(self, process: Process) -> Process | None:
        """The process that its job begins with: the nearest launcher, else the topmost rank or
        agent.

        None when neither it nor an ancestor reads as ms-swift. No job begins with a loader: one
        that has outlived its rank ends within seconds.
        """
        root: Process | None = None
        verb: str | None = None
        for candidate in (process, *self.ancestors(process)):
            found = self.match(candidate)
            if found.role is None:
                continue
            if verb is not None and found.verb in NOT_THROUGH and found.verb != verb:
                break
            # A copy of a launcher, between its fork and its exec, begins nothing; nor do those that
            # an agent starts, one a rank (``torchrun $(which swift) sft``).
            if (
                found.role is Role.LAUNCHER
                and not self.is_copy(candidate)
                and not self._has_agent(candidate)
            ):
                return candidate
            if found.role is not Role.LOADER:
                root, verb = candidate, found.verb
        return root
