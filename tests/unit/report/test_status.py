# SPDX-License-Identifier: Apache-2.0
"""The status command: one screen of 80 columns, and a remedy where there is nothing to show."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re

import pytest
from swift_governor.cli import status
from swift_governor.cli.columns import fit, ranges, width
from swift_governor.cli.status_screen import Paint, screen
from swift_governor.model import Constraint
from swift_governor.report import snapshot
from swift_governor.report.words import HELD_BY

from tests.unit.exporter.governor import Governor
from tests.unit.report.examples import NOW, node

GOLDEN = """\
swift-governor 0.1.0 on gpu07: enforce, up 1 d 0 h
pressure: CPU 12%, memory 0%, I/O 2%
GPU sampler: ok, read 0.5 s ago
not done: msswift-x.scope: No such unit

JOBS 3
JOB             USER   TIER       GPU  CORES  BATCH  WAIT  HELD BY
deploy4711x8k0  alice  inference  0      –/4      –     –  moving freely
sft4811x8k1     bob    training   1    3.4/4    4→8    3%  in its band
sft4911x8k2     alice  training   0      –/4      –     –  observed only

GPUS 2
GPU  NAME  BUSY     GIB  TEMP  POWER  MEAN  TARGET  HELD BY
  0  H200   93%  61/141   64°  512 W   92%  95%±3   moving freely
  1  H200   93%  61/141   64°  512 W   92%  95%±3   in its band

TIERS
inference   jobs 1, processes 6
training    jobs 2, processes 12
evaluation  jobs 0, processes 0
left where they are: 1 (see --json)

RECENT
HH:MM:SS sft4811x8k1: a job of alice was found: swift sft
HH:MM:SS sft4811x8k1: quota 3 → 4 cores
HH:MM:SS client: a message was not JSON
         see journalctl -u swift-governor"""


def told(**example) -> dict:
    return snapshot.make(*node(**example))


def run(path, as_json=False) -> int:
    return status.run(argparse.Namespace(json=as_json, socket=str(path)))


@pytest.fixture
def governor(tmp_path):
    listening = Governor(tmp_path / "governor.sock")
    yield listening
    listening.close()


def test_the_screen_is_this():
    shown = screen(told(), Paint(False))
    assert re.sub(r"(?m)^\d\d:\d\d:\d\d", "HH:MM:SS", shown) == GOLDEN


def test_8_gpus_and_30_jobs_of_users_with_wide_names_stay_within_80_columns():
    users = ("alice", "李小龍研究室研究生", "e\u0301" * 40, "ev\x1b[2Jil", "x" * 60)
    tick = node(jobs=30, gpus=8, users=users)
    jobs = tuple(dataclasses.replace(s, gpus=(0, 1, 2, 5, 7)) for s in tick.decision.jobs)
    tick = tick._replace(decision=dataclasses.replace(tick.decision, jobs=jobs))
    data = snapshot.make(*tick)
    for index, job in enumerate(data["jobs"]):
        job["name"] = f"megatron{4194304 - index}xzzzzzz"
        job["micro_batch"] = {"running": 128, "wished": 256, "reason": ""}
    lines = screen(data, Paint(False)).split("\n")
    assert max(width(line) for line in lines) <= 80
    assert "\x1b" not in "".join(lines)
    rows = lines[lines.index("JOBS 30") + 2 :][:30]
    assert len({width(row[: row.index(" 0-2")]) for row in rows if " 0-2" in row}) == 1
    assert "李小龍" in "".join(rows)


def test_every_constraint_has_words():
    assert set(HELD_BY) == {constraint.value for constraint in Constraint}


def test_a_node_with_nothing_on_it_says_so():
    tick = node(jobs=0, gpus=0)
    late = dataclasses.replace(tick.snapshot, now=NOW + 100)
    shown = screen(snapshot.make(*tick._replace(snapshot=late)), Paint(False))
    assert "none: nothing here looks like ms-swift" in shown
    assert "GPU sampler: stale" in shown


def test_colour_is_only_paint(monkeypatch):
    plain, painted = screen(told(), Paint(False)), screen(told(), Paint(True))
    assert "\033[" in painted
    assert re.sub(r"\033\[\d+m", "", painted) == plain


def test_status_shows_the_snapshot_and_json_is_the_whole_of_it(governor, capsys):
    governor.snapshot = told()
    assert run(governor.path) == 0
    shown = capsys.readouterr().out
    assert "\033[" not in shown, "no colour where it is no terminal"
    assert "sft4811x8k1" in shown
    assert run(governor.path, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == governor.snapshot


def test_a_governor_that_is_not_running_is_exit_3_with_the_command_to_start_it(tmp_path, capsys):
    assert run(tmp_path / "none.sock") == 3
    assert "systemctl start swift-governor" in capsys.readouterr().err


@pytest.mark.parametrize(
    "raw", [b"", b"\0", b'{"parameters": {"snapshot": {"schema": 1}}}\0', b"{}\0"]
)
def test_nonsense_is_exit_1_and_one_line(governor, capsys, raw):
    governor.raw = raw
    assert run(governor.path) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_hung_governor_is_exit_1_and_says_where_to_look(governor, capsys, monkeypatch):
    monkeypatch.setattr(status, "DEADLINE_S", 0.2)
    governor.hang = True
    assert run(governor.path) == 1
    assert "journalctl -u swift-governor" in capsys.readouterr().err


def test_columns_are_cut_by_cells_not_by_characters():
    assert fit("李小龍", 4) == "李… "
    assert width(fit("李小龍", 4)) == 4
    assert fit("ab", 4, right=True) == "  ab"
    assert ranges([3, 0, 1, 2, 6]) == "0-3,6"
