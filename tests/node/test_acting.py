# SPDX-License-Identifier: Apache-2.0
"""act/ on real systemd: scopes, limits, priorities and their return, as the kernel shows them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.vm import Vm

ROOT = Path(__file__).resolve().parents[2]
HOME = "/root/acting"
LEDGER = f"{HOME}/run/ledger.jsonl"
DRIVE = ["env", f"PYTHONPATH={HOME}/daemon", "python3", f"{HOME}/programs/drive_act.py"]
RELEASE = ["env", f"PYTHONPATH={HOME}/daemon", "python3", "-m", "swift_governor.act.release"]
TIER = "/sys/fs/cgroup/msswift.slice/msswift-training.slice"
CLOSED_LIST = {
    "StartTransientUnit",
    "AttachProcessesToUnit",
    "SetUnitProperties",
    "GetUnit",
    "Subscribe",
    "Get",
}


@dataclasses.dataclass
class Job:
    """A pretended job of user alice: sleepers, and the decision that the driver holds for them."""

    vm: Vm
    name: str
    pids: list[int]
    decision: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def slice(self) -> str:
        return f"msswift-training-u1000-{self.name}.slice"

    @property
    def scope(self) -> str:
        return f"msswift-{self.name}-main.scope"

    @property
    def slice_dir(self) -> str:
        return f"{TIER}/msswift-training-u1000.slice/{self.slice}"

    @property
    def scope_dir(self) -> str:
        return f"{self.slice_dir}/{self.scope}"

    def place(self, *pids: int) -> None:
        placement = {"unit": self.scope, "slice": self.slice, "job": self.name}
        self.decision["placements"] = [{**placement, "pids": list(pids or self.pids)}]
        self.decision["carriers"] = ["user@*.service", "ssh.service"]
        self.tell()

    def limit_all(self) -> None:
        self.decision["limits"] = {
            self.scope: {"cpu_quota_cores": 0.5},
            self.slice: {"cpu_quota_cores": 1.5, "cpu_weight": 30},
            "msswift-training.slice": {"cpu_weight": 50},
        }
        wish = {"job": self.name, "nice": 15, "io_class": "idle"}
        self.decision["priorities"] = [{"pid": pid, **wish} for pid in self.pids]
        self.tell()

    def tell(self) -> None:
        self.vm.write(f"{HOME}/decision.new", json.dumps(self.decision))
        self.vm.run(["mv", f"{HOME}/decision.new", f"{HOME}/decision.json"])

    def drive(self) -> Any:
        done = self.vm.run([*DRIVE, f"{HOME}/decision.json", LEDGER], timeout_s=180)
        return json.loads(done.stdout)

    def read(self, path: str) -> str:
        return self.vm.run(["cat", path]).stdout.strip()

    def cgroup(self, pid: int) -> str:
        return self.read(f"/proc/{pid}/cgroup").removeprefix("0::")

    def limits(self) -> list[str]:
        files = [f"{self.scope_dir}/cpu.max", f"{self.slice_dir}/cpu.max"]
        files += [f"{self.slice_dir}/cpu.weight", f"{TIER}/cpu.weight"]
        return self.vm.run(["cat", *files]).stdout.splitlines()

    def priority(self, pid: int) -> tuple[str, str]:
        nice = self.vm.run(["ps", "-o", "ni=", "-p", str(pid)]).stdout.strip()
        return nice, self.vm.run(["ionice", "-p", str(pid)]).stdout.split(":")[0].strip()

    def alive(self) -> int:
        return sum(
            self.vm.run(["test", "-d", f"/proc/{p}"], check=False).rc == 0 for p in self.pids
        )

    def release(self) -> int:
        return self.vm.run([*RELEASE, "--ledger", LEDGER], timeout_s=120, check=False).rc


FREE = ["max 100000", "max 100000", "100", "100"]
LIMITED = ["50000 100000", "150000 100000", "30", "50"]
_numbers = iter(range(1, 1000))


@pytest.fixture(scope="module")
def installed(vm: Vm) -> Vm:
    vm.run(["mkdir", "-p", f"{HOME}/run"])
    vm.put(ROOT / "daemon", f"{HOME}/daemon")
    vm.put(ROOT / "tests" / "node" / "programs", f"{HOME}/programs")
    return vm


def sleeper(vm: Vm, how: str = "runuser -u alice --") -> int:
    return int(vm.sh(f"{how} sh -c 'sleep infinity >/dev/null 2>&1 & echo $!'").stdout)


@pytest.fixture
def job(installed: Vm) -> Iterator[Job]:
    name = f"sft{next(_numbers)}x1"
    job = Job(installed, name, [sleeper(installed) for _ in range(3)])
    yield job
    installed.run(["kill", "-9", *map(str, job.pids)], check=False)
    installed.run(["rm", "-f", LEDGER], check=False)


def test_processes_are_placed_in_a_delegated_scope_and_others_attached_later(job: Job) -> None:
    job.place(*job.pids[:2])
    first = job.drive()
    assert set(first["contained"]) == {str(p) for p in job.pids[:2]}
    job.place()
    second = job.drive()
    assert set(second["contained"]) == {str(p) for p in job.pids}
    assert (first["failures"], second["failures"], second["errors"]) == (0, 0, {})
    assert {job.cgroup(p) for p in job.pids} == {job.scope_dir.removeprefix("/sys/fs/cgroup")}
    shown = job.vm.run(
        [
            "systemctl",
            "show",
            job.scope,
            "-p",
            "Delegate,CollectMode,After,TimeoutStopUSec,OOMPolicy",
        ]
    ).stdout
    assert "Delegate=yes" in shown
    assert "CollectMode=inactive-or-failed" in shown
    assert "remote-fs.target" in shown
    assert "network-online.target" in shown
    assert "TimeoutStopUSec=3min" in shown
    assert "OOMPolicy=continue" in shown
    assert f"ms-swift {job.name}" in job.vm.run(["systemctl", "status", job.scope]).stdout


def test_the_slices_of_a_job_and_its_user_go_when_the_job_has_ended(job: Job) -> None:
    job.place()
    job.drive()
    job.vm.run(["kill", *map(str, job.pids)])
    gone = ["sh", "-c", f"! test -e {TIER}/msswift-training-u1000.slice"]
    job.vm.wait_for("the slices to go", gone, timeout_s=30)
    units = job.vm.run(["systemctl", "list-units", "--all", "--no-legend", "msswift-*"]).stdout
    assert job.name not in units
    assert job.vm.sh("ls /run/systemd/transient | grep msswift || true").stdout == ""


def test_what_belongs_to_services_and_containers_is_left_where_it_is(job: Job) -> None:
    vm = job.vm
    vm.run(["systemd-run", "-q", "--unit=deploy.service", "sleep", "infinity"])
    service = int(vm.run(["systemctl", "show", "deploy", "-P", "MainPID"]).stdout)
    scope = "systemd-run -q --scope --unit=docker-0123456789ab.scope"
    container = sleeper(vm, scope)
    leader = int(
        vm.sh(
            "loginctl show-session -P Leader $(loginctl --no-legend | awk '{print $1}' | head -1)"
        ).stdout
    )
    try:
        before = [job.cgroup(p) for p in (service, container, leader)]
        job.place(service, container, leader)
        told = job.drive()
        assert [job.cgroup(p) for p in (service, container, leader)] == before
        assert told["writes"] == 0
        reasons = " ".join(m for kind, _, m in told["notes"] if kind == "left-alone")
        assert "deploy.service" in reasons
        assert "Docker" in reasons
        assert "login session" in reasons
    finally:
        vm.run(["systemctl", "stop", "deploy.service"])
        vm.run(["kill", str(container)])


def test_limits_are_what_the_kernel_shows_and_stay_over_a_daemon_reload(job: Job) -> None:
    job.place()
    job.limit_all()
    told = job.drive()
    assert job.limits() == LIMITED
    assert {job.priority(p) for p in job.pids} == {("15", "idle")}
    assert (told["failures"], told["drift"]) == (0, 0)
    job.vm.run(["systemctl", "daemon-reload"])
    assert job.drive()["failures"] == 0
    assert job.limits() == LIMITED
    assert job.release() == 0
    assert job.limits() == FREE


def test_what_an_admin_set_in_etc_is_never_written(job: Job) -> None:
    vm = job.vm
    directory = "/etc/systemd/system/msswift-training.slice.d"
    vm.run(["mkdir", "-p", directory])
    vm.write(f"{directory}/override.conf", "[Slice]\nCPUWeight=77\n")
    vm.run(["systemctl", "daemon-reload"])
    try:
        job.place()
        job.limit_all()
        told = job.drive()
        assert job.read(f"{TIER}/cpu.weight") == "77"
        assert told["admin"] == {"msswift-training.slice": ["CPUWeight"]}
        assert [k for k, _, _ in told["notes"]].count("admin-property") == 1
        assert job.release() == 0
        assert job.read(f"{TIER}/cpu.weight") == "77"
        vm.run(["rm", "-f", LEDGER])
        assert job.release() == 0
        assert job.read(f"{TIER}/cpu.weight") == "77"
    finally:
        vm.run(["rm", "-r", directory])
        vm.run(["systemctl", "daemon-reload"])


def start_and_stay(job: Job) -> subprocess.Popen[str]:
    driver = job.vm.popen([*DRIVE, f"{HOME}/decision.json", LEDGER, "--stay"])
    assert driver.stdout is not None
    assert json.loads(driver.stdout.readline())["pending"] == 0
    return driver


def kill_driver(job: Job) -> None:
    job.vm.run(["pkill", "-9", "-f", "^python3 .*drive_act"])


def test_after_kill_9_release_gives_everything_back_and_leaves_the_job_running(job: Job) -> None:
    job.place()
    job.limit_all()
    start_and_stay(job)
    assert job.limits() == LIMITED
    kill_driver(job)
    assert job.release() == 0
    assert job.limits() == FREE
    assert {job.priority(p)[0] for p in job.pids} == {"0"}
    assert {job.priority(p)[1] for p in job.pids} == {"none"}
    assert job.alive() == 3
    assert {job.cgroup(p) for p in job.pids} == {job.scope_dir.removeprefix("/sys/fs/cgroup")}
    assert job.read(LEDGER) == ""
    assert job.release() == 0


@pytest.mark.parametrize(
    "damage", ["head -c 300 /dev/urandom > {0}", "rm {0}", "truncate -s 70 {0}"]
)
def test_a_damaged_or_lost_ledger_leaves_nothing_limited(job: Job, damage: str) -> None:
    job.place()
    job.limit_all()
    job.drive()
    job.vm.sh(damage.format(LEDGER))
    assert job.release() == 0
    assert job.limits() == FREE
    assert {job.priority(p) for p in job.pids} == {("0", "none")}
    assert job.alive() == 3


def test_release_needs_no_bus(job: Job) -> None:
    job.place()
    job.limit_all()
    job.drive()
    sockets = "/run/dbus/system_bus_socket"
    job.vm.run(["mv", sockets, f"{sockets}.away"])
    try:
        assert job.release() == 0
    finally:
        job.vm.run(["mv", f"{sockets}.away", sockets])
    assert job.limits() == FREE


def test_a_frozen_job_is_thawed(job: Job) -> None:
    job.place()
    job.drive()
    job.vm.run(["systemctl", "freeze", job.scope])
    assert job.read(f"{job.scope_dir}/cgroup.freeze") == "1"
    assert job.release() == 0
    assert job.read(f"{job.scope_dir}/cgroup.freeze") == "0"


def test_a_restart_adopts_the_job_in_its_scope_and_writes_nothing(job: Job) -> None:
    job.place()
    job.limit_all()
    start_and_stay(job)
    kill_driver(job)
    again = job.drive()
    assert (again["writes"], again["drift"], again["failures"]) == (0, 0, 0)
    assert set(again["contained"]) == {str(p) for p in job.pids}
    job.decision = {}
    job.tell()
    job.drive()
    assert job.limits() == FREE
    assert {job.priority(p) for p in job.pids} == {("0", "none")}


def test_after_a_re_execution_of_systemd_later_processes_are_placed(job: Job) -> None:
    job.place(job.pids[0])
    start_and_stay(job)
    try:
        job.vm.run(["systemctl", "daemon-reexec"], timeout_s=120)
        job.place()
        place = job.scope_dir.removeprefix("/sys/fs/cgroup")
        job.vm.wait_for(
            "the others to be placed", ["grep", "-q", place, f"/proc/{job.pids[2]}/cgroup"], 60
        )
    finally:
        kill_driver(job)


def test_a_bus_monitor_sees_nothing_but_the_closed_list(job: Job) -> None:
    vm = job.vm
    vm.sh(f"busctl monitor --json=short org.freedesktop.systemd1 >{HOME}/bus 2>&1 & echo $!")
    vm.wait_for("the monitor", ["grep", "-q", "Monitoring", f"{HOME}/bus"])
    try:
        job.place(*job.pids[:2])
        job.limit_all()
        names = {job.drive()["bus_name"]}
        job.place()
        job.decision["limits"] = {}
        job.tell()
        names.add(job.drive()["bus_name"])
        job.decision = {}
        job.tell()
        idle = job.drive()["bus_name"]
    finally:
        vm.run(["pkill", "busctl"], check=False)
    lines = [x for x in vm.run(["cat", f"{HOME}/bus"]).stdout.splitlines() if x.startswith("{")]
    calls = [m for m in map(json.loads, lines) if m["type"] == "method_call"]
    ours = [m for m in calls if m["sender"] in {*names, idle}]
    assert {m["member"] for m in ours} == CLOSED_LIST
    for message in ours:
        if message["member"] in (
            "StartTransientUnit",
            "AttachProcessesToUnit",
            "SetUnitProperties",
        ):
            assert message["payload"]["data"][0].startswith("msswift")
    # With nothing wished and nothing recorded it only listens.
    assert {m["member"] for m in ours if m["sender"] == idle} <= {"Subscribe", "Get"}


def test_observing_twenty_jobs_changes_nothing(installed: Vm) -> None:
    vm = installed
    pids = [sleeper(vm) for _ in range(20)]
    job = Job(vm, "sft99x1", pids)
    try:
        before = [job.cgroup(p) for p in pids]
        job.tell()
        told = job.drive()
        assert (told["writes"], told["threads"]) == (0, 0)
        assert [job.cgroup(p) for p in pids] == before
        assert job.read(LEDGER) == ""
    finally:
        vm.run(["kill", *map(str, pids)])
