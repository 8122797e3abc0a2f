# SPDX-License-Identifier: Apache-2.0
"""Whole jobs in their place, and what belongs to others left alone, by the installed package."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.node.governed import (
    FREE,
    GOVERNED,
    HOME,
    LIMITED,
    PATIENCE_S,
    TIER,
    TRAINER,
    Governed,
    Job,
)

TORCHRUN = (
    f"env PYTHONPATH={HOME} python3 -m torch.distributed.run --nproc_per_node 2 "
    f"{TRAINER} --loaders 1"
)


@pytest.fixture
def started(governed: Governed) -> Iterator[list[Job]]:
    """Jobs that the test put in here are ended after it."""
    governed.start()
    jobs: list[Job] = []
    yield jobs
    governed.end(*jobs)


def test_a_whole_job_of_agent_ranks_and_loaders_is_in_one_slice_of_its_user(
    governed: Governed, started: list[Job]
):
    job = governed.start_processes(f"setsid runuser -u alice -- {TORCHRUN}", processes=5)
    started.append(job)
    seen = governed.wait_until_contained(job)
    (cgroup,) = set(seen.cgroups.values())
    found = re.fullmatch(
        r"/msswift\.slice/msswift-training\.slice/msswift-training-u1000\.slice/"
        r"msswift-training-u1000-(\w+)\.slice/msswift-(\w+)-main\.scope",
        cgroup,
    )
    assert found is not None
    assert found[1] == found[2]
    assert found[1].startswith(f"sft{min(job.pids)}x")

    def told() -> object:
        job = governed.look().jobs[found[1]]
        return job["processes"], job["world_size"], job["user"], job["contained"]

    # Children are born in their parent's scope: the kernel shows them there before a tick told.
    expected = ({"agent": 1, "rank": 2, "loader": 2}, 2, "alice", 5)
    governed.vm.wait_for("all of it to be told", lambda: told() == expected, PATIENCE_S)
    assert seen.threads == 2 * 4 + 1
    shown = governed.vm.run(["systemctl", "status", "--no-pager", job.scope(seen)], check=False)
    assert f"ms-swift sft of uid 1000, PID {min(job.pids)}" in shown.stdout
    tree = governed.vm.run(["systemd-cgls", "--no-pager", "--unit", "msswift.slice"]).stdout
    assert f"└─msswift-{found[1]}-main.scope" in tree


def test_a_loader_that_comes_later_joins_its_job_with_its_priority(
    governed: Governed, started: list[Job]
):
    job = governed.start_job(loaders=1)
    started.append(job)
    scope = job.scope(governed.wait_until_contained(job))
    rank = str(min(job.pids))
    governed.vm.run(["kill", "-USR1", rank])
    children = governed.vm.wait_for(
        "another loader",
        lambda: (found := governed.vm.run(["pgrep", "-P", rank]).stdout.split())[1:] and found,
        PATIENCE_S,
    )
    whole = Job(governed.vm, sorted([int(rank), *map(int, children)]))
    started.append(whole)
    assert whole.scope(governed.wait_until_contained(whole)) == scope


def test_what_a_service_or_a_container_engine_owns_stays_and_the_reason_is_told(
    governed: Governed, started: list[Job]
):
    since = governed.now()
    run = "systemd-run --quiet --uid=alice --unit"
    of_service = governed.start_processes(
        f"{run}=serving.service python3 {TRAINER} --loaders 1", processes=2
    )
    of_docker = governed.start_processes(
        f"{run}=docker-0123456789ab.scope --scope python3 {TRAINER} --loaders 1", processes=2
    )
    movable = governed.start_job(loaders=0)
    started += [of_service, of_docker, movable]
    pids = [*of_service.pids, *of_docker.pids]
    before = governed.look(pids)
    governed.wait_until_contained(movable)
    governed.vm.wait_for(
        "all three to be known", lambda: len(governed.look().jobs) == 3, PATIENCE_S
    )
    governed.wait_for_ticks(3)
    after = governed.look(pids)
    assert after.cgroups == before.cgroups
    assert set(after.job_units.values()) == {"serving.service", "docker-0123456789ab.scope"}
    assert after.all_priorities == {FREE}
    reasons = {left["pid"]: left["reason"] for left in after.snapshot["left_alone"]["shown"]}
    assert set(reasons) == set(pids)
    assert "serving.service" in reasons[of_service.pids[0]]
    assert "Docker" in reasons[of_docker.pids[0]]
    told = [e["MESSAGE"] for e in governed.told(since) if "stay where they are" in e["MESSAGE"]]
    assert len(told) == 2
    # What stays is not followed by systemctl stop either: the service still ends its own.
    governed.vm.run(["systemctl", "stop", "serving.service"])
    assert of_service.alive() == []


def test_a_quota_that_an_admin_set_in_etc_is_never_overwritten(
    governed: Governed, started: list[Job]
):
    vm, directory = governed.vm, "/etc/systemd/system/msswift-training.slice.d"
    job = governed.start_job(loaders=1)
    started.append(job)
    governed.wait_until_contained(job)
    try:
        vm.write(f"{directory}/50-admin.conf", "[Slice]\nCPUQuota=50%\n")
        vm.run(["systemctl", "daemon-reload"], timeout_s=PATIENCE_S)
        vm.run(["systemctl", "restart", "swift-governor"], timeout_s=PATIENCE_S)
        admins = ["50000 100000", LIMITED[1]]
        vm.wait_for("weight and nice", lambda: applied(governed, job, admins), PATIENCE_S)
        governed.wait_for_ticks(3)
        seen = governed.look(job.pids)
        assert seen.units[TIER] == admins
        assert "CPUQuotaPerSecUSec" in str(seen.snapshot["act"]["admin_properties"])
        governed.stop()
        seen = governed.look(job.pids)
        assert seen.limited_units == {TIER: ["50000 100000", "100"]}
        assert seen.all_priorities == {FREE}
    finally:
        vm.run(["rm", "-rf", directory])
        vm.run(["systemctl", "daemon-reload"], timeout_s=PATIENCE_S)
    # What was set before the admin's file came is in force again without it, and still known.
    assert governed.look().limited_units == {TIER: [LIMITED[0], "100"]}
    vm.run(["swift-governor", "release"], timeout_s=PATIENCE_S)
    assert governed.look().limited_units == {}


def applied(governed: Governed, job: Job, limits: list[str]) -> bool:
    seen = governed.look(job.pids)
    return (seen.units[TIER], seen.all_priorities) == (limits, {GOVERNED})
