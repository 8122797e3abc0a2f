# SPDX-License-Identifier: Apache-2.0
"""A governor's socket and the exporter program before it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.exporter.governor import Governor

DAEMON = Path(__file__).parents[3] / "daemon"


@pytest.fixture
def governor(tmp_path):
    listening = Governor(tmp_path / "governor.sock")
    yield listening
    with contextlib.suppress(OSError):
        listening.close()


@pytest.fixture
def exporter(tmp_path, governor):
    """The program itself, on a free port; the fixture's value is (host, port)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        program = subprocess.Popen(
            [
                *(sys.executable, "-m", "swift_governor.exporter"),
                *("--listen", "127.0.0.1:0", "--socket", str(governor.path)),
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(DAEMON),
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
            },
        )
        ready = systemd.recv(4096).decode()
        assert "READY=1" in ready
        port = int(re.search(r":(\d+)/metrics", ready).group(1))
        yield "127.0.0.1", port
        program.terminate()
        assert program.wait(60) == 0
