# SPDX-License-Identifier: Apache-2.0
"""The PID core: what a velocity form owes, over random inputs and against the textbook form."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swift_governor.decide.pid import PidGains, PidState, step

numbers = st.floats(-100, 100)


def run(gains: PidGains, measurements: list[float], setpoint: float, dt_s: float) -> list[float]:
    state, output, outputs = PidState(), 0.0, []
    for y in measurements:
        state, increment = step(gains, state, setpoint, y, dt_s)
        assert increment is not None
        output += increment.total
        outputs.append(output)
    return outputs


@given(st.lists(numbers, min_size=2, max_size=40), numbers, st.floats(0.1, 60))
def test_unclamped_it_equals_the_positional_form_up_to_the_first_proportional_step(
    measurements: list[float], setpoint: float, dt_s: float
) -> None:
    gains = PidGains(gain=0.7, integral_time_s=12.0)
    outputs = run(gains, measurements, setpoint, dt_s)
    integral = 0.0
    for y, u in zip(measurements, outputs):
        error = setpoint - y
        integral += gains.gain * dt_s / gains.integral_time_s * error
        positional = gains.gain * (error - (setpoint - measurements[0])) + integral
        assert u == pytest.approx(positional, rel=1e-9, abs=1e-6)


def test_a_clamped_actuator_leaves_at_once_when_the_error_turns() -> None:
    """No windup: 500 steps against the stop, and the first step of the other sign moves away."""
    gains = PidGains(gain=0.5, integral_time_s=10.0)
    state, output = PidState(), 1.0
    for _ in range(500):
        state, increment = step(gains, state, 1.0, 0.5, 1.0)
        assert increment is not None
        output = min(1.0, output + increment.total)
    assert output == 1.0
    state, increment = step(gains, state, 1.0, 1.2, 1.0)
    assert increment is not None
    assert min(1.0, output + increment.total) < 1.0


def test_a_new_setpoint_gives_no_derivative_kick() -> None:
    gains = PidGains(gain=1.0, integral_time_s=1e9, derivative_time_s=50.0)
    state = PidState()
    for _ in range(3):
        state, _ = step(gains, state, 1.0, 0.4, 1.0)
    state, increment = step(gains, state, 9.0, 0.4, 1.0)
    assert increment is not None
    assert increment.d_term == 0.0


def test_a_setpoint_weight_of_zero_moves_on_a_new_setpoint_by_the_integral_alone() -> None:
    gains = PidGains(gain=1.0, integral_time_s=10.0, setpoint_weight=0.0)
    state, _ = step(gains, PidState(), 1.0, 0.5, 1.0)
    _, increment = step(gains, state, 5.0, 0.5, 1.0)
    assert increment is not None
    assert increment.p_term == 0.0
    assert increment.i_term == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("setpoint", "measurement", "dt_s"),
    [
        (math.nan, 0.5, 1.0),
        (1.0, math.nan, 1.0),
        (1.0, math.inf, 1.0),
        (1.0, 0.5, 0.0),
        (1.0, 0.5, -3.0),
        (1.0, 0.5, math.nan),
    ],
)
def test_a_useless_input_gives_no_step_and_keeps_the_state(
    setpoint: float, measurement: float, dt_s: float
) -> None:
    state = PidState(0.3, 0.2, 0.1)
    kept, increment = step(PidGains(1.0, 10.0), state, setpoint, measurement, dt_s)
    assert increment is None
    assert kept is state


def test_a_suspended_node_does_not_integrate_the_night() -> None:
    gains = PidGains(1.0, 10.0, max_dt_s=60.0)
    _, night = step(gains, PidState(), 1.0, 0.0, 8 * 3600.0)
    _, minute = step(gains, PidState(), 1.0, 0.0, 60.0)
    assert night == minute


@pytest.mark.parametrize("values", [(math.nan, 1, 0), (1, 0, 0), (1, -1, 0), (1, 1, -1)])
def test_impossible_gains_are_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError):
        PidGains(*values)
