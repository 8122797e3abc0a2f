# SPDX-License-Identifier: Apache-2.0
"""Trouble is told once, and again only after it had gone; what failed is tried again, later and
later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swift_governor.model import Note

_MOST_REMEMBERED = 4096
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0


class Once:
    """Passes each (kind, subject, key) on once, until ``gone`` is called for it."""

    def __init__(self, note: Callable[[Note], None]) -> None:
        self._note = note
        self._told: set[tuple[str, str, str]] = set()

    def tell(self, note: Note) -> None:
        mark = (note.kind, note.subject, note.key)
        if mark in self._told:
            return
        if len(self._told) >= _MOST_REMEMBERED:
            self._told.clear()
        self._told.add(mark)
        self._note(note)

    def say(self, note: Note) -> None:
        """For what happened, rather than what is the case: passed on each time."""
        self._note(note)

    def gone(self, kind: str, subject: str) -> None:
        self._told = {m for m in self._told if m[:2] != (kind, subject)}


@dataclass
class Backoff:
    """When to try again: 0.5 s after the first failure, doubling up to 30 s."""

    failures: int = 0
    until: float = 0.0

    def failed(self, now: float) -> None:
        self.until = now + min(_FIRST_WAIT_S * 2**self.failures, _LONGEST_WAIT_S)
        self.failures = min(self.failures + 1, 10)

    def worked(self) -> None:
        self.failures, self.until = 0, 0.0

    def ready(self, now: float) -> bool:
        return now >= self.until
