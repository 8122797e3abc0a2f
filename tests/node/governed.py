# SPDX-License-Identifier: Apache-2.0
"""The installed package in the VM as a person handles it, and jobs that stand in for ms-swift.

What is looked at is the kernel's word (programs/look.py), never what systemd was told.
"""

from __future__ import annotations

import json
import re
import shlex
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.node.vm import Vm

PROGRAMS = Path(__file__).resolve().parent / "programs"
PACKAGE = "/root/swift-governor.deb"
HOME = "/opt/stand-in"
TRAINER = f"{HOME}/swift/cli/sft.py"
GOVERNOR = "swift-governor.service"
SITE = "/etc/swift-governor/config.d/50-test.yaml"
LEDGER = "/run/swift-governor/ledger.jsonl"
TIER = "/msswift.slice/msswift-training.slice"
# Emulated, on a machine that does other things as well.
PATIENCE_S = 240

# nice and I/O class of a training job's threads as shipped, and of a job that nobody governs.
GOVERNED = (15, "idle")
FREE = (0, "none")
# The training tier's quota (60 % of two cores) and weight as shipped; those of a free unit.
LIMITED = ["120000 100000", "20"]
UNLIMITED = ["max 100000", "100"]
IO_CLASSES = ("none", "realtime", "best-effort", "idle")


@dataclass(frozen=True)
class Seen:
    """One look: cgroup and thread priorities by PID, units by path, and the daemon's snapshot."""

    cgroups: dict[int, str]
    priorities: dict[int, set[tuple[int, str]]]
    threads: int
    units: dict[str, list[str]]
    snapshot: dict[str, Any]

    @property
    def job_units(self) -> dict[int, str]:
        return {pid: cgroup.rpartition("/")[2] for pid, cgroup in self.cgroups.items()}

    @property
    def all_priorities(self) -> set[tuple[int, str]]:
        return set().union(*self.priorities.values())

    @property
    def limited_units(self) -> dict[str, list[str]]:
        return {unit: limits for unit, limits in self.units.items() if limits != UNLIMITED}

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        return {job["name"]: job for job in self.snapshot.get("jobs", [])}


class Governed:
    """The VM with the package, its daemon as a person starts, stops and breaks it."""

    def __init__(self, vm: Vm) -> None:
        self.vm = vm

    def install(self) -> None:
        """From the file that conftest.py put there."""
        self.vm.run(["apt-get", "install", "-y", PACKAGE], timeout_s=2 * PATIENCE_S)

    # ------------------------------------------------------------------------------- the daemon

    def show(self, name: str, unit: str = GOVERNOR) -> str:
        return self.vm.run(["systemctl", "show", "--value", "-p", name, unit]).stdout.strip()

    @property
    def pid(self) -> int:
        return int(self.show("MainPID"))

    def start(self) -> None:
        """Running as shipped; earlier starts and crashes don't count."""
        as_it_should = 'systemctl -q is-active "$1" && test ! -e "$2"'
        running = self.vm.run(["sh", "-c", as_it_should, "sh", GOVERNOR, SITE], check=False).rc == 0
        self.vm.run(["systemctl", "reset-failed", GOVERNOR], check=False)
        if not running:
            self.vm.run(["rm", "-f", SITE])
            self.vm.run(["systemctl", "restart", GOVERNOR], timeout_s=PATIENCE_S)

    def stop(self) -> None:
        self.vm.run(["systemctl", "stop", GOVERNOR], timeout_s=PATIENCE_S)

    def wait_until_restarted(self, before: int) -> None:
        def another() -> bool:
            shown = self.vm.run(["systemctl", "show", "-p", "ActiveState,MainPID", GOVERNOR]).stdout
            return "ActiveState=active" in shown and f"MainPID={before}\n" not in shown

        self.vm.wait_for("systemd to start another governor", another, PATIENCE_S)

    def kill(self) -> None:
        self.vm.run(["systemctl", "kill", "--kill-whom=main", "--signal=KILL", GOVERNOR])

    def configure(self, text: str) -> None:
        self.vm.write(SITE, text)

    # -------------------------------------------------------------------------------- the journal

    def now(self) -> str:
        """A place in the journal: ``told`` gives what came after it."""
        shown = self.vm.run(["journalctl", "-n", "0", "--show-cursor", "-q"]).stdout
        return shown.rpartition("cursor: ")[2].strip()

    def told(self, since: str) -> list[dict[str, str]]:
        """The entries of the governor's unit (also its release and check) after `since`."""
        argv = ["journalctl", "-q", "-o", "json", f"--after-cursor={since}", "-u", GOVERNOR]
        lines = self.vm.run(argv).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def messages(self, since: str) -> list[str]:
        return [str(entry.get("MESSAGE")) for entry in self.told(since)]

    # ---------------------------------------------------------------------------------- looking

    def look(self, pids: Iterable[int] = ()) -> Seen:
        argv = ["python3", "-I", "-S", f"{HOME}/look.py", *map(str, pids)]
        found = json.loads(self.vm.run(argv).stdout)
        processes = {int(pid): told for pid, told in found["processes"].items()}
        return Seen(
            cgroups={pid: told["cgroup"] for pid, told in processes.items()},
            priorities={
                pid: {(nice, IO_CLASSES[io >> 13]) for nice, io in told["threads"].values()}
                for pid, told in processes.items()
            },
            threads=sum(len(told["threads"]) for told in processes.values()),
            units=found["units"],
            snapshot=found["snapshot"] or {},
        )

    def wait_until_contained(self, *jobs: Job) -> Seen:
        """Every process of the jobs in its job's scope, and each thread with its priority."""
        pids = [pid for job in jobs for pid in job.pids]

        def contained() -> Seen | None:
            seen = self.look(pids)
            places = {*seen.job_units.values()}
            done = (
                len(seen.cgroups) == len(pids)
                and all(re.fullmatch(r"msswift-\w+-\w+\.scope", place) for place in places)
                and seen.all_priorities == {GOVERNED}
                and seen.units.get(TIER) == LIMITED
            )
            return seen if done else None

        seen = self.vm.wait_for("the job to be contained", contained, PATIENCE_S)
        assert seen is not None
        return seen

    def ticks(self) -> int:
        """How many ticks there have been; 0 while the daemon doesn't answer."""
        return int(self.look().snapshot.get("self", {}).get("ticks", 0))

    def wait_for_ticks(self, more: int = 3) -> None:
        """Until so many ticks have ended that began after the call."""
        target = self.ticks() + more + 1
        self.vm.wait_for(f"{more} ticks", lambda: self.ticks() >= target, PATIENCE_S)

    # -------------------------------------------------------------------------------------- jobs

    def start_job(self, loaders: int = 3, how: str = "setsid runuser -u alice --") -> Job:
        """A trainer with loaders, known when all its processes are there."""
        return self.start_processes(
            f"{how} python3 {TRAINER} --loaders {loaders}", processes=1 + loaders
        )

    def start_processes(self, command: str, processes: int) -> Job:
        """`command` in the background of an ssh login, and the `processes` it consists of.

        runuser(1) stays as a parent of what it starts: its child is the job's first process.
        """
        mark = f"STAND_IN={uuid.uuid4()}"
        marked = command.replace("python3 ", f"env {mark} python3 ", 1)
        self.vm.sh(f"{marked} </dev/null >/dev/null 2>&1 &")
        find = f"grep -lz {shlex.quote(mark)} /proc/[0-9]*/environ 2>/dev/null || true"

        def all_there() -> list[int]:
            found = [int(path.split("/")[2]) for path in self.vm.sh(find).stdout.split()]
            return sorted(found) if len(found) >= processes else []

        return Job(self.vm, self.vm.wait_for("the job's processes", all_there, PATIENCE_S))

    def end(self, *jobs: Job) -> None:
        """Ends all processes of the jobs, also those that were started after them."""
        self.vm.run(["kill", "-9", *[str(p) for job in jobs for p in job.pids]], check=False)


@dataclass
class Job:
    """A pretended job in the VM; its first process is the one that a job is named by."""

    vm: Vm
    pids: list[int]

    def scope(self, seen: Seen) -> str:
        """The one scope that all its processes were seen in."""
        (scope,) = {seen.job_units[pid] for pid in self.pids}
        return scope

    def alive(self) -> list[int]:
        """Those of its processes that run, by PID."""
        alive = 'for p; do test -d "/proc/$p" && echo "$p"; done; true'
        return [
            int(p)
            for p in self.vm.run(["sh", "-c", alive, "sh", *map(str, self.pids)]).stdout.split()
        ]
