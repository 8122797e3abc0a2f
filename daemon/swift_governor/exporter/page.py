# SPDX-License-Identifier: Apache-2.0
"""The metrics page: fetched on demand, rendered once a snapshot, and never waited for beyond a
deadline.

A governor that doesn't answer leaves its last page, with ``swift_governor_up 0`` above it, so that
a short gap makes no hole in the series; after LAST_PAGE_S only ``up`` remains, for old values say
nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from swift_governor.link.client import BROKEN, LinkError
from swift_governor.report.metrics_table import COUNTER, EXPORTER_TABLE, GOVERNOR_TABLE, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SCHEMA = 1
DEADLINE_S = 2.0
LAST_PAGE_S = 300.0
# Scrapes nearer together than this share one fetch.
FRESH_S = 0.25

Fetch = Callable[[], Mapping[str, Any]]


class _TableCollector(Collector):
    """Fresh families from the table, so that no series outlives what it is about."""

    def __init__(self, table: Iterable[Metric], snapshot: Mapping[str, Any]) -> None:
        self._table, self._snapshot = table, snapshot

    def collect(self) -> Iterable[Family]:
        for metric in self._table:
            new = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
            family = new(metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.samples(self._snapshot):
                family.add_metric(labels, value)
            if family.samples:
                yield family


def render(table: Iterable[Metric], snapshot: Mapping[str, Any]) -> bytes:
    """The exposition of the table's metrics; KeyError, TypeError where it isn't such a snapshot."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_TableCollector(tuple(table), snapshot))
    return generate_latest(registry)


class Page:
    """The page's bytes for a scrape. Safe to use from several threads; one of them fetches."""

    def __init__(self, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch, self._clock = fetch, clock
        self._fetching = threading.Lock()
        self._identity: object = None
        self._body = b""
        self._fetched: float | None = None
        self._attempted = float("-inf")
        self._failures = 0
        self.up = False
        self.problem = "not asked yet"

    def content(self) -> bytes:
        """The page, after at most about DEADLINE_S, whatever the governor does."""
        if self._fetching.acquire(timeout=DEADLINE_S):
            try:
                # Who waited for another's fetch has its result.
                if self._clock() - self._attempted > FRESH_S:
                    self._update()
                    self._attempted = self._clock()
            finally:
                self._fetching.release()
        head = render(
            EXPORTER_TABLE, {"exporter": {"up": int(self.up), "failures": self._failures}}
        )
        return head + self._body

    def _update(self) -> None:
        try:
            self._take(self._fetch())
        except LinkError as error:
            self.up, self.problem = False, str(error)
            self._failures += 1
            if self._fetched is not None and self._clock() - self._fetched > LAST_PAGE_S:
                self._body, self._identity = b"", None

    def _take(self, snapshot: Mapping[str, Any]) -> None:
        try:
            if snapshot["schema"] != SCHEMA:
                raise LinkError(BROKEN, f"the governor speaks schema {snapshot['schema']}")
            # A daemon that started anew counts its ticks from one again.
            identity = (snapshot["self"]["started_s"], snapshot["sequence"])
            if identity != self._identity:
                self._body, self._identity = render(GOVERNOR_TABLE, snapshot), identity
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LinkError(BROKEN, f"not a snapshot: {error!r}") from error
        self._fetched, self.up, self.problem = self._clock(), True, ""
