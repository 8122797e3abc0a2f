# SPDX-License-Identifier: Apache-2.0
"""What act/ asks of a service manager. ``systemd.Systemd`` is the one that is real."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from swift_governor.act.calls import Call

Properties = Mapping[str, Any]


class SystemdApi(Protocol):
    """Calls are checked when they are made here, and sent when they are called."""

    version: int
    connected: bool
    reloaded: Callable[[], None]

    def start_scope(
        self, scope: str, properties: Properties, slices: Mapping[str, Properties]
    ) -> Call: ...

    def attach(self, scope: str, pids: Sequence[int]) -> Call: ...

    def set_properties(self, unit: str, properties: Properties) -> Call: ...

    def get_unit(self, unit: str) -> Call: ...

    def get_property(self, unit: str, path: str, name: str) -> Call: ...
