# SPDX-License-Identifier: Apache-2.0
"""A small governor for tests of the trainer's side: Varlink on a real Unix socket, nothing else.

It keeps what it was told, wishes what ``wish`` returns for a call's parameters (Register's or
Report's), and can be given moods, one for each connection, in which it is no governor at all.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

PREFIX = "org.swiftgovernor.Governor."
NOTHING: dict[str, Any] = {"sequence": 0, "micro_batch": None}


def reply(**parameters: Any) -> bytes:
    return json.dumps({"parameters": parameters}).encode() + b"\0"


REGISTERED: dict[str, Any] = {"session": "s", "job": None, "report_interval_s": 0.2}


def wishing(sequence: Any, micro_batch: Any) -> bytes:
    return reply(**REGISTERED, wish={"sequence": sequence, "micro_batch": micro_batch})


# What a hostile or broken governor answers to the first call; None: nothing, and it stays silent.
MOODS: dict[str, bytes | None] = {
    "garbage": bytes(range(255, 0, -1)) + b"\0",
    "not UTF-8": b'{"parameters": {"session": "\xff\xfe"}}\0',
    "half a message": b'{"parameters": {"sess',
    "no object": b"[1, 2, 3]\0",
    "parameters that are none": b'{"parameters": 7}\0',
    "deep": b"[" * 60_000 + b"\0",
    "endless": b"x" * 200_000,
    "two answers": wishing(1, 2) + wishing(2, 4),
    "empty": b"\0",
    "error": b'{"error": "org.swiftgovernor.Governor.BadInput", "parameters": {"field": "rank"}}\0',
    "error that is no text": b'{"error": {"a": [1]}}\0',
    "no session": reply(wish=NOTHING),
    "huge session": reply(session="s" * 5000, wish=NOTHING),
    "no wish": reply(**REGISTERED),
    "wish of text": reply(**REGISTERED, wish="2"),
    "negative sequence": wishing(-1, 2),
    "sequence of text": wishing("1", 2),
    "truth as a number": wishing(True, 2),
    "micro-batch of text": wishing(1, "2"),
    "micro-batch and a half": wishing(1, 2.5),
    "a number nobody has": b'{"parameters": {"session": "s", "report_interval_s": NaN, "wish": '
    b'{"sequence": 1, "micro_batch": 1' + b"0" * 5000 + b"}}}\0",
    "closing": b"",
    "silence": None,
}


@dataclass
class Governor:
    """``with Governor(path) as governor:``; it listens until the block ends."""

    path: Path
    wish: Callable[[dict[str, Any]], dict[str, Any]] = lambda call: NOTHING
    interval_s: float = 0.2
    moods: list[bytes | None] = field(default_factory=list)
    registrations: list[dict[str, Any]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    open: int = 0

    def __enter__(self) -> Governor:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._streams: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for stream in [self._listener, *self._streams]:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            stream.close()
        self.path.unlink()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            self._streams.append(stream)
            self.connections += 1
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        mood = self.moods.pop(0) if self.moods else b"good"
        credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", credentials)[0]
        self.open += 1
        with contextlib.suppress(OSError):
            buffer = b""
            while True:
                piece = stream.recv(65536)
                if not piece:
                    break
                buffer += piece
                while b"\0" in buffer:
                    message, _, buffer = buffer.partition(b"\0")
                    call = json.loads(message)
                    if mood is None:
                        continue
                    if mood != b"good":
                        stream.sendall(mood)
                        stream.shutdown(socket.SHUT_RDWR)
                        continue
                    stream.sendall(self._answer(pid, call))
        self.open -= 1

    def _answer(self, pid: int, call: dict[str, Any]) -> bytes:
        parameters = {**call["parameters"], "pid": pid, "at": time.monotonic()}
        if call["method"] == PREFIX + "Register":
            self.registrations.append(parameters)
            own = {**REGISTERED, "report_interval_s": self.interval_s}
            return reply(**own, wish=self.wish(parameters))
        assert call["method"] == PREFIX + "Report", call
        self.reports.append(parameters)
        return reply(wish=self.wish(parameters))


def eventually(condition: Callable[[], Any], within_s: float = 60.0) -> Any:
    """The first true value of ``condition``; fails when none came in time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"it did not come true within {within_s} s")
