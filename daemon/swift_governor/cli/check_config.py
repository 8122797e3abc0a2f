# SPDX-License-Identifier: Apache-2.0
"""``swift-governor check-config``: is a configuration right, and what holds?

Exit status 0: it is right. 2: it is not, with a line on standard error for each thing wrong, as
``file:line:column: what; allowed: …; did you mean …?``.
"""

from __future__ import annotations

import argparse
import os
import sys

from swift_governor.config import DEFAULT_PATH, ConfigError, Problem, effective, load

NAME = "check-config"
HELP = "check the configuration, and show what holds"

_BOLD, _RED, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[0m"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default=DEFAULT_PATH,
        help=f"default {DEFAULT_PATH}; config.d/*.yaml beside it is read too",
    )
    parser.add_argument(
        "--effective",
        action="store_true",
        help="print all that holds as YAML, with the source of each value",
    )


def run(args: argparse.Namespace) -> int:
    """Check; 0 or 2."""
    try:
        config = load(args.file)
    except ConfigError as error:
        colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        for problem in error.errors:
            print(_line(problem, colour), file=sys.stderr)
        count = len(error.errors)
        print(f"{count} error{'s' * (count != 1)}; nothing was taken up.", file=sys.stderr)
        return 2
    if args.effective:
        for file in config.files:
            print(f"# read {file}")
        sys.stdout.write(effective(config))
        return 0
    for file in config.files:
        print(f"read {file}")
    print("The configuration is right.")
    return 0


def _line(problem: Problem, colour: bool) -> str:
    if not colour:
        return str(problem)
    return (
        f"{_BOLD}{problem.place}:{_PLAIN} {_RED}{problem.what}{_PLAIN}"
        + (problem.message[len(problem.what) :])
    )
