# SPDX-License-Identifier: Apache-2.0
"""Runs in the VM: act/ alone, holding one decision that a JSON file tells, as the daemon's loop
would.

    drive_act.py DECISION LEDGER [--stay] [--ticks N]

DECISION has ``placements``, ``limits``, ``priorities`` (fields of the model; a process is a PID)
and ``carriers``; it is read again at each tick. Ends when all is as wished, or after --ticks
ticks, and prints what act/ knows as one line of JSON; with --stay it prints that line and holds on
until killed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from gi.repository import GLib
from swift_governor.act.ledger import Ledger
from swift_governor.act.processes import read_stat
from swift_governor.act.reconciler import Reconciler
from swift_governor.act.systemd import Systemd
from swift_governor.model import (
    Decision,
    IoClass,
    Limits,
    Note,
    Placement,
    PriorityWish,
    ProcessId,
)

TICK_MS = 100


def identity(pid: int) -> ProcessId:
    stat = read_stat("/proc", pid)
    return ProcessId(pid, stat.start_ticks if stat else 0)


def decision(told: dict[str, Any]) -> Decision:
    return Decision(
        placements=tuple(
            Placement(
                unit=p["unit"],
                slice=p["slice"],
                job=p["job"],
                description=p.get("description", f"ms-swift {p['job']}"),
                pids=tuple(identity(pid) for pid in p["pids"]),
            )
            for p in told.get("placements", [])
        ),
        limits={unit: Limits(**limits) for unit, limits in told.get("limits", {}).items()},
        priorities=tuple(
            PriorityWish(identity(p["pid"]), p["job"], p["nice"], IoClass(p["io_class"]))
            for p in told.get("priorities", [])
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("decision", type=Path)
    parser.add_argument("ledger")
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--ticks", type=int, default=100)
    arguments = parser.parse_args()
    notes: list[Note] = []
    loop = GLib.MainLoop()
    systemd = Systemd()
    reconciler = Reconciler(
        systemd,
        Ledger(arguments.ledger),
        carriers=json.loads(arguments.decision.read_text()).get("carriers", ["user@*.service"]),
        note=notes.append,
    )
    ticks, quiet, printed, writes = 0, 0, False, -1
    slowest_ms = 0.0

    def tick() -> bool:
        nonlocal ticks, quiet, printed, writes, slowest_ms
        if not systemd.connected:
            return True
        ticks += 1
        try:
            wished = decision(json.loads(arguments.decision.read_text()))
        except ValueError:  # being written just now
            return True
        began = time.monotonic()
        reconciler.apply(wished, began)
        slowest_ms = max(slowest_ms, (time.monotonic() - began) * 1e3)
        state = reconciler.state()
        quiet = quiet + 1 if not state.pending and state.writes_total == writes else 0
        writes = state.writes_total
        if not printed and (quiet >= 15 or ticks >= arguments.ticks):
            printed = True
            print(
                json.dumps(
                    {
                        "version": systemd.version,
                        "bus_name": systemd._bus.con.get_unique_name(),
                        "contained": {i.pid: unit for i, unit in state.contained.items()},
                        "pending": state.pending,
                        "drift": state.drift_total,
                        "writes": state.writes_total,
                        "failures": state.failures_total,
                        "threads": state.prioritised_threads,
                        "admin": state.admin_properties,
                        "latency_ms": [round(s * 1e3, 1) for s in state.containment_s],
                        "slowest_tick_ms": round(slowest_ms, 1),
                        "errors": state.errors,
                        "notes": [[n.kind, n.subject, n.message] for n in notes],
                    }
                ),
                flush=True,
            )
            if not arguments.stay:
                loop.quit()
        return True

    systemd.connect()
    GLib.timeout_add(TICK_MS, tick)
    loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
