# SPDX-License-Identifier: Apache-2.0
"""What holds a loop, in words an operator reads at 3 a.m.; short enough for a column."""

from __future__ import annotations

HELD_BY = {
    "none": "moving freely",
    "dead-band": "in its band",
    "floor": "at its floor",
    "ceiling": "at its ceiling",
    "not-binding": "not short of CPU",
    "no-signal": "no GPU reading",
    "stale": "old GPU reading",
    "fault": "GPU fault",
    "window-filling": "window filling",
    "settling": "settling",
    "no-job": "no training job",
    "no-actuator": "nothing to move",
    "off": "switched off",
}


def held_by(constraint: str) -> str:
    """The words for a constraint; a word that a newer daemon sends is shown as it is."""
    return HELD_BY.get(constraint, constraint)
