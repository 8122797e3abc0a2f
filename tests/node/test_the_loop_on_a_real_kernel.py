# SPDX-License-Identifier: Apache-2.0
"""Hardware in the loop: the installed package, real systemd and ``cpu.max``, real loaders.

Simulated is the GPU alone: busy exactly while the job's main process says that it computes. What
is judged is measured from that job's own counters, never asked of the governor. The tests tell
one story, in order; the last one breaks the governor to show that the first could fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.node.vm import Vm, VmError

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
HOME = "/srv/standin"
ACTIVITY = "/run/fake-nvml/gpu0"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
CONFIG = "/etc/swift-governor/config.d/50-loop.yaml"
LIMITS = "/usr/lib/swift-governor/swift_governor/act/limits.py"
GOVERNOR, SAMPLER = "swift-governor.service", "swift-governor-sampler.service"

# Half a core of loaders fills a GPU that computes twice as long as a row costs them: 60 % of it
# want 0.3 cores, and without a quota the GPU is full even where the node is short of CPU.
BURN_MS, COMPUTE_MS, LOADERS = 40, 80, 2
TARGET = 0.60
BAND = 0.09  # the dead-band of loop.yaml (6 %), and half as much again before the loop leaves it
# In its band: the mean of three windows, which is to come within so many.
WINDOW_S, HELD, WITHIN = 8, 3, 15

STATE = f"""count 1
0.memory_total {80 << 30}
0.memory_used {1 << 30}
0.activity {ACTIVITY}
"""
DISCONNECTED = """

_with_quota = properties_of


def properties_of(limits):
    return {k: v for k, v in _with_quota(limits).items() if k != "CPUQuotaPerSecUSec"}
"""


@dataclass
class Node:
    """The VM with a job in it that trains."""

    vm: Vm

    def watch(self, seconds: float, windows: int = 1, *band: float) -> list[dict[str, float]]:
        """Busy share and rows a second of each of some windows, as the job counted them."""
        told = map(str, (seconds, windows, *band))
        argv = ["python3", f"{HOME}/watch_gpu.py", ACTIVITY, *told]
        out = self.vm.run(argv, timeout_s=seconds * windows + 120).stdout
        return [json.loads(line) for line in out.splitlines()]

    def comes_into_band(self) -> bool:
        """Whether, before long, the GPU's mean over three windows is in its band."""
        told = self.watch(WINDOW_S, WITHIN, TARGET - BAND, TARGET + BAND, HELD)
        busy = [window["busy"] for window in told]
        print("busy:", *(f"{share:.2f}" for share in busy))
        return len(busy) >= HELD and abs(sum(busy[-HELD:]) / HELD - TARGET) <= BAND

    def status(self) -> Any:
        return json.loads(self.vm.run(["swift-governor", "status", "--json"]).stdout)

    def constraint(self) -> str | None:
        """What holds GPU 0's loop."""
        loops = self.status()["loops"]
        return str(loops[0]["constraint"]) if loops else None

    def loaders_scope(self) -> str:
        """The directory of the scope with the loaders, from cgroupfs alone; empty if not there."""
        found = self.vm.sh("find /sys/fs/cgroup/msswift.slice -name '*-gpu0.scope'").stdout
        return found.strip()

    def quota(self) -> float | None:
        """Cores that the kernel grants the loaders; None without a limit."""
        text = self.vm.run(["cat", f"{self.loaders_scope()}/cpu.max"]).stdout.split()
        return None if text[0] == "max" else int(text[0]) / int(text[1])

    def by_hand(self, *how: str) -> None:
        self.vm.run(["swift-governor", "set", "gpu", "0", *how])

    def halve(self) -> float:
        """Half the quota by hand, in force in the kernel; returns it."""
        now = self.quota()
        assert now is not None
        half = round(now / 2, 2)
        self.by_hand("--quota", str(half))
        self.vm.wait_for("the kernel's quota to be half", lambda: self.quota() == half)
        return half


@pytest.fixture(scope="module")
def node(installed_vm: Vm) -> Iterator[Node]:
    """A job that trains under a started governor. Afterwards all is as it was."""
    vm = installed_vm
    vm.put(ROOT / "tests" / "fake_nvml" / "build" / "libnvidia-ml.so.1", LIBRARY)
    vm.sh("install -d -m 1777 /run/fake-nvml")
    vm.write("/run/fake-nvml/state", STATE)
    vm.put(PROGRAMS / "loop.yaml", CONFIG)
    vm.sh(f"mkdir -p {HOME}/swift/cli; cp {LIMITS} {HOME}/limits.py.whole")
    vm.put(PROGRAMS / "standin_sft.py", f"{HOME}/swift/cli/sft.py")
    vm.put(ROOT / "tests" / "fake_nvml" / "activity.py", f"{HOME}/swift/cli/activity.py")
    vm.put(PROGRAMS / "watch_gpu.py", f"{HOME}/watch_gpu.py")
    job = f"python3 {HOME}/swift/cli/sft.py {ACTIVITY} {BURN_MS} {COMPUTE_MS} {LOADERS}"
    try:
        vm.run(["systemctl", "start", GOVERNOR], timeout_s=180)
        # In a login's session, as users start jobs: a *.service would be left alone.
        vm.sh(f"setsid runuser -u alice -- {job} >{HOME}/log 2>&1 </dev/null &")
        yield Node(vm)
    finally:
        vm.run(["pkill", "-f", f"^python3 {HOME}/swift/cli/sft.py"], check=False)
        vm.run(["systemctl", "stop", GOVERNOR], timeout_s=180)
        vm.sh(f"cp {HOME}/limits.py.whole {LIMITS}; rm -rf {HOME} {CONFIG} {LIBRARY} {ACTIVITY}")


def test_the_loaders_are_in_a_scope_of_their_own_and_the_rank_is_not(node: Node) -> None:
    def contained() -> bool:
        scope = node.loaders_scope()
        if not scope:
            return False
        names = node.vm.sh(f"while read pid; do cat /proc/$pid/comm; done <{scope}/cgroup.procs")
        return names.stdout.split() == ["pt_data_worker"] * LOADERS

    node.vm.wait_for("the loaders, and nothing else, in their scope", contained, 180)


def test_the_loop_brings_the_gpu_into_its_band_and_holds_it(node: Node) -> None:
    assert node.comes_into_band()
    after = [window["busy"] for window in node.watch(WINDOW_S, 4)]
    print("and then:", *(f"{share:.2f}" for share in after))
    assert abs(sum(after) / 4 - TARGET) <= BAND
    quota = node.quota()
    assert quota is not None
    assert quota < 0.8


def test_half_the_quota_by_hand_is_half_the_throughput(node: Node) -> None:
    before = node.watch(12)[0]
    node.halve()
    after = node.watch(12)[0]
    ratio = after["rows_per_s"] / before["rows_per_s"]
    print(f"rows/s {before['rows_per_s']:.2f} -> {after['rows_per_s']:.2f}: {ratio:.2f}")
    assert 0.35 < ratio < 0.68
    node.by_hand("--auto")
    assert node.comes_into_band()


def test_without_readings_the_quota_is_held_and_with_them_the_loop_goes_on(node: Node) -> None:
    half = node.halve()
    node.vm.run(["systemctl", "stop", SAMPLER], timeout_s=120)
    node.by_hand("--auto")
    node.vm.wait_for("the loop to say why it holds", lambda: node.constraint() == "stale", 60)
    # Far out of its band, and held all the same: two periods of the loop and more.
    assert max(w["busy"] for w in node.watch(6, windows=2)) < TARGET - BAND
    assert node.quota() == half
    assert node.constraint() == "stale"
    node.vm.run(["systemctl", "start", SAMPLER], timeout_s=180)
    assert node.comes_into_band()
    assert node.constraint() != "stale"


def test_with_its_actuator_disconnected_the_loop_does_not_come_into_its_band(node: Node) -> None:
    """The same judgement as above, on a daemon that never writes a quota: it has to say no."""
    node.vm.run(["sh", "-c", f"cat >>{LIMITS}"], stdin=DISCONNECTED)
    try:
        # The stop gives the quota back; the job trains on.
        node.vm.run(["systemctl", "restart", GOVERNOR], timeout_s=180)
        assert node.quota() is None
        assert not node.comes_into_band()
        assert node.quota() is None
        assert node.constraint() not in (None, "no-job", "stale", "no-signal")
    finally:
        node.vm.run(["cp", f"{HOME}/limits.py.whole", LIMITS])
        node.vm.run(["systemctl", "restart", GOVERNOR], timeout_s=180)
    if not node.comes_into_band():
        raise VmError("whole again, the daemon does not bring the GPU into its band")
