# SPDX-License-Identifier: Apache-2.0
"""The link against a real socket: no torch, no trainer."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from swift_governor_trainer import link as link_module
from swift_governor_trainer.link import Link, Mailbox
from swift_governor_trainer.report import Meter

from tests.trainer.governor import MOODS, NOTHING, Governor, eventually

REGISTRATION = {
    "rank": 0,
    "local_rank": 0,
    "world_size": 1,
    "local_world_size": 1,
    "micro_batch": 4,
    "accumulation": 2,
    "rows_per_step": 8,
    "framework": "ms-swift test",
    "cannot": {},
    "max_length": 512,
}


class Trainer:
    """What a training process has of the link: mailbox, meter, log."""

    def __init__(self, path: Path) -> None:
        self.mailbox = Mailbox(4)
        self.meter = Meter()
        self.said: list[str] = []
        self.link = Link(
            str(path), lambda: REGISTRATION, self.mailbox, self.meter, self.said.append
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "governor.sock"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(link_module, "LONGEST_DELAY_S", 0.05)
    monkeypatch.setattr(link_module, "ANSWER_DEADLINE_S", 2.0)


@pytest.fixture
def trainer(path: Path):
    trainer = Trainer(path)
    yield trainer
    trainer.link.finish()
    if trainer.link.ident is not None:
        trainer.link.join(20)
        assert not trainer.link.is_alive()


def test_it_registers_as_its_own_process_and_reports_what_was_done(path, trainer):
    with Governor(path) as governor:
        trainer.meter.fetched(time.monotonic() - 3.0, waited_s=1.0, rows=8)
        trainer.meter.finished_step(0)
        trainer.link.start()
        eventually(lambda: governor.registrations)
        trainer.meter.fetched(time.monotonic() - 3.0, waited_s=1.0, rows=8)
        trainer.meter.finished_step(1)
        report = eventually(lambda: [r for r in governor.reports if r["steps"]])[0]
        later = eventually(lambda: [r for r in governor.reports if r["at"] > report["at"]])[0]
    registration = governor.registrations[0]
    assert registration["pid"] == os.getpid()
    assert registration["protocol"] == 1
    assert {k: registration[k] for k in REGISTRATION} == REGISTRATION
    assert (report["steps"], report["samples"], report["wait_s"]) == (1, 8, 1.0)
    assert report["seconds"] >= 3.0
    assert (report["session"], report["optimizer_step"], report["phase"]) == ("s", 1, "train")
    assert (report["running_micro_batch"], report["answered"], report["refused"]) == (4, 0, None)
    assert (later["steps"], later["samples"], later["seconds"]) == (0, 0, 0)


def test_a_wish_is_answered_at_once_and_not_taken_twice(path, trainer):
    with Governor(path, lambda call: {"sequence": 7, "micro_batch": 2}, interval_s=60) as governor:
        trainer.link.start()
        wish = eventually(trainer.mailbox.unanswered)
        assert (wish.sequence, wish.micro_batch) == (7, 2)
        trainer.mailbox.answer(wish, 2)
        report = eventually(lambda: governor.reports)[0]
        assert (report["answered"], report["running_micro_batch"]) == (7, 2)
        assert trainer.mailbox.unanswered() is None


def test_a_refusal_says_why(path, trainer):
    with Governor(path, lambda call: {"sequence": 1, "micro_batch": 99}) as governor:
        trainer.link.start()
        trainer.mailbox.answer(eventually(trainer.mailbox.unanswered), 4, "8 rows a step")
        report = eventually(lambda: [r for r in governor.reports if r["answered"]])[0]
    assert (report["refused"], report["running_micro_batch"]) == ("8 rows a step", 4)


def test_after_a_restart_the_governor_counts_its_wishes_from_one_again(path, trainer):
    first = {"sequence": 1, "micro_batch": 2}
    with Governor(path, lambda call: first):
        trainer.link.start()
        trainer.mailbox.answer(eventually(trainer.mailbox.unanswered), 2)
    with Governor(path, lambda call: {"sequence": 1, "micro_batch": 8}) as governor:
        wish = eventually(trainer.mailbox.unanswered)
        assert wish.micro_batch == 8
        trainer.mailbox.answer(wish, 8)
        eventually(lambda: [r for r in governor.reports if r["running_micro_batch"] == 8])


def test_nobody_listening_is_said_once_and_joined_later(path, trainer):
    trainer.link.start()
    eventually(lambda: trainer.said)
    time.sleep(0.3)
    assert len(trainer.said) == 1
    assert "nobody listens" in trainer.said[0]
    with Governor(path) as governor:
        eventually(lambda: governor.registrations)


@pytest.mark.parametrize("mood", sorted(set(MOODS) - {"silence"}))
def test_an_answer_that_is_none_changes_nothing_and_the_next_governor_is_found(path, trainer, mood):
    with Governor(path, moods=[MOODS[mood]]) as governor:
        trainer.link.start()
        eventually(lambda: governor.registrations)
        assert governor.connections == 2
        assert trainer.mailbox.unanswered() is None
        assert trainer.mailbox.standing.running_micro_batch == 4
        assert "training goes on" in trainer.said[0]
        assert all(line.isprintable() and len(line) < 600 for line in trainer.said)


def test_silence_has_a_deadline(path, trainer, monkeypatch):
    monkeypatch.setattr(link_module, "ANSWER_DEADLINE_S", 0.2)
    with Governor(path, moods=[None]) as governor:
        trainer.link.start()
        eventually(lambda: governor.registrations)
    assert "no complete answer in time" in trainer.said[0]


def test_a_byte_now_and_then_does_not_keep_a_call_open(path, trainer, monkeypatch):
    monkeypatch.setattr(link_module, "ANSWER_DEADLINE_S", 0.3)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def drip() -> None:
        stream, _ = listener.accept()
        try:
            while True:
                stream.sendall(b" ")
                time.sleep(0.05)
        except OSError:
            listener.close()

    dripping = threading.Thread(target=drip)
    dripping.start()
    trainer.link.start()
    dripping.join(30)
    assert not dripping.is_alive()
    eventually(lambda: trainer.said)
    assert "no complete answer in time" in trainer.said[0]


@pytest.mark.parametrize(("told", "kept"), [(0.2, 0.2), (1e9, 2.0), (-1, 2.0), ("1", 2.0)])
def test_an_absurd_report_interval_is_not_taken(told, kept):
    assert link_module.interval_in({"report_interval_s": told}) == kept


def test_a_forked_child_does_not_keep_the_connection_open(path, trainer):
    with Governor(path) as governor:
        trainer.link.start()
        eventually(lambda: governor.registrations)
        own = f"socket:[{os.fstat(trainer.link._socket.fileno()).st_ino}]"
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, b"held" if own in _open_files() else b"free")
            os._exit(0)
        os.waitpid(child, 0)
        assert own in _open_files()
        assert os.read(reader, 4) == b"free"
        count = len(governor.reports)
        eventually(lambda: len(governor.reports) > count)
    os.close(reader)
    os.close(writer)


def _open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()))
    return found


def test_the_end_is_reported_and_waits_for_nobody(path, trainer):
    with Governor(path, interval_s=60) as governor:
        trainer.link.start()
        eventually(lambda: governor.registrations)
        trainer.meter.phase("end")
        began = time.monotonic()
        trainer.link.finish()
        assert time.monotonic() - began < 1
        eventually(lambda: [r for r in governor.reports if r["phase"] == "end"])
        trainer.link.join(20)
        assert not trainer.link.is_alive()


def test_out_of_memory_is_a_total_with_the_size_that_ran(path, trainer):
    with Governor(path, lambda call: NOTHING) as governor:
        trainer.link.start()
        trainer.meter.out_of_memory(8)
        trainer.meter.out_of_memory(4)
        first = eventually(lambda: [r for r in governor.reports if r["oom_count"] == 2])[0]
        eventually(lambda: governor.reports[-1]["at"] > first["at"])
        assert (governor.reports[-1]["oom_count"]) == 2
        assert governor.reports[-1]["last_oom_micro_batch"] == 4


def test_steps_are_timed_without_what_lies_between_them():
    meter = Meter()
    for step in (1, 2):
        meter.fetched(time.monotonic() - 1.0, waited_s=0.25, rows=8)
        meter.finished_step(step, "save")
        time.sleep(0.05)
    taken = meter.take()
    assert taken["phase"] == "save"
    assert (taken["steps"], taken["samples"], taken["wait_s"]) == (2, 16, 0.5)
    assert taken["seconds"] >= 2.0
