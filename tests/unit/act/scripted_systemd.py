# SPDX-License-Identifier: Apache-2.0
"""A service manager for failures that a real one does not show on demand: scripted, and on files.

It keeps a small cgroup tree and /proc below a directory, answers later (when pumped), and keeps
every call. What real systemd does is tested in tests/node/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swift_governor.act.calls import Call, Reply
from swift_governor.act.units import slice_path, unit_of

UNSET = 2**64 - 1


class ScriptedSystemd:
    def __init__(self, base: Path) -> None:
        self.version = 257
        self.connected = True
        self.reloaded: Callable[[], None] = lambda: None
        self.proc = base / "proc"
        self.cgroup = base / "cgroup"
        self.calls: list[tuple[Any, ...]] = []
        self.errors: dict[str, list[Reply]] = {}  # method → replies instead of the real ones
        self.properties: dict[tuple[str, str], Any] = {}
        self.loses_processes = False
        self.kernel_ignores = False
        self._queue: list[tuple[Callable[[], Reply], Callable[[Reply], None]]] = []
        self.cgroup.mkdir(parents=True)
        self.proc.mkdir()

    # ---------------------------------------------------------------------------- what tests set up

    def process(self, pid: int, cgroup: str = "/user.slice/session-1.scope", start: int = 5) -> int:
        directory = self.proc / str(pid)
        directory.mkdir()
        fields = ["S", "1", *["0"] * 14, "0", "1", "0", str(start)]
        (directory / "stat").write_text(f"{pid} (a) b) {' '.join(fields)} 0 0\n")
        self.move(pid, cgroup)
        return pid

    def move(self, pid: int, cgroup: str) -> None:
        (self.proc / str(pid) / "cgroup").write_text(f"0::{cgroup}\n")

    def end(self, pid: int) -> None:
        for name in ("stat", "cgroup"):
            (self.proc / str(pid) / name).unlink()

    def unit(self, path: str) -> Path:
        directory = self.cgroup / path.strip("/")
        while directory != self.cgroup:
            directory.mkdir(parents=True, exist_ok=True)
            for name, text in (("cpu.max", "max 100000"), ("cpu.weight", "100")):
                if not (directory / name).exists():
                    (directory / name).write_text(text)
            directory = directory.parent
        return self.cgroup / path.strip("/")

    def pump(self) -> None:
        while self._queue:
            answer, done = self._queue.pop(0)
            done(answer())

    def count(self, method: str) -> int:
        return sum(c[0] == method for c in self.calls)

    # -------------------------------------------------------------------------------- the interface

    def start_scope(
        self, scope: str, properties: Mapping[str, Any], slices: Mapping[str, Mapping[str, Any]]
    ) -> Call:
        def work() -> Reply:
            path = f"{slice_path(properties['Slice'])}/{scope}"
            self.unit(path)
            self.properties[(scope, "ActiveState")] = "active"
            return self._take(path, properties["PIDs"])

        return self._later("start", (scope, dict(properties), dict(slices)), work)

    def attach(self, scope: str, pids: Sequence[int]) -> Call:
        def work() -> Reply:
            found = list(self.cgroup.rglob(scope))
            if not found:
                return Reply(error="NoSuchUnit")
            return self._take(f"/{found[0].relative_to(self.cgroup)}", pids)

        return self._later("attach", (scope, tuple(pids)), work)

    def set_properties(self, unit: str, properties: Mapping[str, Any]) -> Call:
        def work() -> Reply:
            for directory in [] if self.kernel_ignores else self.cgroup.rglob(unit):
                for name, value in properties.items():
                    if name == "CPUWeight":
                        text = "100" if value == UNSET else str(value)
                        (directory / "cpu.weight").write_text(text)
                    else:
                        quota = "max" if value == UNSET else str(value // 10)
                        (directory / "cpu.max").write_text(f"{quota} 100000")
            return Reply()

        return self._later("set", (unit, dict(properties)), work)

    def get_unit(self, unit: str) -> Call:
        def work() -> Reply:
            known = any(self.cgroup.rglob(unit))
            return Reply(value=f"/unit/{unit}") if known else Reply(error="NoSuchUnit")

        return self._later("get-unit", (unit,), work)

    def get_property(self, unit: str, path: str, name: str) -> Call:
        assert path == f"/unit/{unit}"
        default = {"FragmentPath": "", "DropInPaths": [], "ActiveState": "active"}.get(name, UNSET)
        value = self.properties.get((unit, name), default)
        return self._later("get", (unit, name), lambda: Reply(value=value))

    def _take(self, path: str, pids: Sequence[int]) -> Reply:
        if any(not (self.proc / str(p) / "stat").exists() for p in pids):
            return Reply(error="NoSuchProcess", message="no such process")
        for pid in () if self.loses_processes else pids:
            assert unit_of(path)
            self.move(pid, path)
        return Reply(value="done")

    def _later(self, method: str, arguments: tuple[Any, ...], work: Callable[[], Reply]) -> Call:
        def send(done: Callable[[Reply], None]) -> None:
            self.calls.append((method, *arguments))
            scripted = self.errors.get(method)
            reply = scripted.pop(0) if scripted else None
            self._queue.append(((lambda: reply) if reply is not None else work, done))

        return send
