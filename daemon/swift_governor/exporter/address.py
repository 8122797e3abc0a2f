# SPDX-License-Identifier: Apache-2.0
"""Where to listen: ``--listen``, else ``exporter.listen`` of the configuration, else loopback.

The configuration is read in a child that ends at once, for the YAML parser would stay in memory for
as long as the exporter runs. A configuration that can't be read or is refused leaves the default:
the daemon tells what is wrong with it, and metrics are wanted most when something is wrong.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os

DEFAULT = ("127.0.0.1", 11470)
CONFIG = "/etc/swift-governor/config.yaml"


def parse(text: str) -> tuple[str, int]:
    """``127.0.0.1:11470`` or ``[::1]:11470``; ValueError says what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not ADDRESS:PORT, such as 127.0.0.1:11470 or [::1]:11470")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return str(ipaddress.ip_address(bare)), int(port)


def configured(path: str = CONFIG) -> tuple[str, int]:
    """The configuration's address, or DEFAULT. Call it before any thread is started: it forks."""
    ours, childs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            os.write(childs, _read(path).encode())
        finally:
            os._exit(0)
    os.close(childs)
    with open(ours, "rb") as pipe:
        answer = pipe.read(256).decode("ascii", "replace")
    os.waitpid(child, 0)
    with contextlib.suppress(ValueError):
        return parse(answer)
    return DEFAULT


def _read(path: str) -> str:
    from swift_governor.config import load

    listen = load(path).exporter.listen
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"{host}:{listen.port}"
