# SPDX-License-Identifier: Apache-2.0
"""One-shot calls over a real socket: results, the governor's errors, and every way to get none."""

from __future__ import annotations

import json
import os
import socket
import threading

import pytest
from swift_governor.link import client

_KEPT: list[socket.socket] = []


def served(path, reply: bytes, pieces: int = 1, keep_open: bool = False) -> list[bytes]:
    """Answers one call with ``reply`` in so many pieces; the list gets the request."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    requests: list[bytes] = []

    def serve() -> None:
        link, _ = listener.accept()
        requests.append(link.recv(65536))
        size = max(1, len(reply) // pieces)
        for start in range(0, len(reply), size):
            link.sendall(reply[start : start + size])
        if keep_open:
            _KEPT.append(link)
        else:
            link.close()
        listener.close()

    threading.Thread(target=serve, daemon=True).start()
    return requests


def test_a_call_sends_varlink_and_returns_the_parameters(tmp_path):
    requests = served(tmp_path / "s", b'{"parameters": {"a": [1]}}\0', pieces=7)
    assert client.call("SetLoop", {"gpu": 0}, str(tmp_path / "s")) == {"a": [1]}
    assert requests[0].endswith(b"\0")
    assert json.loads(requests[0][:-1]) == {
        "method": "org.swiftgovernor.Governor.SetLoop",
        "parameters": {"gpu": 0},
    }


def test_another_interfaces_method_keeps_its_name(tmp_path):
    requests = served(tmp_path / "s", b"{}\0")
    assert client.call("org.varlink.service.GetInfo", socket_path=str(tmp_path / "s")) == {}
    assert b'"org.varlink.service.GetInfo"' in requests[0]


def test_the_governors_error_comes_with_its_name_and_parameters(tmp_path):
    reply = {"error": "org.swiftgovernor.Governor.BadInput", "parameters": {"message": "no gpu 9"}}
    served(tmp_path / "s", json.dumps(reply).encode() + b"\0")
    with pytest.raises(client.LinkError, match="no gpu 9") as caught:
        client.call("SetLoop", {}, str(tmp_path / "s"))
    assert caught.value.reason == client.ERROR
    assert caught.value.name.endswith(".BadInput")
    assert caught.value.parameters == {"message": "no gpu 9"}


@pytest.mark.parametrize(
    "reply", [b"", b'{"parameters"', b"nonsense\0", b"[]\0", b"[" * 100_000 + b"\0"]
)
def test_what_is_not_varlink_is_broken(tmp_path, reply):
    served(tmp_path / "s", reply)
    with pytest.raises(client.LinkError) as caught:
        client.call("Snapshot", {}, str(tmp_path / "s"), 30)
    assert caught.value.reason == client.BROKEN


def test_a_reply_without_end_is_broken_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "LARGEST_REPLY_BYTES", 1000)
    served(tmp_path / "s", b"x" * 100_000)
    with pytest.raises(client.LinkError, match="larger") as caught:
        client.call("Snapshot", {}, str(tmp_path / "s"), 30)
    assert caught.value.reason == client.BROKEN


def test_nobody_there_is_absent(tmp_path):
    with pytest.raises(client.LinkError) as caught:
        client.call("Snapshot", {}, str(tmp_path / "none"))
    assert caught.value.reason == client.ABSENT
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    with pytest.raises(client.LinkError) as caught:
        client.call("Snapshot", {}, str(tmp_path / "dead"))
    assert caught.value.reason == client.ABSENT


def test_an_answer_that_does_not_end_is_a_timeout(tmp_path):
    served(tmp_path / "s", b'{"parameters"', keep_open=True)
    with pytest.raises(client.LinkError) as caught:
        client.call("Snapshot", {}, str(tmp_path / "s"), 0.3)
    assert caught.value.reason == client.TIMEOUT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop to a user without access")
def test_no_access_to_the_socket_is_denied(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        (tmp_path / "s").chmod(0o600)
        tmp_path.chmod(0o755)
        child = os.fork()
        if child == 0:
            reason = ""
            try:
                os.chdir(tmp_path)
                os.setgroups([])
                os.setresuid(65534, 65534, 65534)
                client.call("Snapshot", {}, "s")
            except client.LinkError as error:
                reason = error.reason
            finally:
                os._exit(0 if reason == client.DENIED else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
