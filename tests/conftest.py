# SPDX-License-Identifier: Apache-2.0
"""What every test session shares: a table of counts and times by area, above the closing line."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: what is slow is for a benchmark to say.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")

ROOT = Path(__file__).resolve().parent
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def area(nodeid: str) -> str:
    """``tests/unit/act/test_x.py::test_y`` → ``unit/act``."""
    return "/".join(nodeid.split("::")[0].split("/")[1:-1]) or "tests"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One row an area: how many ended how, and the time they took."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, float] = defaultdict(float)
    for outcome in OUTCOMES:
        for report in terminalreporter.stats.get(outcome, []):
            counts[area(report.nodeid)][outcome] += 1
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[area(report.nodeid)] += report.duration
    if not counts:
        return
    seen = [name for name in OUTCOMES if any(row[name] for row in counts.values())]
    terminalreporter.section("by area")
    terminalreporter.write_line(f"{'':28}" + "".join(f"{n:>9}" for n in seen) + f"{'seconds':>10}")
    for name, row in sorted(counts.items()):
        cells = "".join(f"{row[n]:>9}" for n in seen)
        terminalreporter.write_line(f"{name:28}{cells}{seconds[name]:>10.1f}")
