# SPDX-License-Identifier: Apache-2.0
"""What is read of a GPU: the ways to read each value, newest first, and what is believed of it.

Drivers have returned utilisations of 4294967295 (NVIDIA/go-dcgm#75) and above 100
(NVIDIA/DCGM#152), and 535-era ones PIDs such as 4000000000 to older bindings: nothing is believed
that can't be.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Way = Callable[[Any, Any], Any]

PID_LIMIT = 4_194_304  # PID_MAX_LIMIT of a 64-bit kernel, proc_sys_kernel(5)
BYTES_LIMIT = 1 << 50

# Each way is called with the module pynvml and a device handle. An AttributeError (older bindings)
# is treated as error 13. Memory version 1 counts what the driver reserves as used (R510 and later).
WAYS: dict[str, tuple[Way, ...]] = {
    "utilization": (lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,),
    "memory": (
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2),
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu),
    ),
    "temperature": (
        lambda nvml, gpu: nvml.nvmlDeviceGetTemperatureV(gpu, nvml.NVML_TEMPERATURE_GPU),
        lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    ),
    "power": (lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu),),
    "power_limit": (lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu),),
    "mig": (lambda nvml, gpu: nvml.nvmlDeviceGetMigMode(gpu)[0],),
    "processes": (
        lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu),
        lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses_v2(gpu),
    ),
}


def whole(value: object, low: int, high: int) -> int | None:
    """``value`` if it is a whole number from ``low`` to ``high``, else None."""
    return value if isinstance(value, int) and low <= value <= high else None


def ratio(percent: object) -> float | None:
    """A utilisation in per cent as a ratio."""
    sane = whole(percent, 0, 100)
    return None if sane is None else sane / 100


def watts(milliwatts: object) -> float | None:
    """A power in milliwatts as watts; no board takes 20 kW."""
    sane = whole(milliwatts, 0, 20_000_000)
    return None if sane is None else sane / 1000


def celsius(degrees: object) -> float | None:
    """A temperature that a working board can have."""
    sane = whole(degrees, -50, 200)
    return None if sane is None else float(sane)


def memory_bytes(info: object) -> tuple[int | None, int | None]:
    """(used, total); used is None where it is more than there is."""
    total = whole(getattr(info, "total", None), 1, BYTES_LIMIT)
    used = None if total is None else whole(getattr(info, "used", None), 0, total)
    return used, total


def process_list(entries: object, total: int | None, at_most: int) -> list[dict[str, int | None]]:
    """The entries whose process exists, one for each PID, the ones with most memory first.

    A PID can be listed several times (MIG instances); its memory is then added up. With hidepid, or
    ProtectProc= in the unit, no other process is visible and none can be checked.
    """
    visible = _exists(1)
    found: dict[int, int | None] = {}
    for entry in entries if isinstance(entries, list) else ():
        pid = whole(entry.pid, 1, PID_LIMIT)
        if pid is None or (visible and not _exists(pid)):
            continue
        used = whole(entry.usedGpuMemory, 0, total or BYTES_LIMIT)
        before = found.get(pid)
        found[pid] = used if before is None else before + (used or 0)
    by_memory = sorted(found.items(), key=lambda item: -(item[1] or 0))
    return [{"pid": pid, "memory_bytes": used} for pid, used in by_memory[:at_most]]


def _exists(pid: int) -> bool:
    return os.access(f"/proc/{pid}", os.F_OK)
