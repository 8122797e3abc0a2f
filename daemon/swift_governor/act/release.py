# SPDX-License-Identifier: Apache-2.0
"""Gives everything back: ``python3 -m swift_governor.act.release [--ledger PATH]``.

Run by systemd after each end of the daemon (ExecStopPost=: stop, crash, kill -9, failed start),
and by hand. Standard library only: no GLib, no configuration, no daemon. ``systemctl`` as root
reaches PID 1 by its private socket, also when the bus is down. Scopes and processes are left
alone: stopping a scope would end the job in it. Doing it again does no harm.

What the ledger tells is put back as it was. Where the ledger is missing or damaged, what cgroupfs
shows below msswift.slice is believed instead: each quota and weight in force there is reset, save
what a file in /etc sets; and priorities like this:

- a thread whose values equal what was recorded as written for its job gets what that job had
  before;
- with no record of any thread left, nice above 0 becomes 0 and I/O class idle becomes none: below
  msswift.slice that is most likely ours, and too much priority is a smaller wrong than a job that
  crawls until it ends. An empty ledger, as this program leaves it, vouches that nothing is changed.

Exit status: 0 when nothing of ours remains in force, 1 otherwise, with one line for each thing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from swift_governor.act import ledger
from swift_governor.act.cgroupfs import (
    QUOTA,
    UNLIMITED,
    WEIGHT,
    in_force,
    is_frozen,
    processes_below,
    units_below,
)
from swift_governor.act.inherited import restore_strangers
from swift_governor.act.threads import restore_process
from swift_governor.act.unitfile import set_by_admin
from swift_governor.act.units import ROOT, is_ours, is_transient

NAME = "release"
HELP = "give back all limits and priorities; jobs run on"
SYSTEMCTL = "/usr/bin/systemctl"
_DEADLINE_S = 20.0  # for all: TimeoutStopSec= is longer than this
_AT_ONCE = 4
_SHOWN_AT_ONCE = 100
_ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_COLORS": "0"}


def assignment(name: str, value: int) -> str:
    """The argument of ``systemctl set-property`` that sets a D-Bus value; 2^64-1 is "not set"."""
    if name == WEIGHT:
        return "CPUWeight=" + {UNLIMITED: "", 0: "idle"}.get(value, str(value))
    return "CPUQuota=" + ("" if value == UNLIMITED else f"{value / 10_000:.2f}%")


def _expressible(name: str, value: int) -> int:
    """CPUQuota= knows hundredths of a percent."""
    return value if name == WEIGHT or value == UNLIMITED else max(value // 100 * 100, 100)


@dataclass
class Release:
    """One release. ``say`` gets (syslog level, line); paths and programs are arguments for the
    tests."""

    ledger_path: str = ledger.PATH
    cgroup_root: str = "/sys/fs/cgroup"
    proc_root: str = "/proc"
    systemctl: str = SYSTEMCTL
    say: Callable[[int, str], None] = lambda _level, _line: None

    def run(self) -> int:
        """Gives back what can be given back. Returns the exit status."""
        self._deadline = time.monotonic() + _DEADLINE_S
        found = ledger.read(self.ledger_path)
        book = found if found is not None else ledger.Book()
        doubtful = found is None or bool(book.damaged)
        present = units_below(f"{self.cgroup_root}/{ROOT}")
        if book.damaged:
            self.say(4, f"{self.ledger_path} is damaged: cgroupfs is believed instead")
        remaining = self._give_back_units(book, present, doubtful)
        remaining += self._thaw(present)
        remaining += self._give_back_threads(book, doubtful)
        if not remaining:
            book.damaged = 0
        if found is not None or not remaining:  # else an empty file would vouch for what remains
            self._write_ledger(book)
        return 1 if remaining else 0

    # ------------------------------------------------------------------------------------- units

    def _give_back_units(
        self, book: ledger.Book, present: Mapping[str, str], doubtful: bool
    ) -> int:
        wanted: dict[str, dict[str, int]] = {}
        for unit, name in list(book.units):
            if not is_ours(unit) or name not in (WEIGHT, QUOTA):
                del book.units[(unit, name)]
            elif unit not in present and is_transient(unit):
                del book.units[(unit, name)]  # it went with its job
            else:
                wanted.setdefault(unit, {})[name] = _expressible(name, book.units[(unit, name)])
        if doubtful:
            for unit, directory in present.items():
                for name in (WEIGHT, QUOTA):
                    if not in_force(directory, name, UNLIMITED):
                        wanted.setdefault(unit, {}).setdefault(name, UNLIMITED)
        admin = self._set_by_admin(sorted(wanted))
        for unit, name in [(u, n) for u, values in wanted.items() for n in values]:
            path = admin.get(unit, {}).get(name)
            if path:
                # Its record stays: our runtime drop-in from before the admin's file lies beneath
                # it, and would be in force again when that file goes.
                self.say(6, f"{unit}: {name} is set in {path}, and left as it is there")
                del wanted[unit][name]
        refused = self._systemctl_each(
            {
                unit: [
                    "set-property",
                    "--runtime",
                    unit,
                    *(assignment(n, v) for n, v in sorted(values.items())),
                ]
                for unit, values in wanted.items()
                if values
            }
        )
        return sum(
            self._judge(book, unit, name, value, present.get(unit), refused.get(unit, ""))
            for unit, values in wanted.items()
            for name, value in values.items()
        )

    def _judge(
        self,
        book: ledger.Book,
        unit: str,
        name: str,
        value: int,
        directory: str | None,
        refused: str,
    ) -> bool:
        """Whether something remains: the kernel's word counts, and a unit that has gone has no
        limit."""
        gone = directory is not None and not os.path.isdir(directory)  # noqa: PTH112
        if gone or (not refused and (directory is None or in_force(directory, name, value))):
            book.units.pop((unit, name), None)
            self.say(6, f"{unit}: {assignment(name, value)} given back")
            return False
        self.say(
            3, f"{unit}: {assignment(name, value)} is not in force: {refused or 'unknown why'}"
        )
        return True

    def _thaw(self, present: Mapping[str, str]) -> int:
        """Parents first: thawing one may thaw what is below it."""
        frozen = 0
        for unit, directory in present.items():
            if not is_frozen(directory):
                continue
            refused = self._systemctl_each({unit: ["thaw", unit]}).get(unit, "")
            if is_frozen(directory):
                self.say(3, f"{unit} is still frozen: {refused or 'unknown why'}")
                frozen += 1
            else:
                self.say(6, f"{unit} thawed")
        return frozen

    def _set_by_admin(self, units: Sequence[str]) -> dict[str, dict[str, str]]:
        admin: dict[str, dict[str, str]] = {}
        for n in range(0, len(units), _SHOWN_AT_ONCE):
            some = units[n : n + _SHOWN_AT_ONCE]
            argv = ["show", "--property=Id,FragmentPath,DropInPaths", "--", *some]
            for block in self._ask(argv).split("\n\n"):
                told = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
                fragment, drop_ins = told.get("FragmentPath", ""), told.get("DropInPaths", "")
                admin[told.get("Id", "")] = set_by_admin(fragment, drop_ins.split())
        return admin

    # ----------------------------------------------------------------------------------- threads

    def _give_back_threads(self, book: ledger.Book, doubtful: bool) -> int:
        known = [r for threads in book.threads.values() for r in threads.values()]
        recorded = {pid for pid, _start in book.threads}
        troubles: list[str] = []
        for (pid, start), threads in list(book.threads.items()):
            refused = restore_process(self.proc_root, pid, start, threads.values())
            troubles += refused
            if not refused:
                del book.threads[(pid, start)]
        strangers = set(processes_below(f"{self.cgroup_root}/{ROOT}")) - recorded
        troubles += restore_strangers(self.proc_root, strangers, known, doubtful and not known)
        if known:
            self.say(6, f"priorities of {len(known)} threads given back")
        for trouble in troubles:
            self.say(3, f"{trouble}: its priority is not given back")
        return len(troubles)

    # --------------------------------------------------------------------- systemctl, the ledger

    def _systemctl_each(self, commands: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Runs one systemctl a unit, a few at once. Returns why it failed, for those that did."""
        refused: dict[str, str] = {}
        waiting = list(commands.items())
        while waiting:
            some, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            running = [(unit, self._start(argv)) for unit, argv in some]
            for unit, child in running:
                rc, _out, complaint = self._finish(child)
                if rc != 0:
                    refused[unit] = complaint or f"systemctl exited with {rc}"
        return refused

    def _ask(self, argv: Sequence[str]) -> str:
        rc, out, _complaint = self._finish(self._start(argv))
        return out if rc == 0 else ""

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[str] | str:
        try:
            return subprocess.Popen(
                [self.systemctl, "--no-ask-password", "--no-pager", *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_ENVIRONMENT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            return f"{self.systemctl}: {error.strerror}"

    def _finish(self, child: subprocess.Popen[str] | str) -> tuple[int, str, str]:
        if isinstance(child, str):
            return -1, "", child
        try:
            out, complaint = child.communicate(timeout=max(self._deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            # Left to itself: it ends by its own time-out, and nothing here may signal a process.
            return -1, "", "systemctl did not answer in time"
        return child.returncode, out, " ".join(complaint.split())

    def _write_ledger(self, book: ledger.Book) -> None:
        if not os.path.isdir(os.path.dirname(self.ledger_path)):  # noqa: PTH112,PTH120
            return
        try:
            ledger.write(self.ledger_path, book)
        except OSError as error:
            self.say(4, f"{self.ledger_path} could not be written: {error.strerror}")


def _say(level: int, line: str) -> None:
    """To stderr; where that is the journal, with the level that sd-daemon(3) reads."""
    prefix = f"<{level}>" if "JOURNAL_STREAM" in os.environ else ""
    sys.stderr.write(f"{prefix}{line}\n")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = (
        "Give back all limits and priorities, as root. Jobs run on. While the governor runs, it "
        "sets them again with its next tick: stop it first."
    )
    parser.add_argument(
        "--ledger", default=ledger.PATH, metavar="PATH", help="default: %(default)s"
    )


def run(args: argparse.Namespace) -> int:
    """Do it; the exit status."""
    return Release(ledger_path=args.ledger, say=_say).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """The program: exit status 0 when nothing of ours remains in force."""
    parser = argparse.ArgumentParser(prog=f"swift-governor {NAME}", description=HELP)
    configure(parser)
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
