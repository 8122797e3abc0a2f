# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of the reader child: asks, never waits, and gives up what hangs.

A child that does not answer in time is abandoned: its socket is closed, and it ends by itself at
the end of file once its stuck read returns. Time in which it ran, or waited for a CPU, does not
count: on a node that has none to spare it is slow, not stuck. It is never killed, and the process
it hung on is asked again only with growing pauses. With ``MAX_STUCK`` children stuck nothing more
is read until one ends.

No thread and no loop of its own: whoever drives it watches ``fileno()`` (an epoll, the same for
good), calls ``on_readable()`` when it is readable and ``tick()`` every now and then.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Callable

from swift_governor.sense.reader_child import ReaderChild, Reading, reader_command

DEADLINE_S = 2.0
STARVED_DEADLINE_S = 30.0
MAX_STUCK = 4
BATCH = 64
FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 1800.0
CLOSE_S = 0.5

STUCK = "{stuck} readers hang on other processes' /proc files (PIDs {pids}); look at their state"
HELD = "a reader hung on it before; it is asked again later"
NO_CHILD = "the reader could not be started: {error}"

Callback = Callable[[Reading], None]


@dataclass
class _Hung:
    """A process that a reader hung on: not asked again before ``retry_at``."""

    retry_at: float
    pause_s: float


class ReaderClient:
    """Reads processes through a child. Each PID asked for is answered by exactly one callback."""

    def __init__(
        self,
        environ_keys: Iterable[str],
        command: Sequence[str] | None = None,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = sorted(environ_keys)
        self._command = list(command) if command is not None else reader_command()
        self._deadline_s = deadline_s
        self._clock = clock
        self._poller = select.epoll()
        self._queue: deque[tuple[int, Callback]] = deque()
        self._asked: deque[tuple[int, Callback]] = deque()
        self._child: ReaderChild | None = None
        self._abandoned: list[tuple[int, subprocess.Popen[bytes]]] = []
        self._hung: dict[int, _Hung] = {}
        self._progress_at = 0.0
        self._busy_at_progress_s = 0.0
        self.timeouts = 0
        self.trouble = ""

    def fileno(self) -> int:
        return self._poller.fileno()

    @property
    def stuck(self) -> int:
        """How many abandoned children have not ended yet."""
        return len(self._abandoned)

    @property
    def idle(self) -> bool:
        """Nothing is asked for."""
        return not self._queue and not self._asked

    def read(self, pids: Iterable[int], callback: Callback) -> None:
        """Asks for processes; answers come from ``on_readable`` and ``tick``, never from here."""
        self._queue.extend((pid, callback) for pid in pids)
        self._send()

    def on_readable(self) -> None:
        """Takes what the child has answered, and asks the next."""
        child = self._child
        if child is None:
            return
        alive = child.receive()
        for answer in child.answers():
            self._answer(answer)
        self._busy_at_progress_s = child.busy_s()
        if not alive or child.broken:
            self._give_up("the reader ended")
        self._send()

    def tick(self, now: float | None = None) -> None:
        """Ends what is overdue, collects children that have ended, and answers the hopeless."""
        now = self._clock() if now is None else now
        self._abandoned = [(pid, child) for pid, child in self._abandoned if child.poll() is None]
        if self._is_overdue(now):
            self.timeouts += 1
            self._give_up(f"no answer within {self._deadline_s:g} s")
        self._refuse_hopeless(now)
        self._send()

    def _is_overdue(self, now: float) -> bool:
        """A child that hangs sleeps; one that is short of CPU, as on starting, is given time."""
        waited_s = now - self._progress_at
        if not self._asked or waited_s < self._deadline_s:
            return False
        busy_s = self._child.busy_s() - self._busy_at_progress_s if self._child else 0.0
        return waited_s - busy_s >= self._deadline_s or waited_s >= STARVED_DEADLINE_S

    def close(self) -> None:
        """Lets the child go, which ends it."""
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.leave(self._poller).wait(CLOSE_S)
            self._child = None
        self._poller.close()

    def _send(self) -> None:
        """One batch at a time, so that a request always fits the socket and never blocks."""
        if self._asked or not self._queue or self.stuck >= MAX_STUCK:
            return
        now = self._clock()
        batch: list[tuple[int, Callback]] = []
        held: list[tuple[int, Callback]] = []
        while self._queue and len(batch) < BATCH:
            entry = self._queue.popleft()
            hung = self._hung.get(entry[0])
            (held if hung is not None and now < hung.retry_at else batch).append(entry)
        self._queue.extendleft(reversed(held))
        if not batch or not self._start():
            self._queue.extendleft(reversed(batch))
            return
        assert self._child is not None
        self._asked.extend(batch)
        self._progress_at = now
        self._busy_at_progress_s = self._child.busy_s()
        # A child that has ended shows as readable next, and is given up there.
        with contextlib.suppress(OSError):
            self._child.ask([pid for pid, _ in batch], self._keys)

    def _start(self) -> bool:
        if self._child is None:
            try:
                self._child = ReaderChild(self._command, self._poller)
            except OSError as error:
                self.trouble = NO_CHILD.format(error=error)
                return False
        return True

    def _answer(self, answer: Reading) -> None:
        """Children answer in the order asked; anything else means they can't be believed."""
        if not self._asked or self._asked[0][0] != answer.pid:
            return
        _, callback = self._asked.popleft()
        self._progress_at = self._clock()
        self._hung.pop(answer.pid, None)
        self.trouble = ""
        callback(answer)

    def _give_up(self, reason: str) -> None:
        """Leaves the child; the first unanswered process is the one that it hung on."""
        now = self._clock()
        self.trouble = reason
        if self._child is not None:
            process = self._child.leave(self._poller)
            hung_pid = self._asked[0][0] if self._asked else 0
            self._child = None
            if process.poll() is None:
                self._abandoned.append((hung_pid, process))
        if not self._asked:
            return
        pid, callback = self._asked.popleft()
        before = self._hung.get(pid)
        pause_s = min(before.pause_s * 2, LONGEST_PAUSE_S) if before else FIRST_PAUSE_S
        self._hung[pid] = _Hung(now + pause_s, pause_s)
        self._queue.extendleft(reversed(self._asked))
        self._asked.clear()
        callback(Reading(pid, available=False, reason=reason))

    def _refuse_hopeless(self, now: float) -> None:
        """Answers "unavailable" for the hung ones, and for all while too many readers are stuck."""
        if self.stuck >= MAX_STUCK:
            pids = ", ".join(str(pid) for pid, _ in self._abandoned)
            self.trouble = STUCK.format(stuck=self.stuck, pids=pids)
            refused = list(self._queue)
            self._queue.clear()
        else:
            refused = [entry for entry in self._queue if self._is_held(entry[0], now)]
            if refused:
                self._queue = deque(e for e in self._queue if not self._is_held(e[0], now))
            if self._child is None and self.trouble and self._queue and not self._start():
                refused.extend(self._queue)
                self._queue.clear()
        for pid, callback in refused:
            callback(Reading(pid, available=False, reason=self.trouble or HELD))

    def _is_held(self, pid: int, now: float) -> bool:
        hung = self._hung.get(pid)
        return hung is not None and now < hung.retry_at

    def forget(self, pid: int) -> None:
        """The process has ended: a later one with its PID starts with a clean record."""
        self._hung.pop(pid, None)
