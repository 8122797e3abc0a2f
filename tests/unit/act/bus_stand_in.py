# SPDX-License-Identifier: Apache-2.0
"""A program that owns org.freedesktop.systemd1 on a private bus and misbehaves as its units' names
say."""

from __future__ import annotations

import sys
from typing import Any

from gi.repository import Gio, GLib

_XML = """
<node><interface name="org.freedesktop.systemd1.Manager">
<method name="Subscribe"/>
<method name="StartTransientUnit"><arg type="s" direction="in"/><arg type="s" direction="in"/>
<arg type="a(sv)" direction="in"/><arg type="a(sa(sv))" direction="in"/>
<arg type="o" direction="out"/></method>
<method name="AttachProcessesToUnit"><arg type="s" direction="in"/><arg type="s" direction="in"/>
<arg type="au" direction="in"/></method>
<method name="SetUnitProperties"><arg type="s" direction="in"/><arg type="b" direction="in"/>
<arg type="a(sv)" direction="in"/></method>
<method name="GetUnit"><arg type="s" direction="in"/><arg type="o" direction="out"/></method>
<property name="Version" type="s" access="read"/>
</interface></node>
"""
_PATH = "/org/freedesktop/systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"


def main() -> None:
    connection = Gio.DBusConnection.new_for_address_sync(
        sys.argv[1],
        Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT
        | Gio.DBusConnectionFlags.MESSAGE_BUS_CONNECTION,
        None,
        None,
    )
    jobs = iter(range(1, 10_000))

    def removed(job: str, unit: str, result: str) -> None:
        values = GLib.Variant("(uoss)", (1, job, unit, result))
        connection.emit_signal(None, _PATH, _MANAGER, "JobRemoved", values)

    def called(_c: Any, _s: Any, _p: Any, _i: Any, method: str, arguments: Any, reply: Any) -> None:
        unit = arguments.unpack()[0] if arguments.n_children() else ""
        if "silent" in unit:
            return
        if "exists" in unit:
            reply.return_dbus_error("org.freedesktop.systemd1.UnitExists", f"{unit} exists")
            return
        if "reload" in unit:
            for active in (True, False):
                signal = GLib.Variant("(b)", (active,))
                connection.emit_signal(None, _PATH, _MANAGER, "Reloading", signal)
        if method != "StartTransientUnit":
            path = GLib.Variant("(o)", (f"{_PATH}/unit/x",))
            reply.return_value(path if method == "GetUnit" else None)
            return
        job = f"{_PATH}/job/{next(jobs)}"
        answer = GLib.Variant("(o)", (job,))
        removed(f"{_PATH}/job/{next(jobs)}", "msswift-training.slice", "failed")
        result = "failed" if "failing" in unit else "done"
        if "early" in unit:
            removed(job, unit, result)
            reply.return_value(answer)
            return
        reply.return_value(answer)
        if "stuck" not in unit:
            GLib.timeout_add(100, lambda: removed(job, unit, result))

    connection.register_object(
        _PATH,
        Gio.DBusNodeInfo.new_for_xml(_XML).interfaces[0],
        called,
        lambda *_: GLib.Variant("s", "257.9-1~deb13u1"),
        None,
    )
    Gio.bus_own_name_on_connection(
        connection, "org.freedesktop.systemd1", Gio.BusNameOwnerFlags.NONE, None, None
    )
    GLib.MainLoop().run()


if __name__ == "__main__":
    main()
