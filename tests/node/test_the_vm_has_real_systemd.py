# SPDX-License-Identifier: Apache-2.0
"""The ground that the node tests stand on: what they find in the VM is the real thing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.vm import CommandError, Vm, VmError

# Puts the PID given into a delegated scope of a slice that it implies, by pydbus as the daemon
# does, caps it to half a core, and tells what the kernel then has.
SCOPE_BY_PYDBUS = """
import json, sys, time
import pydbus
from gi.repository import GLib

pid, scope = int(sys.argv[1]), "msswift-probe-main.scope"
systemd = pydbus.SystemBus().get(".systemd1")["org.freedesktop.systemd1.Manager"]
properties = [
    ("PIDs", GLib.Variant("au", [pid])),
    ("Slice", GLib.Variant("s", "msswift-training-probe.slice")),
    ("Delegate", GLib.Variant("b", True)),
    ("CollectMode", GLib.Variant("s", "inactive-or-failed")),
]
systemd.StartTransientUnit(scope, "replace", properties, [], timeout=30)
until = time.monotonic() + 60
while scope not in open(f"/proc/{pid}/cgroup").read() and time.monotonic() < until:
    time.sleep(0.1)
cgroup = open(f"/proc/{pid}/cgroup").read().strip().removeprefix("0::")
quota = [("CPUQuotaPerSecUSec", GLib.Variant("t", 500_000))]
systemd.SetUnitProperties(scope, True, quota, timeout=30)
cpu_max = open(f"/sys/fs/cgroup{cgroup}/cpu.max").read().split()
print(json.dumps({"cgroup": cgroup, "cpu_max": cpu_max}))
"""


@pytest.fixture
def sleeper(vm: Vm) -> Iterator[int]:
    """The PID of a process of user alice that does nothing until the test is over."""
    start = "runuser -u alice -- sh -c 'sleep infinity >/dev/null 2>&1 & echo $!'"
    pid = int(vm.sh(start).stdout)
    yield pid
    vm.run(["kill", str(pid)], check=False)


def test_systemd_is_pid_1_and_no_unit_has_failed(vm: Vm) -> None:
    assert vm.run(["cat", "/proc/1/comm"]).stdout == "systemd\n"
    assert vm.run(["systemctl", "list-units", "--failed", "--no-legend"]).stdout == ""
    assert vm.run(["systemctl", "is-system-running"]).stdout == "running\n"


def test_cgroups_are_version_2_only_and_have_the_controllers_a_job_is_limited_by(vm: Vm) -> None:
    mounts = vm.run(["findmnt", "-rn", "-o", "TARGET,FSTYPE", "-t", "cgroup,cgroup2"]).stdout
    assert mounts == "/sys/fs/cgroup cgroup2\n"
    controllers = vm.run(["cat", "/sys/fs/cgroup/cgroup.controllers"]).stdout.split()
    assert {"cpu", "io", "memory", "pids"} <= set(controllers)


def test_the_kernel_tells_pressure(vm: Vm) -> None:
    for resource in ("cpu", "io", "memory"):
        assert vm.run(["cat", f"/proc/pressure/{resource}"]).stdout.startswith("some avg10=")


def test_a_quota_set_by_pydbus_on_a_delegated_scope_reads_back_from_the_kernel(
    vm: Vm, sleeper: int
) -> None:
    found = json.loads(vm.run(["python3", "-c", SCOPE_BY_PYDBUS, str(sleeper)], 120).stdout)
    slices = "/msswift.slice/msswift-training.slice/msswift-training-probe.slice"
    assert found == {"cgroup": f"{slices}/msswift-probe-main.scope", "cpu_max": ["50000", "100000"]}


def test_a_login_is_a_logind_session_of_its_own(vm: Vm) -> None:
    assert "/user.slice/user-0.slice/session-" in vm.run(["cat", "/proc/self/cgroup"]).stdout


def test_prometheus_is_there_and_waits_to_be_started(vm: Vm) -> None:
    assert vm.run(["systemctl", "is-active", "prometheus"], check=False).stdout == "inactive\n"
    vm.run(["prometheus", "--version"])


def test_arguments_and_files_reach_the_guest_unchanged(vm: Vm, tmp_path: Path) -> None:
    awkward = ["a b", "", "$HOME", "'", "ü\n", "*"]
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    assert json.loads(vm.run(["python3", "-c", show, *awkward]).stdout) == awkward
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "run.sh").write_bytes(b"\x00\xff")
    (tree / "run.sh").chmod(0o750)
    vm.put(tree, "/root/tree")
    vm.get("/root/tree", tmp_path / "back")
    vm.run(["rm", "-r", "/root/tree"])
    assert (tmp_path / "back" / "run.sh").read_bytes() == b"\x00\xff"
    assert (tmp_path / "back" / "run.sh").stat().st_mode & 0o777 == 0o750


def test_a_failed_command_says_what_it_was_and_what_it_said(vm: Vm) -> None:
    with pytest.raises(CommandError, match=r"systemctl start no-such\.service") as caught:
        vm.run(["systemctl", "start", "no-such.service"])
    assert caught.value.result.rc == 5
    assert "no-such.service not found" in str(caught.value)


def test_waiting_in_vain_names_what_was_waited_for_and_the_console(vm: Vm) -> None:
    with pytest.raises(VmError, match="in vain for a miracle") as caught:
        vm.wait_for("a miracle", ["false"], timeout_s=1)
    assert str(vm.console) in str(caught.value)


def test_the_guest_cannot_reach_anything_outside(vm: Vm) -> None:
    # QEMU's user-mode network shows our loopback as 10.0.2.2, unless it is restricted.
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        reach = f"import socket; socket.create_connection(('10.0.2.2', {port}), timeout=5)"
        assert vm.run(["python3", "-c", reach], check=False).rc != 0


def test_a_followed_command_is_heard_line_by_line(vm: Vm) -> None:
    follower = vm.popen(["journalctl", "-f", "-n", "0", "-o", "cat", "-t", "probe"])
    assert follower.stdout is not None
    vm.wait_for("journalctl to follow", ["pgrep", "-f", "^journalctl -f -n 0"])
    vm.run(["systemd-cat", "-t", "probe", "echo", "heard"])
    assert follower.stdout.readline() == "heard\n"


def test_evidence_holds_the_journal_and_the_console(vm: Vm, tmp_path: Path) -> None:
    vm.run(["systemd-cat", "-t", "probe", "echo", "a word for the journal"])
    vm.collect(tmp_path / "evidence")
    assert "a word for the journal" in (tmp_path / "evidence" / "journal.txt").read_text()
    assert "Linux version" in (tmp_path / "evidence" / "console.log").read_text(errors="replace")
    assert "ssh.service" in (tmp_path / "evidence" / "status.txt").read_text()
