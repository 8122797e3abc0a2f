# SPDX-License-Identifier: Apache-2.0
"""What a configuration is, once it has been read and checked: frozen dataclasses.

The unit is in a field's name (``period_s``, ``floor_per_rank_cores``); shares and utilisations are
ratios 0-1. A field is named as its key in config.yaml, with the unit behind it: the key
``control.period`` is ``config.control.period_s``. Defaults, ranges and help are not here but in the
one table that the parser is made from (config_schema). Make one with ``config.load()`` or, for the
values that the package ships, ``config.default_config()``; vary it with ``dataclasses.replace``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from .model import IoClass, Mode

INFERENCE = "inference"
TRAINING = "training"
EVALUATION = "evaluation"
TIER_NAMES = (INFERENCE, TRAINING, EVALUATION)


@dataclass(frozen=True)
class Cap:
    """An upper bound on CPU: a share of the node (0-1), a count of cores, or neither for no cap."""

    share: float | None = None
    count: float | None = None

    def cores(self, node_cpus: int) -> float | None:
        """The cap in cores on a node with ``node_cpus`` CPUs; None: no cap."""
        if self.share is not None:
            return self.share * node_cpus
        return self.count


@dataclass(frozen=True)
class Poll:
    """How often the process table is read whole: as a check on events, and without them."""

    period_s: float
    fallback_period_s: float


@dataclass(frozen=True)
class Tick:
    """How often the daemon senses, decides and acts."""

    period_s: float


@dataclass(frozen=True)
class Policy:
    """Whom a tier is for: user names (or numbers), group names, and units; shell globs all."""

    users: tuple[str, ...]
    groups: tuple[str, ...]
    units: tuple[str, ...]


@dataclass(frozen=True)
class Tier:
    """What a class of jobs gets. ``mode`` None: as the global mode.

    ``policy`` and ``otherwise`` are set for the inference tier alone: a job whose verb belongs
    there, but which the policy does not name, goes to the tier called ``otherwise``.
    """

    verbs: tuple[str, ...]
    weight: int
    cap: Cap
    nice: int
    io_class: IoClass
    mode: Mode | None
    policy: Policy | None = None
    otherwise: str | None = None


@dataclass(frozen=True)
class JobMatch:
    """Which jobs an override is for; a pattern that is None matches all. Shell globs, with case."""

    job: str | None = None
    user: str | None = None
    verb: str | None = None

    def covers(self, job: str, users: tuple[str, ...], verb: str) -> bool:
        """Whether it is for this job. ``users``: how its owner may be written (name, number)."""
        return (
            (self.job is None or fnmatch.fnmatchcase(job, self.job))
            and (self.user is None or any(fnmatch.fnmatchcase(u, self.user) for u in users))
            and (self.verb is None or verb == self.verb)
        )


@dataclass(frozen=True)
class JobOverride:
    """One entry of ``jobs:``. The first whose match covers a job decides; None changes nothing."""

    match: JobMatch
    mode: Mode | None = None
    tier: str | None = None


@dataclass(frozen=True)
class GpuControl:
    """What differs on one GPU; None: as for all."""

    target: float | None = None


@dataclass(frozen=True)
class Control:
    """The loop on each GPU's utilisation.

    ``gain`` is dimensionless (the loop works on logarithms), ``max_step`` the largest factor that
    one step may change a quota by, ``min_samples_ratio`` the part of a window's readings that must
    be there. ``gpus`` is keyed by index as written ("0") or by UUID ("GPU-…").
    """

    enabled: bool
    period_s: float
    target: float
    dead_band: float
    gain: float
    integral_time_s: float
    derivative_time_s: float
    floor_per_rank_cores: float
    max_step: float
    stale_after_s: float
    min_samples_ratio: float
    gpus: Mapping[str, GpuControl]

    def target_of(self, index: int, uuid: str) -> float:
        """The wished utilisation of one GPU (0-1); an entry by UUID comes before one by index."""
        for name in (uuid, str(index)):
            own = self.gpus.get(name)
            if own is not None and own.target is not None:
                return own.target
        return self.target


@dataclass(frozen=True)
class MicroBatch:
    """When a job's micro-batch changes. Memory is a ratio of the GPU's, wait of wall time."""

    enabled: bool
    memory_ceiling: float
    memory_protect: float
    wait_share: float
    settle_s: float


@dataclass(frozen=True)
class Link:
    """The socket that trainers talk to."""

    report_interval_s: float


@dataclass(frozen=True)
class Address:
    """Where to listen: an IP address (never a name, which would need a resolver) and a TCP port."""

    host: str
    port: int


@dataclass(frozen=True)
class Exporter:
    """The metrics server."""

    listen: Address


@dataclass(frozen=True)
class Config:
    """All that a person may set. Equal when the values are, wherever they were set.

    ``sources`` says where each key that a file sets was set ("/etc/…/config.yaml:12"), by its
    dotted path; the others have their default. ``files`` are those read, in that order.
    """

    mode: Mode
    poll: Poll
    tick: Tick
    tiers: Mapping[str, Tier]
    jobs: tuple[JobOverride, ...]
    control: Control
    micro_batch: MicroBatch
    carriers: tuple[str, ...]
    link: Link
    exporter: Exporter
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    files: tuple[str, ...] = field(default=(), compare=False)

    def tier_of_verb(self, verb: str) -> str:
        """The tier whose verbs list it; a verb that none lists is training."""
        for name, tier in self.tiers.items():
            if verb in tier.verbs:
                return name
        return TRAINING


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a file. ``line`` and ``column`` count from 1."""

    file: str
    line: int
    column: int
    what: str
    allowed: str = ""
    nearest: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def message(self) -> str:
        parts = [self.what]
        if self.allowed:
            parts.append(f"allowed: {self.allowed}")
        if self.nearest:
            parts.append(f"did you mean `{self.nearest}`?")
        return "; ".join(parts)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class ConfigError(Exception):
    """A configuration that can't be used, with everything that is wrong in it (at least one)."""

    def __init__(self, errors: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(e) for e in errors))
        self.errors = errors
