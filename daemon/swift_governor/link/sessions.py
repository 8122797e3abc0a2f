# SPDX-License-Identifier: Apache-2.0
"""The linked trainers: one session for each training process that has registered."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from swift_governor.model import MicroBatchWish, ProcessId, TrainerReport

PROTOCOL = 1
SHORTEST_S = 1e-4


@dataclass
class Session:
    """One trainer. ``told`` is the wish it is answered with."""

    token: str
    process: ProcessId
    report: TrainerReport
    told: dict[str, Any]
    refused: str = ""


class Sessions:
    """By process. A process that registers again replaces its earlier session."""

    def __init__(self) -> None:
        self._by_process: dict[ProcessId, Session] = {}

    def register(self, process: ProcessId, now: float, p: Mapping[str, Any]) -> Session:
        """``p``: the checked parameters of Register."""
        report = TrainerReport(
            process=process,
            at=now,
            rank=p["rank"],
            world_size=p["world_size"],
            base_micro_batch=p["micro_batch"],
            base_accumulation=p["accumulation"],
            rows_per_step=p["rows_per_step"],
            running_micro_batch=p["micro_batch"],
            optimizer_step=0,
            steps=0,
            workers=p["workers"],
            framework=p["framework"],
            cannot=p["cannot"],
            phase="start",
            local_rank=p["local_rank"],
            local_world_size=p["local_world_size"],
        )
        session = Session(secrets.token_hex(8), process, report, _nothing())
        self._by_process[process] = session
        return session

    def report(self, session: Session, now: float, p: Mapping[str, Any]) -> None:
        """Takes the checked parameters of Report into the session.

        A report without a finished step keeps the last known rates: a step may be longer than the
        interval between two reports.
        """
        old = session.report
        step_s, rate, wait = old.step_s, old.samples_per_s, old.wait_share
        # A time too short for a clock to tell gives rates of no meaning, infinite ones among them.
        if p["steps"] > 0 and p["seconds"] > SHORTEST_S:
            step_s = p["seconds"] / p["steps"]
            rate = p["samples"] / p["seconds"]
            wait = min(1.0, p["wait_s"] / p["seconds"])
        session.refused = p["refused"] or ""
        session.report = replace(
            old,
            at=now,
            running_micro_batch=p["running_micro_batch"],
            optimizer_step=p["optimizer_step"],
            steps=old.steps + p["steps"],
            step_s=step_s,
            samples_per_s=rate,
            wait_share=wait,
            oom_count=p["oom_count"],
            last_oom_micro_batch=p["last_oom_micro_batch"],
            workers=p["workers"],
            phase=p["phase"],
            answered_sequence=p["answered"],
        )

    def close(self, session: Session) -> None:
        """The trainer hung up or ended."""
        if self._by_process.get(session.process) is session:
            del self._by_process[session.process]

    def wish(self, wishes: tuple[MicroBatchWish, ...]) -> None:
        """What each trainer is to be answered from now on."""
        by_process = {w.process: w for w in wishes}
        for process, session in self._by_process.items():
            wish = by_process.get(process)
            session.told = (
                {"sequence": wish.sequence, "micro_batch": wish.micro_batch} if wish else _nothing()
            )

    def reports(self) -> Mapping[ProcessId, TrainerReport]:
        return {process: s.report for process, s in self._by_process.items()}


def _nothing() -> dict[str, Any]:
    return {"sequence": 0, "micro_batch": None}
