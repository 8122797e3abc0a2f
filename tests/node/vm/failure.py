# SPDX-License-Identifier: Apache-2.0
"""How a step on the VM ends: its result, and the errors that name the step and where to look."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """What a command in the guest left: its exit status and both outputs, decoded as UTF-8."""

    rc: int
    stdout: str
    stderr: str


class VmError(RuntimeError):
    """A step of the harness failed; the text says which, what was waited for, and where to look."""


class CommandError(VmError):
    """A command in the guest ended with another exit status than 0."""

    def __init__(self, step: str, result: Result) -> None:
        self.result = result
        output = (result.stderr.strip() or result.stdout.strip())[-4000:]
        super().__init__(f"{step}: exit status {result.rc}\n{output}")
