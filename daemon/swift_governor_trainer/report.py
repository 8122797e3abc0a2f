# SPDX-License-Identifier: Apache-2.0
"""What the training did since the last report: steps, samples, seconds, and how much was waiting.

The training thread adds, the link's thread takes; the lock is held for a few additions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

START, TRAIN, EVALUATE, SAVE, END = "start", "train", "evaluate", "save", "end"


class Meter:
    """Counts whole optimizer steps. Seconds of a step are from asking for its first row to its end,
    so evaluating, saving and logging are in none of them; the waiting is for the loader alone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._steps = 0
        self._seconds = 0.0
        self._wait_s = 0.0
        self._samples = 0
        self._oom_count = 0
        self._last_oom: Optional[int] = None
        self._optimizer_step = 0
        self._phase = START
        self._began: Optional[float] = None
        self._waited_s = 0.0
        self._rows = 0

    def fetched(self, began: float, waited_s: float, rows: int) -> None:
        """A step began at ``began`` (time.monotonic) and got ``rows`` after ``waited_s``."""
        self._began, self._waited_s, self._rows = began, waited_s, rows
        self._phase = TRAIN

    def began_without_rows(self) -> None:
        """A step began whose rows nobody saw being fetched."""
        if self._began is None:
            self.fetched(time.monotonic(), 0.0, 0)

    def finished_step(self, optimizer_step: int, next_phase: str = TRAIN) -> None:
        """The optimizer stepped; ``optimizer_step`` steps are done, and ``next_phase`` follows."""
        now = time.monotonic()
        with self._lock:
            self._steps += 1
            self._samples += self._rows
            self._wait_s += self._waited_s
            if self._began is not None:
                self._seconds += now - self._began
            self._optimizer_step = optimizer_step
            self._phase = next_phase
        self._began, self._waited_s, self._rows = None, 0.0, 0

    def phase(self, phase: str) -> None:
        self._phase = phase

    def out_of_memory(self, running_micro_batch: int) -> None:
        """An out-of-memory error was caught while micro-batches of this size ran."""
        with self._lock:
            self._oom_count += 1
            self._last_oom = running_micro_batch

    def take(self) -> Mapping[str, Any]:
        """Report's counted parameters; steps, seconds, wait_s and samples start again from zero."""
        with self._lock:
            taken = {
                "optimizer_step": self._optimizer_step,
                "steps": self._steps,
                "seconds": round(self._seconds, 6),
                "wait_s": round(self._wait_s, 6),
                "samples": self._samples,
                "phase": self._phase,
                "oom_count": self._oom_count,
                "last_oom_micro_batch": self._last_oom,
            }
            self._steps, self._seconds, self._wait_s, self._samples = 0, 0.0, 0.0, 0
        return taken

    def workers(self) -> list[int]:
        """PIDs of the loader workers, children of this process, as the kernel names them now.

        Read from /proc (proc_pid_task_children(5)): asking multiprocessing would clean up its set
        of children while the training thread walks it. A torch that doesn't name its workers gives
        an empty list, and so does a kernel without CONFIG_PROC_CHILDREN.
        """
        found: list[int] = []
        try:
            threads = list(Path(f"/proc/{self._pid}/task").iterdir())
        except OSError:
            return found
        for thread in threads:
            children = _read(f"{thread}/children").split()
            found += [
                int(child)
                for child in children
                if _read(f"/proc/{child}/comm") == "pt_data_worker\n"
            ]
        return sorted(found)[:1024]


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
