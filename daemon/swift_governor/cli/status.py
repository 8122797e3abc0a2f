# SPDX-License-Identifier: Apache-2.0
"""``swift-governor status``: one screen of what is governed and what holds each.

Exit status: 0 shown; 1 the daemon runs but its state could not be read; 3 the daemon isn't running
(as LSB has it for ``status``). ``--json`` prints the snapshot (report/snapshot.py documents its
schema).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from swift_governor.cli.failure import failure
from swift_governor.cli.status_screen import Paint, screen
from swift_governor.link import client

NAME = "status"
HELP = "show jobs, GPUs, and what holds each"

SHOWN, UNREADABLE, NOT_RUNNING = 0, 1, 3
DEADLINE_S = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.epilog = "exit status: 0 shown, 1 could not be read, 3 the governor isn't running"
    parser.add_argument("--json", action="store_true", help="print the whole snapshot as JSON")
    parser.add_argument(
        "--socket", default=client.SOCKET_PATH, metavar="PATH", help="the governor's socket"
    )


def run(args: argparse.Namespace) -> int:
    """Asks for a snapshot and shows it."""
    try:
        shown = _shown(client.call("Snapshot", {}, args.socket, DEADLINE_S), args.json)
    except client.LinkError as error:
        print(failure(error, args.socket), file=sys.stderr)
        return NOT_RUNNING if error.reason == client.ABSENT else UNREADABLE
    # A terminal that speaks no UTF-8 gets "?" for what it can't show, never an exception.
    encoding = sys.stdout.encoding or "utf-8"
    print(shown.encode(encoding, "replace").decode(encoding))
    return SHOWN


def _shown(reply: dict[str, Any], as_json: bool) -> str:
    snapshot = reply.get("snapshot")
    if as_json and isinstance(snapshot, dict):
        return json.dumps(snapshot, indent=2, sort_keys=True, ensure_ascii=False)
    try:
        if not isinstance(snapshot, dict) or snapshot["schema"] != 1:
            raise ValueError("the reply holds no snapshot of schema 1")
        return screen(snapshot, Paint(_colour_wanted()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise client.LinkError(client.BROKEN, f"not a snapshot: {error!r}") from error


def _colour_wanted() -> bool:
    """https://no-color.org, and a terminal that can."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
