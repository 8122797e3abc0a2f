# SPDX-License-Identifier: Apache-2.0
"""Priorities of real processes with real threads. Runs as root: it raises priorities again."""

from __future__ import annotations

import dataclasses
import os
import threading

import pytest
from swift_governor.act.inherited import restore_strangers
from swift_governor.act.ledger import Ledger, ThreadRecord
from swift_governor.act.priorities import Priorities
from swift_governor.act.threads import (
    BEST_EFFORT,
    IDLE,
    NONE,
    REALTIME,
    Priority,
    ioprio,
    lowered,
    read_priority,
    restore_process,
    set_ioprio,
)
from swift_governor.model import IoClass, Note, PriorityWish, ProcessId

from tests.unit.act.threaded import Threaded, identity, threaded

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="raising a priority again needs root")
OURS = Priority(15, ioprio(IDLE))


def wish(process: Threaded, nice: int = 15, io_class: IoClass = IoClass.IDLE) -> PriorityWish:
    return PriorityWish(process.id, "sft1x1", nice, io_class)


class Bench:
    def __init__(self, tmp_path, maximum_bytes: int = 1 << 20) -> None:
        self.notes: list[Note] = []
        self.path = str(tmp_path / "ledger.jsonl")
        self.ledger = Ledger(self.path, maximum_bytes)
        self.priorities = Priorities(self.ledger, "/proc", self.notes.append)
        self.now = 0.0

    def tick(self, *wishes: PriorityWish, seconds: float = 1.0) -> None:
        self.now += seconds
        self.priorities.apply(wishes, self.now)

    def restarted(self) -> None:
        self.priorities = Priorities(Ledger(self.path), "/proc", self.notes.append)


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)


def test_every_thread_gets_the_priority_and_gets_its_own_back(bench) -> None:
    with threaded() as process:
        before = process.priorities()
        assert len(process.tids()) == 5
        bench.tick(wish(process))
        assert process.priorities() == {OURS}
        assert bench.priorities.thread_count == 5
        bench.tick()
        assert process.priorities() == before
        assert not bench.ledger.book.threads


def test_each_thread_gets_back_what_it_had_and_not_what_its_neighbour_had(bench) -> None:
    with threaded() as process:
        odd = process.tids()[2]
        os.setpriority(os.PRIO_PROCESS, odd, 7)
        before = {tid: read_priority(tid) for tid in process.tids()}
        bench.tick(wish(process))
        assert process.priorities() == {OURS}
        bench.tick()
        assert {tid: read_priority(tid) for tid in process.tids()} == before


def test_a_thread_born_later_is_found_when_the_count_changes_and_given_back(bench) -> None:
    with threaded() as process:
        before = process.priorities()
        bench.tick(wish(process))
        process.ask("thread")
        newest = process.tids()[-1]
        os.setpriority(os.PRIO_PROCESS, newest, 3)
        bench.tick(wish(process))
        assert process.priorities() == {OURS}
        os.setpriority(os.PRIO_PROCESS, newest, 15)
        bench.tick()
        assert {p.nice for p in process.priorities()} <= {p.nice for p in before} | {3}


def test_a_forked_child_that_inherited_our_priority_gets_what_its_job_had(bench) -> None:
    with threaded(nice=2) as process:
        bench.tick(wish(process))
        child = identity(int(process.ask("fork")))
        assert read_priority(child.pid) == OURS
        child_wish = dataclasses.replace(wish(process), process=child)
        bench.tick(wish(process), child_wish)
        bench.restarted()
        bench.tick(wish(process), child_wish)
        bench.tick()
        assert read_priority(child.pid).nice == 2
        assert process.priorities() == {Priority(2, read_priority(child.pid).ioprio)}


def test_a_users_own_lower_priority_is_respected(bench) -> None:
    with threaded(nice=19) as process:
        bench.tick(wish(process, io_class=IoClass.NONE))
        assert {p.nice for p in process.priorities()} == {19}
        assert not bench.ledger.book.threads
        assert not bench.priorities.writes


def test_a_user_who_goes_lower_later_is_respected_and_keeps_it_on_return(bench) -> None:
    with threaded() as process:
        bench.tick(wish(process))
        for tid in process.tids():
            os.setpriority(os.PRIO_PROCESS, tid, 18)
        bench.tick(wish(process), seconds=60)
        assert {p.nice for p in process.priorities()} == {18}
        assert not bench.priorities.drift
        bench.tick()
        assert {p.nice for p in process.priorities()} == {18}


def test_a_priority_that_somebody_raised_is_drift_and_mended(bench) -> None:
    with threaded() as process:
        bench.tick(wish(process))
        os.setpriority(os.PRIO_PROCESS, process.id.pid, -3)
        bench.tick(wish(process), seconds=60)
        assert process.priorities() == {OURS}
        assert bench.priorities.drift == 1


def test_a_changed_wish_is_aimed_from_what_was_found_and_not_from_what_we_set(bench) -> None:
    with threaded(nice=1) as process:
        bench.tick(wish(process, nice=19))
        bench.tick(wish(process, nice=10))
        assert {p.nice for p in process.priorities()} == {10}
        bench.tick()
        assert {p.nice for p in process.priorities()} == {1}


def test_a_reused_pid_is_not_the_same_process(bench) -> None:
    with threaded() as process:
        before = process.priorities()
        other = ProcessId(process.id.pid, process.id.start_ticks - 1)
        bench.tick(dataclasses.replace(wish(process), process=other))
        assert process.priorities() == before
        record = ThreadRecord(*dataclasses.astuple(other), other.pid, 1, "j", 9, 0, 0, 0)
        restore_process("/proc", other.pid, other.start_ticks, [record])
        assert process.priorities() == before


def test_a_process_that_has_gone_leaves_the_ledger(bench) -> None:
    with threaded() as process:
        bench.tick(wish(process))
        last = wish(process)
    bench.tick(last)
    assert not bench.ledger.book.threads


def test_without_a_ledger_nothing_is_changed_and_it_is_told_once(tmp_path) -> None:
    bench = Bench(tmp_path, maximum_bytes=10)
    with threaded() as process:
        before = process.priorities()
        bench.tick(wish(process))
        bench.tick(wish(process))
        assert process.priorities() == before
        assert [n.kind for n in bench.notes] == ["refused"]


def test_after_a_restart_what_was_found_first_still_counts(bench) -> None:
    with threaded(nice=3) as process:
        bench.tick(wish(process))
        bench.restarted()
        bench.tick(wish(process))
        assert bench.priorities.writes == 0
        bench.tick()
        assert {p.nice for p in process.priorities()} == {3}


def test_an_unchanged_process_costs_no_walk_through_its_threads(bench, monkeypatch) -> None:
    walks: list[int] = []
    with threaded() as process:
        bench.tick(wish(process))
        monkeypatch.setattr(
            "swift_governor.act.priorities.thread_ids", lambda _root, pid: walks.append(pid) or ()
        )
        bench.tick(wish(process))
        assert not walks


def test_strangers_of_a_job_are_restored_by_its_records_and_others_left(tmp_path) -> None:
    with threaded(nice=15) as process:
        for tid in process.tids():
            set_ioprio(tid, OURS.ioprio)
        (tmp_path / str(process.id.pid)).mkdir()
        cgroup = "0::/msswift.slice/msswift-sft1x1-main.scope\n"
        (tmp_path / str(process.id.pid) / "cgroup").write_text(cgroup)
        (tmp_path / str(process.id.pid) / "task").symlink_to(f"/proc/{process.id.pid}/task")
        main = ThreadRecord(1, 1, 1, 1, "sft2x2", 4, 0, 15, OURS.ioprio)
        restore_strangers(str(tmp_path), [process.id.pid], [main], False)
        assert process.priorities() == {OURS}
        main = dataclasses.replace(main, job="sft1x1")
        restore_strangers(str(tmp_path), [process.id.pid], [main], False)
        assert {p.nice for p in process.priorities()} == {4}


def test_with_no_records_what_is_below_the_default_goes_back_to_it() -> None:
    with threaded(nice=15) as process:
        set_ioprio(process.id.pid, OURS.ioprio)
        restore_strangers("/proc", [process.id.pid], [], False)
        assert {p.nice for p in process.priorities()} == {15}
        restore_strangers("/proc", [process.id.pid], [], True)
        assert {p.nice for p in process.priorities()} == {0}
        assert all(p.ioprio != OURS.ioprio for p in process.priorities())


def test_none_has_no_level_since_the_kernel_refuses_one() -> None:
    with threaded() as process:
        set_ioprio(process.id.pid, ioprio(BEST_EFFORT, 6))
        assert read_priority(process.id.pid).ioprio == ioprio(BEST_EFFORT, 6)
        set_ioprio(process.id.pid, ioprio(NONE, 4))


@pytest.mark.parametrize(
    ("found", "io_class", "expected"),
    [
        (Priority(0, 0), NONE, Priority(15, 0)),
        (Priority(0, 0), IDLE, Priority(15, ioprio(IDLE))),
        (Priority(0, 0), BEST_EFFORT, Priority(15, 0)),
        (Priority(0, ioprio(BEST_EFFORT, 7)), BEST_EFFORT, Priority(15, ioprio(BEST_EFFORT, 7))),
        (Priority(0, ioprio(BEST_EFFORT, 0)), BEST_EFFORT, Priority(15, ioprio(BEST_EFFORT, 4))),
        (Priority(-5, ioprio(REALTIME, 0)), IDLE, Priority(15, ioprio(IDLE))),
        (Priority(19, ioprio(IDLE)), BEST_EFFORT, Priority(19, ioprio(IDLE))),
    ],
)
def test_a_wish_only_ever_lowers(found: Priority, io_class: int, expected: Priority) -> None:
    assert lowered(found, 15, io_class) == expected


def test_threads_that_come_and_go_during_the_walk_do_no_harm(bench) -> None:
    stop = threading.Event()
    with threaded() as process:

        def churn() -> None:
            while not stop.is_set():
                process.ask("thread")

        churner = threading.Thread(target=churn)
        churner.start()
        for _ in range(20):
            bench.tick(wish(process))
        stop.set()
        churner.join()
        bench.tick(wish(process))
        assert process.priorities() == {OURS}
