# SPDX-License-Identifier: Apache-2.0
"""The micro-batch of one job: down before memory runs out, up where the GPU waits for small
kernels.

The global batch never changes: a micro-batch is a *rung*, one of the sizes into which the rows of
an optimizer step can be cut in near-equal chunks, and accumulation follows.

What a larger micro-batch does depends on what limits the job: launch-bound jobs gain, compute-bound
ones don't, input-bound ones only come closer to OOM. So it is raised only for a job that hardly
waits for data while its GPU is below the band, one rung at a time, kept only if the trainer's own
samples/s grew, and never into memory that the measured slope says is not there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from swift_governor.model import GpuSample, LoopState, TrainerReport

FRESH_S = 5.0
"""NVML's figure and the trainer's cache lag a change: memory seen within this time of it counts
for neither.
"""

GAIN_KEPT = 0.02
"""A larger micro-batch stays when samples/s grew by at least this ratio."""


@dataclass(frozen=True)
class BatchSettings:
    """Ratios of GPU memory, share of time waiting for data, and seconds between two changes."""

    memory_ceiling: float
    memory_protect: float
    wait_share: float
    settle_s: float


@dataclass(frozen=True)
class BatchMemory:
    """What one job's micro-batch control keeps between ticks.

    ``wished`` None: the governor has no wish, the trainer keeps its own. ``peaks`` holds the most
    GPU memory seen at each running micro-batch, in bytes. ``rate`` is the mean samples/s since the
    change.
    """

    wished: int | None = None
    sequence: int = 0
    reason: str = ""
    changed_at: float | None = None
    cap: int | None = None
    oom_count: int = 0
    peaks: Mapping[int, int] = field(default_factory=dict)
    rate_sum: float = 0.0
    rate_count: int = 0
    last_report_at: float | None = None
    trial_from: int | None = None
    trial_rate: float | None = None
    tried: frozenset[int] = frozenset()


def rungs(rows_per_step: int) -> tuple[int, ...]:
    """Micro-batches that cut ``rows_per_step`` rows into near-equal chunks, ascending."""
    if rows_per_step < 1:
        return (1,)
    found = set()
    chunks = 1
    while chunks <= rows_per_step:
        size = math.ceil(rows_per_step / chunks)
        found.add(size)
        # The next chunk count that gives a smaller size: no walk through every count of a huge
        # step.
        chunks = math.ceil(rows_per_step / (size - 1)) if size > 1 else rows_per_step + 1
    return tuple(sorted(found))


def batch_tick(
    settings: BatchSettings,
    memory: BatchMemory,
    now: float,
    trainer: TrainerReport,
    gpu: GpuSample | None,
    loop: LoopState | None,
) -> BatchMemory:
    """One tick for a linked single-rank job. The wish is ``memory.wished``."""
    running = max(1, trainer.running_micro_batch)
    memory = _observe(memory, now, trainer, gpu, running)
    if memory.changed_at is None:
        memory = replace(memory, changed_at=now, oom_count=trainer.oom_count)
        if trainer.oom_count == 0:
            return memory
        memory = replace(memory, oom_count=0)
    if trainer.oom_count > memory.oom_count:
        bad = trainer.last_oom_micro_batch or running
        memory = replace(memory, oom_count=trainer.oom_count, cap=max(1, bad // 2), trial_from=None)
        reason = f"out of memory at micro-batch {bad}"
        return _move(memory, now, rung_at_most(trainer, max(1, bad // 2)), reason)
    if memory.wished is not None and running != memory.wished:
        if trainer.answered_sequence != memory.sequence:
            return memory
        # Answered, and something else runs: it refused. Protection must not wait for it for ever.
        kept = f"the trainer keeps {running} instead of {memory.wished}"
        memory = replace(memory, wished=running, reason=kept, changed_at=now, trial_from=None)
    since = now - (memory.changed_at if memory.changed_at is not None else now)
    settled = memory.sequence == 0 or since >= settings.settle_s
    used = _memory_share(gpu)
    over = used is not None and used > settings.memory_protect
    if used is not None and over and running > 1 and settled and _size_matters(memory, running):
        return _down_for_memory(settings, memory, now, trainer, used)
    if since < settings.settle_s:
        return memory
    if memory.trial_from is not None:
        return _judge(memory, now, running)
    return _try_up(settings, memory, now, trainer, gpu, loop, running)


def _observe(
    memory: BatchMemory, now: float, trainer: TrainerReport, gpu: GpuSample | None, running: int
) -> BatchMemory:
    fresh = memory.changed_at is not None and now - memory.changed_at < FRESH_S
    if gpu is not None and gpu.memory_used_bytes is not None and not fresh:
        peaks = dict(memory.peaks)
        peaks[running] = max(peaks.get(running, 0), gpu.memory_used_bytes)
        memory = replace(memory, peaks=peaks)
    settled = memory.wished is None or running == memory.wished
    if trainer.at != memory.last_report_at and trainer.samples_per_s is not None and settled:
        memory = replace(
            memory,
            rate_sum=memory.rate_sum + trainer.samples_per_s,
            rate_count=memory.rate_count + 1,
        )
    return replace(memory, last_report_at=trainer.at)


def _memory_share(gpu: GpuSample | None) -> float | None:
    if gpu is None or gpu.memory_used_bytes is None or not gpu.memory_total_bytes:
        return None
    return gpu.memory_used_bytes / gpu.memory_total_bytes


def rung_at_most(trainer: TrainerReport, most: int) -> int:
    """The largest rung of this trainer's steps that is not above ``most``."""
    fitting = [r for r in rungs(trainer.rows_per_step) if r <= most]
    return fitting[-1] if fitting else 1


def _move(memory: BatchMemory, now: float, size: int, reason: str) -> BatchMemory:
    return replace(
        memory,
        wished=size,
        sequence=memory.sequence + 1,
        reason=reason,
        changed_at=now,
        rate_sum=0.0,
        rate_count=0,
    )


def _size_matters(memory: BatchMemory, running: int) -> bool:
    """Whether a smaller micro-batch has been seen to need less memory, as far as that was tried.

    PyTorch's cache keeps what it reserved, and another process may hold it: then halving again and
    again down to 1 would cost speed and free nothing.
    """
    larger = [peak for size, peak in memory.peaks.items() if size > running]
    return not larger or memory.peaks.get(running, 0) < 0.99 * min(larger)


def _down_for_memory(
    settings: BatchSettings,
    memory: BatchMemory,
    now: float,
    trainer: TrainerReport,
    used: float,
) -> BatchMemory:
    running = max(1, trainer.running_micro_batch)
    size = rung_at_most(trainer, max(1, running // 2))
    reason = (
        f"GPU memory {used:.0%} above {settings.memory_protect:.0%}, "
        f"aim below {settings.memory_ceiling:.0%}"
    )
    memory = replace(memory, cap=size, trial_from=None)
    return _move(memory, now, size, reason)


def predicted_bytes(peaks: Mapping[int, int], size: int) -> float | None:
    """GPU memory at micro-batch ``size``: on the line through two measured sizes, else all of it
    scales.
    """
    if not peaks:
        return None
    largest = max(peaks)
    if len(peaks) == 1:
        return peaks[largest] * max(1.0, size / largest)
    smallest = min(peaks)
    slope = max(0.0, (peaks[largest] - peaks[smallest]) / (largest - smallest))
    return peaks[largest] + slope * (size - largest)


def _judge(memory: BatchMemory, now: float, running: int) -> BatchMemory:
    """A trial has run long enough: keep what made the trainer faster, else go back."""
    if memory.rate_count == 0 or memory.trial_rate is None or memory.trial_from is None:
        return memory
    rate = memory.rate_sum / memory.rate_count
    gain = rate / memory.trial_rate - 1 if memory.trial_rate > 0 else 0.0
    back = memory.trial_from
    memory = replace(memory, trial_from=None, trial_rate=None, tried=memory.tried | {running})
    if gain >= GAIN_KEPT:
        return replace(memory, changed_at=now, reason=f"kept: samples/s {gain:+.1%}")
    return _move(memory, now, back, f"micro-batch {running} gave samples/s {gain:+.1%}")


def _try_up(
    settings: BatchSettings,
    memory: BatchMemory,
    now: float,
    trainer: TrainerReport,
    gpu: GpuSample | None,
    loop: LoopState | None,
    running: int,
) -> BatchMemory:
    if loop is None or loop.process_variable is None or memory.rate_count == 0:
        return memory
    if loop.process_variable >= loop.setpoint - loop.band:
        return memory
    if trainer.wait_share is None or trainer.wait_share > settings.wait_share:
        return memory
    larger = [
        r
        for r in rungs(trainer.rows_per_step)
        if running < r <= 2 * running
        and r not in memory.tried
        and (memory.cap is None or r <= memory.cap)
    ]
    if not larger or gpu is None or not gpu.memory_total_bytes:
        return memory
    size = larger[-1]
    need = predicted_bytes(memory.peaks, size)
    if need is None or need > settings.memory_ceiling * gpu.memory_total_bytes:
        return memory
    rate = memory.rate_sum / memory.rate_count
    reason = (
        f"GPU busy {loop.process_variable:.0%}, below {loop.setpoint:.0%}, "
        f"waiting for data {trainer.wait_share:.0%}: kernels too small"
    )
    return replace(_move(memory, now, size, reason), trial_from=running, trial_rate=rate)
