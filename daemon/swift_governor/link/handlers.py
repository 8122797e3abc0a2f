# SPDX-License-Identifier: Apache-2.0
"""What each method of the socket does. The server has checked the caller's right and the fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swift_governor.link.fields import BadInputError
from swift_governor.link.methods import (
    INTERFACE,
    SERVICE,
    get_info,
    get_interface_description,
    not_allowed,
    not_found,
)
from swift_governor.link.samples import reading
from swift_governor.link.sessions import PROTOCOL, Session, Sessions
from swift_governor.model import Note, Orders, ProcessId, Severity

if TYPE_CHECKING:
    from swift_governor.link.server import Connection, Handler
    from swift_governor.tick import Tick


class Handlers:
    """``identify``: (PID, user) → identity, None when it is gone or another user's; it is looked at
    from then on, since a run through the Python API has no command line to be known by.
    ``monotonic``: the tick's clock.
    """

    def __init__(
        self,
        tick: Tick,
        sessions: Sessions,
        identify: Callable[[int, int], ProcessId | None],
        monotonic: Callable[[], float],
    ) -> None:
        self._tick = tick
        self._sessions = sessions
        self._identify = identify
        self._monotonic = monotonic

    def table(self) -> Mapping[str, Handler]:
        """Full method name → handler."""
        return {
            f"{INTERFACE}.Register": self._register,
            f"{INTERFACE}.Report": self._report,
            f"{INTERFACE}.Sample": self._sample,
            f"{INTERFACE}.Snapshot": self._snapshot,
            f"{INTERFACE}.SetLoop": self._set_loop,
            f"{INTERFACE}.SetMicroBatch": self._set_micro_batch,
            f"{SERVICE}.GetInfo": lambda _connection, _p: get_info(),
            f"{SERVICE}.GetInterfaceDescription": lambda _connection, p: get_interface_description(
                p["interface"]
            ),
        }

    def closed(self, connection: Connection) -> None:
        """The client hung up: its session ends, and with it its wish."""
        if isinstance(connection.data, Session):
            self._sessions.close(connection.data)

    def _register(self, connection: Connection, p: Mapping[str, Any]) -> Mapping[str, Any]:
        process = self._identify(connection.peer.pid, connection.peer.uid)
        if process is None:
            why = "ended, another user's, or in another PID namespace"
            raise not_allowed(f"the process that connected can't be told from here: {why}")
        if p["protocol"] < PROTOCOL:
            raise BadInputError("protocol", f"must be {PROTOCOL} or newer")
        self.closed(connection)
        session = self._sessions.register(process, self._monotonic(), p)
        connection.data = session
        return {
            "session": session.token,
            "job": self._job_of(process),
            "report_interval_s": self._tick.config.link.report_interval_s,
            "wish": session.told,
        }

    def _job_of(self, process: ProcessId) -> str | None:
        for job in self._tick.jobs:
            if any(member.id == process for member in job.members):
                return job.name
        return None

    def _report(self, connection: Connection, p: Mapping[str, Any]) -> Mapping[str, Any]:
        session = connection.data
        if not isinstance(session, Session) or session.token != p["session"]:
            raise not_found("no such session on this connection: register first")
        self._sessions.report(session, self._monotonic(), p)
        if p["refused"]:
            job = self._job_of(session.process) or f"PID {session.process.pid}"
            self._tick.tell(
                Note(
                    "trainer-refused",
                    job,
                    f"the trainer did not apply the micro-batch: {p['refused']}",
                    Severity.WARNING,
                    key=p["refused"],
                )
            )
        return {"wish": session.told}

    def _sample(self, _connection: Connection, p: Mapping[str, Any]) -> Mapping[str, Any]:
        self._tick.gpus = reading(p, self._monotonic())
        return {}

    def _snapshot(self, _connection: Connection, _p: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"snapshot": self._tick.snapshot()}

    def _set_loop(self, connection: Connection, p: Mapping[str, Any]) -> Mapping[str, Any]:
        index, quota = p["gpu"], p["quota_cores"]
        state = next((s for s in self._tick.decision.loops if s.index == index), None)
        if state is None:
            raise not_found(f"there is no GPU {index} here")
        loops = dict(self._tick.orders.loops)
        if p["enabled"]:
            loops.pop(index, None)
            done = "on again"
        else:
            loops[index] = quota
            done = "off, no quota" if quota is None else f"off, quota {quota:g} cores"
        self._tick.orders = Orders(loops, self._tick.orders.micro_batches)
        self._told(connection, f"gpu{index}", f"loop {done}")
        return {"old_cores": state.output_cores}

    def _set_micro_batch(self, connection: Connection, p: Mapping[str, Any]) -> Mapping[str, Any]:
        name, size = p["job"], p["micro_batch"]
        state = next((s for s in self._tick.decision.jobs if s.job == name), None)
        if state is None:
            raise not_found(f"there is no job {name} here")
        sizes = dict(self._tick.orders.micro_batches)
        if size is None:
            sizes.pop(name, None)
        else:
            sizes[name] = size
        self._tick.orders = replace(self._tick.orders, micro_batches=sizes)
        done = "given back to the governor" if size is None else f"{size}"
        self._told(connection, name, f"micro-batch {done}")
        return {"old": state.micro_batch}

    def _told(self, connection: Connection, subject: str, what: str) -> None:
        who = f"uid {connection.peer.uid}, PID {connection.peer.pid}"
        self._tick.tell(Note("set-by-hand", subject, f"{what} (by {who})", Severity.NOTICE))
