# SPDX-License-Identifier: Apache-2.0
"""The journal against a real datagram socket, read back as journald would."""

from __future__ import annotations

import os
import socket
import struct

import pytest
from swift_governor.model import Note, Severity
from swift_governor.report.conditions import Conditions
from swift_governor.report.journal import Journal, entry
from swift_governor.report.journal_socket import JournalSocket, Sent, encode, write_line


def parse(datagram: bytes) -> dict[str, str]:
    """Reads the native protocol as its specification says."""
    fields = {}
    while datagram:
        name, sep, rest = datagram.partition(b"\n")
        if b"=" in name:
            key, _, value = name.partition(b"=")
            datagram = rest
        else:
            key = name
            (size,) = struct.unpack("<Q", rest[:8])
            value, datagram = rest[8 : 8 + size], rest[8 + size + 1 :]
            assert rest[8 + size : 9 + size] == b"\n"
        assert sep == b"\n"
        fields[key.decode("ascii")] = value.decode("utf-8")
    return fields


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def receiver(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "journal"))
        end.settimeout(20)
        yield end


@pytest.fixture
def journal(tmp_path, receiver):
    return Journal(socket=JournalSocket(str(tmp_path / "journal")), clock=Clock(), wall=lambda: 5.0)


def drain(end) -> list[dict[str, str]]:
    end.setblocking(False)
    got = []
    while True:
        try:
            got.append(parse(end.recv(1 << 20)))
        except BlockingIOError:
            return got


def test_an_entry_carries_its_structured_fields(journal, receiver):
    note = Note(
        "quota-moved",
        "sft1",
        "quota 3 → 4 cores",
        Severity.NOTICE,
        remedy="first\nsecond",
        fields={"job": "sft1", "gpu": "0", "unit": "a.scope", "odd name!": "x"},
    )
    assert journal.tell(note)
    fields = parse(receiver.recv(1 << 20))
    assert fields == {
        "MESSAGE": "sft1: quota 3 → 4 cores",
        "PRIORITY": "5",
        "SYSLOG_IDENTIFIER": "swift-governor",
        "SWIFT_GOVERNOR_KIND": "quota-moved",
        "SWIFT_GOVERNOR_SUBJECT": "sft1",
        "SWIFT_GOVERNOR_REMEDY": "first\nsecond",
        "SWIFT_GOVERNOR_JOB": "sft1",
        "SWIFT_GOVERNOR_GPU": "0",
        "SWIFT_GOVERNOR_UNIT": "a.scope",
        "SWIFT_GOVERNOR_ODD_NAME_": "x",
    }


def test_hostile_text_forges_no_field_and_moves_no_cursor(journal, receiver):
    hostile = "a\nPRIORITY=0\x1b[2J\x00\u202e\udcff" + "é" * 20_000
    journal.tell(Note(hostile, hostile, hostile, fields={"job": hostile, "": hostile}))
    fields = parse(receiver.recv(1 << 20))
    assert fields["PRIORITY"] == "6"
    assert fields["SWIFT_GOVERNOR_JOB"].startswith("a\\x0aPRIORITY=0\\x1b[2J\\x00\\u202e\\xff")
    assert all(value.isprintable() for value in fields.values())


def test_long_and_many_fields_are_cut_to_what_a_datagram_takes():
    datagram = encode({f"NAME{i}": "é" * 100_000 for i in range(500)})
    fields = parse(datagram)
    assert len(datagram) < 100_000
    assert len(fields) == 40
    assert set(fields["NAME0"]) == {"é"}


def test_without_a_journal_an_entry_is_a_line_on_stderr(tmp_path):
    lines = []
    journal = Journal(
        socket=JournalSocket(str(tmp_path / "none")), line=lambda text: not lines.append(text)
    )
    journal.tell(Note("k", "s", "it broke", Severity.ERROR, remedy="mend it"))
    assert lines == ["swift-governor: error: s: it broke [mend it]"]


def test_a_full_stderr_loses_the_line_and_blocks_nobody():
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with open(ours, "rb"), open(theirs, "w") as stream:
        with pytest.raises(BlockingIOError):
            while True:
                os.write(theirs, b"x" * 4096)
        os.set_blocking(theirs, True)
        assert not write_line("text", stream)


def test_a_stuck_journal_blocks_nobody_and_the_loss_is_told_when_it_recovers(journal, receiver):
    told = 0
    while not journal.lost_total:
        journal.tell(Note(f"kind{told}", "s", "x" * 4000))
        told += 1
        assert told < 100_000
    drain(receiver)
    journal.tell(Note("after", "s", "again"))
    kinds = [fields["SWIFT_GOVERNOR_KIND"] for fields in drain(receiver)]
    assert kinds == ["after", "journal-lost"]


def test_a_journal_that_starts_late_is_found(tmp_path):
    sender = JournalSocket(str(tmp_path / "late"))
    assert sender.send({"MESSAGE": "1"}) is Sent.NO_JOURNAL
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "late"))
        assert sender.send({"MESSAGE": "2"}) is Sent.OK


def test_a_condition_is_told_once_and_once_when_it_has_gone(tmp_path, receiver):
    journal = Journal(
        socket=JournalSocket(str(tmp_path / "journal")), conditions=Conditions(forget_ticks=3)
    )
    note = Note("sampler", "gpu", "no reading", Severity.WARNING, key="stale")
    assert [journal.tell(note), journal.tell(note)] == [True, False]
    for _ in range(50):
        journal.tell(note)
        journal.end_tick()
    assert len(drain(receiver)) == 1
    for _ in range(3):
        journal.end_tick()
    gone = drain(receiver)
    assert [f["MESSAGE"] for f in gone] == ["gpu: over: no reading"]
    assert gone[0]["PRIORITY"] == "6"
    assert journal.tell(note)


def test_clearing_tells_a_warning_gone_and_lets_it_be_told_again(journal, receiver):
    note = Note("k", "s", "m", Severity.WARNING, key="x")
    quiet = Note("k", "s", "m", Severity.INFO, key="y")
    journal.tell(note)
    journal.tell(quiet)
    journal.clear("k", "s", "x")
    journal.clear("k", "s", "y")
    journal.clear("never", "told", "this")
    assert [f["MESSAGE"] for f in drain(receiver)] == ["s: m", "s: m", "s: over: m"]
    assert journal.tell(note)


def test_notes_without_a_key_are_told_each_time(journal, receiver):
    for _ in range(3):
        assert journal.tell(Note("moved", "s", "m"))
    assert len(drain(receiver)) == 3
    assert journal.counts == {"moved": 3}


def test_a_flood_is_held_back_and_summed_up_without_silencing_other_kinds(tmp_path, receiver):
    clock = Clock()
    journal = Journal(
        socket=JournalSocket(str(tmp_path / "journal")), clock=clock, entries_a_minute=5
    )
    told = sum(journal.tell(Note("refused", f"c{i}", "m", key=f"k{i}")) for i in range(10_000))
    assert told == 5
    assert journal.tell(Note("placed", "s", "m"))
    drain(receiver)
    clock.now += 61
    journal.end_tick()
    (summary,) = drain(receiver)
    assert summary["SWIFT_GOVERNOR_KIND"] == "held-back"
    assert "9995 more entries of kind refused" in summary["MESSAGE"]
    assert journal.tell(Note("refused", "c", "m", key="new"))


def test_a_condition_held_back_in_a_flood_is_told_when_there_is_room(tmp_path, receiver):
    clock = Clock()
    journal = Journal(
        socket=JournalSocket(str(tmp_path / "journal")), clock=clock, entries_a_minute=1
    )
    lasting = Note("k", "lasting", "m", key="x")
    journal.tell(Note("k", "first", "m"))
    assert not journal.tell(lasting)
    assert not journal.tell(lasting)
    clock.now += 61
    journal.end_tick()
    assert "1 more entries" in drain(receiver)[-1]["MESSAGE"]
    assert journal.tell(lasting)


def test_memory_is_bounded_under_made_up_subjects_and_kinds(tmp_path):
    conditions = Conditions(most_of_a_kind=100)
    journal = Journal(
        socket=JournalSocket(str(tmp_path / "none")), line=lambda _: True, conditions=conditions
    )
    lasting = Note("other", "s", "m", key="k")
    journal.tell(lasting)
    for i in range(5000):
        journal.tell(Note("refused", f"client{i}", "m", key="k"))
        journal.tell(Note(f"kind{i}", "s", "m"))
    assert len(conditions) == 101
    assert len(journal.recent) == 200
    assert len(journal.counts) < 200
    assert not journal.tell(lasting)


def test_the_subject_is_not_said_twice():
    assert entry(Note("k", "sft1", "sft1 moved"))["MESSAGE"] == "sft1 moved"
