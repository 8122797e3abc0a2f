# SPDX-License-Identifier: Apache-2.0
"""One reader child as the daemon holds it: its process, its socket and its frames."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# argv and environ are bounded by the child; JSON writes a byte that is not UTF-8 as six.
MAX_FRAME_BYTES = 6 * (128 + 128) * 1024
RECEIVE_BYTES = 262144


@dataclass(frozen=True)
class Reading:
    """What was read of one process.

    ``start_ticks`` and ``arg_start`` are those of the process and program that were read;
    ``start_ticks`` is None when it had gone or changed. Fields are None when they could not be
    read; ``available`` is False when nothing was, for ``reason``.
    """

    pid: int
    start_ticks: int | None = None
    arg_start: int = 0
    argv: tuple[str, ...] | None = None
    environ: dict[str, str] | None = None
    exe: str | None = None
    cgroup: str | None = None
    names_swift: bool | None = None
    available: bool = True
    reason: str = ""


def reader_command(proc: str = "/proc") -> list[str]:
    """The command line of the reader child: isolated, and without site-packages."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("reader.py")), proc]


class ReaderChild:
    """One reader process and its socket, registered with ``poller``. Raises OSError on starting."""

    def __init__(self, command: Sequence[str], poller: select.epoll) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    list(command),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._socket = ours
        self._buffer = bytearray()
        self.broken = False
        poller.register(ours.fileno(), select.EPOLLIN)

    def busy_s(self) -> float:
        """How long it has run, or waited for a CPU to run on, so far; 0 where it can't be told.

        /proc/PID/schedstat, its first two numbers (Documentation/scheduler/sched-stats.rst).
        """
        try:
            ran_ns, waited_ns = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[:2]
            return (int(ran_ns) + int(waited_ns)) / 1e9
        except (OSError, ValueError):
            return 0.0

    def ask(self, pids: list[int], keys: list[str]) -> None:
        """One request, small enough for the socket of a child that has answered the last one."""
        request = json.dumps({"pids": pids, "environ_keys": keys}).encode()
        self._socket.sendall(len(request).to_bytes(4, "big") + request)

    def receive(self) -> bool:
        """Takes what is there, in portions; False at the end of the stream."""
        while True:
            try:
                chunk = self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not chunk:
                return False
            self._buffer += chunk
            if len(self._buffer) > 2 * MAX_FRAME_BYTES:
                return True

    def answers(self) -> Iterator[Reading]:
        """The complete frames received; ``broken`` where they are none."""
        while len(self._buffer) >= 4 and not self.broken:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > MAX_FRAME_BYTES:
                self.broken = True
                return
            if len(self._buffer) < 4 + size:
                return
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            try:
                yield _parse_reading(json.loads(body))
            except (ValueError, KeyError, TypeError):
                self.broken = True

    def leave(self, poller: select.epoll) -> subprocess.Popen[bytes]:
        """Closes the socket, which ends the process as soon as it can; returned to be collected."""
        poller.unregister(self._socket.fileno())
        self._socket.close()
        return self._process


def _parse_reading(answer: dict[str, Any]) -> Reading:
    argv = answer.get("argv")
    return Reading(
        pid=answer["pid"],
        start_ticks=answer["start"],
        arg_start=answer.get("arg_start", 0),
        argv=tuple(argv) if argv is not None else None,
        environ=answer.get("environ"),
        exe=answer.get("exe"),
        cgroup=answer.get("cgroup"),
        names_swift=answer.get("names_swift"),
    )
