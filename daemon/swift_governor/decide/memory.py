# SPDX-License-Identifier: Apache-2.0
"""What decide() keeps from one tick to the next: handed in, handed back, never changed in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swift_governor.decide.batch import BatchMemory
from swift_governor.decide.gpu_loop import LoopMemory


@dataclass(frozen=True)
class JobMemory:
    """One job's. ``origins``: units its processes were in before we moved them, for the tier's
    policy.

    ``gpus``: local rank → GPU index as far as known. ``tier``: the one chosen first or adopted;
    only an entry of ``jobs:`` or a changed configuration moves a job to another.
    """

    origins: tuple[str, ...] = ()
    gpus: Mapping[int, int] = field(default_factory=dict)
    adopted_tier: str | None = None
    batch: BatchMemory = field(default_factory=BatchMemory)


@dataclass(frozen=True)
class Memory:
    """``loops`` by GPU UUID, ``jobs`` by job name; both shrink with what they are about."""

    loops: Mapping[str, LoopMemory] = field(default_factory=dict)
    jobs: Mapping[str, JobMemory] = field(default_factory=dict)
