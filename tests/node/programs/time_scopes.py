# SPDX-License-Identifier: Apache-2.0
"""Runs in the VM: the median ms of eleven scopes, from the call until the kernel shows the
process."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from typing import Any

from gi.repository import GLib
from swift_governor.act.calls import run
from swift_governor.act.processes import cgroup_of
from swift_governor.act.scopes import ScopeMaker
from swift_governor.act.systemd import Systemd
from swift_governor.model import Placement

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 11
loop = GLib.MainLoop()
systemd = Systemd()
maker = ScopeMaker(systemd, "/sys/fs/cgroup")
contained_ms: list[float] = []
answered_ms: list[float] = []
systemd_run_ms: list[float] = []


def fail(error: Exception) -> None:
    raise SystemExit(f"{type(error).__name__}: {error}")


def measure() -> Generator[Any, Any, None]:
    for n in range(COUNT):
        name = f"sft{n}x7"
        child = subprocess.Popen(["sleep", "infinity"])
        placement = Placement(
            f"msswift-{name}-main.scope", f"msswift-training-u7-{name}.slice", name, name, ()
        )
        began = time.monotonic()
        watch(child.pid, placement.unit, began)
        reply = yield from maker.start(placement, [child.pid])
        if not reply.ok:
            fail(RuntimeError(f"{reply}"))
        answered_ms.append((time.monotonic() - began) * 1e3)
        child.kill()
        child.wait()
        began = time.monotonic()
        run_scope = ["systemd-run", "--scope", "-q", f"--slice=probe-a-{n}.slice", "true"]
        subprocess.run(run_scope, check=True)
        systemd_run_ms.append((time.monotonic() - began) * 1e3)
    loop.quit()


def watch(pid: int, unit: str, began: float) -> None:
    def look() -> bool:
        cgroup = cgroup_of("/proc", pid)
        if cgroup is None or unit in cgroup:
            contained_ms.append((time.monotonic() - began) * 1e3)
            return False
        return True

    GLib.timeout_add(1, look)


def begin() -> bool:
    if not systemd.connected:
        return True
    run(measure(), fail)
    return False


systemd.connect()
GLib.timeout_add(20, begin)
loop.run()
for what, values in (
    ("contained", contained_ms),
    ("answered and verified", answered_ms),
    ("systemd-run --scope true", systemd_run_ms),
):
    print(f"{what}: median {statistics.median(values):.1f} ms, worst {max(values):.1f} ms")
