# SPDX-License-Identifier: Apache-2.0
"""``swift-governor COMMAND …``; the exit statuses are in the package's docstring."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from swift_governor.cli.commands import COMMANDS, command
from swift_governor.config_kinds import nearest, quote
from swift_governor.version import VERSION

PROGRAM = "swift-governor"
DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    try:
        status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python would complain again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview(), file=sys.stdout if argv else sys.stderr)
        return DONE if argv else WRONG
    name = argv[0]
    if name == "--version":
        print(f"{PROGRAM} {VERSION}")
        return DONE
    if name not in COMMANDS:
        close = nearest(name, COMMANDS)
        hint = f"did you mean `{close}`?" if close else f"see {PROGRAM} --help"
        print(f"{PROGRAM}: no command {quote(name)}; {hint}", file=sys.stderr)
        return WRONG
    module = command(name)
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} {name}", description=module.HELP)
    module.configure(parser)
    return module.run(parser.parse_args(argv[1:]))


def _overview() -> str:
    lines = [f"usage: {PROGRAM} COMMAND [ARGUMENTS]", "       " + f"{PROGRAM} --version", ""]
    lines += [f"  {name:<14}{command(name).HELP}" for name in COMMANDS]
    return "\n".join([*lines, "", f"{PROGRAM} COMMAND --help tells more of one."])


def run() -> NoReturn:
    """For ``python3 -m swift_governor.cli``."""
    sys.exit(main())


if __name__ == "__main__":
    run()
