# SPDX-License-Identifier: Apache-2.0
"""The GPU loop on a plant with the physics of a loader-fed GPU, and at each of its edges."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swift_governor.decide.gpu_loop import LoopInput, LoopMemory, LoopSettings, loop_tick
from swift_governor.decide.pid import PidGains
from swift_governor.model import Constraint, UnitReading

from tests.unit.decide.nodes import gpu, unit_reading

UNIT = "msswift-sft100x1-gpu0.scope"
SETTINGS = LoopSettings(
    target=0.70,
    dead_band=0.03,
    period_s=30.0,
    settle_s=7.5,
    stale_after_s=5.0,
    min_samples=15,
    max_step=2.0,
    gains=PidGains(0.25, 15.0),
    floor_cores=1.0,
    ceiling_cores=9.6,
)


class Plant:
    """Loaders that need ``full_cores`` to keep the GPU at ``best``; second by second."""

    def __init__(self, full_cores: float, best: float, noise: float = 0.0, seed: int = 1) -> None:
        self.full, self.best, self.noise = full_cores, best, noise
        self.random = random.Random(seed)
        self.usage, self.periods, self.throttled = 0.0, 0, 0

    def second(self, quota: float | None) -> tuple[float, UnitReading]:
        used = self.full if quota is None else min(quota, self.full)
        self.usage += used
        self.periods += 10
        self.throttled += 10 if quota is not None and quota < self.full else 0
        utilization = self.best * used / self.full + self.random.gauss(0, self.noise)
        reading = unit_reading(UNIT, quota, self.usage, self.throttled, self.periods)
        return min(1.0, max(0.0, utilization)), reading


def drive(
    plant: Plant, seconds: int, config: LoopSettings = SETTINGS, memory: LoopMemory | None = None
) -> tuple[LoopMemory, list[float], list[float | None]]:
    memory = memory or LoopMemory()
    history, outputs = [], []
    reading: UnitReading | None = unit_reading(UNIT, None, 0, 0, 0)
    for now in range(seconds):
        utilization, reading = plant.second(memory.output_cores)
        seen = LoopInput(now, "GPU-a", 0, gpu(now, utilization), "sft100x1", UNIT, reading)
        memory = loop_tick(config, memory, seen)
        history.append(utilization)
        outputs.append(memory.output_cores)
    return memory, history, outputs


@pytest.mark.parametrize("full_cores", [2.0, 4.0, 9.0])
@pytest.mark.parametrize("best", [0.8, 1.0])
def test_a_gpu_that_is_too_busy_comes_into_its_band_and_stays(full_cores: float, best: float):
    plant = Plant(full_cores, best, noise=0.08)
    _, history, outputs = drive(plant, 900)
    last = history[-300:]
    assert sum(last) / len(last) == pytest.approx(0.70, abs=0.03)
    moved = [a != b for a, b in zip(outputs[-300:], outputs[-299:])]
    assert sum(moved) <= 3


def test_a_quota_halved_by_hand_is_brought_back_into_the_band() -> None:
    plant = Plant(4.0, 0.9)
    memory, _, _ = drive(plant, 600)
    assert memory.output_cores is not None
    halved = replace(memory, output_cores=memory.output_cores / 2)
    _, history, _ = drive(plant, 600, memory=replace(halved, window_from=None))
    assert sum(history[-120:]) / 120 == pytest.approx(0.70, abs=0.03)


def test_with_the_actuator_disconnected_the_gpu_does_not_come_into_its_band() -> None:
    """The proof that the tests above can fail: the plant never hears of the quota."""
    plant = Plant(4.0, 0.9)
    memory = LoopMemory()
    history = []
    for now in range(600):
        utilization, _ = plant.second(None)
        reading = unit_reading(UNIT, None, plant.usage, 0, plant.periods)
        seen = LoopInput(now, "GPU-a", 0, gpu(now, utilization), "sft100x1", UNIT, reading)
        memory = loop_tick(SETTINGS, memory, seen)
        history.append(utilization)
    assert sum(history[-120:]) / 120 > 0.85


def test_a_quota_that_does_not_bind_is_not_raised() -> None:
    plant = Plant(2.0, 0.4)
    memory, _, outputs = drive(plant, 300)
    assert set(outputs) == {None}
    assert memory.state is not None
    assert memory.state.constraint is Constraint.NOT_BINDING


def test_a_fed_gpu_is_never_starved_only_trimmed_to_a_margin_over_use() -> None:
    plant = Plant(3.0, 1.0)
    memory, history, _ = drive(plant, 600, replace(SETTINGS, target=0.95))
    assert memory.output_cores == pytest.approx(4.5, abs=0.1)
    assert min(history) == 1.0


def test_the_quota_never_goes_below_the_floor_nor_above_the_ceiling() -> None:
    low, _, _ = drive(Plant(0.9, 1.0), 600, replace(SETTINGS, floor_cores=0.8))
    assert low.output_cores == pytest.approx(0.8)
    assert low.state is not None
    assert low.state.constraint is Constraint.FLOOR
    high, _, _ = drive(Plant(30.0, 1.0), 900, memory=LoopMemory(unit=UNIT, output_cores=2.0))
    assert high.output_cores == pytest.approx(9.6)
    assert high.state is not None
    assert high.state.constraint is Constraint.CEILING


def test_windup_against_the_ceiling_does_not_delay_the_way_back() -> None:
    plant = Plant(30.0, 1.0)
    memory, _, _ = drive(plant, 1800, memory=LoopMemory(unit=UNIT, output_cores=9.6))
    plant.full = 5.0
    memory, _, outputs = drive(plant, 120, memory=replace(memory, window_from=None))
    assert outputs[-1] is not None
    assert outputs[-1] < 9.6


def test_a_missing_stale_or_faulty_reading_holds_the_quota() -> None:
    memory, _, _ = drive(Plant(4.0, 0.9), 300)
    held = memory.output_cores
    reading = unit_reading(UNIT, held, 1, 1, 1)
    cases = [
        (None, Constraint.NO_SIGNAL),
        (gpu(0, None), Constraint.NO_SIGNAL),
        (gpu(0, float("nan")), Constraint.NO_SIGNAL),
        (replace(gpu(0, 0.01), fault="lost"), Constraint.FAULT),
        (gpu(-60, 0.01), Constraint.STALE),
        (gpu(+3600, 0.01), Constraint.STALE),
    ]
    for sample, constraint in cases:
        kept = memory
        for second in range(300, 400):
            moved = sample and replace(sample, at=sample.at + second)
            seen = LoopInput(second, "GPU-a", 0, moved, "sft100x1", UNIT, reading)
            kept = loop_tick(SETTINGS, kept, seen)
        assert kept.output_cores == held
        assert kept.state is not None
        assert kept.state.constraint is constraint


def test_a_window_with_too_few_readings_moves_nothing() -> None:
    memory = LoopMemory(unit=UNIT, output_cores=2.0)
    for second in range(120):
        sample = gpu(second - second % 4, 0.1)
        reading = unit_reading(UNIT, 2.0, second, second, second)
        seen = LoopInput(second, "GPU-a", 0, sample, "sft100x1", UNIT, reading)
        memory = loop_tick(SETTINGS, memory, seen)
    assert memory.output_cores == 2.0
    assert memory.moves == 0


def test_one_reading_counts_once_however_often_it_is_seen() -> None:
    memory = LoopMemory(unit=UNIT, output_cores=2.0)
    for tick in range(100):
        seen = LoopInput(tick / 100, "GPU-a", 0, gpu(0.0, 0.1), "sft100x1", UNIT, None)
        memory = loop_tick(SETTINGS, memory, seen)
    assert len(memory.readings) == 1


def test_a_new_job_starts_from_the_quota_found_on_its_unit() -> None:
    reading = unit_reading(UNIT, 3.2, 0, 0, 0)
    seen = LoopInput(0, "GPU-a", 0, gpu(0, 0.5), "sft100x1", UNIT, reading)
    assert loop_tick(SETTINGS, LoopMemory(), seen).output_cores == 3.2


def test_without_a_job_the_loop_wishes_for_nothing() -> None:
    memory, _, _ = drive(Plant(4.0, 0.9), 300)
    seen = LoopInput(301, "GPU-a", 0, gpu(301, 0.5), None, None, None)
    memory = loop_tick(SETTINGS, memory, seen)
    assert memory.output_cores is None
    assert memory.state is not None
    assert memory.state.constraint is Constraint.NO_JOB


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 1e6)),
        min_size=1,
        max_size=200,
    )
)
def test_whatever_is_measured_the_output_is_within_its_limits(
    seen_values: list[tuple[float, float]],
) -> None:
    memory = LoopMemory(unit=UNIT, output_cores=2.0)
    now = 0.0
    for utilization, usage in seen_values:
        now += 1.0
        reading = unit_reading(UNIT, memory.output_cores, usage, int(now), int(now))
        seen = LoopInput(now, "GPU-a", 0, gpu(now, utilization), "j", UNIT, reading)
        memory = loop_tick(replace(SETTINGS, period_s=2, settle_s=0, min_samples=1), memory, seen)
        assert memory.output_cores is not None
        assert 1.0 <= memory.output_cores <= 9.6
