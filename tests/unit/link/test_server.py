# SPDX-License-Identifier: Apache-2.0
"""The socket against real clients: good ones, hostile ones, and ones without the right."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from gi.repository import GLib
from hypothesis import given
from hypothesis import strategies as st
from swift_governor.link.budgets import (
    BYTES_A_CALL,
    CALLS_KEPT,
    CALLS_OF_CONNECTION,
    CALLS_OF_USER,
    Budgets,
)
from swift_governor.link.client import LinkError, call
from swift_governor.link.fields import BadInputError, Field, check
from swift_governor.link.framing import LARGEST_MESSAGE_BYTES, BadFrameError, Decoder, encode
from swift_governor.link.methods import (
    INTERFACE,
    SERVICE,
    get_info,
    get_interface_description,
    not_found,
)
from swift_governor.link.server import Connection, Server

NOBODY = 65534


class Running:
    """A server with a handler or two, and what it was told."""

    def __init__(self, path: Path, sampler_uid: int | None = None) -> None:
        self.path = str(path)
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.refusals: list[tuple[str, str]] = []
        self.closed = 0
        names = ("Snapshot", "SetLoop", "Sample", "Register", "Report")
        handlers: dict[str, Any] = {f"{INTERFACE}.{n}": self._taker(n) for n in names}
        handlers[f"{INTERFACE}.SetMicroBatch"] = self._missing
        handlers[f"{SERVICE}.GetInfo"] = lambda _c, _p: get_info()
        handlers[f"{SERVICE}.GetInterfaceDescription"] = lambda _c, p: get_interface_description(
            p["interface"]
        )
        self.server = Server(
            self.path,
            handlers,
            sampler_uid,
            None,
            self._gone,
            lambda reason, text: self.refusals.append((reason, text)),
        )
        self.server.listen()
        self.loop = GLib.MainLoop()
        self.thread = threading.Thread(target=self.loop.run, daemon=True)
        self.thread.start()

    def _taker(self, name: str) -> Callable[[Connection, Mapping[str, Any]], Mapping[str, Any]]:
        def take(_connection: Connection, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
            self.calls.append((name, parameters))
            return {"snapshot": {"big": "x" * 300_000}} if name == "Snapshot" else {}

        return take

    def _missing(self, _connection: Connection, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        raise not_found(f"no job {parameters['job']}")

    def _gone(self, _connection: Connection) -> None:
        self.closed += 1

    def end(self) -> None:
        GLib.idle_add(self.server.close)
        GLib.idle_add(self.loop.quit)
        self.thread.join(30)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    tmp_path.chmod(0o755)
    made = Running(tmp_path / "governor.sock")
    yield made
    made.end()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited 30 s in vain"
        time.sleep(0.01)


def connect(running: Running) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(30)
    link.connect(running.path)
    return link


def test_a_large_answer_arrives_whole(running: Running) -> None:
    assert len(call("Snapshot", socket_path=running.path)["snapshot"]["big"]) == 300_000


def test_the_interface_describes_itself_as_varlink_asks(running: Running) -> None:
    info = call(f"{SERVICE}.GetInfo", socket_path=running.path)
    assert INTERFACE in info["interfaces"]
    for interface in info["interfaces"]:
        told = call(f"{SERVICE}.GetInterfaceDescription", {"interface": interface}, running.path)
        assert f"interface {interface}\n" in told["description"]


def test_an_unknown_method_is_an_error_and_the_connection_lives(running: Running) -> None:
    link = connect(running)
    for method in ("org.x.Y", 7, None, f"{INTERFACE}.Stop"):
        link.sendall(encode({"method": method}))
        assert json.loads(link.recv(65536)[:-1])["error"] == f"{SERVICE}.MethodNotFound"


def test_a_wrong_parameter_is_named_with_what_is_allowed(running: Running) -> None:
    with pytest.raises(LinkError) as caught:
        call("SetLoop", {"gpu": -1, "enabled": True}, running.path)
    assert caught.value.parameters == {"field": "gpu", "message": "must be 0 to 1024"}
    assert running.refusals[0][0] == "bad-input"


def test_a_handlers_own_error_reaches_the_caller(running: Running) -> None:
    with pytest.raises(LinkError) as caught:
        call("SetMicroBatch", {"job": "sft1x1", "micro_batch": 2}, running.path)
    assert caught.value.name == f"{INTERFACE}.NotFound"


def as_nobody(work: Callable[[], int]) -> int:
    """Runs ``work`` in a child of user nobody; its exit status."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            code = work()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_may_read_and_may_neither_change_nor_send_samples(running: Running) -> None:
    def work() -> int:
        call("Snapshot", socket_path=running.path)
        sample = {"status": "ok", "detail": "", "at": 1.0, "driver": "", "gpus": []}
        for method, parameters in (
            ("SetLoop", {"gpu": 0, "enabled": False}),
            ("SetMicroBatch", {"job": "x", "micro_batch": 1}),
            ("Sample", sample),
        ):
            try:
                call(method, parameters, running.path)
            except LinkError as error:
                if error.name != f"{INTERFACE}.NotAllowed":
                    return 2
            else:
                return 1
        return 0

    for part in (Path(running.path).parent, *Path(running.path).parent.parents):
        if part.stat().st_uid == 0 and str(part).startswith("/tmp/"):
            part.chmod(0o755)
    assert as_nobody(work) == 0
    assert {name for name, _ in running.calls} == {"Snapshot"}


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\n\r\n\0",
        b"\xff\xfe\x00",
        b"[1]\0",
        b'{"method"\0',
        b"[" * 100_000 + b"\0",
        b"x" * (LARGEST_MESSAGE_BYTES + 10),
    ],
)
def test_rubbish_costs_the_client_its_connection_and_nothing_else(
    running: Running, rubbish: bytes
) -> None:
    link = connect(running)
    link.sendall(rubbish)
    assert link.recv(10) == b""
    assert running.refusals[0][0] == "frame"
    assert call("Snapshot", socket_path=running.path)


def test_a_client_that_hangs_up_in_the_middle_is_forgotten(running: Running) -> None:
    link = connect(running)
    link.sendall(b'{"method": "org.swi')
    link.close()
    until(lambda: running.closed == 1)
    assert len(running.server) == 0


def test_a_client_that_never_reads_its_answers_is_let_go(running: Running) -> None:
    link = connect(running)
    request = encode({"method": f"{INTERFACE}.Snapshot"})
    link.settimeout(1)
    deadline = time.monotonic() + 60
    while not running.closed and time.monotonic() < deadline:
        try:
            link.sendall(request)
        except OSError:
            time.sleep(0.05)
    assert running.closed == 1
    assert "backlog" in {reason for reason, _ in running.refusals}


def test_a_flood_of_one_client_leaves_the_others_their_turn(running: Running) -> None:
    link = connect(running)
    link.setblocking(False)
    flood = encode({"method": f"{INTERFACE}.Nothing", "oneway": True}) * 200
    stop = threading.Event()

    def pour() -> None:
        while not stop.is_set():
            try:
                link.send(flood)
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:
                return

    thread = threading.Thread(target=pour, daemon=True)
    thread.start()
    for _ in range(20):
        assert call("Snapshot", socket_path=running.path, timeout_s=20)
    stop.set()
    thread.join(10)


def test_calls_that_arrive_together_are_not_all_answered_together(running: Running) -> None:
    link = connect(running)
    link.sendall(encode({"method": f"{INTERFACE}.Snapshot"}) * 1000)
    until(lambda: len(running.calls) > 0)
    assert call(f"{SERVICE}.GetInfo", socket_path=running.path)
    assert len(running.calls) < 500


def test_calls_that_had_to_wait_are_answered_in_the_end(running: Running) -> None:
    link = connect(running)
    calls = encode({"method": f"{INTERFACE}.Nothing"}) * (2 * CALLS_OF_CONNECTION)
    link.sendall(calls + encode({"method": f"{SERVICE}.GetInfo"}))
    answers = b""
    while b'"vendor"' not in answers:
        answers += link.recv(65536)
    assert answers.count(b"MethodNotFound") == 2 * CALLS_OF_CONNECTION


def test_more_connections_buy_a_user_no_more_time() -> None:
    budgets = Budgets()
    first, other = budgets.of_connection(1000), budgets.of_connection(1001)
    many = [budgets.of_connection(1000) for _ in range(100)]
    done = 0
    for budget in many:
        while not budget.spent:
            budget.spend_call()
            done += 1
    assert CALLS_OF_USER <= done <= CALLS_OF_USER + 100 * CALLS_KEPT
    assert not other.spent
    for _ in range(CALLS_KEPT):
        assert not first.spent
        first.spend_call()
    assert first.spent
    budgets.renew([(1000, first), (1001, other)])
    assert not first.spent


def test_a_large_answer_counts_for_many_calls_and_is_given_all_the_same() -> None:
    budget = Budgets().of_connection(0)
    assert not budget.spent
    budget.spend_bytes(BYTES_A_CALL * CALLS_OF_CONNECTION)
    assert budget.spent


def test_users_can_not_take_the_places_kept_for_the_system(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swift_governor.link import server

    monkeypatch.setattr(server, "MOST_CONNECTIONS", server.KEPT_FREE + 3)
    monkeypatch.setattr(server, "FIRST_PERSON", 0)
    people = [connect(running) for _ in range(4)]
    until(lambda: "connections" in {reason for reason, _ in running.refusals})
    monkeypatch.setattr(server, "FIRST_PERSON", 1000)
    assert call("Snapshot", socket_path=running.path)
    assert len(people) == 4


def test_a_oneway_call_is_not_answered(running: Running) -> None:
    link = connect(running)
    link.sendall(encode({"method": f"{INTERFACE}.SetLoop", "parameters": {}, "oneway": True}))
    link.sendall(encode({"method": f"{SERVICE}.GetInfo"}))
    assert b'"vendor"' in link.recv(65536)


def test_a_dead_predecessors_socket_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "governor.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    running = Running(path)
    assert call("Snapshot", socket_path=str(path))
    running.end()


@given(st.binary(max_size=400), st.integers(1, 50))
def test_framing_takes_any_bytes_in_any_pieces(data: bytes, size: int) -> None:
    decoder = Decoder()
    try:
        for start in range(0, len(data), size):
            for message in decoder.feed(data[start : start + size]):
                assert isinstance(message, dict)
    except BadFrameError:
        pass


@given(
    st.dictionaries(
        st.sampled_from(["a", "b"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
    ),
    st.sampled_from(["int", "float", "bool", "str", "ints", "strs", "objects"]),
)
def test_any_json_either_fits_a_field_or_is_refused_by_name(
    parameters: dict[str, Any], kind: str
) -> None:
    table = (Field("a", kind, 0, 100),)
    refused = ""
    try:
        value = check(table, parameters)["a"]
    except BadInputError as error:
        refused, value = error.field, None
    assert (value is not None) != (refused == "a")
