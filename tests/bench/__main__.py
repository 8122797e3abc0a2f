# SPDX-License-Identifier: Apache-2.0
"""Measures the installed package in a VM; the exit status is 1 where a figure misses its bar.

A bar is the most that is allowed. Where the guest is emulated, times are several times those of
hardware: what is held to a bar is then their ratio to what systemd itself takes in the same guest.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Callable
from typing import Any

from tests.bench import node, results
from tests.bench.results import Figure
from tests.node.conftest import the_package
from tests.node.vm import Vm
from tests.node.vm.host import LOG

AGAINST_SYSTEMD_RUN = 0.6
PSS_MIB = 64.0
Measured = tuple[list[Figure], dict[str, Any]]


def containment(vm: Vm, jobs: int, starts: int) -> Measured:
    """exec to contained, beside systemd-run; and from systemctl start on."""
    raw = node.new_jobs(vm, jobs)
    word = node.governors_word(vm)
    ours, theirs = raw["contained_ms"], raw["systemd_run_ms"]
    begun = node.from_start(vm, starts)
    figures = [
        Figure(f"exec to contained, median of {jobs}", node.median(ours), "ms"),
        Figure(f"exec to contained, worst of {jobs}", max(ours), "ms"),
        Figure(f"systemd-run --scope true, median of {jobs}", node.median(theirs), "ms"),
        Figure(f"systemd-run --scope true, worst of {jobs}", max(theirs), "ms"),
        Figure(
            "ratio of the medians",
            round(node.median(ours) / node.median(theirs), 3),
            "",
            AGAINST_SYSTEMD_RUN,
        ),
        *(
            Figure(f"the daemon's own: {name.removesuffix('_ms')}", value, "ms")
            for name, value in word.items()
            if value is not None
        ),
        Figure(
            f"start to first contained, median of {starts}", node.median(begun["first_ms"]), "ms"
        ),
        Figure(
            f"start to all 4 contained, median of {starts}", node.median(begun["last_ms"]), "ms"
        ),
        Figure(f"start to all 4 contained, worst of {starts}", max(begun["last_ms"]), "ms"),
        Figure(f"start to READY=1, median of {starts}", node.median(begun["ready_ms"]), "ms"),
    ]
    return figures, {**raw, **begun}


def footprint(vm: Vm, idle_s: float) -> Measured:
    """Memory, and what it costs to do nothing."""
    used = node.cpu_s(vm, idle_s)
    pss = node.pss_mib(vm)
    figures = [
        *(Figure(f"PSS {name}", value, "MiB") for name, value in pss.items()),
        Figure("PSS of all", round(sum(pss.values()), 2), "MiB", PSS_MIB),
        *(Figure(f"CPU in {idle_s:g} s, {name}", value, "s") for name, value in used.items()),
        Figure(f"CPU in {idle_s:g} s, all", round(sum(used.values()), 3), "s"),
    ]
    return figures, {"pss_mib": pss, "cpu_s": used, "idle_s": idle_s, "gpus": node.GPUS}


def main() -> int:
    """Boots, measures, tells, writes."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--suite", default="bookworm")
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--idle", type=float, default=300.0, metavar="SECONDS")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    LOG.setLevel(logging.INFO)
    about = results.head("python -m tests.bench " + shlex.join(sys.argv[1:]))
    missed = 0
    with Vm.boot(args.suite) as vm:
        print(f"booted with {vm.accelerator}; installing", flush=True)
        node.install(vm, the_package())
        node.start(vm)
        about["guest"] = node.guest(vm)
        measures: dict[str, Callable[[], Measured]] = {
            "footprint": lambda: footprint(vm, args.idle),
            "containment": lambda: containment(vm, args.jobs, args.starts),
        }
        for area, measure in measures.items():
            print(f"\n{area}: measuring", flush=True)
            about["machine"] = results.machine(vm.accelerator)
            figures, raw = measure()
            about["machine_after"] = results.machine(vm.accelerator)
            path = results.write(area, about, figures, raw)
            print(results.table(figures), f"\n-> {path}", flush=True)
            missed += sum(f.verdict.startswith("MISSED") for f in figures)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
