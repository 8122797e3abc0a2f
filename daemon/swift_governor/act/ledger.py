# SPDX-License-Identifier: Apache-2.0
"""What was found before the first change, so that everything can be given back. Standard library
only.

An append-only file below /run (it must not outlive a boot), one record a line, each line with the
CRC-32 of its record:

    {"crc":"5a1e0c3f","record":{"t":"unit","unit":"msswift.slice","property":"CPUWeight","old":…}}

A record is on file before the change that it tells of is made. Records are found by their frame
and not by their line ends, so a torn or damaged byte costs the record it is in and no other. An
empty file says "nothing is changed"; a missing one says nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Union

PATH = "/run/swift-governor/ledger.jsonl"
MAXIMUM_BYTES = 32 << 20
_COMPACT_ABOVE = 256 << 10
_FRAME = re.compile(rb'\{"crc":"([0-9a-f]{8})","record":(\{[^\n{}]*\})\}')


@dataclass(frozen=True)
class UnitRecord:
    """A unit's property as systemd had it before us (D-Bus units; 2^64-1 is "not set")."""

    unit: str
    property: str
    old: int


@dataclass(frozen=True)
class ThreadRecord:
    """A thread's nice value and I/O priority (ioprio_get(2) encoding) as found, and as set by
    us."""

    pid: int
    pid_start: int
    tid: int
    tid_start: int
    job: str
    nice: int
    ioprio: int
    set_nice: int
    set_ioprio: int


@dataclass(frozen=True)
class UnitForgotten:
    """The property has been given back, or its unit has gone."""

    unit: str
    property: str


@dataclass(frozen=True)
class ProcessForgotten:
    """The process's threads have been given back, or it has gone."""

    pid: int
    pid_start: int


@dataclass(frozen=True)
class Damage:
    """So many places of an earlier file could not be read: what they told is lost."""

    places: int


Record = Union[UnitRecord, ThreadRecord, UnitForgotten, ProcessForgotten, Damage]
_TYPES: Mapping[str, type] = {
    "unit": UnitRecord,
    "thread": ThreadRecord,
    "unit-forgotten": UnitForgotten,
    "process-forgotten": ProcessForgotten,
    "damage": Damage,
}
_WORDS = {kind: word for word, kind in _TYPES.items()}


def encode(record: Record) -> bytes:
    """The record's line. Braces and line ends in texts would break the frame: they become "?"."""
    fields = {
        k: re.sub(r"[{}\n]", "?", v) if isinstance(v, str) else v for k, v in asdict(record).items()
    }
    body = json.dumps({"t": _WORDS[type(record)], **fields}, separators=(",", ":")).encode("ascii")
    return b'{"crc":"%08x","record":%s}\n' % (zlib.crc32(body), body)


def decode(data: bytes) -> tuple[list[Record], int]:
    """All intact records, in order, and the number of damaged places."""
    records: list[Record] = []
    damaged, end = 0, 0
    for frame in _FRAME.finditer(data):
        record = _decode_frame(frame)
        if record is None:
            continue
        records.append(record)
        damaged += bool(data[end : frame.start()].strip())
        end = frame.end()
    return records, damaged + bool(data[end:].strip())


def _decode_frame(frame: re.Match[bytes]) -> Record | None:
    if zlib.crc32(frame.group(2)) != int(frame.group(1), 16):
        return None
    try:
        fields = json.loads(frame.group(2))
        kind = _TYPES[fields.pop("t")]
        record: Record = kind(**fields)
    except (ValueError, KeyError, TypeError):
        return None
    wanted = {n: int if t == "int" else str for n, t in kind.__annotations__.items()}
    return record if all(type(getattr(record, n)) is t for n, t in wanted.items()) else None


class Book:
    """The records that stand, after what was forgotten is taken out. The first of a thing is its
    old value."""

    def __init__(self) -> None:
        self.units: dict[tuple[str, str], int] = {}
        self.threads: dict[tuple[int, int], dict[tuple[int, int], ThreadRecord]] = {}
        self.damaged = 0

    def enter(self, record: Record) -> None:
        if isinstance(record, UnitRecord):
            self.units.setdefault((record.unit, record.property), record.old)
        elif isinstance(record, ThreadRecord):
            threads = self.threads.setdefault((record.pid, record.pid_start), {})
            threads[(record.tid, record.tid_start)] = record
        elif isinstance(record, UnitForgotten):
            self.units.pop((record.unit, record.property), None)
        elif isinstance(record, ProcessForgotten):
            self.threads.pop((record.pid, record.pid_start), None)
        else:
            self.damaged += record.places

    def standing(self) -> list[Record]:
        records: list[Record] = [Damage(self.damaged)] if self.damaged else []
        records += [UnitRecord(unit, name, old) for (unit, name), old in self.units.items()]
        for threads in self.threads.values():
            records += threads.values()
        return records


def read(path: str) -> Book | None:
    """The book in the file at ``path``; None when there is no such file or it can't be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(2 * MAXIMUM_BYTES)
    except OSError:
        return None
    book = Book()
    records, book.damaged = decode(data)
    for record in records:
        book.enter(record)
    return book


def write(path: str, book: Book) -> int:
    """Replaces the file with what stands in ``book``, atomically. Returns its size. Raises
    OSError."""
    data = b"".join(encode(r) for r in book.standing())
    new = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)  # noqa: PTH108 - beside os.open with its flags
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
    os.replace(new, path)  # noqa: PTH105
    return len(data)


class Ledger:
    """The daemon's ledger, open for appending. ``book`` is what stands in it.

    ``trouble`` is why the last change could not be recorded, "" when it could. ``missing`` tells
    that there was no file when it was opened.
    """

    def __init__(self, path: str = PATH, maximum_bytes: int = MAXIMUM_BYTES) -> None:
        self.path = path
        self.trouble = ""
        self._maximum = maximum_bytes
        self._fd = -1
        found = read(path)
        self.missing = found is None
        self.book = found if found is not None else Book()
        self._size = 0
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(self.path, flags, 0o600)
            self._size = os.fstat(self._fd).st_size
            self.trouble = ""
        except OSError as error:
            self.trouble = f"{self.path}: {error.strerror}"

    def add(self, records: Iterable[Record]) -> bool:
        """Writes the records; False when they are not on file, and then nothing may be changed."""
        new = list(records)
        data = b"".join(encode(r) for r in new)
        if self._fd < 0:
            self._open()
        if self._size + len(data) > self._maximum:
            self.compact()
            if self._size + len(data) > self._maximum:
                self.trouble = f"{self.path} is full ({self._size} bytes)"
                return False
        if not self._append(data):
            return False
        for record in new:
            self.book.enter(record)
        return True

    def _append(self, data: bytes) -> bool:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            self.trouble = f"{self.path}: {error.strerror}"
            return False
        self._size += written
        if written < len(data):
            self.trouble = f"{self.path}: no space left"
            return False
        self.trouble = ""
        return True

    def forget(self, records: Iterable[UnitForgotten | ProcessForgotten]) -> None:
        """Takes out what was given back or has gone. If it can't be written, release finds it
        gone."""
        gone = list(records)
        if gone and not self.add(gone):
            for record in gone:
                self.book.enter(record)
        nothing_stands = not self.book.units and not self.book.threads
        if self._size > _COMPACT_ABOVE or (nothing_stands and self._size):
            self._compact_if_worth_it()

    def _compact_if_worth_it(self) -> None:
        standing = len(self.book.standing())
        if standing * 200 < self._size // 2:  # a record's line is at most about 200 bytes
            self.compact()

    def compact(self) -> None:
        try:
            write(self.path, self.book)
        except OSError as error:
            self.trouble = f"{self.path}: {error.strerror}"
            return
        if self._fd >= 0:
            os.close(self._fd)
        self._open()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
