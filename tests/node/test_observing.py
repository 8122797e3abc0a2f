# SPDX-License-Identifier: Apache-2.0
"""What the governor says on the bus: nothing that changes in observe mode, the closed list else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.node.governed import FREE, HOME, LEDGER, PATIENCE_S, TRAINER, Governed
from tests.node.test_acting import CLOSED_LIST

HARMLESS = {"Subscribe", "Get", "GetUnit", "Hello", "AddMatch", "RemoveMatch", "GetNameOwner"}
# What any client of the bus says to the bus itself, which changes nothing on the node.
TO_THE_BUS = {"Hello", "AddMatch", "RemoveMatch", "GetNameOwner", "StartServiceByName"}
MUTATING = {"StartTransientUnit", "AttachProcessesToUnit", "SetUnitProperties"}
JOBS = 20
BUS = f"{HOME}/bus.json"


class Monitor:
    """All method calls of the governor, from before its start."""

    def __init__(self, governed: Governed) -> None:
        self._vm = governed.vm
        self._governed = governed
        self._vm.sh(f"busctl monitor --json=short >{BUS} 2>&1 & echo $! >{BUS}.pid")
        self._vm.wait_for("the monitor", ["grep", "-q", "Monitoring", BUS])

    def calls(self) -> list[dict[str, Any]]:
        """What the running governor called so far."""
        clients = self._vm.run(["busctl", "list", "--unique", "--no-legend"]).stdout.splitlines()
        pid = str(self._governed.pid)
        names = {line.split()[0] for line in clients if line.split()[1] == pid}
        assert names
        lines = self._vm.run(["grep", "^{.*method_call", BUS], check=False).stdout.splitlines()
        return [m for m in map(json.loads, lines) if m["sender"] in names]

    def end(self) -> None:
        self._vm.sh(f"kill $(cat {BUS}.pid); rm {BUS} {BUS}.pid")


@pytest.fixture
def monitor(governed: Governed) -> Iterator[Monitor]:
    governed.stop()
    monitor = Monitor(governed)
    yield monitor
    monitor.end()


def test_observing_twenty_jobs_calls_nothing_writes_nothing_and_changes_nothing(
    governed: Governed, monitor: Monitor
):
    vm = governed.vm
    first = governed.start_processes(
        f"setsid runuser -u alice -- python3 {HOME}/many.py {JOBS // 2} {TRAINER} --loaders 1",
        processes=JOBS + 1,
    )
    before = governed.look(first.pids)
    governed.configure("mode: observe\n")
    try:
        vm.run(["systemctl", "restart", "swift-governor"], timeout_s=PATIENCE_S)
        # Half of them are there before the governor, half come while it looks.
        second = governed.start_processes(
            f"setsid runuser -u alice -- python3 {HOME}/many.py {JOBS // 2} {TRAINER} --loaders 1",
            processes=JOBS + 1,
        )
        vm.wait_for(
            "all jobs to be known with their loaders",
            lambda: (
                [job["processes"] for job in governed.look().jobs.values()]
                == [{"rank": 1, "loader": 1}] * JOBS
            ),
            PATIENCE_S,
        )
        governed.wait_for_ticks(3)
        after = governed.look([*first.pids, *second.pids])
        assert {pid: after.cgroups[pid] for pid in first.pids} == before.cgroups
        assert after.all_priorities == {FREE}
        assert not any("msswift" in cgroup for cgroup in after.cgroups.values())
        assert after.limited_units == {}
        assert vm.sh(f"cat {LEDGER} 2>/dev/null || true").stdout == ""
        assert {m["member"] for m in monitor.calls()} <= HARMLESS
        assert after.snapshot["act"]["writes"] == 0
        assert len(after.snapshot["observed"]) == JOBS
    finally:
        governed.end(first)
        governed.end(second)
        vm.run(["rm", "-f", "/etc/swift-governor/config.d/50-test.yaml"])


def test_enforcing_calls_only_the_closed_list_and_only_for_our_units(
    governed: Governed, monitor: Monitor
):
    job = governed.start_job(loaders=1)
    later = None
    try:
        governed.start()
        governed.wait_until_contained(job)
        later = governed.start_job(loaders=1)
        governed.wait_until_contained(job, later)
        calls = monitor.calls()
        assert {m["member"] for m in calls} <= CLOSED_LIST | TO_THE_BUS
        changing = [m for m in calls if m["member"] in MUTATING]
        assert {m["member"] for m in changing} >= {"StartTransientUnit", "SetUnitProperties"}
        assert all(m["payload"]["data"][0].startswith("msswift") for m in changing)
    finally:
        governed.end(job, *([later] if later else []))
