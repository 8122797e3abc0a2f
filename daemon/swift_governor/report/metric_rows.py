# SPDX-License-Identifier: Apache-2.0
"""Which series a metric has in a snapshot: its label values, and the record its value is in.

Each function takes the snapshot (report/snapshot.py) and yields (label values by name, record) for
each series. A job that ended is not in the snapshot, so its series end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from swift_governor.model import Constraint

Record = Mapping[str, Any]
Rows = Callable[[Record], Iterable[tuple[Record, Record]]]


def once(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """One series without labels: the snapshot itself."""
    yield {}, snapshot


def build(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """The version."""
    yield {"version": snapshot["self"]["version"]}, {"is": 1}


def node(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """The node."""
    facts = snapshot["node"]
    yield {"hostname": facts["hostname"], "systemd": facts["systemd_version"] or ""}, {"is": 1}


def states(names: Iterable[str], label: str, current: Callable[[Record], str]) -> Rows:
    """A series for each possible state, 1 for the one that holds."""

    def rows(snapshot: Record) -> Iterable[tuple[Record, Record]]:
        now = current(snapshot)
        for name in names:
            yield {label: name}, {"is": 1 if name == now else 0}

    return rows


def counts(section: str, key: str, label: str) -> Rows:
    """A series for each name in a table of counts."""

    def rows(snapshot: Record) -> Iterable[tuple[Record, Record]]:
        for name, count in snapshot[section][key].items():
            yield {label: name}, {"count": count}

    return rows


def pressure(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """PSI by resource and kind."""
    for name, value in snapshot["pressure"].items():
        resource, _, kind = name.partition("_")
        yield {"resource": resource, "kind": kind}, {"share": value}


def jobs(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """Each job."""
    for job in snapshot["jobs"]:
        yield (
            {
                "msswift_job": job["name"],
                "verb": job["verb"],
                "engine": job["engine"],
                "user": job["user"],
                "tier": job["tier"] or "",
                "mode": job["mode"] or "",
                "slice": job["slice"] or "",
            },
            {**job, "is": 1, "linked": 1 if job["trainer"] else 0},
        )


def roles(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """Each role that a job has processes of."""
    for job in snapshot["jobs"]:
        for role, count in job["processes"].items():
            yield {"msswift_job": job["name"], "role": role}, {"count": count}


def job_gpus(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """Each GPU of each job."""
    uuids = {gpu["index"]: gpu["uuid"] for gpu in snapshot["gpus"]}
    for job in snapshot["jobs"]:
        for index in job["gpus"]:
            yield (
                {
                    "msswift_job": job["name"],
                    "gpu": index,
                    "UUID": uuids.get(index, ""),
                },
                {"is": 1},
            )


def ranks(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """Each linked rank of each job."""
    for job in snapshot["jobs"]:
        for rank in (job["trainer"] or {}).get("ranks", ()):
            yield {"msswift_job": job["name"], "rank": rank["rank"]}, rank


def units(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """Each unit of each job."""
    for job in snapshot["jobs"]:
        for unit in job["units"]:
            yield {"msswift_job": job["name"], "unit": unit["unit"]}, unit


def tiers(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """Each tier."""
    for tier in snapshot["tiers"]:
        yield {"tier": tier["name"]}, tier


def gpus(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """Each GPU."""
    for gpu in snapshot["gpus"]:
        yield (
            {
                "gpu": gpu["index"],
                "UUID": gpu["uuid"],
                "model": gpu["name"],
                "fault": gpu["fault"],
            },
            {**gpu, "is": 1, "faulty": 1 if gpu["fault"] else 0},
        )


def loops(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """Each GPU's loop."""
    for loop in snapshot["loops"]:
        yield (
            {
                "gpu": loop["index"],
                "UUID": loop["uuid"],
                "msswift_job": loop["job"] or "",
                "unit": loop["unit"] or "",
            },
            {**loop, "is": 1 if loop["job"] else None},
        )


def terms(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """The p, i and d terms of each loop."""
    for loop in snapshot["loops"]:
        for term in "pid":
            yield (
                {
                    "gpu": loop["index"],
                    "UUID": loop["uuid"],
                    "term": term,
                },
                {"value": loop[f"{term}_term"]},
            )


def constraints(snapshot: Record) -> Iterable[tuple[Record, Record]]:
    """Each constraint of each loop, 1 for the active one."""
    for loop in snapshot["loops"]:
        for constraint in Constraint:
            yield (
                {
                    "gpu": loop["index"],
                    "UUID": loop["uuid"],
                    "constraint": constraint.value,
                },
                {"is": 1 if constraint.value == loop["constraint"] else 0},
            )
