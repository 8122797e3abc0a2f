# SPDX-License-Identifier: Apache-2.0
"""The adapter on a real bus (dbus-daemon): deadlines, errors as values, signals by path,
reconnection."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gi.repository import GLib
from swift_governor.act import dbus_table, systemd
from swift_governor.act.calls import Call, Reply
from swift_governor.act.systemd import Systemd
from swift_governor.act.units import ForbiddenError

STAND_IN = Path(__file__).with_name("bus_stand_in.py")
SLICE = "msswift-training-u1-j.slice"


def until(condition: Callable[[], object], deadline_s: float = 30.0) -> None:
    """Turns the main loop until the condition holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        if not GLib.MainContext.default().iteration(False):
            time.sleep(0.005)


def answer(call: Call) -> Reply:
    replies: list[Reply] = []
    call(replies.append)
    until(lambda: replies)
    return replies[0]


class Bus:
    def __init__(self, directory: Path) -> None:
        self.address = f"unix:path={directory}/bus"
        self.programs: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        daemon = ["dbus-daemon", "--session", "--nofork", f"--address={self.address}"]
        self.programs = [subprocess.Popen(daemon, stderr=subprocess.DEVNULL)]
        until(lambda: Path(self.address.split("=")[1]).exists())
        self.programs.append(subprocess.Popen([sys.executable, str(STAND_IN), self.address]))

    def stop(self) -> None:
        for program in reversed(self.programs):
            program.kill()
            program.wait()
        Path(self.address.split("=")[1]).unlink(missing_ok=True)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    bus.start()
    yield bus
    bus.stop()


@pytest.fixture
def manager(bus: Bus) -> Iterator[Systemd]:
    manager = Systemd(address=bus.address)
    manager.connect()
    until(lambda: manager.connected)
    yield manager
    manager.close()


def start(manager: Systemd, word: str) -> Call:
    return manager.start_scope(f"msswift-{word}-main.scope", {"Slice": SLICE, "PIDs": [1]}, {})


def test_the_version_is_known_when_it_is_connected(manager) -> None:
    assert manager.version == 257


def test_a_job_that_ends_after_the_reply_is_waited_for(manager) -> None:
    assert answer(start(manager, "late")) == Reply(value="done")


def test_a_job_that_ends_before_the_reply_is_not_missed(manager) -> None:
    assert answer(start(manager, "early")) == Reply(value="done")


def test_the_job_of_a_parent_slice_is_not_taken_for_ours(manager) -> None:
    # Before each of its replies the stand-in ends a slice's job with "failed".
    assert [answer(start(manager, "late")).ok for _ in range(3)] == [True] * 3


def test_a_job_that_failed_says_so(manager) -> None:
    assert answer(start(manager, "failing")) == Reply(error="JobFailed", message="failed")


def test_a_remote_error_is_a_value_with_its_short_name(manager) -> None:
    reply = answer(start(manager, "exists"))
    assert (reply.error, reply.message) == ("UnitExists", "msswift-exists-main.scope exists")


def test_a_call_without_an_answer_ends_by_its_deadline(manager, monkeypatch) -> None:
    quick = dataclasses.replace(dbus_table.SET_UNIT_PROPERTIES, deadline_ms=200)
    monkeypatch.setattr(dbus_table, "SET_UNIT_PROPERTIES", quick)
    assert (
        answer(manager.set_properties("msswift-silent.slice", {"CPUWeight": 1})).error == "Timeout"
    )


def test_a_job_that_never_ends_is_given_up(manager, monkeypatch) -> None:
    monkeypatch.setattr(systemd, "_JOB_DEADLINE_MS", 200)
    assert answer(start(manager, "stuck")).error == "Timeout"


def test_each_reload_is_told(manager) -> None:
    told: list[bool] = []
    manager.reloaded = lambda: told.append(True)
    answer(manager.set_properties("msswift-reload.slice", {"CPUWeight": 1}))
    until(lambda: told)


def test_a_lost_bus_answers_what_waits_and_comes_back_by_itself(bus, manager) -> None:
    replies: list[Reply] = []
    start(manager, "stuck")(replies.append)
    until(lambda: manager._waiting)
    bus.stop()
    until(lambda: replies)
    assert replies[0].error == "Disconnected"
    until(lambda: not manager.connected)
    assert answer(manager.get_unit("msswift.slice")).error == "Disconnected"
    bus.start()
    until(lambda: manager.connected)
    assert answer(start(manager, "late")).ok


def test_systemd_that_is_not_there_yet_is_waited_for(bus) -> None:
    bus.programs[1].kill()
    bus.programs[1].wait()
    manager = Systemd(address=bus.address)
    manager.connect()
    until(lambda: manager._bus is not None)
    assert not manager.connected
    bus.programs[1] = subprocess.Popen([sys.executable, str(STAND_IN), bus.address])
    until(lambda: manager.connected)
    manager.close()


def test_what_is_outside_the_list_raises_before_anything_is_sent() -> None:
    manager = Systemd()  # not connected: had it been sent, it would be a value
    for bad in (
        lambda: manager.set_properties("ssh.service", {"CPUWeight": 1}),
        lambda: manager.set_properties("msswift.slice", {"ExecStart": "x"}),
        lambda: manager.attach("user.slice", [1]),
        lambda: manager.attach("msswift-training.slice", [1]),
        lambda: manager.get_unit("dbus.service"),
        lambda: manager.get_property("msswift.slice", "/x", "ExecMainPID"),
        lambda: manager.start_scope("x.scope", {"Slice": SLICE}, {}),
        lambda: manager.start_scope("msswift-a-b.scope", {"Slice": "user.slice"}, {}),
        lambda: manager.start_scope("msswift-a-b.scope", {"Slice": SLICE}, {"user.slice": {}}),
    ):
        with pytest.raises(ForbiddenError):
            bad()
