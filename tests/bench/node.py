# SPDX-License-Identifier: Apache-2.0
"""What is measured in the VM, one function a figure; each returns plain numbers."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tests.node.vm import Vm

ROOT = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).resolve().parent / "guest"
HOME = "/srv/bench"
JOB = f"{HOME}/swift/cli/sft.py"
STOPWATCH = f"{HOME}/stopwatch"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
GOVERNOR = "swift-governor.service"
SERVICES = (GOVERNOR, "swift-governor-sampler.service", "swift-governor-exporter.service")
GPUS = 8


def install(vm: Vm, package: Path) -> None:
    """The package, eight simulated GPUs at rest, and the stopwatch."""
    vm.put(package, "/root/swift-governor.deb")
    vm.run(["apt-get", "install", "-y", "/root/swift-governor.deb"], timeout_s=600)
    vm.put(ROOT / "tests" / "fake_nvml" / "build" / "libnvidia-ml.so.1", LIBRARY)
    gpu = "{0}.util 0\n{0}.memory_total 85899345920\n{0}.memory_used 1073741824\n"
    vm.write("/run/fake-nvml/state", f"count {GPUS}\n" + "".join(map(gpu.format, range(GPUS))))
    vm.run(["mkdir", "-p", f"{HOME}/swift/cli"])
    vm.put(GUEST / "job.py", JOB)
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "stopwatch"
        source = str(GUEST / "stopwatch.c")
        subprocess.run(["gcc", "-O2", "-static", "-o", str(program), source], check=True)
        vm.put(program, STOPWATCH)


def start(vm: Vm) -> None:
    """All three programs up, and done with their own start."""
    vm.run(["systemctl", "start", GOVERNOR], timeout_s=300)
    vm.wait_for("the three programs", ["systemctl", "is-active", *SERVICES], 300)
    time.sleep(20)


def new_jobs(vm: Vm, count: int) -> dict[str, list[float]]:
    """exec to contained of `count` new jobs, and `systemd-run --scope true` between them; ms."""
    argv = [STOPWATCH, "jobs", str(count), "python3", JOB]
    lines = vm.run(argv, timeout_s=30 + 15 * count).stdout.splitlines()
    told = [json.loads(line) for line in lines]
    return {name: [row[name] for row in told] for name in ("contained_ms", "systemd_run_ms")}


def from_start(vm: Vm, times: int) -> dict[str, list[float]]:
    """systemctl start until the last of a running 4-process job is contained; ms."""
    told = []
    for _ in range(times):
        vm.run(["systemctl", "stop", GOVERNOR], timeout_s=180)
        vm.sh(f"setsid runuser -u alice -- python3 {JOB} --launched 2 >/dev/null 2>&1 </dev/null &")
        vm.wait_for("a job of four", lambda: len(_job_pids(vm)) == 4)
        pids = _job_pids(vm)
        told.append(json.loads(vm.run([STOPWATCH, "start", GOVERNOR, *pids], 180).stdout))
        vm.run(["kill", *pids], check=False)
        vm.wait_for("its end", lambda: not _job_pids(vm))
    return {name: [row[name] for row in told] for name in ("ready_ms", "first_ms", "last_ms")}


def _job_pids(vm: Vm) -> list[str]:
    return vm.run(["pgrep", "-f", f"^[^ ]*python3[^ ]* {JOB}"], check=False).stdout.split()


def pss_mib(vm: Vm) -> dict[str, float]:
    """Proportional set size of each process of the three services, the reader child included."""
    script = (
        "for unit; do for pid in $(cat /sys/fs/cgroup/system.slice/$unit/cgroup.procs); do "
        'echo "$unit $(tr "\\0" " " </proc/$pid/cmdline | cut -d" " -f1-4 | tr " " "_")'
        " $(sed -n 's/^Pss: *\\([0-9]*\\) kB/\\1/p' /proc/$pid/smaps_rollup)\"; done; done"
    )
    out = vm.run(["bash", "-euc", script, "bash", *SERVICES]).stdout
    rows: dict[str, float] = {}
    for line in out.splitlines():
        unit, _, kib = line.split()
        name = unit.removesuffix(".service")
        name += " reader child" if name in rows else ""
        rows[name] = rows.get(name, 0.0) + int(kib) / 1024
    return {name: round(mib, 2) for name, mib in rows.items()}


def cpu_s(vm: Vm, seconds: float) -> dict[str, float]:
    """CPU seconds of each service over a while in which nothing happens."""
    before = {unit: _usage_s(vm, unit) for unit in SERVICES}
    time.sleep(seconds)
    return {
        unit.removesuffix(".service"): round(_usage_s(vm, unit) - before[unit], 3)
        for unit in SERVICES
    }


def _usage_s(vm: Vm, unit: str) -> float:
    text = vm.run(["cat", f"/sys/fs/cgroup/system.slice/{unit}/cpu.stat"]).stdout
    return int(dict(line.split() for line in text.splitlines())["usage_usec"]) / 1e6


def governors_word(vm: Vm) -> dict[str, float | None]:
    """What the daemon itself saw since its start: discovery to containment, and its ticks; ms."""
    told = json.loads(vm.run(["swift-governor", "status", "--json"]).stdout)
    seen, me = told["act"]["containment"], told["self"]
    return {
        "discovery_to_contained_median_ms": _ms(seen["median_s"]),
        "discovery_to_contained_worst_ms": _ms(seen["worst_s"]),
        "tick_mean_ms": _ms(me["tick_total_s"] / me["ticks"]),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)


def guest(vm: Vm) -> dict[str, str]:
    """Versions of what was measured on."""
    script = "uname -r; systemctl --version | head -1; python3 --version; nproc"
    kernel, systemd, python, cpus = vm.sh(script).stdout.splitlines()
    return {"kernel": kernel, "systemd": systemd, "python": python, "cpus": cpus}


def median(values: list[float]) -> float:
    """Rounded as it is told."""
    return round(statistics.median(values), 1)
