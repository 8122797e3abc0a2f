# SPDX-License-Identifier: Apache-2.0
"""The status screen: a snapshot (report/snapshot.py) as lines of at most 80 columns."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from swift_governor.cli.columns import fit, ranges, table
from swift_governor.report.safe_text import printable

COLUMNS = 80
CODES = {"head": "1", "good": "32", "warn": "33", "bad": "31", "dim": "2"}
EVENTS = 5
GIB = 1024**3
WARNING = 4  # syslog(3)
UNKNOWN = "–"

Json = Mapping[str, Any]


class Paint:
    """Colours by meaning, or none."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, meaning: str, text: str) -> str:
        return f"\033[{CODES[meaning]}m{text}\033[0m" if self._colour else text


def screen(snapshot: Json, paint: Paint) -> str:
    """Lines of the screen. KeyError or TypeError where it isn't a snapshot of schema 1."""
    lines = _top(snapshot, paint)
    for title, part in (
        (f"JOBS {len(snapshot['jobs'])}", _jobs(snapshot, paint)),
        (f"GPUS {len(snapshot['gpus'])}", _gpus(snapshot, paint)),
        ("TIERS", _tiers(snapshot)),
        ("RECENT", _recent(snapshot, paint)),
    ):
        if part:
            lines += ["", paint("head", title), *part]
    return "\n".join(lines)


def _top(snapshot: Json, paint: Paint) -> list[str]:
    own, sampler, pressure = snapshot["self"], snapshot["sampler"], snapshot["pressure"]
    mode = paint("good" if own["mode"] == "enforce" else "warn", own["mode"])
    host = fit(printable(snapshot["node"]["hostname"]), 24).rstrip()
    version = printable(own["version"], 12)
    lines = [f"swift-governor {version} on {host}: {mode}, up {_span(own['uptime_s'])}"]
    if own["mode"] == "observe":
        lines.append("Observing: nothing is changed. To act: `mode: enforce` in the configuration.")
    shares = ", ".join(
        f"{name} {_percent(pressure[key])}"
        for name, key in (("CPU", "cpu_some"), ("memory", "memory_full"), ("I/O", "io_full"))
    )
    lines.append(f"pressure: {shares}")
    if sampler["up"]:
        lines.append(f"GPU sampler: ok, read {sampler['age_s']:.1f} s ago")
    else:
        detail = f" ({printable(sampler['detail'])})" if sampler["detail"] else ""
        state = "stale" if sampler["status"] == "ok" else sampler["status"]
        lines.append(paint("warn", fit(f"GPU sampler: {state}{detail}", COLUMNS).rstrip()))
    if not snapshot["node"]["cpu_controller"]:
        lines.append(paint("bad", "No cpu controller in cgroup v2: no CPU limit has any effect."))
    for unit, message in list(snapshot["act"]["errors"].items())[:3]:
        lines.append(paint("bad", fit(f"not done: {unit}: {message}", COLUMNS).rstrip()))
    return lines


def _jobs(snapshot: Json, paint: Paint) -> list[str]:
    held = {loop["job"]: loop["held_by"] for loop in snapshot["loops"] if loop["job"]}
    rows = [
        (
            printable(job["name"]),
            printable(job["user"]),
            printable(job["tier"] or UNKNOWN),
            ranges(job["gpus"]) or UNKNOWN,
            _quota(job),
            _batch(job["micro_batch"]),
            _percent((job["trainer"] or {}).get("wait_share")),
            _held(job, held),
        )
        for job in snapshot["jobs"]
    ]
    if not rows:
        return ["none: nothing here looks like ms-swift; `swift-governor match` explains"]
    lines = table(
        ("JOB", "USER", "TIER", "GPU", "CORES", "BATCH", "WAIT", "HELD BY"),
        rows,
        (19, 10, 10, 5, 9, 5, 4, 18),
        "llllrrrl",
    )
    return [paint("dim", lines[0]), *lines[1:]]


def _quota(job: Json) -> str:
    """Cores used now / quota, of the unit that has a quota; cores used alone where none has."""
    limited = [unit for unit in job["units"] if unit["quota_cores"] is not None]
    units = limited or [unit for unit in job["units"] if not unit["unit"].endswith(".slice")]
    used = [unit["cpu_cores"] for unit in units if unit["cpu_cores"] is not None]
    text = f"{sum(used):.1f}" if used else UNKNOWN
    if limited:
        text += f"/{sum(unit['quota_cores'] for unit in limited):.3g}"
    return text


def _batch(micro_batch: Json) -> str:
    running, wished = micro_batch["running"], micro_batch["wished"]
    if running is None:
        return UNKNOWN
    return f"{running}→{wished}" if wished is not None and wished != running else str(running)


def _held(job: Json, held: Mapping[str, str]) -> str:
    if job["mode"] == "observe":
        return "observed only"
    if job["name"] in held:
        return held[job["name"]]
    total = sum(job["processes"].values())
    if job["contained"] < total:
        return f"{job['contained']} of {total} placed"
    return "its tier"


def _gpus(snapshot: Json, paint: Paint) -> list[str]:
    loops = {loop["uuid"]: loop for loop in snapshot["loops"]}
    rows, faults = [], []
    for gpu in snapshot["gpus"]:
        loop = loops.get(gpu["uuid"])
        faults.append(bool(gpu["fault"]))
        rows.append(
            (
                str(gpu["index"]),
                printable(gpu["name"]).replace("NVIDIA ", ""),
                _percent(gpu["utilization"]),
                _memory(gpu),
                _plain(gpu["temperature_c"], "°"),
                _plain(gpu["power_w"], " W"),
                _percent(loop["process_variable"]) if loop else UNKNOWN,
                f"{loop['setpoint']:.0%}±{loop['band'] * 100:.0f}" if loop else UNKNOWN,
                printable(gpu["fault"] or (loop["held_by"] if loop else "no loop")),
            )
        )
    if not rows:
        return []
    lines = table(
        ("GPU", "NAME", "BUSY", "GIB", "TEMP", "POWER", "MEAN", "TARGET", "HELD BY"),
        rows,
        (3, 12, 4, 7, 4, 6, 4, 7, 17),
        "rlrrrrrll",
    )
    painted = [paint("bad", line) if bad else line for line, bad in zip(lines[1:], faults)]
    return [paint("dim", lines[0]), *painted]


def _tiers(snapshot: Json) -> list[str]:
    lines = []
    for tier in snapshot["tiers"]:
        unit = tier["unit"] or {}
        quota, weight = unit.get("quota_cores"), unit.get("weight")
        cap = f"cap {quota:.3g} cores" if quota is not None else "no cap"
        facts = f"jobs {tier['jobs']}, processes {tier['processes']}"
        if unit:
            facts += f", weight {weight if weight is not None else UNKNOWN}, {cap}"
        lines.append(fit(f"{fit(printable(tier['name']), 11)} {facts}", COLUMNS).rstrip())
    if snapshot["left_alone"]["count"]:
        lines.append(f"left where they are: {snapshot['left_alone']['count']} (see --json)")
    return lines


def _recent(snapshot: Json, paint: Paint) -> list[str]:
    lines = []
    for note in snapshot["notes"][-EVENTS:]:
        at = time.strftime("%H:%M:%S", time.localtime(note["wall_s"]))
        subject, message = printable(note["subject"]), printable(note["message"])
        text = message if subject in message else f"{subject}: {message}"
        line = fit(f"{at} {text}", COLUMNS).rstrip()
        lines.append(paint("warn", line) if note["severity"] <= WARNING else line)
        if note["remedy"] and note["severity"] <= WARNING:
            lines.append(fit(f"         {printable(note['remedy'])}", COLUMNS).rstrip())
    return lines


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def _plain(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f}{unit}"


def _memory(gpu: Json) -> str:
    used, total = gpu["memory_used_bytes"], gpu["memory_total_bytes"]
    if used is None or total is None:
        return UNKNOWN
    return f"{used / GIB:.0f}/{total / GIB:.0f}"


def _span(seconds: float) -> str:
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{int(seconds)} s"
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
