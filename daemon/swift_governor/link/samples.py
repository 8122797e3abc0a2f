# SPDX-License-Identifier: Apache-2.0
"""A Sample message → model.GpuReading. The sampler is another user: every value is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from swift_governor.link.fields import LARGEST_COUNT, BadInputError, Field, check
from swift_governor.model import GpuProcess, GpuReading, GpuSample, SamplerStatus

_MOST_PROCESSES = 4096

_GPU = (
    Field("uuid", "str", high=96),
    Field("index", "int", 0, 1024),
    Field("name", "str", high=96),
    Field("at", "float", 0, 10.0**12),
    Field("utilization", "float", 0, 1, optional=True),
    Field("memory_used_bytes", "int", optional=True),
    Field("memory_total_bytes", "int", optional=True),
    Field("temperature_c", "float", -100, 1000, optional=True),
    Field("power_w", "float", 0, 10.0**5, optional=True),
    Field("power_limit_w", "float", 0, 10.0**5, optional=True),
    Field("processes", "objects", high=_MOST_PROCESSES),
    Field("mig", "bool"),
    Field("fault", "str", high=64),
)
_PROCESS = (
    Field("pid", "int", 1, 2**31 - 1),
    Field("memory_bytes", "int", 0, LARGEST_COUNT, optional=True),
)


def reading(parameters: Mapping[str, Any], now: float) -> GpuReading:
    """``parameters``: the checked ones of Sample. Raises BadInputError.

    A time in the future (the sampler and the daemon have the same clock) is taken as now.
    """
    try:
        status = SamplerStatus(parameters["status"])
    except ValueError:
        allowed = ", ".join(s.value for s in SamplerStatus)
        raise BadInputError("status", f"must be one of {allowed}") from None
    gpus = tuple(_gpu(g, now) for g in parameters["gpus"])
    if len({g.uuid for g in gpus}) != len(gpus) or len({g.index for g in gpus}) != len(gpus):
        raise BadInputError("gpus", "two of them have the same uuid or index")
    return GpuReading(
        status=status,
        detail=parameters["detail"],
        at=min(parameters["at"], now),
        driver=parameters["driver"],
        gpus=gpus,
    )


def _gpu(raw: Mapping[str, Any], now: float) -> GpuSample:
    values = check(_GPU, raw)
    processes = [check(_PROCESS, p) for p in values.pop("processes")]
    at = values.pop("at")
    return GpuSample(
        at=min(at, now) if math.isfinite(at) else now,
        processes=tuple(GpuProcess(p["pid"], p["memory_bytes"]) for p in processes),
        **values,
    )
