# SPDX-License-Identifier: Apache-2.0
"""systemd over D-Bus: the one place that knows pydbus and GLib.

pydbus 0.6.0 waits forever by default and its property reads take no timeout, so it gives the bus
and the subscriptions here, and every call goes through Gio with a deadline. The bus is not the
shared one of ``pydbus.SystemBus()``: GIO ends the process with SIGTERM when that one is lost.
Nothing here blocks, and errors are values; what is outside the closed list raises ForbiddenError
before anything is sent.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gi.repository import Gio, GLib
from pydbus.bus import Bus
from swift_governor.act import dbus_table as table
from swift_governor.act.calls import Call, Reply
from swift_governor.act.units import ForbiddenError, is_scope, is_slice, require_ours

_JOB_DEADLINE_MS = 30_000
_CONNECT_DEADLINE_MS = 10_000
_FIRST_BACKOFF_MS, _LONGEST_BACKOFF_MS = 250, 30_000
_EARLY_RESULTS = (
    256  # JobRemoved signals of the whole node that are kept, in case the reply comes later
)
_REMOTE = re.compile(r"GDBus\.Error:([A-Za-z0-9_.]+): ?(.*)", re.DOTALL)
_CONNECTION_FLAGS = (
    Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT | Gio.DBusConnectionFlags.MESSAGE_BUS_CONNECTION
)

Properties = Mapping[str, Any]
GlibObject = Any  # PyGObject has no type information


class Systemd:
    """The service manager of this node. ``version`` is 0 until known. Reconnects by itself.

    ``reloaded`` is called after each daemon-reload and each (re)connection: what was set may be
    lost (systemd#16592). ``address``: a D-Bus address other than the system bus, for tests.
    """

    def __init__(self, reloaded: Callable[[], None] | None = None, address: str = "") -> None:
        self.version = 0
        self.connected = False
        self.reloaded = reloaded or (lambda: None)
        self._address = address
        self._bus: Any = None
        self._subscriptions: list[Any] = []
        self._backoff_ms = _FIRST_BACKOFF_MS
        self._waiting: dict[str, Callable[[Reply], None]] = {}
        self._early: OrderedDict[str, str] = OrderedDict()

    # --------------------------------------------------------------------------- the closed list

    def start_scope(
        self, scope: str, properties: Properties, slices: Mapping[str, Properties]
    ) -> Call:
        """StartTransientUnit of a scope, with those of ``slices`` that have to be made for it.

        Answers when its job is done: acting before JobRemoved is a race (runc PR#1683).
        """
        if not is_scope(scope) or not all(is_slice(s) for s in slices):
            raise ForbiddenError(f"{scope!r} in {list(slices)!r} is not a scope of ours")
        require_ours(properties["Slice"])
        auxiliary = [(name, _variants(p)) for name, p in slices.items()]
        arguments = (scope, "replace", _variants(properties), auxiliary)
        call = self._call(table.START_TRANSIENT_UNIT, arguments)

        def send(done: Callable[[Reply], None]) -> None:
            call(lambda reply: self._await_job(reply.value, done) if reply.ok else done(reply))

        return send

    def attach(self, scope: str, pids: Sequence[int]) -> Call:
        """AttachProcessesToUnit (systemd >= 238), only to a scope made with Delegate=yes."""
        if not is_scope(scope):
            raise ForbiddenError(f"{scope!r} is not a scope of ours")
        return self._call(table.ATTACH_PROCESSES, (scope, "", list(pids)))

    def set_properties(self, unit: str, properties: Properties) -> Call:
        """SetUnitProperties at run time: gone at reboot, never in /etc."""
        arguments = (require_ours(unit), True, _variants(properties))
        return self._call(table.SET_UNIT_PROPERTIES, arguments)

    def get_unit(self, unit: str) -> Call:
        """The object path of a loaded unit, or the error NoSuchUnit."""
        return self._call(table.GET_UNIT, (require_ours(unit),))

    def get_property(self, unit: str, path: str, name: str) -> Call:
        """One property of a unit of ours, ``path`` as get_unit answered."""
        if name not in table.READABLE or name == "Version":
            raise ForbiddenError(f"property {name!r} is not in the list")
        own = "Slice" if is_slice(require_ours(unit)) else "Scope"
        interface = table.READABLE[name] or f"{table.BUS_NAME}.{own}"
        return self._call(table.GET_PROPERTY, (interface, name), path)

    # ---------------------------------------------------------------------------- the connection

    def connect(self) -> None:
        """Begins to connect, and keeps at it with back-off. Returns at once."""
        cancellable = Gio.Cancellable()
        deadline = GLib.timeout_add(_CONNECT_DEADLINE_MS, _once(cancellable.cancel))

        def opened(_source: object, result: GlibObject) -> None:
            if not cancellable.is_cancelled():
                GLib.source_remove(deadline)
            try:
                connection = Gio.DBusConnection.new_for_address_finish(result)
            except GLib.Error:
                self._retry()
            else:
                self._opened(connection)

        try:
            address = self._address or Gio.dbus_address_get_for_bus_sync(Gio.BusType.SYSTEM, None)
            Gio.DBusConnection.new_for_address(
                address, _CONNECTION_FLAGS, None, cancellable, opened
            )
        except GLib.Error:
            GLib.source_remove(deadline)
            self._retry()

    def _opened(self, connection: GlibObject) -> None:
        connection.set_exit_on_close(False)
        connection.connect("closed", lambda *_: self._closed(connection))
        self._bus = Bus(connection)
        watched = {"JobRemoved": self._job_removed, "Reloading": self._reloading}
        self._subscriptions = [
            self._bus.subscribe(
                sender=table.BUS_NAME,
                iface=table.MANAGER,
                object=table.MANAGER_PATH,
                signal=name,
                signal_fired=lambda _s, _o, _i, _n, values, react=watched[name]: react(*values),
            )
            for name in table.SIGNALS
        ]
        # Also after `systemctl daemon-reexec` or a lost PID 1 connection: the name comes back.
        self._subscriptions.append(
            self._bus.watch_name(table.BUS_NAME, name_appeared=lambda _owner: self._subscribe())
        )

    def _subscribe(self) -> None:
        def subscribed(reply: Reply) -> None:
            if reply.ok or reply.error == "AlreadySubscribed":
                version = self._call(table.GET_PROPERTY, (table.MANAGER, "Version"))
                version(versioned)
            elif self._bus is not None and not self._bus.con.is_closed():
                GLib.timeout_add(_FIRST_BACKOFF_MS * 4, _once(self._subscribe))

        def versioned(reply: Reply) -> None:
            digits = re.match(r"\D*(\d+)", str(reply.value)) if reply.ok else None
            self.version = int(digits.group(1)) if digits else self.version
            self.connected = self._bus is not None
            self._backoff_ms = _FIRST_BACKOFF_MS
            self.reloaded()

        if self._bus is not None:
            self._call(table.SUBSCRIBE, ())(subscribed)

    def _closed(self, connection: GlibObject) -> None:
        if self._bus is None or self._bus.con is not connection:
            return
        for subscription in self._subscriptions:
            subscription.__exit__(None, None, None)
        self._bus, self._subscriptions, self.connected = None, [], False
        self._early.clear()
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(Reply(error="Disconnected", message="the system bus went away"))
        self._retry()

    def _retry(self) -> None:
        GLib.timeout_add(self._backoff_ms, _once(self.connect))
        self._backoff_ms = min(2 * self._backoff_ms, _LONGEST_BACKOFF_MS)

    def close(self) -> None:
        """Lets the connection go, for good."""
        bus, self._bus, self.connected = self._bus, None, False
        if bus is not None:
            bus.con.close(None, None)

    # -------------------------------------------------------------------------- calls and signals

    def _call(
        self, method: table.Method, arguments: tuple[Any, ...], path: str = table.MANAGER_PATH
    ) -> Call:
        parameters = GLib.Variant(method.signature, arguments) if arguments else None

        def send(done: Callable[[Reply], None]) -> None:
            if self._bus is None:
                GLib.idle_add(_once(lambda: done(Reply(error="Disconnected", message="no bus"))))
                return
            self._bus.con.call(
                table.BUS_NAME,
                path,
                method.interface,
                method.name,
                parameters,
                None,
                Gio.DBusCallFlags.NO_AUTO_START,
                method.deadline_ms,
                None,
                lambda connection, result: done(_finish(connection, result)),
            )

        return send

    def _await_job(self, job: str, done: Callable[[Reply], None]) -> None:
        if job in self._early:
            done(_job_reply(self._early.pop(job)))
            return

        def late() -> None:
            if self._waiting.pop(job, None) is not None:
                done(Reply(error="Timeout", message="systemd did not finish the job in time"))

        deadline = GLib.timeout_add(_JOB_DEADLINE_MS, _once(late))

        def finished(reply: Reply) -> None:
            GLib.source_remove(deadline)
            done(reply)

        self._waiting[job] = finished

    def _job_removed(self, _id: int, job: str, _unit: str, result: str) -> None:
        # By path, never by order: the job of a parent slice that came along ends first.
        done = self._waiting.pop(job, None)
        if done is not None:
            done(_job_reply(result))
            return
        self._early[job] = result
        while len(self._early) > _EARLY_RESULTS:
            self._early.popitem(last=False)

    def _reloading(self, active: bool) -> None:
        if not active:
            self._subscribe()


def _variants(properties: Properties) -> list[tuple[str, Any]]:
    unknown = [name for name in properties if name not in table.WRITABLE]
    if unknown:
        raise ForbiddenError(f"properties {unknown!r} are not in the list")
    return [(n, GLib.Variant(table.WRITABLE[n], value)) for n, value in properties.items()]


def _finish(connection: GlibObject, result: GlibObject) -> Reply:
    try:
        values = connection.call_finish(result).unpack()
    except GLib.Error as error:
        return _error_reply(error)
    return Reply(value=values[0] if values else None)


def _error_reply(error: GlibObject) -> Reply:
    remote = _REMOTE.match(error.message or "")
    if remote:
        short = remote.group(1).rsplit(".", 1)[-1]
        return Reply(error="Timeout" if short == "NoReply" else short, message=remote.group(2))
    if error.matches(Gio.io_error_quark(), Gio.IOErrorEnum.TIMED_OUT):
        return Reply(error="Timeout", message="no answer in time")
    return Reply(error="Disconnected", message=error.message or "the connection was lost")


def _job_reply(result: str) -> Reply:
    return Reply(value=result) if result == "done" else Reply(error="JobFailed", message=result)


def _once(action: Callable[[], object]) -> Callable[[], bool]:
    """A GLib source function that runs once."""

    def source() -> bool:
        action()
        return bool(GLib.SOURCE_REMOVE)

    return source
