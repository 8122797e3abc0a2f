# SPDX-License-Identifier: Apache-2.0
"""The closed list: every D-Bus method, property and signal the daemon may use,
org.freedesktop.systemd1(5).

There is no StopUnit, KillUnit or Reload here, and there must not be: stopping a scope kills the
job in it (runc PR#2880), and a daemon-reload takes the GPUs from running containers
(nvidia-container-toolkit#48).
"""

from __future__ import annotations

from dataclasses import dataclass

BUS_NAME = "org.freedesktop.systemd1"
MANAGER_PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
PROPERTIES = "org.freedesktop.DBus.Properties"


@dataclass(frozen=True)
class Method:
    """A method, the type of its arguments, and how long it may take."""

    interface: str
    name: str
    signature: str
    deadline_ms: int


START_TRANSIENT_UNIT = Method(MANAGER, "StartTransientUnit", "(ssa(sv)a(sa(sv)))", 10_000)
ATTACH_PROCESSES = Method(MANAGER, "AttachProcessesToUnit", "(ssau)", 5_000)
SET_UNIT_PROPERTIES = Method(MANAGER, "SetUnitProperties", "(sba(sv))", 5_000)
GET_UNIT = Method(MANAGER, "GetUnit", "(s)", 5_000)
SUBSCRIBE = Method(MANAGER, "Subscribe", "()", 5_000)
GET_PROPERTY = Method(PROPERTIES, "Get", "(ss)", 5_000)

SIGNALS = ("JobRemoved", "Reloading")

# What may be set on a unit, and its D-Bus type.
WRITABLE = {
    "PIDs": "au",
    "Slice": "s",
    "Description": "s",
    "Delegate": "b",
    "CollectMode": "s",
    "OOMPolicy": "s",
    "After": "as",
    "TimeoutStopUSec": "t",
    "StopWhenUnneeded": "b",
    "CPUWeight": "t",
    "CPUQuotaPerSecUSec": "t",
}

# What may be read, and where it is found.
READABLE = {
    "Version": MANAGER,
    "ActiveState": f"{BUS_NAME}.Unit",
    "FragmentPath": f"{BUS_NAME}.Unit",
    "DropInPaths": f"{BUS_NAME}.Unit",
    "CPUWeight": "",  # of the unit's own type: Slice or Scope
    "CPUQuotaPerSecUSec": "",
}
