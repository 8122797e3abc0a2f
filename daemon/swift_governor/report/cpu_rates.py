# SPDX-License-Identifier: Apache-2.0
"""CPU use of each unit in cores, from the counters of two ticks."""

from __future__ import annotations

from swift_governor.model import Snapshot

# Two readings nearer than this say more about the clock than about the unit.
SHORTEST_SPAN_S = 0.2


class CpuRates:
    """Remembers the last cpu.stat usage of each unit; units that are gone are forgotten."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}
        self._cores: dict[str, float] = {}

    def update(self, snapshot: Snapshot) -> dict[str, float]:
        """Cores used by each unit since the reading before; a unit seen once has none."""
        last: dict[str, tuple[float, float]] = {}
        cores: dict[str, float] = {}
        for name, reading in snapshot.units.items():
            if reading.cpu_usage_s is None:
                continue
            then = self._last.get(name)
            if (
                then is None or reading.cpu_usage_s < then[1]
            ):  # new, or made anew under its old name
                last[name] = (snapshot.now, reading.cpu_usage_s)
                continue
            span = snapshot.now - then[0]
            if span < SHORTEST_SPAN_S:
                last[name] = then
                if name in self._cores:
                    cores[name] = self._cores[name]
                continue
            last[name] = (snapshot.now, reading.cpu_usage_s)
            cores[name] = (reading.cpu_usage_s - then[1]) / span
        self._last, self._cores = last, cores
        return dict(cores)
