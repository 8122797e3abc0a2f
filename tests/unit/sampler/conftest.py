# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.sampler.stage import ROOT, Daemon, FakeGpus, Rounds, Systemd


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    made = subprocess.run(
        ["make", "-C", str(ROOT / "tests" / "fake_nvml"), f"BUILD={folder}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return folder / "libnvidia-ml.so.1"


@pytest.fixture
def gpus(tmp_path, library) -> FakeGpus:
    return FakeGpus(tmp_path, library)


@pytest.fixture
def rounds(gpus):
    running = []

    def start(**environment: str) -> Rounds:
        running.append(Rounds(gpus, **environment))
        return running[-1]

    yield start
    for each in running:
        each.close()


@pytest.fixture
def systemd(tmp_path):
    one = Systemd(tmp_path / "notify")
    yield one
    one.close()


@pytest.fixture
def daemon(tmp_path):
    one = Daemon(tmp_path / "governor.sock")
    yield one
    one.close()


@pytest.fixture
def program(gpus, tmp_path):
    """Starts the whole program: program(systemd) or program()."""
    running = []

    def start(systemd: Systemd | None = None, **environment: str) -> subprocess.Popen:
        if systemd is not None:
            environment["NOTIFY_SOCKET"] = str(systemd.path)
        command = [sys.executable, "-m", "swift_governor.sampler", "--socket"]
        process = subprocess.Popen(
            [*command, str(tmp_path / "governor.sock")],
            env=gpus.environment(**environment),
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.stderr.close()
        process.wait()
