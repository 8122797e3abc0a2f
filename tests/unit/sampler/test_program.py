# SPDX-License-Identifier: Apache-2.0
"""The sampler as systemd and the daemon see it: readiness, watchdog, socket, signals, statuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from swift_governor.sampler.__main__ import next_due, parse
from swift_governor.sampler.link import DaemonLink

from tests.unit.sampler.stage import DEADLINE_S, Daemon, until


def once(gpus, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "swift_governor.sampler", "--once"],
        env=gpus.environment(**environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_samples_arrive_as_oneway_calls(gpus, program, daemon):
    gpus.set_healthy(2)
    program()
    until(lambda: len(daemon.messages) >= 3, "three samples")
    for message in daemon.messages:
        assert message["method"] == "org.swiftgovernor.Governor.Sample"
        assert message["oneway"] is True
        assert set(message["parameters"]) == {"status", "detail", "at", "driver", "gpus"}
    assert daemon.connections == 1
    times = [message["parameters"]["at"] for message in daemon.messages]
    assert times == sorted(times)
    assert abs(times[-1] - time.monotonic()) < DEADLINE_S  # the node's one clock


def test_systemd_hears_ready_and_then_a_watchdog_for_each_round(gpus, program, systemd):
    gpus.set_healthy(1)
    program(systemd)
    until(lambda: systemd.watchdogs() >= 3, "three watchdog pings")
    assert systemd.lines().count("READY=1") == 1
    assert any(line.startswith("STATUS=reading 1 GPU") for line in systemd.lines())


@pytest.mark.parametrize("function", ["nvmlDeviceGetUtilizationRates", "nvmlInitWithFlags"])
def test_a_call_that_hangs_silences_the_watchdog(gpus, program, systemd, daemon, function):
    if function == "nvmlInitWithFlags":
        gpus.set("no_driver 1")
    else:
        gpus.set_healthy(1)
    program(systemd)
    until(systemd.watchdogs, "a watchdog ping")
    gpus.set_healthy(1, f"delay.{function} hang")
    until(lambda: quiet_for(systemd, 4), "silence")
    samples = len(daemon.messages)
    gpus.set_healthy(1)
    heard = systemd.watchdogs()
    until(lambda: systemd.watchdogs() > heard, "life after the hang")
    until(lambda: len(daemon.messages) > samples, "samples after the hang")
    until(lambda: daemon.last()["status"] == "ok", "the GPU")


def quiet_for(systemd, seconds: float) -> bool:
    before = systemd.watchdogs()
    time.sleep(seconds)
    return systemd.watchdogs() == before


def test_no_driver_is_a_state_in_which_the_watchdog_is_content(gpus, program, systemd, daemon):
    gpus.set("no_driver 1")
    program(systemd)
    until(lambda: systemd.watchdogs() >= 3, "three watchdog pings")
    assert "READY=1" in systemd.lines()
    assert daemon.last()["status"] == "no-driver"
    gpus.set_healthy(1)
    until(lambda: daemon.last()["status"] == "ok", "the driver")


def test_asked_to_stop_it_shuts_nvml_down(gpus, program, systemd, tmp_path):
    log = tmp_path / "shutdowns"
    gpus.set_healthy(1, f"shutdown_log {log}")
    process = program(systemd)
    until(systemd.watchdogs, "a round")
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    assert log.read_text() == "nvmlShutdown\n"
    assert "STOPPING=1" in systemd.lines()


def test_a_version_mismatch_is_told_and_then_left_to_systemd(gpus, program, systemd, daemon):
    gpus.set_healthy(1)
    process = program(systemd)
    until(systemd.watchdogs, "a round")
    gpus.set_healthy(1, "error.* 18")
    assert process.wait(DEADLINE_S) == 75
    assert daemon.last()["status"] == "failing"
    assert "differ in version" in daemon.last()["detail"]


def test_a_daemon_that_starts_later_or_again_gets_samples(gpus, program, systemd, tmp_path):
    gpus.set_healthy(1)
    program(systemd)
    until(systemd.watchdogs, "a round without a daemon")
    assert any("[daemon:" in line for line in systemd.lines())
    daemon = Daemon(tmp_path / "governor.sock")
    until(lambda: daemon.messages, "the first sample")
    daemon.hang_up()
    until(lambda: daemon.connections >= 2, "another connection")
    count = len(daemon.messages)
    until(lambda: len(daemon.messages) > count, "samples on it")
    daemon.close()


def test_a_daemon_that_reads_nothing_is_given_up_instead_of_waited_for(tmp_path):
    path = str(tmp_path / "deaf.sock")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    link = DaemonLink(path)
    sample = {"detail": "x" * 200_000}
    results = [link.send(sample, float(now)) for now in range(20)]
    assert False in results  # the buffer filled, the message was given up, and nothing raised
    assert link.trouble
    link.close()
    server.close()


def test_messages_after_a_torn_one_come_on_a_new_connection(tmp_path):
    path = str(tmp_path / "slow.sock")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    link = DaemonLink(path)
    now = 0.0
    while link.send({"detail": "x" * 200_000}, now):
        now += 1
    assert link.send({"detail": "whole"}, now + 60)
    server.accept()[0].close()
    second, _ = server.accept()
    with second:
        assert json.loads(second.recv(65536).rstrip(b"\0"))["parameters"] == {"detail": "whole"}
    link.close()
    server.close()


def test_a_missing_state_is_a_driver_without_gpus(gpus):
    result = once(gpus)
    assert result.returncode == 0
    assert json.loads(result.stdout)["status"] == "no-gpu"


def test_the_deprecated_package_is_refused_by_name(gpus, tmp_path):
    shim = tmp_path / "shim" / "pynvml"
    shim.mkdir(parents=True)
    (shim / "__init__.py").write_text("class NVMLError(Exception): ...\n")
    path = f"{shim.parent}{os.pathsep}{gpus.environment()['PYTHONPATH']}"
    result = once(gpus, PYTHONPATH=path)
    assert result.returncode == 78
    assert "deprecated PyPI package 'pynvml'" in result.stderr
    assert "install nvidia-ml-py" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_module_that_lacks_what_is_needed_is_refused(gpus, tmp_path):
    (tmp_path / "pynvml.py").write_text("nvmlInit = None\n")
    path = f"{tmp_path}{os.pathsep}{gpus.environment()['PYTHONPATH']}"
    result = once(gpus, PYTHONPATH=path)
    assert result.returncode == 78
    assert "lacks NVMLError" in result.stderr


def test_it_imports_nothing_heavy(gpus):
    program = (
        "import sys; import swift_governor.sampler.__main__, pynvml; "
        "print([m for m in ('gi', 'psutil', 'yaml', 'typing', 'dataclasses', 'argparse',"
        " 'logging', 'swift_governor.model') if m in sys.modules])"
    )
    result = subprocess.run(
        ["/usr/bin/python3", "-S", "-c", program],
        env=gpus.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "[]\n"


def test_it_takes_less_than_16_mib(gpus, systemd):
    gpus.set_healthy(8)
    process = subprocess.Popen(
        ["/usr/bin/python3", "-m", "swift_governor.sampler", "--socket", "/nonexistent/socket"],
        env=gpus.environment(NOTIFY_SOCKET=str(systemd.path)),
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: systemd.watchdogs() >= 2, "two rounds")
        with open(f"/proc/{process.pid}/smaps_rollup") as rollup:
            (pss,) = (int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    finally:
        process.kill()
        process.wait()
    assert pss < 16 * 1024


def test_a_slow_round_is_not_followed_by_a_burst():
    assert next_due(10.0, 10.25) == 11.0
    assert next_due(10.0, 14.5) == 15.0
    assert next_due(10.0, 11.0) == 12.0


def test_the_command_line_is_refused_where_it_is_wrong():
    assert parse(["--once"]) == ("/run/swift-governor/governor.sock", True)
    assert parse(["--socket", "/a"]) == parse(["--socket=/a"]) == ("/a", False)
    assert parse(["--socket"]) is None
    assert parse(["--sockets", "/a"]) is None
