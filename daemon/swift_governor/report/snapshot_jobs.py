# SPDX-License-Identifier: Apache-2.0
"""The ``jobs``, ``tiers`` and ``unit`` parts of the snapshot; report/snapshot.py documents them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from swift_governor.model import (
    ActState,
    Decision,
    Job,
    JobState,
    Limits,
    Role,
    Snapshot,
    TrainerReport,
)
from swift_governor.report.safe_text import number, optional, printable

Json = dict[str, Any]


class Units:
    """What cgroupfs said of each unit beside what was wished for it."""

    def __init__(
        self, snapshot: Snapshot, limits: Mapping[str, Limits], cores: Mapping[str, float]
    ) -> None:
        self._readings, self._limits, self._cores = snapshot.units, limits, cores

    def __contains__(self, unit: str) -> bool:
        return unit in self._readings

    def told(self, unit: str) -> Json:
        reading = self._readings.get(unit)
        wished = self._limits.get(unit, Limits())
        told: Json = {
            "unit": printable(unit, 256),
            "cgroup": None,
            "present": reading is not None,
            "populated": False,
            "processes": 0,
            "wished_quota_cores": number(wished.cpu_quota_cores),
            "wished_weight": wished.cpu_weight,
            "cpu_cores": number(self._cores.get(unit)),
        }
        if reading is not None:
            told["cgroup"] = printable(reading.cgroup, 512)
            told["populated"] = reading.populated
            told["processes"] = len(reading.pids)
        for key, attribute in (
            ("quota_cores", "cpu_quota_cores"),
            ("weight", "cpu_weight"),
            ("cpu_usage_s", "cpu_usage_s"),
            ("periods", "nr_periods"),
            ("throttled_periods", "nr_throttled"),
            ("throttled_s", "throttled_s"),
            ("memory_bytes", "memory_bytes"),
        ):
            told[key] = number(getattr(reading, attribute)) if reading is not None else None
        return told


def tier_section(
    snapshot: Snapshot, decision: Decision, slices: Mapping[str, str], units: Units
) -> list[Json]:
    """Each tier, also one without jobs."""
    sizes = {job.name: len(job.members) for job in snapshot.jobs}
    names = dict(slices)
    for state in decision.jobs:
        names.setdefault(state.tier, f"msswift-{state.tier}.slice")
    return [
        {
            "name": printable(tier, 64),
            "slice": printable(unit, 256),
            "jobs": sum(1 for state in decision.jobs if state.tier == tier),
            "processes": sum(sizes.get(s.job, 0) for s in decision.jobs if s.tier == tier),
            "unit": units.told(unit) if unit in units else None,
        }
        for tier, unit in names.items()
    ]


def job_section(
    job: Job, state: JobState | None, snapshot: Snapshot, act: ActState, units: Units
) -> Json:
    """One job; ``state`` None where nothing was decided for it."""
    roles = Counter(member.role for member in job.members)
    reports = [
        snapshot.trainers[member.id] for member in job.members if member.id in snapshot.trainers
    ]
    names: tuple[str, ...] = () if state is None else tuple(dict.fromkeys(state.units))
    if state is not None and state.slice and state.slice not in names and state.slice in units:
        names = (state.slice, *names)
    running = state.micro_batch if state is not None else None
    if running is None and reports:
        running = min(report.running_micro_batch for report in reports)
    return {
        "name": printable(job.name, 64),
        "verb": printable(job.verb, 64),
        "engine": job.engine.value,
        "user": printable(snapshot.users.get(job.uid, str(job.uid)), 64),
        "uid": job.uid,
        "tier": optional(state and state.tier, 64),
        "tier_rule": optional(state and state.tier_rule, 256),
        "mode": state.mode.value if state is not None else None,
        "slice": optional(state and state.slice, 256),
        "gpus": list(state.gpus) if state is not None else [],
        "world_size": job.world_size,
        "multi_node": job.multi_node,
        "registered": job.registered,
        "processes": {role.value: roles[role] for role in Role if roles[role]},
        "contained": sum(1 for member in job.members if member.id in act.contained),
        "units": [units.told(name) for name in names],
        "micro_batch": {
            "running": running,
            "wished": state.wished_micro_batch if state is not None else None,
            "reason": printable(state.micro_batch_reason, 256) if state is not None else "",
        },
        "trainer": _trainer(reports) if reports else None,
    }


def _trainer(reports: list[TrainerReport]) -> Json:
    reports = sorted(reports, key=lambda report: report.rank)
    cannot: dict[str, str] = {}
    for report in reports:
        for what, why in list(report.cannot.items())[:16]:
            cannot.setdefault(printable(what, 64), printable(why, 256))
    rates = _known(report.samples_per_s for report in reports)
    return {
        "linked_ranks": len(reports),
        "framework": printable(reports[0].framework, 64),
        "phase": printable(reports[0].phase, 32),
        "optimizer_step": min(report.optimizer_step for report in reports),
        "steps": min(report.steps for report in reports),
        "samples_per_s": number(sum(rates)) if rates else None,
        "wait_share": number(max(_known(r.wait_share for r in reports), default=None)),
        "step_s": number(max(_known(r.step_s for r in reports), default=None)),
        "workers": sum(len(report.workers) for report in reports),
        "ooms": sum(report.oom_count for report in reports),
        "cannot": cannot,
        "ranks": [
            {
                "rank": report.rank,
                "micro_batch": report.running_micro_batch,
                "optimizer_step": report.optimizer_step,
                "samples_per_s": number(report.samples_per_s),
                "wait_share": number(report.wait_share),
                "step_s": number(report.step_s),
                "workers": len(report.workers),
                "ooms": report.oom_count,
                "answered": report.answered_sequence,
            }
            for report in reports
        ],
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
