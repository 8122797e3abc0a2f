# SPDX-License-Identifier: Apache-2.0
"""Reading the node from outside the governor: cgroupfs, Prometheus, the trainer's own log."""

from __future__ import annotations

import base64
import json
import re
import struct
import time
from dataclasses import dataclass
from typing import Any

from tests.node.vm import CommandError, Vm


def status(vm: Vm) -> dict[str, Any]:
    """``swift-governor status --json``."""
    told: dict[str, Any] = json.loads(vm.run(["swift-governor", "status", "--json"]).stdout)
    return told


def cgroup_file(vm: Vm, unit: str, name: str) -> str:
    """A file of a unit's cgroup, found by walking cgroupfs (not asked of the governor)."""
    script = 'd=$(find /sys/fs/cgroup/msswift.slice -type d -name "$1"); [ -n "$d" ] && cat "$d/$2"'
    return vm.run(["bash", "-c", script, "bash", unit, name], check=False).stdout.strip()


def cores(cpu_max: str) -> float | None:
    """``57000 100000`` → 0.57; ``max 100000`` → None."""
    quota, _, period = cpu_max.partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


@dataclass(frozen=True)
class Trainer:
    """The trainer's log as it is now."""

    text: str

    @property
    def governor_lines(self) -> list[str]:
        """What the plugin said in it, without the logger's prefix."""
        return re.findall(r"\[swift-governor\] .*", self.text)


def trainer_log(vm: Vm) -> Trainer:
    """Reads the job's own output."""
    return Trainer(vm.run(["cat", "/demo/train.log"], check=False).stdout)


def query(vm: Vm, expression: str) -> list[tuple[dict[str, str], float]]:
    """An instant query of the real Prometheus in the VM, by promtool."""
    argv = ["promtool", "query", "instant", "-o", "json", "http://127.0.0.1:9090", expression]
    try:
        out = vm.run(argv).stdout
    except CommandError:
        return []
    return [(r["metric"], float(r["value"][1])) for r in json.loads(out)]


def history(vm: Vm, expression: str, begin: float, end: float) -> list[tuple[float, float]]:
    """A range query with one result, a point each 2 s; times are seconds since the epoch."""
    argv = ["promtool", "query", "range", "-o", "json", f"--start={begin:.0f}", f"--end={end:.0f}"]
    argv += ["--step=2s", "http://127.0.0.1:9090", expression]
    found = json.loads(vm.run(argv).stdout)
    return [(float(t), float(v)) for t, v in found[0]["values"]] if len(found) == 1 else []


def one(vm: Vm, expression: str) -> float | None:
    """The value of a query with one result."""
    found = query(vm, expression)
    return found[0][1] if len(found) == 1 else None


def busy_share(vm: Vm, seconds: float) -> float:
    """The share of a while in which the simulated GPU was busy, from the trainer's own counter.

    Not asked of the governor, nor of what it reads: the words are activity.py's, and the clock is
    the guest's.
    """
    began, total = _busy(vm)
    time.sleep(seconds)
    ended, later = _busy(vm)
    return (later - total) / (ended - began)


def _busy(vm: Vm) -> tuple[float, float]:
    out = vm.run(["sh", "-c", "base64 -w0 /run/fake-nvml/gpu0; echo; cat /proc/uptime"]).stdout
    encoded, uptime = out.splitlines()
    words = struct.unpack_from("<8Q", base64.b64decode(encoded))
    now = float(uptime.split()[0])
    total_ns, since_ns = words[4], words[5]
    running = max(0.0, now - since_ns / 1e9) if since_ns else 0.0
    return now, total_ns / 1e9 + running


def samples_per_s(vm: Vm, seconds: float) -> float:
    """Optimizer steps counted in the trainer's logging.jsonl over a while, times rows a step."""
    first = step(vm)
    began = time.monotonic()
    time.sleep(seconds)
    last = step(vm)
    return (last - first) * 8 / (time.monotonic() - began)


def step(vm: Vm) -> int:
    """The trainer's last optimizer step, from its own logging.jsonl."""
    line = vm.run(["tail", "-n", "1", "/demo/out/logging.jsonl"], check=False).stdout
    found = re.search(r'"global_step/max_steps": "(\d+)/', line)
    return int(found.group(1)) if found else 0
