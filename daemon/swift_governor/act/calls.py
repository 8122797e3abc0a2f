# SPDX-License-Identifier: Apache-2.0
"""Answers as values, and steps that wait for them without blocking the main loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What became of a call. ``error`` is a remote error's last word (``UnitExists``,
    ``NoSuchUnit`` …) or one of ours: ``Timeout``, ``Disconnected``, ``JobFailed`` (then
    ``message`` is the job's result).
    """

    value: Any = None
    error: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


# A call that was checked and not yet sent: it is sent by calling it, and answers exactly once,
# later.
Call = Callable[[Callable[[Reply], None]], None]
Steps = Generator[Call, Reply, None]
Answering = Generator[Call, Reply, Reply]  # part of some steps, by ``yield from``


def run(steps: Steps, failed: Callable[[Exception], None]) -> None:
    """Runs a generator that yields calls and is sent their replies. What it raises goes to
    ``failed``."""

    def advance(reply: Reply | None) -> None:
        try:
            call = next(steps) if reply is None else steps.send(reply)
            call(advance)
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 - a bug in one unit's steps must not end the tick
            failed(error)

    advance(None)
