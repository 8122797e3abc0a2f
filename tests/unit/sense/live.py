# SPDX-License-Identifier: Apache-2.0
"""Real processes that pose as ms-swift's, and a loop that drives the daemon's senses over them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time

from swift_governor.jobs.rules import ENVIRON_KEYS, match_process
from swift_governor.sense.proc_events import ProcEvents, ProcEventsError
from swift_governor.sense.process_table import ProcessTable
from swift_governor.sense.reader_client import ReaderClient

PYTHON = "/usr/bin/python3"
DEADLINE_S = 30

LAUNCHER = """#!{python} -S
import subprocess, sys
from_the_real_one = "from swift.cli.main import cli_main"
sys.exit(subprocess.run([sys.executable, "-S", {trainer!r}, *sys.argv[2:]]).returncode)
"""

# Forks as many workers as it is told; they name themselves as torch does, after a while.
TRAINER = """
import ctypes, os, sys, time
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 0):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)
        break
time.sleep(120)
"""


class SwiftTree:
    """A folder with ``bin/swift`` and ``swift/cli/sft.py``; what it starts ends with ``end``."""

    def __init__(self, directory):
        self.directory = directory
        self.script = directory / "bin" / "swift"
        self.trainer = directory / "swift" / "cli" / "sft.py"
        self.script.parent.mkdir(parents=True)
        self.trainer.parent.mkdir(parents=True)
        self.trainer.write_text(TRAINER)
        self.script.write_text(LAUNCHER.format(python=PYTHON, trainer=str(self.trainer)))
        self.script.chmod(0o755)
        self._started = []

    def start(self, *argv, **options):
        process = subprocess.Popen(
            [os.fspath(a) if not isinstance(a, bytes) else a for a in argv],
            start_new_session=True,
            stderr=subprocess.DEVNULL,
            **options,
        )
        self._started.append(process)
        return process

    def launch(self, workers=0):
        return self.start(self.script, "sft", str(workers))

    def train(self, workers=0, **options):
        return self.start(PYTHON, "-S", self.trainer, str(workers), **options)

    def is_job(self, process):
        """Real trainings may run on this machine too, and are none of a test's business."""
        return is_job(process) and any(str(self.directory) in word for word in process.argv)

    def end(self):
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Senses:
    """The table with its reader, and with the proc connector where this machine has it."""

    def __init__(self, tree, with_events=True):
        self.reader = ReaderClient(ENVIRON_KEYS)
        self.events = None
        if with_events:
            with contextlib.suppress(ProcEventsError):
                self.events = ProcEvents.open()
        self.changes = 0
        self.table = ProcessTable(self.reader, tree.is_job, self._on_change)

    def _on_change(self):
        self.changes += 1

    def turn(self, wait_s=0.1):
        """One turn of a main loop; without events each turn polls."""
        watched = [source for source in (self.events, self.reader) if source is not None]
        ready, _, _ = select.select(watched, [], [], wait_s)
        if self.events is None:
            self.table.poll()
        elif self.events in ready:
            for event in self.events.read():
                self.table.handle_event(event)
            self.table.flush()
        if self.reader in ready:
            self.reader.on_readable()
        self.reader.tick()

    def until(self, condition):
        """Turns until ``condition`` of the table's processes holds; returns them."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            processes = self.table.processes()
            if condition(processes):
                return processes
            self.turn()
        raise AssertionError(f"never came to be: {self.table.processes()}")

    def close(self):
        self.reader.close()
        if self.events is not None:
            self.events.close()


def is_job(process):
    return match_process(process).role is not None


def until(condition, what="the condition"):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"{what} never came to be"
        time.sleep(0.01)
