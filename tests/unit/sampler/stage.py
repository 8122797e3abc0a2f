# SPDX-License-Identifier: Apache-2.0
"""What the sampler's tests play with: fake GPUs, the daemon's and systemd's sockets, a reader."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pynvml

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60.0


def until(condition, what: str):
    """The first true value of condition(); the deadline is for a machine that is very busy."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"never came: {what}")


class FakeGpus:
    """The state file of the fake library, replaced as a whole."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.library = library
        self.state = folder / "state"

    def set(self, *lines: str) -> None:
        fresh = self.folder / "state.new"
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.state)

    def board(self, index: int) -> list[str]:
        """The lines of a healthy GPU."""
        values = {
            "name": "NVIDIA H200",
            "util": 40 + index,
            "memory_total": 150_000_000_000,
            "memory_used": 50_000_000_000,
            "temperature": 61,
            "power_mw": 512_500,
            "power_limit_mw": 700_000,
            "mig": 0,
            "process": f"{os.getpid()} 4000000000",
        }
        return [f"{index}.{key} {value}" for key, value in values.items()]

    def set_healthy(self, count: int, *more: str) -> None:
        boards = [line for index in range(count) for line in self.board(index)]
        self.set(f"count {count}", *boards, *more)

    def environment(self, **more: str) -> dict[str, str]:
        """For a process that is to find the fake library."""
        bindings = Path(pynvml.__file__).parent
        return {
            **{k: v for k, v in os.environ.items() if k != "NOTIFY_SOCKET"},
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FAKE_NVML_STATE": str(self.state),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "daemon"), str(bindings)]),
            **more,
        }


_ROUNDS = """
import json, sys
from swift_governor.sampler.bindings import load
from swift_governor.sampler.errors import MustRestartError
from swift_governor.sampler.reader import Reader
reader = Reader(load())
for line in sys.stdin:
    try:
        answer = reader.round(float(line))
    except MustRestartError as error:
        answer = {"must_restart": str(error)}
    print(json.dumps(answer), flush=True)
reader.close()
"""


class Rounds:
    """The sampler's reader over real pynvml in a process of its own, with the test's clock."""

    def __init__(self, gpus: FakeGpus, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ROUNDS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=gpus.environment(**environment),
        )

    def at(self, now: float) -> dict:
        """The sample of a round at CLOCK_MONOTONIC ``now``."""
        self._process.stdin.write(f"{now}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the reader died with status {self._process.wait()}"
        return json.loads(line)

    def close(self) -> int:
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait(DEADLINE_S)


class Systemd:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.heard: list[str] = []

    def lines(self) -> list[str]:
        """All lines so far."""
        try:
            while True:
                self.heard += self._socket.recv(65536).decode().split("\n")
        except BlockingIOError:
            return self.heard

    def watchdogs(self) -> int:
        return self.lines().count("WATCHDOG=1")

    def close(self) -> None:
        self._socket.close()


class Daemon:
    """The receiving end of the link: every message, decoded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[dict] = []
        self.connections = 0
        self._connection: socket.socket | None = None
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                self._connection, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            rest = b""
            while True:
                try:
                    data = self._connection.recv(65536)
                except OSError:
                    break
                if not data:
                    break
                *whole, rest = (rest + data).split(b"\0")
                self.messages += [json.loads(message) for message in whole]

    def hang_up(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)

    def last(self) -> dict:
        return self.messages[-1]["parameters"] if self.messages else {}

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
