# SPDX-License-Identifier: Apache-2.0
"""The loop of one GPU: hold its utilisation by moving the CPU quota of the processes that feed it.

Process variable: the mean of the GPU's utilisation over one window (one NVML reading is aliased:
its standard deviation was 41 points, that of a mean of thirty 1.5). Output: cores of ``cpu.max``.
Where the quota binds, utilisation is proportional to it, d ln(util) / d ln(quota) = 1 for every
job, which is why the PID of pid.py works on logarithms here: one set of gains fits all.

The plant has no memory beyond one window, which is its dead time: so the controller is mostly
integral, and by SIMC (Skogestad 2003, tau_c = theta) gains sum to about one half per window.

Four things a bare PID would get wrong, each a rule here:
- *raising a quota that does not bind* moves nothing: only where the kernel says that the unit was
  throttled is the quota raised; else the loop holds and says that no actuator helps;
- *lowering from a quota far above use* moves nothing either: a cut starts from what was used;
- at a high target (``feed_above``) the aim is a fed GPU, so a GPU above its band is not starved:
  the quota is only trimmed to what the loaders use, with a margin;
- *a quiet sensor*: a reading that is missing, stale or from a faulty board holds the output, and
  the window begins anew when readings come back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from swift_governor.decide.pid import PidGains, PidState, step
from swift_governor.model import Constraint, GpuSample, LoopState, UnitReading

FEED_ABOVE = 0.90
"""From this target upwards the loop feeds (never starves a GPU that is busier than its target)."""

TRIM_MARGIN = 1.5
"""A quota that does not bind is trimmed to this multiple of what the unit used."""

TRIM_BELOW = 0.75
"""...but only when that lowers it to less than this ratio, so that noise moves nothing."""

THROTTLED_SHARE = 0.05
"""A quota binds when this share of the window's CFS periods was throttled."""

LEAVE_BAND = 1.5
"""Hysteresis: a loop in its band leaves it at this many half-widths from the target."""

QUANTUM_CORES = 0.01
"""Outputs are multiples of this: 1 ms of a 100 ms period, the kernel's least quota."""

MIN_UTILIZATION = 0.01
"""ln(0) is -inf: an idle window counts as this."""


@dataclass(frozen=True)
class LoopSettings:
    """One GPU's settings. Utilisations are ratios, times seconds, quotas cores."""

    target: float
    dead_band: float
    period_s: float
    settle_s: float
    stale_after_s: float
    min_samples: int
    max_step: float
    gains: PidGains
    floor_cores: float
    ceiling_cores: float


@dataclass(frozen=True)
class Counters:
    """cpu.stat at the window's beginning, to know what the window used and whether it was
    throttled.
    """

    usage_s: float
    nr_periods: int
    nr_throttled: int


@dataclass(frozen=True)
class LoopMemory:
    """What one GPU's loop keeps between ticks."""

    unit: str | None = None
    pid: PidState = field(default_factory=PidState)
    readings: tuple[float, ...] = ()
    last_sample_at: float | None = None
    window_from: float | None = None
    counters: Counters | None = None
    output_cores: float | None = None
    state: LoopState | None = None
    moves: int = 0
    in_band: bool = False


@dataclass(frozen=True)
class LoopInput:
    """One tick's view of one GPU. ``sample`` None: NVML says nothing about it."""

    now: float
    gpu: str
    index: int
    sample: GpuSample | None
    job: str | None
    unit: str | None
    reading: UnitReading | None


def loop_tick(settings: LoopSettings, memory: LoopMemory, seen: LoopInput) -> LoopMemory:
    """One tick. The wish is ``memory.output_cores``: None leaves the unit without a quota."""
    if seen.job is None or seen.unit is None:
        return replace(
            LoopMemory(moves=memory.moves, last_sample_at=memory.last_sample_at),
            state=_state(settings, seen, memory, None, Constraint.NO_JOB, keep_terms=False),
        )
    if memory.unit != seen.unit:
        adopted = seen.reading.cpu_quota_cores if seen.reading else None
        memory = LoopMemory(unit=seen.unit, output_cores=adopted, moves=memory.moves)
    hold = _why_hold(settings, seen)
    if hold is not None:
        memory = replace(
            memory, readings=(), window_from=None, counters=None, pid=memory.pid.forget()
        )
        return replace(memory, state=_state(settings, seen, memory, None, hold))
    memory = _collect(settings, memory, seen)
    if memory.window_from is None or seen.now < memory.window_from:
        return replace(memory, state=_state(settings, seen, memory, None, Constraint.SETTLING))
    if seen.now - memory.window_from < settings.period_s:
        constraint = memory.state.constraint if memory.state else Constraint.FILLING
        if constraint in (Constraint.SETTLING, Constraint.NO_JOB, Constraint.STALE):
            constraint = Constraint.FILLING
        kept = memory.state.process_variable if memory.state else None
        return replace(memory, state=_state(settings, seen, memory, kept, constraint))
    return _decide_window(settings, memory, seen)


def _why_hold(settings: LoopSettings, seen: LoopInput) -> Constraint | None:
    sample = seen.sample
    if sample is None:
        return Constraint.NO_SIGNAL
    if sample.fault:
        return Constraint.FAULT
    if sample.utilization is None or not math.isfinite(sample.utilization):
        return Constraint.NO_SIGNAL
    if not 0.0 <= seen.now - sample.at <= settings.stale_after_s:
        return Constraint.STALE
    return None


def _collect(settings: LoopSettings, memory: LoopMemory, seen: LoopInput) -> LoopMemory:
    """Takes the sample into the window if it is a new one; begins a window where there is none."""
    if memory.window_from is None:
        memory = replace(memory, window_from=seen.now, readings=(), counters=_counters(seen))
    sample = seen.sample
    if sample is None or sample.utilization is None or sample.at == memory.last_sample_at:
        return memory
    memory = replace(memory, last_sample_at=sample.at)
    begun = memory.window_from
    if begun is None or sample.at < begun:
        return memory
    if memory.counters is None:
        memory = replace(memory, counters=_counters(seen))
    return replace(memory, readings=(*memory.readings, min(1.0, max(0.0, sample.utilization))))


def _counters(seen: LoopInput) -> Counters | None:
    unit = seen.reading
    if unit is None or unit.cpu_usage_s is None:
        return None
    return Counters(unit.cpu_usage_s, unit.nr_periods or 0, unit.nr_throttled or 0)


@dataclass(frozen=True)
class _Window:
    mean: float
    length_s: float
    used_cores: float | None
    throttled_share: float | None


def _measure(memory: LoopMemory, seen: LoopInput) -> _Window:
    length = seen.now - (memory.window_from if memory.window_from is not None else seen.now)
    mean = sum(memory.readings) / len(memory.readings)
    before, after = memory.counters, _counters(seen)
    if before is None or after is None or length <= 0 or after.usage_s < before.usage_s:
        return _Window(mean, length, None, None)
    periods = after.nr_periods - before.nr_periods
    throttled = (after.nr_throttled - before.nr_throttled) / periods if periods > 0 else 0.0
    return _Window(mean, length, (after.usage_s - before.usage_s) / length, throttled)


def _decide_window(settings: LoopSettings, memory: LoopMemory, seen: LoopInput) -> LoopMemory:
    """The window is full: one control step, then a new window."""
    fresh = replace(memory, readings=(), window_from=seen.now, counters=_counters(seen))
    if len(memory.readings) < settings.min_samples:
        fresh = replace(fresh, pid=memory.pid.forget())
        return replace(fresh, state=_state(settings, seen, fresh, None, Constraint.NO_SIGNAL))
    window = _measure(memory, seen)
    pv = max(window.mean, MIN_UTILIZATION)
    kept_pid, increment = step(
        settings.gains, memory.pid, math.log(settings.target), math.log(pv), window.length_s
    )
    fresh = replace(fresh, pid=kept_pid)
    if increment is None:
        return replace(fresh, state=_state(settings, seen, fresh, None, Constraint.NO_SIGNAL))
    applied = _applied(settings, memory, seen)
    wanted, constraint = _output(settings, window, applied, increment.total, memory.in_band)
    fresh = replace(fresh, in_band=constraint is Constraint.DEAD_BAND)
    bounded = min(max(wanted, settings.floor_cores), settings.ceiling_cores)
    if bounded != wanted and constraint is Constraint.NONE:
        constraint = Constraint.FLOOR if bounded > wanted else Constraint.CEILING
    output = round(bounded / QUANTUM_CORES) * QUANTUM_CORES
    moved = abs(output - applied) >= QUANTUM_CORES / 2
    if moved:
        fresh = replace(
            fresh,
            output_cores=round(output, 4),
            moves=memory.moves + 1,
            window_from=seen.now + settings.settle_s,
            counters=None,
        )
    elif memory.output_cores is None and constraint is not Constraint.NOT_BINDING:
        # The quota in force is "max" and the loop has no reason to set one: leave it off.
        fresh = replace(fresh, output_cores=None)
    terms = (increment.p_term, increment.i_term, increment.d_term)
    shown = _state(settings, seen, fresh, window.mean, constraint, terms=terms)
    return replace(fresh, state=replace(shown, samples=len(memory.readings)))


def _applied(settings: LoopSettings, memory: LoopMemory, seen: LoopInput) -> float:
    """The quota the kernel really has: the velocity form starts there, not from its wish."""
    if seen.reading is not None and seen.reading.cpu_quota_cores is not None:
        return min(seen.reading.cpu_quota_cores, settings.ceiling_cores)
    if seen.reading is None and memory.output_cores is not None:
        return memory.output_cores
    return settings.ceiling_cores


def _output(
    settings: LoopSettings, window: _Window, applied: float, increment: float, in_band: bool
) -> tuple[float, Constraint]:
    """Where the increment leads, given whether the quota binds: cores, and what holds them."""
    limit = math.log(settings.max_step)
    increment = min(max(increment, -limit), limit)
    deviation = window.mean - settings.target
    binds = window.throttled_share is None or window.throttled_share > THROTTLED_SHARE
    band = settings.dead_band * (LEAVE_BAND if in_band else 1.0)
    if deviation > band and settings.target >= FEED_ABOVE:
        return _trimmed(window, applied)
    if abs(deviation) <= band:
        return applied, Constraint.DEAD_BAND
    if deviation < 0:
        if not binds:
            return applied, Constraint.NOT_BINDING
        # The sign of a step must be the sign of the error: after a steep rise P could outweigh I.
        return applied * math.exp(max(0.0, increment)), Constraint.NONE
    start = applied
    if not binds and window.used_cores is not None:
        start = min(applied, max(window.used_cores, QUANTUM_CORES))
    return start * math.exp(min(0.0, increment)), Constraint.NONE


def _trimmed(window: _Window, applied: float) -> tuple[float, Constraint]:
    """A fed GPU is never starved: a quota far above use comes down to a margin over it."""
    if window.used_cores is not None and TRIM_MARGIN * window.used_cores < TRIM_BELOW * applied:
        return TRIM_MARGIN * window.used_cores, Constraint.NONE
    return applied, Constraint.NOT_BINDING


def _state(
    settings: LoopSettings,
    seen: LoopInput,
    memory: LoopMemory,
    process_variable: float | None,
    constraint: Constraint,
    keep_terms: bool = True,
    terms: tuple[float, float, float] | None = None,
) -> LoopState:
    before = memory.state if keep_terms else None
    if terms is None:
        terms = (before.p_term, before.i_term, before.d_term) if before else (0.0, 0.0, 0.0)
    return LoopState(
        gpu=seen.gpu,
        index=seen.index,
        job=seen.job,
        unit=seen.unit,
        setpoint=settings.target,
        band=settings.dead_band,
        process_variable=process_variable,
        p_term=terms[0],
        i_term=terms[1],
        d_term=terms[2],
        output_cores=memory.output_cores,
        floor_cores=settings.floor_cores,
        ceiling_cores=settings.ceiling_cores,
        constraint=constraint,
        moves=memory.moves,
        samples=len(memory.readings),
    )
