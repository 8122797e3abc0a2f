# SPDX-License-Identifier: Apache-2.0
"""The table of commands: each one's name, and the module that is imported when it is used."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from typing import Protocol, cast

COMMANDS: Mapping[str, str] = {
    "status": "swift_governor.cli.status",
    "match": "swift_governor.cli.match",
    "check-config": "swift_governor.cli.check_config",
    "set": "swift_governor.cli.set",
    "release": "swift_governor.act.release",
}


class Command(Protocol):
    """What a command's module has."""

    NAME: str
    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the exit status."""


def command(name: str) -> Command:
    """The module of a command in the table."""
    return cast(Command, importlib.import_module(COMMANDS[name]))
