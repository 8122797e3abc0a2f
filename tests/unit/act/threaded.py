# SPDX-License-Identifier: Apache-2.0
"""A real process with threads for the priority tests; each line on stdin starts one more thread."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from swift_governor.act.processes import read_stat, thread_ids
from swift_governor.act.threads import Priority, read_priority
from swift_governor.model import ProcessId

_PROGRAM = """
import os, sys, threading
def more():
    begun = threading.Event()
    threading.Thread(target=lambda: (begun.set(), threading.Event().wait()), daemon=True).start()
    begun.wait()
for _ in range(4):
    more()
children = []
print("ready", flush=True)
for line in sys.stdin:
    if line == "thread\\n":
        more()
    elif line == "fork\\n":
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        os.close(reader)
        children.append(writer)
        print(pid, flush=True)
        continue
    print("done", flush=True)
"""


@dataclass
class Threaded:
    id: ProcessId
    child: subprocess.Popen[str]

    def ask(self, what: str) -> str:
        assert self.child.stdin
        assert self.child.stdout
        self.child.stdin.write(f"{what}\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().strip()

    def tids(self) -> list[int]:
        return sorted(thread_ids("/proc", self.id.pid))

    def priorities(self) -> set[Priority]:
        return {read_priority(tid) for tid in self.tids()}


def identity(pid: int) -> ProcessId:
    stat = read_stat("/proc", pid)
    assert stat
    return ProcessId(pid, stat.start_ticks)


@contextlib.contextmanager
def threaded(nice: int = 0) -> Iterator[Threaded]:
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        process = Threaded(identity(child.pid), child)
        for tid in process.tids():
            os.setpriority(os.PRIO_PROCESS, tid, nice)
        yield process
    finally:
        child.communicate()  # its end of file ends it, and its forked children after it
