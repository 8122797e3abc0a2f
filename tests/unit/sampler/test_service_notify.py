# SPDX-License-Identifier: Apache-2.0
"""sd_notify(3) as this project speaks it."""

from __future__ import annotations

import os
import socket

import pytest
from swift_governor.service_notify import notify, watchdog_interval_s


def test_lines_and_fields_go_out_in_one_datagram(systemd, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(systemd.path))
    assert notify("READY=1", STATUS="well", MAINPID=7)
    assert systemd.lines() == ["READY=1", "STATUS=well", "MAINPID=7"]


def test_a_status_cannot_smuggle_in_a_second_line(systemd, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(systemd.path))
    assert notify(STATUS="a GPU named\nSTOPPING=1")
    assert systemd.lines() == ["STATUS=a GPU named STOPPING=1"]


def test_the_abstract_namespace_is_understood(monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(f"\0swift-governor-test-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@swift-governor-test-{os.getpid()}")
        assert notify("READY=1")
        assert server.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nonexistent/notify", "vsock:2:1"])
def test_nobody_to_tell_is_no_error(monkeypatch, address):
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")


def test_text_that_is_not_unicode_is_sent_all_the_same(systemd, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(systemd.path))
    assert notify(STATUS="comm \udcff")
    assert systemd.lines() == ["STATUS=comm ?"]


@pytest.mark.parametrize(
    ("environment", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
    ],
)
def test_the_watchdog_interval_is_half_of_what_systemd_waits(monkeypatch, environment, interval):
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert watchdog_interval_s() == interval
