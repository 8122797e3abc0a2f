# SPDX-License-Identifier: Apache-2.0
"""However the governor ends, nothing stays limited, and the jobs run on as the same processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.governed import (
    FREE,
    GOVERNED,
    GOVERNOR,
    LEDGER,
    LIMITED,
    PATIENCE_S,
    SITE,
    TIER,
    Governed,
    Job,
)

BROKEN = "mode: enforce\ntiers:\n  training:\n    cap: 60 parsecs\n"
CAP_AT = f"{SITE}:4:10"


@pytest.fixture(scope="module")
def running(governed: Governed) -> Iterator[Job]:
    """One job of four processes for all tests: it is there before the first and after the last."""
    job = governed.start_job(loaders=3)
    yield job
    assert job.alive() == job.pids
    governed.end(job)


@pytest.fixture
def job(governed: Governed, running: Job) -> Job:
    """The job, contained by a governor with the configuration as shipped."""
    governed.start()
    governed.wait_until_contained(running)
    return running


def assert_given_back(governed: Governed, job: Job, units: dict[int, str]) -> None:
    """Nothing of ours is in force, and the job runs on where it is."""
    seen = governed.look(job.pids)
    assert seen.limited_units == {}
    assert seen.all_priorities == {FREE}
    assert seen.threads == 2 * len(job.pids)
    assert seen.job_units == units
    assert job.alive() == job.pids


def test_a_stop_gives_back_every_limit_and_priority_and_ends_no_process(
    governed: Governed, job: Job
):
    before = governed.look(job.pids)
    assert (before.units[TIER], before.all_priorities) == (LIMITED, {GOVERNED})
    since = governed.now()
    governed.stop()
    assert governed.show("ActiveState") == "inactive"
    assert_given_back(governed, job, before.job_units)
    print(f"a stop took {stop_seconds(governed, since):.1f} s")


def stop_seconds(governed: Governed, since: str) -> float:
    """From systemd's "Stopping" to its "Stopped", as the journal has it."""
    times = [
        int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        for entry in governed.told(since)
        if entry["_PID"] == "1" and str(entry["MESSAGE"]).startswith(("Stopping ", "Stopped "))
    ]
    return times[-1] - times[0]


def test_after_kill_9_all_is_given_back_and_the_next_governor_adopts_the_same_job(
    governed: Governed, job: Job
):
    before, pid, since = governed.look(job.pids), governed.pid, governed.now()
    governed.kill()
    governed.wait_until_restarted(pid)
    told = " ".join(governed.messages(since))
    assert f"{TIER.rpartition('/')[2]}: CPUQuota= given back" in told
    assert f"priorities of {before.threads} threads given back" in told
    after = governed.wait_until_contained(job)
    assert after.cgroups == before.cgroups
    assert set(after.jobs) >= {unit.split("-")[1] for unit in before.job_units.values()}
    assert job.alive() == job.pids


def test_a_restart_keeps_names_and_scopes_of_running_jobs(governed: Governed, job: Job):
    before, since = governed.look(job.pids), governed.now()
    invocation = governed.show("InvocationID", job.scope(before))
    governed.vm.run(["systemctl", "restart", GOVERNOR], timeout_s=PATIENCE_S)
    after = governed.wait_until_contained(job)
    assert after.cgroups == before.cgroups
    assert set(after.jobs) == set(before.jobs)
    assert governed.show("InvocationID", job.scope(before)) == invocation
    assert [e for e in governed.told(since) if e.get("SWIFT_GOVERNOR_KIND") == "placed"] == []


def test_a_crash_with_a_broken_configuration_leaves_it_down_and_nothing_limited(
    governed: Governed, job: Job
):
    before, since = governed.look(job.pids), governed.now()
    governed.configure(BROKEN)
    governed.kill()
    governed.vm.wait_for(
        "the start to be refused", lambda: governed.show("ActiveState") == "failed", PATIENCE_S
    )
    assert governed.show("ExecMainStatus") == "2"
    assert any(CAP_AT in message for message in governed.messages(since))
    assert_given_back(governed, job, before.job_units)


def test_a_crash_loop_to_the_start_limit_leaves_nothing_limited(governed: Governed, job: Job):
    before = governed.look(job.pids)

    def killed_again() -> bool:
        if governed.show("ActiveState") == "failed":
            return True
        if governed.pid:
            governed.kill()
        return False

    governed.vm.wait_for("the start limit", killed_again, PATIENCE_S)
    assert governed.show("Result") in ("signal", "start-limit-hit")
    assert governed.show("NRestarts") in ("4", "5")  # the first start may count, or not
    assert_given_back(governed, job, before.job_units)


@pytest.mark.parametrize("damage", ["truncate -s 70 {0}", "head -c 900 /dev/urandom >{0}"])
def test_a_damaged_ledger_leaves_nothing_limited(governed: Governed, job: Job, damage: str):
    before = governed.look(job.pids)
    assert governed.vm.run(["test", "-s", LEDGER], check=False).rc == 0
    governed.vm.sh(damage.format(LEDGER))
    governed.configure(BROKEN)  # so that it stays down and can be looked at
    governed.kill()
    governed.vm.wait_for(
        "the governor to stay down", lambda: governed.show("ActiveState") == "failed", PATIENCE_S
    )
    assert_given_back(governed, job, before.job_units)


def test_a_reload_with_a_bad_file_keeps_the_old_one_and_says_where(governed: Governed, job: Job):
    before, pid, since = governed.look(job.pids), governed.pid, governed.now()
    governed.configure(BROKEN)
    refused = governed.vm.run(["systemctl", "reload", GOVERNOR], PATIENCE_S, check=False)
    assert refused.rc != 0
    assert any(CAP_AT in message for message in governed.messages(since))
    governed.wait_for_ticks(2)
    after = governed.look(job.pids)
    assert governed.pid == pid
    assert governed.show("ActiveState") == "active"
    assert (after.units, after.priorities) == (before.units, before.priorities)


def test_a_reload_with_a_good_file_changes_what_is_in_force(governed: Governed, job: Job):
    pid = governed.pid
    governed.configure("tiers:\n  training:\n    weight: 33\n    nice: 7\n")
    governed.vm.run(["systemctl", "reload", GOVERNOR], timeout_s=PATIENCE_S)

    def taken_up() -> bool:
        seen = governed.look(job.pids)
        return (seen.units[TIER][1], seen.all_priorities) == ("33", {(7, "idle")})

    governed.vm.wait_for("the new weight and nice", taken_up, PATIENCE_S)
    assert governed.pid == pid
    governed.stop()
    assert_given_back(governed, job, governed.look(job.pids).job_units)


def test_switching_to_observe_gives_everything_back(governed: Governed, job: Job):
    before = governed.look(job.pids)
    governed.configure("mode: observe\n")
    governed.vm.run(["systemctl", "reload", GOVERNOR], timeout_s=PATIENCE_S)
    governed.vm.wait_for(
        "everything to be given back",
        lambda: (
            governed.look(job.pids).all_priorities == {FREE} and not governed.look().limited_units
        ),
        PATIENCE_S,
    )
    assert_given_back(governed, job, before.job_units)


def test_removing_the_package_leaves_the_job_its_scope_and_the_configuration(
    governed: Governed, job: Job
):
    vm = governed.vm
    scope = job.scope(governed.look(job.pids))
    units = governed.look(job.pids).job_units
    try:
        vm.run(["apt-get", "remove", "-y", "swift-governor"], timeout_s=PATIENCE_S * 2)
        assert_given_back(governed, job, units)
        listed = vm.sh("systemctl list-units --all --plain --no-legend '*swift*'").stdout
        left = {line.split()[0] for line in listed.splitlines()}
        assert {unit for unit in left if not unit.endswith(".slice")} == {scope}
        assert files_left(governed) == {"/etc/swift-governor"}
        vm.run(["apt-get", "purge", "-y", "swift-governor"], timeout_s=PATIENCE_S * 2)
        assert_given_back(governed, job, units)
        assert files_left(governed) == set()
    finally:
        governed.install()


def files_left(governed: Governed) -> set[str]:
    """What is named after the package, systemd's runtime files included; not logs nor dpkg's."""
    looked_through = "/etc /usr /var/lib /var/cache /opt /run"
    found = governed.vm.sh(
        f"find {looked_through} -xdev -iname '*swift[-_]governor*' -not -path '/var/lib/dpkg/*' "
        "-not -path '/var/lib/apt/*' -prune -print"
    )
    return set(found.stdout.split())
