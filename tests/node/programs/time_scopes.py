# SPDX-License-Identifier: Apache-2.0
"""Runs in the VM: the median ms of eleven scopes, from the call until the kernel shows the
process."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Generator
from typing import Any

from gi.repository import GLib
from swift_governor.act.calls import run
from swift_governor.act.processes import cgroup_of
from swift_governor.act.scopes import ScopeMaker
from swift_governor.act.systemd import Systemd
from swift_governor.model import Placement

loop = GLib.MainLoop()
systemd = Systemd()
maker = ScopeMaker(systemd, "/sys/fs/cgroup")
times_ms: list[float] = []


def fail(error: Exception) -> None:
    raise SystemExit(f"{type(error).__name__}: {error}")


def measure() -> Generator[Any, Any, None]:
    for n in range(11):
        name = f"sft{n}x7"
        child = subprocess.Popen(["sleep", "infinity"])
        placement = Placement(
            f"msswift-{name}-main.scope", f"msswift-training-u7-{name}.slice", name, name, ()
        )
        began = time.monotonic()
        reply = yield from maker.start(placement, [child.pid])
        if not reply.ok or placement.unit not in (cgroup_of("/proc", child.pid) or ""):
            fail(RuntimeError(f"{reply}"))
        times_ms.append((time.monotonic() - began) * 1e3)
        child.kill()
        child.wait()
    loop.quit()


def begin() -> bool:
    if not systemd.connected:
        return True
    run(measure(), fail)
    return False


systemd.connect()
GLib.timeout_add(20, begin)
loop.run()
print(sorted(times_ms)[5])
