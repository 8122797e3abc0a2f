# SPDX-License-Identifier: Apache-2.0
"""A job's name: verb, root PID, "x" and the root's start time in base 36, as in ``sft4711x8k2``.

The unit tree carries the name, so that a job is found again after a restart of the daemon, or when
the process that it was named after has gone. Only cgroups below msswift.slice are believed: a user
may name cgroups of their own as they like.
"""

from __future__ import annotations

import re

from swift_governor.jobs.rules import VERBS
from swift_governor.model import ProcessId

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
NAME = re.compile(r"([a-z]{2,12})([1-9][0-9]{0,9})x([0-9a-z]{1,13})\Z")
SCOPE = re.compile(
    r"/msswift\.slice/(?:[^/]+\.slice/)*msswift-([0-9a-z]+)-[0-9a-z]+\.scope(?:/|\Z)", re.DOTALL
)

# Letters only, since a dash in a slice's name is a level of the tree.
VERB_OF_LETTERS = {verb.replace("-", ""): verb for verbs in VERBS.values() for verb in verbs}


def job_name(verb: str, root: ProcessId) -> str:
    """The name of the job that began with process ``root``."""
    return f"{verb.replace('-', '')}{root.pid}x{_base36(root.start_ticks)}"


def read_name(name: str) -> tuple[str, ProcessId] | None:
    """Verb and root of a job's name; None when it is none."""
    found = NAME.match(name)
    if found is None or found[1] not in VERB_OF_LETTERS:
        return None
    return VERB_OF_LETTERS[found[1]], ProcessId(int(found[2]), int(found[3], 36))


def name_in_cgroup(cgroup: str | None) -> str | None:
    """The job whose scope a process lives in, from its cgroup's path; None outside our tree."""
    found = SCOPE.match(cgroup or "")
    if found is None or read_name(found[1]) is None:
        return None
    return found[1]


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = DIGITS[digit] + digits
        if number == 0:
            return digits
