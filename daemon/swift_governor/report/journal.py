# SPDX-License-Identifier: Apache-2.0
"""Journal entries from notes: each condition once, floods held back, nothing that blocks a tick.

    journal = Journal()
    for note in decision.notes: journal.tell(note)
    journal.end_tick()

An entry has MESSAGE, PRIORITY, SYSLOG_IDENTIFIER=swift-governor, SWIFT_GOVERNOR_KIND, _SUBJECT,
_REMEDY, and each of the note's fields as SWIFT_GOVERNOR_NAME (``job``, ``gpu``, ``unit`` …), so
that ``journalctl SWIFT_GOVERNOR_JOB=sft4711x8k2`` shows one job. Without a journal it is a line on
stderr.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from swift_governor.model import Note, Severity
from swift_governor.report.conditions import Conditions
from swift_governor.report.journal_socket import JournalSocket, Sent, write_line
from swift_governor.report.safe_text import printable
from swift_governor.report.self_state import ToldNote

IDENTIFIER = "swift-governor"
PREFIX = "SWIFT_GOVERNOR_"
RECENT = 200
# A restart on a node with a hundred jobs may tell all of them; a flood is more than that.
ENTRIES_A_MINUTE = 120
MINUTE_S = 60.0
MOST_KINDS = 128
OTHER = "other"


class Journal:
    """Tells notes. Its memory is bounded, and ``tell`` never raises for what a note holds."""

    def __init__(
        self,
        socket: JournalSocket | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        line: Callable[[str], bool] = write_line,
        conditions: Conditions | None = None,
        entries_a_minute: int = ENTRIES_A_MINUTE,
    ) -> None:
        self._socket = socket or JournalSocket()
        self._clock, self._wall, self._line = clock, wall, line
        self._conditions = Conditions() if conditions is None else conditions
        self._most = entries_a_minute
        self._minute_began = clock()
        self._told: dict[str, int] = {}
        self._held_back: dict[str, int] = {}
        self._recent: deque[ToldNote] = deque(maxlen=RECENT)
        self._counts: dict[str, int] = {}
        self._lost_untold = 0
        self.lost_total = 0

    @property
    def recent(self) -> tuple[ToldNote, ...]:
        """The last notes told, oldest first."""
        return tuple(self._recent)

    @property
    def counts(self) -> dict[str, int]:
        """Notes told since the start, by kind."""
        return dict(self._counts)

    def tell(self, note: Note) -> bool:
        """Whether it was told now: False for a condition already told, and while held back."""
        condition = self._conditions.seen(note) if note.key else None
        if condition is not None and condition.told:
            return False
        if not self._may_tell(note.kind):
            # A condition is tried again each tick; it counts once.
            if condition is None or condition.first_held_back():
                kind = self._bounded(note.kind, self._held_back)
                self._held_back[kind] = self._held_back.get(kind, 0) + 1
            return False
        if condition is not None:
            condition.told = True
        self._enter(note)
        return True

    def clear(self, kind: str, subject: str, key: str) -> None:
        """The condition has gone: told now, if it had been a warning or worse."""
        condition = self._conditions.clear(kind, subject, key)
        if condition is not None and condition.told:
            self._tell_gone(condition.note)

    def end_tick(self) -> None:
        """After the notes of a tick: tells what has gone, and once a minute what was held back."""
        for condition in self._conditions.end_tick():
            if condition.told:
                self._tell_gone(condition.note)
        if self._clock() - self._minute_began >= MINUTE_S:
            held_back, self._held_back = self._held_back, {}
            self._told = {}
            self._minute_began = self._clock()
            for kind, count in held_back.items():
                self._enter(
                    Note(
                        "held-back",
                        kind,
                        f"{count} more entries of kind {kind} in the last minute were held back",
                        Severity.WARNING,
                    )
                )

    def _tell_gone(self, note: Note) -> None:
        if note.severity > Severity.WARNING or not self._may_tell(note.kind):
            return
        self._enter(
            Note(
                note.kind, note.subject, f"over: {note.message}", Severity.INFO, fields=note.fields
            )
        )

    def _may_tell(self, kind: str) -> bool:
        kind = self._bounded(kind, self._told)
        told = self._told.get(kind, 0)
        if told >= self._most:
            return False
        self._told[kind] = told + 1
        return True

    @staticmethod
    def _bounded(kind: str, counts: dict[str, int]) -> str:
        """Kinds are words in the code; should one hold data, memory is bounded all the same."""
        return kind if kind in counts or len(counts) < MOST_KINDS else OTHER

    def _enter(self, note: Note) -> None:
        self._recent.append(ToldNote(self._wall(), note))
        kind = self._bounded(note.kind, self._counts)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        fields = entry(note)
        sent = self._socket.send(fields)
        if sent is Sent.NO_JOURNAL:
            remedy = f" [{fields[PREFIX + 'REMEDY']}]" if note.remedy else ""
            line = f"{IDENTIFIER}: {note.severity.name.lower()}: {fields['MESSAGE']}{remedy}"
            sent = Sent.OK if self._line(line.replace("\n", " ")) else Sent.LOST
        if sent is Sent.LOST:
            self.lost_total += 1
            self._lost_untold += 1
        elif self._lost_untold:
            lost, self._lost_untold = self._lost_untold, 0
            self._enter(
                Note(
                    "journal-lost",
                    "journal",
                    f"{lost} entries before this one are missing: the journal did not take them",
                    Severity.WARNING,
                )
            )


def entry(note: Note) -> dict[str, str]:
    """The journal fields of a note, with all text made printable."""
    message = printable(note.message, 4096)
    subject = printable(note.subject, 256)
    if subject and subject not in message:
        message = f"{subject}: {message}"
    fields = {
        "MESSAGE": message,
        "PRIORITY": str(int(note.severity)),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        PREFIX + "KIND": printable(note.kind, 64),
        PREFIX + "SUBJECT": subject,
    }
    if note.remedy:
        # Commands to type may be several lines; the field's encoding is safe for them.
        fields[PREFIX + "REMEDY"] = printable(note.remedy, 2048, keep_newlines=True)
    for name, value in note.fields.items():
        fields.setdefault(PREFIX + str(name), printable(value, 1024))
    return fields
