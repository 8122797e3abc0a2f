# SPDX-License-Identifier: Apache-2.0
"""The life of the package on a real node: installed, started, upgraded, removed, purged.

A VM of its own, since the others need the package to stay. The tests tell one story, in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.conftest import SUITES, the_package
from tests.node.vm import Vm

GOVERNOR = "swift-governor.service"
HELPERS = ("swift-governor-sampler.service", "swift-governor-exporter.service")
ALL_THREE = (GOVERNOR, *HELPERS)
JOB_SLICE = "msswift-training-u1000-sft4711x8k2.slice"
JOB_SCOPE = "msswift-sft4711x8k2-main.scope"

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", params=SUITES)
def node(request: pytest.FixtureRequest) -> Iterator[Vm]:
    with Vm.boot(request.param) as booted:
        booted.put(the_package(), "/root/swift-governor.deb")
        yield booted


def reloads(vm: Vm) -> int:
    """How often systemd has re-read its units since boot."""
    told = vm.sh("journalctl --boot --output=cat _PID=1 | grep -c ^Reloading || true")
    return int(told.stdout)


def state(vm: Vm, unit: str, name: str = "ActiveState") -> str:
    return vm.run(["systemctl", "show", f"--property={name}", "--value", unit]).stdout.strip()


def wait_for_all_three(vm: Vm) -> None:
    for unit in ALL_THREE:
        vm.wait_for(f"{unit} to be active", ["systemctl", "is-active", unit], timeout_s=180)


def main_pid(vm: Vm, unit: str) -> int:
    return int(state(vm, unit, "MainPID"))


def process_status(vm: Vm, unit: str) -> dict[str, str]:
    """/proc/PID/status of the unit's main process."""
    text = vm.run(["cat", f"/proc/{main_pid(vm, unit)}/status"]).stdout
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def test_installing_starts_enables_and_reloads_nothing(node: Vm):
    before = reloads(node)
    node.run(["apt-get", "install", "-y", "/root/swift-governor.deb"], timeout_s=300)
    assert reloads(node) == before
    for unit in ALL_THREE:
        assert state(node, unit) == "inactive"
        assert node.run(["systemctl", "is-enabled", unit], check=False).stdout.strip() in (
            "disabled",
            "static",
        )
    assert node.sh("find /usr/lib/swift-governor -name '*.pyc'").stdout != ""


def test_a_start_needs_no_reload_and_brings_up_all_three(node: Vm):
    before = reloads(node)
    node.run(["systemctl", "start", GOVERNOR], timeout_s=180)
    wait_for_all_three(node)
    assert reloads(node) == before
    assert state(node, GOVERNOR, "NeedDaemonReload") == "no"


def test_each_program_has_the_rights_it_needs_and_no_more(node: Vm):
    governor = process_status(node, GOVERNOR)
    # CAP_DAC_READ_SEARCH 2, CAP_NET_ADMIN 12, CAP_SYS_PTRACE 19, CAP_SYS_NICE 23
    assert int(governor["CapEff"], 16) == 1 << 2 | 1 << 12 | 1 << 19 | 1 << 23
    for helper in HELPERS:
        status = process_status(node, helper)
        assert int(status["CapEff"], 16) == 0
        assert status["Uid"].split()[0] != "0"
    for unit in ALL_THREE:
        status = process_status(node, unit)
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"


def test_a_bad_file_fails_the_reload_and_the_daemon_runs_on_with_the_good_one(node: Vm):
    pid = main_pid(node, GOVERNOR)
    node.write("/etc/swift-governor/config.d/50-bad.yaml", "mood: enforce\n")
    failed = node.run(["systemctl", "reload", GOVERNOR], 180, check=False)
    node.run(["rm", "/etc/swift-governor/config.d/50-bad.yaml"])
    assert failed.rc != 0
    assert main_pid(node, GOVERNOR) == pid
    said = node.run(["journalctl", "--unit", GOVERNOR, "--output=cat"]).stdout
    assert "50-bad.yaml" in said


def test_a_good_file_reloads_and_the_process_stays(node: Vm):
    pid = main_pid(node, GOVERNOR)
    node.run(["systemctl", "reload", GOVERNOR], timeout_s=180)
    node.wait_for("the reload to end", lambda: state(node, GOVERNOR) == "active")
    assert main_pid(node, GOVERNOR) == pid


def test_after_a_crash_of_the_governor_all_three_run_again(node: Vm):
    before = main_pid(node, GOVERNOR)
    node.run(["systemctl", "kill", "--signal=KILL", GOVERNOR])
    node.wait_for(
        "another governor",
        lambda: state(node, GOVERNOR) == "active" and main_pid(node, GOVERNOR) != before,
        timeout_s=180,
    )
    wait_for_all_three(node)


def test_an_upgrade_with_the_same_units_restarts_the_daemon_and_reloads_nothing(node: Vm):
    before, pid = reloads(node), main_pid(node, GOVERNOR)
    node.run(["dpkg", "-i", "/root/swift-governor.deb"], timeout_s=300)
    wait_for_all_three(node)
    assert main_pid(node, GOVERNOR) not in (0, pid)
    assert reloads(node) == before


def test_an_upgrade_that_changes_a_unit_reloads_once_and_says_so(node: Vm):
    before = reloads(node)
    node.sh(
        "cd /root && rm -rf next && dpkg-deb -R swift-governor.deb next && "
        f"sed -i 's/^TasksMax=.*/TasksMax=48/' next/usr/lib/systemd/system/{GOVERNOR} && "
        "sed -i 's/^Version: .*/Version: 99-1/' next/DEBIAN/control && dpkg-deb -b next next.deb"
    )
    said = node.run(["dpkg", "-i", "/root/next.deb"], timeout_s=300)
    assert "daemon-reload" in said.stdout
    assert reloads(node) == before + 1
    wait_for_all_three(node)
    assert state(node, GOVERNOR, "TasksMax") == "48"


def test_a_stop_ends_all_three_and_a_start_brings_them_back(node: Vm):
    node.run(["systemctl", "stop", GOVERNOR], timeout_s=180)
    node.wait_for(
        "all three to end",
        lambda: {state(node, unit) for unit in ALL_THREE} == {"inactive"},
        timeout_s=180,
    )
    node.run(["systemctl", "start", GOVERNOR], timeout_s=180)
    wait_for_all_three(node)


def test_a_removal_stops_the_three_and_ends_no_process_in_a_slice(node: Vm):
    node.run(["systemctl", "enable", "--no-reload", GOVERNOR])
    node.sh(
        f"setsid systemd-run --quiet --scope --slice={JOB_SLICE} --unit={JOB_SCOPE} "
        "-p Delegate=yes sleep 7777 </dev/null >/dev/null 2>&1 &"
    )
    node.wait_for("a process in a job's scope", ["systemctl", "is-active", JOB_SCOPE])
    node.run(["systemctl", "start", "msswift-evaluation.slice"])
    node.run(["apt-get", "remove", "-y", "swift-governor"], timeout_s=300)
    assert state(node, JOB_SCOPE) == "active"
    assert node.run(["pgrep", "-f", "sleep 7777"]).stdout != ""
    left = node.sh("systemctl list-units --all --plain --no-legend 'swift-governor*' 'msswift*'")
    assert sorted(line.split()[0] for line in left.stdout.splitlines()) == sorted(
        [
            JOB_SCOPE,
            JOB_SLICE,
            "msswift-training-u1000.slice",
            "msswift-training.slice",
            "msswift.slice",
        ]
    )


def test_after_the_removal_only_the_configuration_is_left(node: Vm):
    left = node.sh(
        "find / -xdev -iname '*swift[-_]governor*' -not -path '/root/*' -not -path '/proc/*' "
        "-not -path '/var/lib/dpkg/*' -not -path '/var/lib/apt/*' -not -path '/var/log/*'; "
        "find /run -name '*swift*governor*'"
    )
    assert left.stdout.split() == ["/etc/swift-governor"]
    files = node.sh("find /etc/swift-governor -type f").stdout.split()
    assert "/etc/swift-governor/config.yaml" in files


def test_a_purge_leaves_no_file_and_still_ends_no_process(node: Vm):
    node.write("/etc/swift-governor/config.d/50-mine.yaml", "mode: observe\n")
    node.run(["apt-get", "purge", "-y", "swift-governor"], timeout_s=300)
    left = node.sh(
        "find / -xdev -iname '*swift[-_]governor*' -not -path '/root/*' -not -path '/var/log/*'"
    )
    assert left.stdout == ""
    assert node.run(["pgrep", "-f", "sleep 7777"]).stdout != ""
