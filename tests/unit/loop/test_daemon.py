# SPDX-License-Identifier: Apache-2.0
"""The whole daemon as a process of its own, without a systemd to talk to: socket, ticks, reload.

What needs systemd is in tests/node; here D-Bus is absent, which a node survives too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from swift_governor.link.client import LinkError, call
from swift_governor.link.framing import encode

ROOT = Path(__file__).resolve().parents[3]
CONFIG = "mode: observe\ntick: {period: 200 ms}\ncontrol: {stale_after: 5 s}\n"
REGISTER = {
    "protocol": 1,
    "rank": 0,
    "local_rank": 0,
    "world_size": 1,
    "local_world_size": 1,
    "micro_batch": 4,
    "accumulation": 4,
    "rows_per_step": 16,
    "framework": "test",
    "workers": [],
    "cannot": {},
}
REPORT = {
    "optimizer_step": 3,
    "running_micro_batch": 4,
    "steps": 3,
    "seconds": 3.0,
    "wait_s": 0.6,
    "samples": 48,
    "phase": "train",
    "workers": [],
    "oom_count": 0,
    "answered": 0,
}


class Daemon:
    """A running daemon below ``where``."""

    def __init__(self, where: Path) -> None:
        self.config = where / "config.yaml"
        self.config.write_text(CONFIG)
        self.socket = str(where / "governor.sock")
        self.errors = where / "stderr"
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(where / "notify"))
        self.notify.settimeout(60)
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(where / "notify"),
            "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={where}/no-bus",
            "PYTHONPATH": str(ROOT / "daemon"),
        }
        argv = [sys.executable, "-m", "swift_governor.loop"]
        argv += ["--config", str(self.config), "--run-dir", str(where)]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(argv, env=environment, stderr=errors)

    def told(self, line: str) -> None:
        """Waits until systemd would have been told ``line``."""
        while line not in self.notify.recv(8192).decode().splitlines():
            pass

    def snapshot(self) -> dict[str, Any]:
        told: dict[str, Any] = call("Snapshot", socket_path=self.socket)["snapshot"]
        return told

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while True:
            told = self.snapshot()
            if condition(told):
                return told
            assert time.monotonic() < deadline, told
            time.sleep(0.1)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("run"))
    made.told("READY=1")
    yield made
    assert made.end() == 0


def kinds(told: dict[str, Any]) -> list[str]:
    return [note["kind"] for note in told["notes"]]


def test_without_a_bus_and_without_a_gpu_it_starts_ticks_and_answers(daemon: Daemon) -> None:
    first = daemon.snapshot()
    later = daemon.until(lambda told: told["sequence"] > first["sequence"] + 3)
    assert later["sampler"]["status"] == "absent"
    assert later["self"]["mode"] == "observe"
    daemon.told("WATCHDOG=1")


def test_a_job_is_found_by_its_command_line_and_forgotten_when_it_ends(
    daemon: Daemon, tmp_path: Path
) -> None:
    script = tmp_path / "swift" / "cli" / "sft.py"
    script.parent.mkdir(parents=True)
    script.write_text("import time\ntime.sleep(600)\n")
    with subprocess.Popen([sys.executable, str(script), "--model", "x"]) as job:
        try:
            name = f"sft{job.pid}x"
            told = daemon.until(lambda told: names(told, name))
            (found,) = [j for j in told["jobs"] if j["name"].startswith(name)]
            assert found["verb"] == "sft"
            assert any(line.startswith(name) for line in told["observed"])
            nice = Path(f"/proc/{job.pid}/stat").read_text().rsplit(")", 1)[1].split()[16]
            assert int(nice) == os.nice(0)
        finally:
            job.kill()
    told = daemon.until(lambda told: not names(told, name))
    assert {"job-found", "observed", "job-ended"} <= set(kinds(told))


def names(told: dict[str, Any], start: str) -> list[str]:
    return [job["name"] for job in told["jobs"] if job["name"].startswith(start)]


def test_a_bad_configuration_never_replaces_a_good_one(daemon: Daemon) -> None:
    generation = daemon.snapshot()["self"]["config_generation"]
    daemon.config.write_text("mode: obsreve\n")
    daemon.process.send_signal(signal.SIGHUP)
    told = daemon.until(lambda told: told["self"]["config_reload_failures"] == 1)
    assert told["self"]["config_generation"] == generation
    assert told["self"]["mode"] == "observe"
    refused = [n["message"] for n in told["notes"] if n["kind"] == "config-refused"]
    assert "config.yaml:1:7" in refused[0]
    assert "observe" in refused[0]
    daemon.config.write_text(CONFIG)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda told: told["self"]["config_generation"] == generation + 1)


def test_samples_are_shown_and_bad_ones_refused_by_field(daemon: Daemon) -> None:
    gpu: dict[str, Any] = {
        "uuid": "GPU-a",
        "index": 0,
        "name": "Test",
        "at": time.monotonic(),
        "utilization": 0.5,
        "memory_used_bytes": 1,
        "memory_total_bytes": 2,
        "processes": [],
        "mig": False,
        "fault": "",
    }
    sample = {"status": "ok", "detail": "", "at": gpu["at"], "driver": "1", "gpus": [gpu]}
    call("Sample", sample, daemon.socket)
    told = daemon.until(lambda told: len(told["gpus"]) == 1)
    assert told["gpus"][0]["utilization"] == 0.5
    assert told["loops"][0]["uuid"] == "GPU-a"
    for field, value in (
        ("utilization", 1.5),
        ("utilization", float("nan")),
        ("index", -1),
        ("processes", [{"pid": 4_000_000_000}]),
        ("uuid", "x" * 1000),
        ("memory_used_bytes", 10**30),
    ):
        with pytest.raises(LinkError) as caught:
            call("Sample", {**sample, "gpus": [{**gpu, field: value}]}, daemon.socket)
        assert caught.value.name.endswith(".BadInput")
    with pytest.raises(LinkError) as caught:
        call("Sample", {**sample, "gpus": [gpu, gpu]}, daemon.socket)
    assert caught.value.parameters["field"] == "gpus"
    assert daemon.snapshot()["gpus"][0]["utilization"] == 0.5


def converse(daemon: Daemon, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Several calls on one connection."""
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(30)
    link.connect(daemon.socket)
    replies = []
    for message in messages:
        link.sendall(encode(message))
        raw = b""
        while not raw.endswith(b"\0"):
            raw += link.recv(65536)
        replies.append(json.loads(raw[:-1]))
    link.close()
    return replies


def test_a_trainer_that_is_in_no_job_is_answered_with_no_wish(daemon: Daemon) -> None:
    method = "org.swiftgovernor.Governor"
    (registered,) = converse(daemon, {"method": f"{method}.Register", "parameters": REGISTER})
    assert registered["parameters"]["wish"] == {"sequence": 0, "micro_batch": None}
    assert registered["parameters"]["job"] is None


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_connection_speaks_for_no_process_of_another_user(daemon: Daemon) -> None:
    """As it would whose opener has ended, and whose PID is another user's process by now."""
    for folder in (Path(daemon.socket).parent, *Path(daemon.socket).parent.parents):
        if folder.stat().st_uid == 0 and folder.is_relative_to(tempfile.gettempdir()):
            folder.chmod(folder.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        method = "org.swiftgovernor.Governor.Register"
        (reply,) = converse(daemon, {"method": method, "parameters": REGISTER})
    finally:
        os.seteuid(0)
    assert reply["error"].endswith(".NotAllowed")


def test_a_session_is_good_on_its_own_connection_only(daemon: Daemon) -> None:
    method = "org.swiftgovernor.Governor"
    (registered,) = converse(daemon, {"method": f"{method}.Register", "parameters": REGISTER})
    stolen = {**REPORT, "session": registered["parameters"]["session"]}
    (reply,) = converse(daemon, {"method": f"{method}.Report", "parameters": stolen})
    assert reply["error"].endswith(".NotFound")


def test_orders_about_what_is_not_there_are_refused(daemon: Daemon) -> None:
    for method, parameters in (
        ("SetLoop", {"gpu": 7, "enabled": False}),
        ("SetMicroBatch", {"job": "sft1x1", "micro_batch": 2}),
    ):
        with pytest.raises(LinkError) as caught:
            call(method, parameters, daemon.socket)
        assert caught.value.name.endswith(".NotFound")


def test_a_bad_configuration_at_start_is_told_and_is_exit_status_2(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("modee: observe\n")
    argv = [sys.executable, "-m", "swift_governor.loop", "--config", str(config)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"{config}:1:1" in done.stderr
    assert "did you mean `mode`?" in done.stderr
