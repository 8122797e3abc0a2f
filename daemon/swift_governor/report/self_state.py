# SPDX-License-Identifier: Apache-2.0
"""What the daemon knows of itself: filled by the main loop each tick, told by report/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swift_governor.model import Mode, Note


@dataclass(frozen=True)
class ToldNote:
    """A note as it was told. ``wall`` is seconds since the epoch."""

    wall: float
    note: Note


@dataclass(frozen=True)
class SelfState:
    """The daemon's own figures after a tick.

    ``started`` and ``Snapshot.now`` are the same clock (CLOCK_MONOTONIC); ``started`` also tells
    one run of the daemon from the next. ``ticks`` is the sequence of the snapshot: a reader may
    keep what it made of a snapshot while ``started`` and ``ticks`` are the same.
    ``tick_s`` is the last tick, ``tick_total_s`` all of them. ``overruns_total`` counts ticks that
    took longer than their period, ``event_overruns_total`` losses of the proc connector (ENOBUFS,
    each mended by a rescan). ``refusals`` counts by a short reason, ``notes_total`` by kind of note
    (Journal.counts). ``cpu_cores`` is the CPU use of each unit now (CpuRates.update).
    ``tier_slices`` names the slice of each tier of the configuration, so that a tier without jobs
    is shown too. ``gpu_stale_s`` is the age from which a GPU's values are no longer shown as
    current.
    """

    version: str
    mode: Mode
    started: float
    ticks: int
    tick_s: float = 0.0
    tick_total_s: float = 0.0
    tick_period_s: float = 0.0
    overruns_total: int = 0
    event_overruns_total: int = 0
    events_live: bool = False
    reader_stuck: bool = False
    reader_timeouts_total: int = 0
    dbus_errors_total: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    notes_total: Mapping[str, int] = field(default_factory=dict)
    journal_lost_total: int = 0
    link_clients: int = 0
    config_generation: int = 1
    config_reload_failures_total: int = 0
    gpu_stale_s: float = 10.0
    cpu_cores: Mapping[str, float] = field(default_factory=dict)
    tier_slices: Mapping[str, str] = field(default_factory=dict)
    recent: tuple[ToldNote, ...] = ()
