# SPDX-License-Identifier: Apache-2.0
"""A run's figures as an aligned table and as tests/results/bench-AREA.{json,md}."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests" / "results"


@dataclass(frozen=True)
class Figure:
    """One line of the table. ``bar`` is the most that the value may be; None where it has none."""

    name: str
    value: float
    unit: str
    bar: Optional[float] = None

    @property
    def verdict(self) -> str:
        """``""`` without a bar."""
        if self.bar is None:
            return ""
        return f"{'holds' if self.value <= self.bar else 'MISSED'}: <= {self.bar:g}"


def table(figures: list[Figure]) -> str:
    """Aligned, in at most 100 columns."""
    width = max(len(f.name) for f in figures)
    return "\n".join(
        f"{f.name:{width}}  {f.value:>10.2f} {f.unit:4} {f.verdict}".rstrip() for f in figures
    )


def machine(accelerator: str) -> dict[str, Any]:
    """What the guest ran on, and how busy that was."""
    return {
        "accelerator": accelerator,
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.partition(": ")[2] for x in lines if x.startswith("model name")), "unknown")


def head(command: str) -> dict[str, Any]:
    """Who measured what, when."""
    return {
        "command": command,
        "commit": _git("rev-parse", "HEAD"),
        "clean": _git("status", "--porcelain", "--", "daemon", "systemd", "packaging") == "",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _git(*argv: str) -> str:
    return subprocess.run(
        ["git", *argv], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def write(area: str, about: dict[str, Any], figures: list[Figure], raw: dict[str, Any]) -> Path:
    """Both files; returns the JSON one."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    told = {**about, "figures": [asdict(f) for f in figures], "raw": raw}
    path = RESULTS / f"bench-{area}.json"
    path.write_text(json.dumps(told, indent=1) + "\n")
    on, after, guest = about["machine"], about["machine_after"], about["guest"]
    changed = "" if about["clean"] else " (changed)"
    systemd = guest["systemd"]
    cpus = f"{guest['cpus']} CPUs"
    lines = [
        f"# bench-{area}",
        "",
        f"`{about['command']}` at {about['commit'][:12]}{changed}, {about['date']}.",
        f"Guest: {systemd}, {guest['python']}, {cpus}, by {on['accelerator']}.",
        f"Host: {on['cpus']} x {on['cpu']}; load {on['load'][0]} before, {after['load'][0]} after.",
        "",
        "| figure | value | unit | bar |",
        "|---|---|---|---|",
        *(f"| {f.name} | {f.value:.2f} | {f.unit} | {f.verdict} |" for f in figures),
        "",
    ]
    path.with_suffix(".md").write_text("\n".join(lines))
    return path
