# SPDX-License-Identifier: Apache-2.0
"""The listening side of the socket, on the GLib main loop: never blocks, bounded in every
direction.

A client that sends rubbish, floods, never reads or comes a thousand times costs its own connection
and nothing else.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gi.repository import GLib
from swift_governor.link.budgets import Budget, Budgets
from swift_governor.link.fields import BadInputError, check
from swift_governor.link.framing import BadFrameError, Decoder, encode
from swift_governor.link.methods import INTERFACE, METHODS, SERVICE, CallError, Who, not_allowed
from swift_governor.link.peer import Peer, peer_of

MOST_CONNECTIONS = 512
MOST_CONNECTIONS_A_USER = 128
KEPT_FREE = 32
"""Places that only root and the system's accounts get: people can't fill all."""

FIRST_PERSON = 1000
"""The first uid of people, login.defs(5) UID_MIN."""

LARGEST_BACKLOG_BYTES = 32 * 1024 * 1024
READ_BYTES = 65536


@dataclass
class Connection:
    """One client. ``data`` is the owner's: the trainer's session, if it registered one. ``waiting``
    holds messages that came whole and are not answered yet.
    """

    link: socket.socket
    peer: Peer
    budget: Budget
    decoder: Decoder = field(default_factory=Decoder)
    waiting: deque[dict[str, Any]] = field(default_factory=deque)
    unsent: bytearray = field(default_factory=bytearray)
    sources: dict[str, int] = field(default_factory=dict)
    data: Any = None
    closed: bool = False


Handler = Callable[[Connection, Mapping[str, Any]], Mapping[str, Any]]


class Server:
    """``handlers``: full method name → handler, for the names in methods.METHODS.

    ``sampler_uid`` may send samples besides root; ``admin_gid`` may change things. ``on_close``
    hears of each connection's end, ``on_refusal`` of what a client did wrong: (short reason,
    sentence).
    """

    def __init__(
        self,
        path: str,
        handlers: Mapping[str, Handler],
        sampler_uid: int | None,
        admin_gid: int | None,
        on_close: Callable[[Connection], None],
        on_refusal: Callable[[str, str], None],
    ) -> None:
        self._path = Path(path)
        self._handlers = handlers
        self._sampler_uid = sampler_uid
        self._admin_gid = admin_gid
        self._on_close = on_close
        self._on_refusal = on_refusal
        self._connections: dict[int, Connection] = {}
        self._budgets = Budgets()
        self._listener: socket.socket | None = None

    def __len__(self) -> int:
        return len(self._connections)

    def listen(self) -> None:
        """Takes the path, from a dead predecessor too. Raises OSError."""
        listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._path.unlink(missing_ok=True)
        listener.bind(str(self._path))
        # Who may do what is decided by SO_PEERCRED, call by call.
        self._path.chmod(0o666)
        listener.listen(128)
        self._listener = listener
        GLib.unix_fd_add_full(
            GLib.PRIORITY_DEFAULT, listener.fileno(), GLib.IOCondition.IN, self._on_accept
        )
        GLib.timeout_add_seconds(1, self._on_second)

    def _on_accept(self, _fd: int, _condition: GLib.IOCondition) -> bool:
        if self._listener is None:
            return False
        try:
            link, _ = self._listener.accept()
        except OSError:
            return True
        link.setblocking(False)
        try:
            peer = peer_of(link)
        except OSError:
            link.close()
            return True
        own = sum(1 for c in self._connections.values() if c.peer.uid == peer.uid)
        places = MOST_CONNECTIONS - (KEPT_FREE if peer.uid >= FIRST_PERSON else 0)
        if len(self._connections) >= places or (own >= MOST_CONNECTIONS_A_USER and peer.uid != 0):
            self._on_refusal("connections", f"uid {peer.uid} has {own} connections open")
            link.close()
            return True
        connection = Connection(link, peer, self._budgets.of_connection(peer.uid))
        self._connections[link.fileno()] = connection
        self._watch(connection, "in", GLib.IOCondition.IN | GLib.IOCondition.HUP, self._on_readable)
        return True

    def _watch(
        self,
        connection: Connection,
        name: str,
        condition: GLib.IOCondition,
        then: Callable[[Connection], bool],
    ) -> None:
        if name in connection.sources:
            return
        connection.sources[name] = GLib.unix_fd_add_full(
            GLib.PRIORITY_DEFAULT,
            connection.link.fileno(),
            condition,
            lambda _fd, _condition: then(connection),
        )

    def _on_readable(self, connection: Connection) -> bool:
        try:
            data = connection.link.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            data = b""
        if not data:
            connection.sources.pop("in", None)
            self._close(connection)
            return False
        try:
            connection.waiting.extend(connection.decoder.feed(data))
        except BadFrameError as error:
            self._on_refusal("frame", f"uid {connection.peer.uid} sent {error}")
            connection.closed = True
        connection.budget.spend_bytes(len(data))
        return self._serve(connection)

    def _serve(self, connection: Connection) -> bool:
        """Answers what waits, as far as the budgets go; whether to read on in this second."""
        while connection.waiting and not connection.closed and not connection.budget.spent:
            self._answer(connection, connection.waiting.popleft())
        if connection.closed:
            connection.sources.pop("in", None)
            self._close(connection)
            return False
        if connection.budget.spent:
            # Not read again before the next second: the flood waits in the client's own send
            # buffer.
            connection.sources.pop("in", None)
            return False
        return True

    def _on_second(self) -> bool:
        connections = list(self._connections.values())
        self._budgets.renew([(c.peer.uid, c.budget) for c in connections])
        for connection in connections:
            if "in" not in connection.sources and self._serve(connection):
                condition = GLib.IOCondition.IN | GLib.IOCondition.HUP
                self._watch(connection, "in", condition, self._on_readable)
        return self._listener is not None

    def _answer(self, connection: Connection, message: dict[str, Any]) -> None:
        connection.budget.spend_call()
        name = message.get("method")
        reply: dict[str, Any]
        try:
            reply = {"parameters": dict(self._call(connection, name, message.get("parameters")))}
        except BadInputError as error:
            self._on_refusal("bad-input", f"uid {connection.peer.uid}, {name}: {error}")
            reply = {
                "error": f"{INTERFACE}.BadInput",
                "parameters": {"field": error.field, "message": error.message},
            }
        except CallError as error:
            if error.name.endswith(".NotAllowed"):
                self._on_refusal("not-allowed", f"uid {connection.peer.uid}, {name}")
            reply = {"error": error.name, "parameters": error.parameters}
        except Exception as error:  # noqa: BLE001 - a bug in a handler costs this call, not the loop
            self._on_refusal("bug", f"{name}: {type(error).__name__}: {error}")
            told = "the governor has a bug: see its journal"
            reply = {"error": f"{INTERFACE}.Internal", "parameters": {"message": told}}
        if message.get("oneway") is not True:
            self._send(connection, reply)

    def _call(self, connection: Connection, name: object, given: object) -> Mapping[str, Any]:
        if not isinstance(name, str) or name not in METHODS or name not in self._handlers:
            raise CallError(f"{SERVICE}.MethodNotFound", method=str(name)[:200])
        method = METHODS[name]
        peer = connection.peer
        if method.who is Who.ADMIN and not peer.may_change(self._admin_gid):
            raise not_allowed(f"only {method.who.value} may do this")
        if method.who is Who.SAMPLER and peer.uid not in (0, self._sampler_uid):
            raise not_allowed(f"only {method.who.value} may do this")
        parameters = given if given is not None else {}
        if not isinstance(parameters, dict):
            raise BadInputError("parameters", "must be an object")
        return self._handlers[name](connection, check(method.fields, parameters))

    def _send(self, connection: Connection, reply: dict[str, Any]) -> None:
        try:
            answer = encode(reply)
        except ValueError as error:
            self._on_refusal("bug", f"an answer is no JSON: {error}")
            connection.closed = True
            return
        connection.budget.spend_bytes(len(answer))
        connection.unsent += answer
        if len(connection.unsent) > LARGEST_BACKLOG_BYTES:
            self._on_refusal("backlog", f"uid {connection.peer.uid} does not read its answers")
            connection.closed = True
            return
        if self._flush(connection):
            self._watch(connection, "out", GLib.IOCondition.OUT, self._on_writable)

    def _flush(self, connection: Connection) -> bool:
        """Sends what the socket takes; whether something is left."""
        try:
            while connection.unsent:
                sent = connection.link.send(connection.unsent)
                del connection.unsent[:sent]
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            connection.closed = True
        return False

    def _on_writable(self, connection: Connection) -> bool:
        more = self._flush(connection)
        if more and not connection.closed:
            return True
        connection.sources.pop("out", None)
        if connection.closed:
            self._close(connection)
        return False

    def _close(self, connection: Connection) -> None:
        connection.closed = True
        if self._connections.pop(connection.link.fileno(), None) is None:
            return
        for source in connection.sources.values():
            GLib.source_remove(source)
        connection.sources.clear()
        self._on_close(connection)
        connection.link.close()

    def close(self) -> None:
        """Ends all connections and the listener; the path stays for the successor to take."""
        for connection in list(self._connections.values()):
            self._close(connection)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
