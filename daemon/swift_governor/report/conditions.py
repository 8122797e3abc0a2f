# SPDX-License-Identifier: Apache-2.0
"""Which conditions are known, so that each is told once when it comes and once when it has gone."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from swift_governor.model import Note

Key = tuple[str, str, str]


@dataclass
class Condition:
    """One condition: ``seen`` in this tick last, and not yet ``told`` while it is held back."""

    note: Note
    seen: int
    told: bool = False
    counted: bool = False

    def first_held_back(self) -> bool:
        """Whether this is the first time that it is held back."""
        first, self.counted = not self.counted, True
        return first


class Conditions:
    """Notes with a key, by (kind, subject, key).

    A condition is gone when it was not noted for ``forget_ticks`` ticks. Memory is bounded: within
    a kind the one not seen for longest makes room, so that a flood of made-up subjects of one kind
    takes nothing from the others. Kinds are words in the code, and few.
    """

    def __init__(self, forget_ticks: int = 30, most_of_a_kind: int = 512) -> None:
        self._forget_ticks = forget_ticks
        self._most = most_of_a_kind
        self._tick = 0
        self._kinds: dict[str, OrderedDict[Key, Condition]] = {}

    def __len__(self) -> int:
        return sum(len(kind) for kind in self._kinds.values())

    def seen(self, note: Note) -> Condition:
        """Marks it as there in this tick; the result knows whether it was told before."""
        kind = self._kinds.setdefault(note.kind, OrderedDict())
        key = (note.kind, note.subject, note.key)
        condition = kind.get(key)
        if condition is None:
            condition = kind[key] = Condition(note, self._tick)
            if len(kind) > self._most:
                kind.popitem(last=False)
        condition.seen = self._tick
        kind.move_to_end(key)
        return condition

    def clear(self, kind: str, subject: str, key: str) -> Condition | None:
        """Forgets it at once; None where it was not known."""
        known = self._kinds.get(kind)
        condition = known.pop((kind, subject, key), None) if known else None
        if known is not None and not known:
            del self._kinds[kind]
        return condition

    def end_tick(self) -> list[Condition]:
        """Closes a tick; the conditions that have gone, which are forgotten."""
        gone = []
        for name, kind in list(self._kinds.items()):
            # The one not seen for longest is first.
            while kind:
                condition = next(iter(kind.values()))
                if self._tick - condition.seen < self._forget_ticks:
                    break
                kind.popitem(last=False)
                gone.append(condition)
            if not kind:
                del self._kinds[name]
        self._tick += 1
        return gone
