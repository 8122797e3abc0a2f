# SPDX-License-Identifier: Apache-2.0
"""``python3 -m swift_governor.exporter [--listen ADDRESS:PORT] [--socket PATH] [--config FILE]``.

Exit codes: 0 ended by SIGTERM, 1 could not listen, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swift_governor.exporter import address
from swift_governor.exporter.page import DEADLINE_S, Page
from swift_governor.exporter.server import Server
from swift_governor.link.client import SOCKET_PATH, call
from swift_governor.service_notify import notify, watchdog_interval_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(prog="swift-governor-exporter", description=__doc__)
    parser.add_argument("--listen", metavar="ADDRESS:PORT", help="where to serve /metrics")
    parser.add_argument("--socket", default=SOCKET_PATH, metavar="PATH", help="governor's socket")
    parser.add_argument("--config", default=address.CONFIG, metavar="FILE", help="configuration")
    options = parser.parse_args(arguments)
    try:
        host, port = (
            address.parse(options.listen) if options.listen else address.configured(options.config)
        )
    except ValueError as error:
        parser.error(f"--listen: {error}")

    def fetch() -> Mapping[str, Any]:
        reply = call("Snapshot", {}, options.socket, DEADLINE_S)
        snapshot = reply.get("snapshot")
        return snapshot if isinstance(snapshot, dict) else {}

    try:
        server = Server(host, port, Page(fetch), _watchdog())
    except OSError as error:
        sys.stderr.write(
            f"swift-governor-exporter: can't listen on {host}:{port}: {error.strerror}; "
            "set another exporter.listen in /etc/swift-governor/config.yaml\n"
        )
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    where = f"[{host}]" if ":" in host else host
    notify("READY=1", f"STATUS=Serving http://{where}:{server.server_address[1]}/metrics")
    with server:
        server.serve_forever()
    return 0


def _watchdog() -> Callable[[], None]:
    """Tells systemd that connections are still accepted, as often as it wants to hear it."""
    interval_s = watchdog_interval_s()
    last = [0.0]

    def ping() -> None:
        now = time.monotonic()
        if interval_s is not None and now - last[0] >= interval_s:
            last[0] = now
            notify("WATCHDOG=1")

    return ping


if __name__ == "__main__":
    sys.exit(main())
