# SPDX-License-Identifier: Apache-2.0
"""The background thread that talks to the governor, and the mailbox between it and the training.

The training thread never waits for the socket: it reads and writes the mailbox's attributes (one
assignment each, which is atomic in Python) and sets an event. If nobody listens, or what listens
talks nonsense, the thread waits and tries again, from one second to thirty, and training goes on.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional

from .report import Meter
from .wire import PROTOCOL, WireError, Wish, call, interval_in, session_in, wish_in

DEFAULT_SOCKET = "/run/swift-governor/governor.sock"
ANSWER_DEADLINE_S = 10.0
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0


def socket_path() -> str:
    """Where the governor listens: $SWIFT_GOVERNOR_SOCKET, or the package's own place."""
    return os.environ.get("SWIFT_GOVERNOR_SOCKET") or DEFAULT_SOCKET


@dataclass(frozen=True)
class Standing:
    """What really runs, and the last wish that was answered (or why it was refused)."""

    running_micro_batch: int
    answered: int = 0
    refused: Optional[str] = None


class Mailbox:
    """One wish in, one standing out. Each side writes its own attribute; no lock is held."""

    def __init__(self, running_micro_batch: int) -> None:
        self.wish = Wish()
        self.standing = Standing(running_micro_batch)
        self.changed = threading.Event()

    def unanswered(self) -> Optional[Wish]:
        """The wish that the training has not answered yet, if there is one."""
        wish = self.wish
        return wish if wish.is_one and wish.sequence != self.standing.answered else None

    def answer(self, wish: Wish, running_micro_batch: int, refused: Optional[str] = None) -> None:
        """The training's word on ``wish``; it is reported at once."""
        self.standing = Standing(running_micro_batch, wish.sequence, refused)
        self.changed.set()

    def runs(self, running_micro_batch: int) -> None:
        """The training changed its micro-batch by itself (out of memory)."""
        before = self.standing
        self.standing = Standing(running_micro_batch, before.answered, before.refused)
        self.changed.set()

    def new_session(self) -> None:
        """A governor that just (re)started counts its wishes from the beginning."""
        self.wish = Wish()
        self.standing = Standing(self.standing.running_micro_batch)


class Link(threading.Thread):
    """Registers, reports and takes wishes until ``finish()``; no run ends later for it.

    ``registration`` gives Register's parameters but ``protocol`` and ``workers``; ``say`` writes
    one line to the trainer's log.
    """

    def __init__(
        self,
        path: str,
        registration: Callable[[], Mapping[str, Any]],
        mailbox: Mailbox,
        meter: Meter,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(name="swift-governor", daemon=True)
        self._path = path
        self._registration = registration
        self._mailbox = mailbox
        self._meter = meter
        self._say = say
        self._told = ""
        self._finished = False
        self._socket: Optional[socket.socket] = None

    @property
    def goes_on(self) -> bool:
        """Whether it was started and not told that the training has ended."""
        return self.is_alive() and not self._finished

    def start(self) -> None:
        _links.append(self)
        super().start()

    def finish(self) -> None:
        """The training has ended: one last report, if somebody listens. Doesn't wait for it."""
        self._finished = True
        self._mailbox.changed.set()

    def run(self) -> None:
        delay = FIRST_DELAY_S
        while not self._finished:
            try:
                self._connect()
                session, interval = self._register()
                delay = FIRST_DELAY_S
                self._report_until_finished(session, interval)
            except (WireError, OSError) as error:
                self._tell(self._trouble(error))
            finally:
                self._disconnect()
            if not self._finished:
                # Jitter, so that the ranks of a node don't all come back in the same millisecond.
                self._pause(delay * random.uniform(0.7, 1.3))  # noqa: S311
                delay = min(2 * delay, LONGEST_DELAY_S)
        if self in _links:
            _links.remove(self)

    def _pause(self, seconds: float) -> None:
        """Waits; an answer that can't be delivered now doesn't cut it short, finish() does."""
        changed = self._mailbox.changed
        pause = threading.Event()
        step = min(seconds, 0.5)
        while seconds > 0 and not self._finished:
            pause.wait(step)
            seconds -= step
        changed.clear()

    def _connect(self) -> None:
        # A fork between the socket's making and its being known would leave the child with it.
        with _birth:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket = connection
        connection.settimeout(ANSWER_DEADLINE_S)
        connection.connect(self._path)

    def _disconnect(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _call(self, method: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._socket is not None
        return call(self._socket, method, parameters, ANSWER_DEADLINE_S)

    def _register(self) -> tuple[str, float]:
        self._mailbox.new_session()
        self._meter.take()
        parameters = {
            "protocol": PROTOCOL,
            **self._registration(),
            "workers": self._meter.workers(),
        }
        answer = self._call("Register", parameters)
        session, interval, wish = session_in(answer), interval_in(answer), wish_in(answer)
        self._mailbox.wish = wish
        self._tell(f"linked to the governor at {self._path}, reporting every {interval:g} s")
        return session, interval

    def _report_until_finished(self, session: str, interval: float) -> None:
        changed = self._mailbox.changed
        while True:
            changed.wait(interval)
            changed.clear()
            last = self._finished
            answer = self._call("Report", self._report(session))
            if last:
                return
            self._mailbox.wish = wish_in(answer)

    def _report(self, session: str) -> Mapping[str, Any]:
        standing = self._mailbox.standing
        return {
            "session": session,
            "running_micro_batch": standing.running_micro_batch,
            "answered": standing.answered,
            "refused": standing.refused,
            "workers": self._meter.workers(),
            **self._meter.take(),
        }

    def _trouble(self, error: Exception) -> str:
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            what = f"nobody listens at {self._path}"
        elif isinstance(error, PermissionError):
            what = f"{self._path} may not be opened by this user"
        else:
            what = f"the link at {self._path} failed: {error}"
        return f"{what}; training goes on, and the link is tried again in the background"

    def _tell(self, line: str) -> None:
        """Says a state once, however often it is found again in a row."""
        if line != self._told:
            self._told = line
            self._say(line)


# Loader workers are forked from the training process. One that kept the socket would hold the
# connection open after the trainer's death, and the governor would not learn of it.
_links: list[Link] = []
_birth = threading.Lock()


def _drop_in_child() -> None:
    _birth.release()
    for link in _links:
        link._disconnect()
    _links.clear()


os.register_at_fork(
    before=_birth.acquire,
    after_in_parent=_birth.release,
    after_in_child=_drop_in_child,
)
