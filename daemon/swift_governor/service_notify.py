# SPDX-License-Identifier: Apache-2.0
"""Tells systemd how this service is: READY=1, STATUS=…, WATCHDOG=1, RELOADING=1 and so on.

The datagram protocol of sd_notify(3), without libsystemd. Standard library only, and little of it.
"""

from __future__ import annotations

import os
import socket

_DEADLINE_S = 1.0  # systemd's queue can be full while it re-executes


def notify(*lines: str, **fields: str | int) -> bool:
    """Sends ``lines`` ("READY=1") and ``fields`` (STATUS="…") in one datagram.

    Returns False, and never raises, when nobody asked to be notified or nobody takes it in time.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    said = [*lines, *(f"{name}={value}" for name, value in fields.items())]
    message = "\n".join(line.replace("\n", " ") for line in said)
    if address.startswith("@"):  # the abstract namespace, unix(7)
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(_DEADLINE_S)
            channel.sendto(message.encode("utf-8", "replace"), address)
    except OSError:
        return False
    return True


def watchdog_interval_s() -> float | None:
    """How often systemd wants WATCHDOG=1 (half of WatchdogSec=), or None without a watchdog.

    As sd_watchdog_enabled(3): the variables may be meant for another process.
    """
    try:
        if int(os.environ.get("WATCHDOG_PID", os.getpid())) != os.getpid():
            return None
        microseconds = int(os.environ.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return microseconds / 2e6 if microseconds > 0 else None
