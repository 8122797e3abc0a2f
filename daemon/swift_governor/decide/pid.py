# SPDX-License-Identifier: Apache-2.0
"""A PID controller in velocity form. Pure: time comes in as ``dt_s``, state goes in and comes out.

The velocity form computes the *increment* of the output and adds it to the output that was really
applied. So there is no integral sum to wind up: when the actuator is clamped, quantised or moved by
somebody else, the next step starts from where it truly is (anti-windup by tracking), and a change
of gains or a switch from manual to automatic makes no bump.

    du = K * ( (p_k - p_{k-1})  +  dt/Ti * e_k  -  Td/dt * (y_k - 2 y_{k-1} + y_{k-2}) )
    e = r - y        p = b*r - y   (b: setpoint weight)

The derivative acts on the measurement, never on the setpoint, so a new setpoint gives no kick.
Source: Astrom and Hagglund, *Advanced PID Control* (2006), sections 3.4 (setpoint weighting), 3.5
(windup) and 13.3 (incremental algorithms).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PidGains:
    """``gain`` K in output units per input unit; ``integral_time_s`` Ti > 0; ``derivative_time_s``
    Td >= 0.

    ``setpoint_weight`` b, 0-1. ``max_dt_s`` caps the time step, so that a suspended node does not
    integrate an hour in one step.
    """

    gain: float
    integral_time_s: float
    derivative_time_s: float = 0.0
    setpoint_weight: float = 1.0
    max_dt_s: float = 300.0

    def __post_init__(self) -> None:
        numbers = (self.gain, self.integral_time_s, self.derivative_time_s, self.setpoint_weight)
        if not all(math.isfinite(x) for x in numbers):
            raise ValueError("PID gains must be finite numbers")
        if self.integral_time_s <= 0:
            raise ValueError("integral_time_s must be above 0")
        if self.derivative_time_s < 0:
            raise ValueError("derivative_time_s must not be negative")


@dataclass(frozen=True)
class PidState:
    """What the next step needs: the last proportional input and the last two measurements."""

    last_p: float | None = None
    last_y: float | None = None
    last_y2: float | None = None

    def forget(self) -> PidState:
        """After a gap (hold, lost signal): the differences across it mean nothing."""
        return PidState()


@dataclass(frozen=True)
class PidStep:
    """The increments of one step, in output units; ``total`` is added to the applied output."""

    p_term: float
    i_term: float
    d_term: float
    error: float

    @property
    def total(self) -> float:
        return self.p_term + self.i_term + self.d_term


def step(
    gains: PidGains, state: PidState, setpoint: float, measurement: float, dt_s: float
) -> tuple[PidState, PidStep | None]:
    """One step. Returns the state to keep, and the increments or None where the input is unusable.

    A setpoint, measurement or dt that is not finite, or a dt that is not positive (a clock that did
    not advance), gives None and leaves the state untouched: the caller holds its output.
    """
    if not (math.isfinite(setpoint) and math.isfinite(measurement) and math.isfinite(dt_s)):
        return state, None
    if dt_s <= 0:
        return state, None
    dt = min(dt_s, gains.max_dt_s)
    error = setpoint - measurement
    p_input = gains.setpoint_weight * setpoint - measurement
    p_term = 0.0 if state.last_p is None else gains.gain * (p_input - state.last_p)
    i_term = gains.gain * dt / gains.integral_time_s * error
    d_term = 0.0
    if state.last_y is not None and state.last_y2 is not None:
        curvature = measurement - 2 * state.last_y + state.last_y2
        d_term = -gains.gain * gains.derivative_time_s / dt * curvature
    kept = replace(state, last_p=p_input, last_y=measurement, last_y2=state.last_y)
    return kept, PidStep(p_term, i_term, d_term, error)
