# SPDX-License-Identifier: Apache-2.0
"""What is wrong, huge, not UTF-8 or gone ends nothing, blocks no tick, and is told once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.node.governed import HOME, PATIENCE_S, TRAINER, Governed, Job

WARNING = 4


@pytest.fixture
def witness(governed: Governed) -> Iterator[Job]:
    """An honest job, contained before; after the test the same governor ticks and contains another.

    And nothing has been complained about twice.
    """
    governed.start()
    honest = governed.start_job(loaders=1)
    governed.wait_until_contained(honest)
    pid, since = governed.pid, governed.now()
    yield honest
    governed.wait_for_ticks(3)
    another = governed.start_job(loaders=1)
    governed.wait_until_contained(honest, another)
    assert governed.pid == pid
    complaints = Counter(
        str(entry["MESSAGE"])
        for entry in governed.told(since)
        if int(entry["PRIORITY"]) <= WARNING and not str(entry["MESSAGE"]).startswith("sampler")
    )
    assert {text: n for text, n in complaints.items() if n > 1} == {}
    assert [text for text in complaints if "bug" in text] == []
    governed.end(honest, another)


def test_monstrous_command_lines_and_environments_are_contained_like_any_other(
    governed: Governed, witness: Job
):
    since = governed.now()
    odd = governed.start_processes(
        f"setsid runuser -u alice -- python3 {HOME}/odd_jobs.py {TRAINER}", processes=6
    )
    trainers = Job(governed.vm, odd.pids[1:])
    try:
        seen = governed.wait_until_contained(trainers)
        assert len(set(seen.job_units.values())) == 5
        for entry in governed.told(since):
            assert "\x1b" not in str(entry["MESSAGE"])
            assert entry["MESSAGE"] != "b"
        screen = governed.vm.run(["swift-governor", "status"]).stdout
        assert "\x1b" not in screen
        assert max(map(len, screen.splitlines())) <= 80
    finally:
        governed.end(odd)


def test_two_hundred_processes_that_come_and_go_stop_no_tick(governed: Governed, witness: Job):
    vm = governed.vm
    vm.sh("cp /bin/true /tmp/python3; chmod 755 /tmp/python3")
    before = governed.ticks()
    vm.run(
        ["runuser", "-u", "alice", "--", "python3", f"{HOME}/storm.py", "200", TRAINER],
        timeout_s=PATIENCE_S,
    )
    governed.wait_for_ticks(3)
    assert governed.ticks() > before
    vm.wait_for(
        "the ended ones to be forgotten",
        lambda: (
            [set(job["processes"]) for job in governed.look().jobs.values()] == [{"rank", "loader"}]
        ),
        PATIENCE_S,
    )


def test_garbage_on_the_socket_is_refused_and_starves_nobody(governed: Governed, witness: Job):
    done = governed.vm.run(
        ["runuser", "-u", "alice", "--", "python3", f"{HOME}/garbage.py"], timeout_s=PATIENCE_S
    )
    told = json.loads(done.stdout)
    assert told["refused"] == told["sent"]
    governed.wait_for_ticks(3)
    assert governed.vm.run(["swift-governor", "status", "--json"]).rc == 0


def test_a_restart_of_the_bus_is_survived_and_later_jobs_are_contained(
    governed: Governed, witness: Job
):
    pid = governed.pid
    governed.vm.run(["systemctl", "restart", "dbus.service"], timeout_s=PATIENCE_S)
    governed.wait_for_ticks(3)
    later = governed.start_job(loaders=1)
    governed.wait_until_contained(witness, later)
    governed.end(later)
    assert governed.pid == pid


def test_the_unit_that_all_this_ran_under_is_exposed_no_more_than_stated(governed: Governed):
    told = governed.vm.run(
        ["systemd-analyze", "security", "--no-pager", "swift-governor.service"], PATIENCE_S
    ).stdout
    exposure = float(told.rpartition("Overall exposure level")[2].split(":")[1].split()[0])
    print(f"exposure {exposure}")
    assert exposure <= 2.6
