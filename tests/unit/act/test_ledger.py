# SPDX-License-Identifier: Apache-2.0
"""The ledger keeps what can be kept, whatever happened to its file."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swift_governor.act import ledger as books
from swift_governor.act.ledger import (
    Damage,
    Ledger,
    ProcessForgotten,
    ThreadRecord,
    UnitForgotten,
    UnitRecord,
    decode,
    encode,
)

NUMBERS = st.integers(min_value=0, max_value=2**64 - 1)
UNITS = st.builds(UnitRecord, st.text(max_size=40), st.sampled_from(("CPUWeight",)), NUMBERS)
THREADS = st.builds(ThreadRecord, *[NUMBERS] * 4, st.text(max_size=20), *[NUMBERS] * 4)
FILES = st.lists(st.one_of(UNITS, THREADS), min_size=1, max_size=6)


def thread(tid: int = 8, nice: int = 0, set_nice: int = 15) -> ThreadRecord:
    return ThreadRecord(7, 70, tid, 70 + tid, "sft7x1", nice, 0, set_nice, 3 << 13)


@given(FILES, st.data())
def test_one_wrong_byte_costs_the_record_it_is_in_and_no_other(records, data) -> None:
    lines = [encode(r) for r in records]
    written = [decode(line)[0][0] for line in lines]
    whole = bytearray(b"".join(lines))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    found, damaged = decode(bytes(whole))
    start = 0
    expected = []
    for line, record in zip(lines, written):
        # A record is intact when its own bytes are; the line end after it is not part of it.
        if not start <= place < start + len(line) - 1:
            expected.append(record)
        start += len(line)
    assert found == expected
    assert damaged or len(found) == len(records)


@given(FILES, st.data())
def test_a_torn_file_keeps_every_whole_record(records, data) -> None:
    lines = [encode(r) for r in records]
    whole = b"".join(lines)
    end = data.draw(st.integers(0, len(whole)))
    found, _damaged = decode(whole[:end])
    ends = [sum(map(len, lines[: n + 1])) - 1 for n in range(len(lines))]
    assert len(found) == sum(e <= end for e in ends)


@given(st.binary(max_size=400))
def test_any_bytes_at_all_can_be_read(data: bytes) -> None:
    found, damaged = decode(data)
    assert found == []
    assert bool(damaged) == bool(data.strip())


def test_a_forged_type_is_damage_and_not_a_crash() -> None:
    import zlib

    for body in (b'{"t":"unit","unit":1,"property":"x","old":3}', b'{"t":"odd"}', b'{"t":"unit"}'):
        assert decode(b'{"crc":"%08x","record":%s}\n' % (zlib.crc32(body), body)) == ([], 1)


def test_what_was_added_is_there_after_a_restart(tmp_path) -> None:
    path = str(tmp_path / "ledger.jsonl")
    first = Ledger(path)
    assert first.missing
    assert first.add([UnitRecord("msswift.slice", "CPUWeight", 100), thread()])
    again = Ledger(path)
    assert not again.missing
    assert again.book.units == {("msswift.slice", "CPUWeight"): 100}
    assert again.book.threads == {(7, 70): {(8, 78): thread()}}
    assert stat.S_IMODE((tmp_path / "ledger.jsonl").stat().st_mode) == 0o600


def test_the_first_old_value_of_a_property_is_the_one_that_stays(tmp_path) -> None:
    path = str(tmp_path / "ledger.jsonl")
    ledger = Ledger(path)
    ledger.add([UnitRecord("msswift.slice", "CPUWeight", 100)])
    ledger.add([UnitRecord("msswift.slice", "CPUWeight", 30)])
    assert Ledger(path).book.units == {("msswift.slice", "CPUWeight"): 100}


def test_appending_after_a_torn_line_loses_nothing_new(tmp_path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(encode(thread())[:-20])
    ledger = Ledger(str(path))
    assert ledger.book.damaged == 1
    ledger.add([UnitRecord("msswift.slice", "CPUWeight", 100)])
    assert Ledger(str(path)).book.units == {("msswift.slice", "CPUWeight"): 100}


def test_damage_is_remembered_through_compaction(tmp_path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"rubbish\n" + encode(thread()))
    ledger = Ledger(str(path))
    ledger.compact()
    found, damaged = decode(path.read_bytes())
    assert (found, damaged) == ([Damage(1), thread()], 0)
    assert Ledger(str(path)).book.damaged == 1


def test_a_ledger_without_anything_standing_becomes_an_empty_file(tmp_path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(str(path))
    ledger.add([UnitRecord("msswift.slice", "CPUWeight", 100), thread()])
    ledger.forget([UnitForgotten("msswift.slice", "CPUWeight"), ProcessForgotten(7, 70)])
    assert path.read_bytes() == b""
    assert ledger.add([thread()])
    assert Ledger(str(path)).book.threads


def test_it_stays_small_however_often_values_change(tmp_path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(str(path))
    ledger.add([UnitRecord("msswift.slice", "CPUWeight", 100)])
    for n in range(3000):
        ledger.add([thread(tid=n)])
        if n % 100 == 99:
            ledger.forget([ProcessForgotten(7, 70)])
    assert path.stat().st_size < 300_000
    assert Ledger(str(path)).book.units


def test_a_full_ledger_refuses_so_that_nothing_is_changed_unrecorded(tmp_path) -> None:
    ledger = Ledger(str(tmp_path / "ledger.jsonl"), maximum_bytes=500)
    added = [ledger.add([thread(tid=n)]) for n in range(5)]
    assert added[0]
    assert not added[-1]
    assert "full" in ledger.trouble
    assert len(ledger.book.threads[(7, 70)]) == sum(added)


def test_a_ledger_that_cannot_be_opened_refuses_and_says_why(tmp_path) -> None:
    target = tmp_path / "elsewhere"
    (tmp_path / "ledger.jsonl").symlink_to(target)
    ledger = Ledger(str(tmp_path / "ledger.jsonl"))
    assert not ledger.add([thread()])
    assert "ledger.jsonl" in ledger.trouble
    assert not target.exists()


def test_a_missing_file_reads_as_nothing_known(tmp_path) -> None:
    assert books.read(str(tmp_path / "none")) is None


@pytest.mark.parametrize("text", ["a{b}c", "line\nend", "\u2028 \udcff"])
def test_texts_that_would_break_the_frame_are_written_harmless(text: str) -> None:
    found, damaged = decode(encode(UnitRecord(text, "CPUWeight", 1)))
    assert (len(found), damaged) == (1, 0)
