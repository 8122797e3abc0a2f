# SPDX-License-Identifier: Apache-2.0
"""Pressure stall information of the node, from /proc/pressure (kernel
Documentation/accounting/psi).

Off on kernels booted without ``psi=1`` where the distribution disables it (RHEL 9): then all is
None.
"""

from __future__ import annotations

import re
from pathlib import Path

from swift_governor.model import Pressure

LINE = re.compile(r"(some|full) avg10=(\d{1,3}\.\d+) ")
FIELDS = {
    ("cpu", "some"): "cpu_some",
    ("memory", "some"): "memory_some",
    ("memory", "full"): "memory_full",
    ("io", "some"): "io_some",
    ("io", "full"): "io_full",
}


def read_pressure(proc: str = "/proc") -> Pressure:
    """The 10 s averages as ratios; None for what the kernel does not tell."""
    ratios: dict[str, float] = {}
    for resource in ("cpu", "memory", "io"):
        try:
            text = (Path(proc) / "pressure" / resource).read_text("ascii", "replace")
        except OSError:
            continue
        for kind, percent in LINE.findall(text):
            field = FIELDS.get((resource, kind))
            if field is not None:
                ratios[field] = float(percent) / 100
    return Pressure(**ratios)
