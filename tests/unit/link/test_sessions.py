# SPDX-License-Identifier: Apache-2.0
"""What the daemon makes of a trainer's words."""

from __future__ import annotations

from typing import Any

import pytest
from swift_governor.link.sessions import Sessions
from swift_governor.model import MicroBatchWish, ProcessId

PROCESS = ProcessId(101, 707)
REGISTER: dict[str, Any] = {
    "rank": 0,
    "local_rank": 0,
    "world_size": 1,
    "local_world_size": 1,
    "micro_batch": 4,
    "accumulation": 2,
    "rows_per_step": 8,
    "framework": "x",
    "workers": (),
    "cannot": {},
}
REPORT: dict[str, Any] = {
    "optimizer_step": 5,
    "running_micro_batch": 4,
    "steps": 2,
    "seconds": 4.0,
    "wait_s": 1.0,
    "samples": 16,
    "phase": "train",
    "workers": (7, 8),
    "oom_count": 0,
    "last_oom_micro_batch": None,
    "answered": 0,
    "refused": None,
}


def test_rates_come_from_the_differences_of_a_report() -> None:
    sessions = Sessions()
    session = sessions.register(PROCESS, 1.0, REGISTER)
    sessions.report(session, 2.0, REPORT)
    report = sessions.reports()[PROCESS]
    assert report.step_s == 2.0
    assert report.samples_per_s == 4.0
    assert report.wait_share == 0.25
    assert report.workers == (7, 8)


def test_a_report_between_two_steps_keeps_the_last_rates() -> None:
    sessions = Sessions()
    session = sessions.register(PROCESS, 1.0, REGISTER)
    sessions.report(session, 2.0, REPORT)
    sessions.report(session, 3.0, {**REPORT, "steps": 0, "seconds": 1.0, "samples": 0})
    assert sessions.reports()[PROCESS].samples_per_s == 4.0
    assert sessions.reports()[PROCESS].steps == 2


@pytest.mark.parametrize("wait", [4.0, 9.0, 1e6])
def test_nobody_waits_longer_than_there_was_time(wait: float) -> None:
    sessions = Sessions()
    session = sessions.register(PROCESS, 1.0, REGISTER)
    sessions.report(session, 2.0, {**REPORT, "wait_s": wait})
    assert sessions.reports()[PROCESS].wait_share == 1.0


def test_a_wish_reaches_its_trainer_and_lapses_when_it_is_no_longer_wished() -> None:
    sessions = Sessions()
    session = sessions.register(PROCESS, 1.0, REGISTER)
    sessions.wish((MicroBatchWish(PROCESS, "j", 2, 3, "why"),))
    assert session.told == {"sequence": 3, "micro_batch": 2}
    sessions.wish(())
    assert session.told == {"sequence": 0, "micro_batch": None}


def test_a_process_that_registers_again_has_one_session_and_the_old_ones_end_is_no_harm() -> None:
    sessions = Sessions()
    old = sessions.register(PROCESS, 1.0, REGISTER)
    new = sessions.register(PROCESS, 2.0, REGISTER)
    assert old.token != new.token
    sessions.close(old)
    assert PROCESS in sessions.reports()
    sessions.close(new)
    assert not sessions.reports()


def test_a_time_of_next_to_nothing_makes_no_rate() -> None:
    sessions = Sessions()
    session = sessions.register(PROCESS, 1.0, REGISTER)
    sessions.report(session, 2.0, {**REPORT, "seconds": 1e-300})
    assert sessions.reports()[PROCESS].samples_per_s is None
