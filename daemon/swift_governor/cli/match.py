# SPDX-License-Identifier: Apache-2.0
"""``swift-governor match``: how a command line would be read, and by which rule, or why not."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from swift_governor.jobs.rules import match
from swift_governor.model import Match
from swift_governor.sense.reader import script_names_swift, swift_script

NAME = "match"
HELP = "say how a command line would be read, and by which rule"

NO_COMMAND = "swift-governor match: no command line; put it after --, as in: match -- swift sft"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.usage = "%(prog)s [-h] [--comm NAME] [--exe PATH] [--json] -- ARGV ..."
    parser.add_argument("--comm", metavar="NAME", help="the process's name, as in /proc/PID/comm")
    parser.add_argument(
        "--exe", metavar="PATH", help="its executable, as in /proc/PID/exe (else argv is believed)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("argv", nargs="*", metavar="ARGV", help="the command line, after --")


def run(args: argparse.Namespace) -> int:
    """0 when the question could be answered, whatever the answer; 2 without a command line."""
    argv = [str(argument) for argument in args.argv]
    if not argv:
        print(NO_COMMAND)
        return 2
    found = match(argv, args.comm, args.exe, _local_script_names_swift(argv))
    print(json.dumps(_as_json(found)) if args.json else _as_text(found))
    return 0


def _local_script_names_swift(argv: Sequence[str]) -> bool | None:
    """The head of the script in argv, where this machine has such a file; None where not."""
    script = swift_script(argv)
    return script_names_swift("/", str(Path.cwd()), os.fsencode(script)) if script else None


def _as_json(found: Match) -> dict[str, str | None]:
    return {
        "role": found.role.value if found.role else None,
        "verb": found.verb,
        "engine": found.engine.value if found.engine else None,
        "rule": found.rule,
        "reason": found.reason,
    }


def _as_text(found: Match) -> str:
    if found.role is None or found.engine is None:
        return f"not ms-swift (rule {found.rule}): {found.reason}"
    return (
        f"{found.role.value} of {found.engine.value} {found.verb} (rule {found.rule}): "
        f"{found.reason}"
    )
