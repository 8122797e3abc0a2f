# SPDX-License-Identifier: Apache-2.0
"""How the demo talks: a clock, a step, what is seen, and a verdict at the end."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field

WIDTH = 80
_STARTED = time.monotonic()
_CODES = {"bold": "1", "dim": "2", "green": "32", "red": "31", "cyan": "36"}


def _colour(text: str, name: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_CODES[name]}m{text}\x1b[0m"


def _clock() -> str:
    seconds = int(time.monotonic() - _STARTED)
    return _colour(f"{seconds // 60:2}:{seconds % 60:02}", "dim")


@dataclass
class Screen:
    """Prints, and keeps what was checked."""

    checks: list[tuple[bool, str]] = field(default_factory=list)

    def title(self, text: str) -> None:
        """A part of the demo begins."""
        print(f"\n{_clock()}  {_colour(text, 'bold')}", flush=True)

    def wait(self, text: str) -> None:
        """What is being waited for."""
        print(f"{_clock()}  … {_colour(text, 'dim')}", flush=True)

    def see(self, text: str) -> None:
        """Something that happened, or output worth reading; indented, line by line."""
        for line in text.rstrip().splitlines():
            print(f"{_clock()}    {line}", flush=True)

    def check(self, holds: bool, text: str) -> bool:
        """One of the things that the demo proves."""
        self.checks.append((holds, text))
        mark = _colour("✔", "green") if holds else _colour("✘", "red")
        print(f"{_clock()}  {mark} {text}", flush=True)
        return holds

    def verdict(self) -> int:
        """The list of what was proved; the exit status."""
        print(f"\n{_clock()}  {_colour('What this run showed', 'bold')}")
        for holds, text in self.checks:
            print(f"       {_colour('✔', 'green') if holds else _colour('✘', 'red')} {text}")
        bad = sum(not holds for holds, _ in self.checks)
        print(f"{_clock()}  {len(self.checks) - bad} shown, {bad} failed")
        return 1 if bad or not self.checks else 0
