# SPDX-License-Identifier: Apache-2.0
"""How a job's scope is made: one StartTransientUnit, and the slices of its user and job with it.

- ``Delegate=yes``: without it no later process can be attached (systemd 252), and one loader that
  the OOM killer took would end its siblings (systemd 257); ``OOMPolicy=continue`` says so where
  scopes have it.
- ``CollectMode=inactive-or-failed``: a scope whose processes have gone may "fail", and must not
  stay.
- ``After=remote-fs.target network-online.target``: else NFS goes at shutdown before the checkpoint
  is saved.
- The slices stop when they are not needed: else those of thousands of ended jobs would stay loaded.
"""

from __future__ import annotations

import os
from typing import Any

from swift_governor.act.calls import Answering, Reply
from swift_governor.act.systemd_api import SystemdApi
from swift_governor.act.units import is_transient, lineage, slice_path
from swift_governor.model import Placement

DEAD = "DeadScope"
_STOP_TIMEOUT_USEC = 180 * 1_000_000  # a checkpoint of tens of GiB to a network file system
_REFUSED = frozenset({"PropertyReadOnly", "InvalidArgs", "UnknownProperty"})
_LONGEST_DESCRIPTION = 200


def description(text: str) -> str:
    """What D-Bus and a terminal can take: UTF-8, one line, not endless."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:_LONGEST_DESCRIPTION])
    return shown.encode("utf-8", "replace").decode("utf-8")


class ScopeMaker:
    """Starts scopes, and learns what this systemd refuses."""

    def __init__(self, systemd: SystemdApi, cgroup_root: str) -> None:
        self._systemd = systemd
        self._cgroup_root = cgroup_root
        self._oom_policy_refused = False

    def start(self, placement: Placement, pids: list[int]) -> Answering:
        """Starts the scope with ``pids`` in it. Answers ok when it is active, DEAD when it died at
        once."""
        properties = self._properties(placement, pids)
        slices = self._missing_slices(placement)
        reply = yield self._systemd.start_scope(placement.unit, properties, slices)
        if reply.error in _REFUSED and "OOMPolicy" in properties:
            self._oom_policy_refused = True
            del properties["OOMPolicy"]
            reply = yield self._systemd.start_scope(placement.unit, properties, slices)
        if reply.error == "UnitExists" and slices:
            # One of the slices came to be in between, or is an admin's unit file.
            reply = yield self._systemd.start_scope(placement.unit, properties, {})
        if not reply.ok:
            return reply
        return (yield from self._active(placement.unit))

    def _active(self, scope: str) -> Answering:
        unit = yield self._systemd.get_unit(scope)
        if unit.error == "NoSuchUnit":
            return Reply(error=DEAD, message="gone right after its start")
        if not unit.ok:
            return unit
        state = yield self._systemd.get_property(scope, str(unit.value), "ActiveState")
        if state.ok and state.value not in ("active", "activating"):
            return Reply(error=DEAD, message=f"{state.value} right after its start")
        return state

    def _properties(self, placement: Placement, pids: list[int]) -> dict[str, Any]:
        properties: dict[str, Any] = {
            "PIDs": pids,
            "Slice": placement.slice,
            "Description": description(placement.description),
            "Delegate": True,
            "CollectMode": "inactive-or-failed",
            "After": ["remote-fs.target", "network-online.target"],
            "TimeoutStopUSec": _STOP_TIMEOUT_USEC,
        }
        if not self._oom_policy_refused:
            properties["OOMPolicy"] = "continue"
        return properties

    def _missing_slices(self, placement: Placement) -> dict[str, dict[str, Any]]:
        missing = {}
        for name in lineage(placement.slice):
            path = f"{self._cgroup_root}{slice_path(name)}"
            if is_transient(name) and not os.path.isdir(path):  # noqa: PTH112
                text = f"ms-swift job {placement.job}"
                if name != placement.slice:
                    text = f"ms-swift jobs, {name.removesuffix('.slice').rsplit('-', 1)[-1]}"
                missing[name] = {"Description": text, "StopWhenUnneeded": True}
        return missing
