# SPDX-License-Identifier: Apache-2.0
"""The nouns of the house: what is sensed, what is decided, what is told.

Frozen dataclasses without behaviour beyond what follows from their own fields. A field's name
carries its unit (``cpu_cores``, ``memory_bytes``, ``period_s``); a utilisation or share is a ratio
0-1; a time called ``now`` is CLOCK_MONOTONIC in seconds. ``None`` means "not known" and never
"zero".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Role(str, enum.Enum):
    """What a process is within its ms-swift job."""

    LAUNCHER = "launcher"
    AGENT = "agent"
    RANK = "rank"
    LOADER = "loader"
    HELPER = "helper"


class Engine(str, enum.Enum):
    """Which trainer a command line starts."""

    SWIFT = "swift"
    MEGATRON = "megatron"


class Mode(str, enum.Enum):
    """``observe`` decides and reports and changes nothing; ``enforce`` acts."""

    OBSERVE = "observe"
    ENFORCE = "enforce"


class IoClass(str, enum.Enum):
    """I/O scheduling classes, ioprio_set(2); ``none`` follows the nice value."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    IDLE = "idle"


@dataclass(frozen=True, order=True)
class ProcessId:
    """A process's identity: its PID alone is reused, with the start time it is not.

    ``start_ticks`` is field 22 of proc_pid_stat(5), in clock ticks since boot.
    """

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Process:
    """One process as /proc shows it. Strings are decoded with ``surrogateescape`` and may be
    hostile.

    ``environ`` holds only the variables named in ``swift_governor.jobs.rules.ENVIRON_KEYS``.
    ``exe``, ``argv`` and ``environ`` are None when they could not be read (gone, denied, timed
    out). ``cgroup`` is the path below the cgroup2 mount, beginning with "/".
    ``script_names_swift`` tells whether the head of the script in argv names ``swift.cli`` or
    ``swift.`` console entry; None when it could not be read.
    """

    id: ProcessId
    ppid: int
    uid: int
    comm: str
    exe: str | None = None
    argv: tuple[str, ...] | None = None
    environ: Mapping[str, str] | None = None
    cgroup: str | None = None
    script_names_swift: bool | None = None

    @property
    def pid(self) -> int:
        return self.id.pid


@dataclass(frozen=True)
class Match:
    """How a command line reads; ``rule`` says so, also when ``role`` is None."""

    role: Role | None
    verb: str | None
    engine: Engine | None
    rule: str
    reason: str = ""


@dataclass(frozen=True)
class Member:
    """A process within a job. ``local_rank`` is its own, or for a loader or helper its rank's.

    ``gpu_hint`` is the entry of CUDA_VISIBLE_DEVICES that local_rank selects (an index as CUDA
    counts, or a UUID), to be used only where NVML's own process list says nothing.
    """

    process: Process
    role: Role
    rule: str
    rank: int | None = None
    local_rank: int | None = None
    gpu_hint: str | None = None

    @property
    def id(self) -> ProcessId:
        return self.process.id


@dataclass(frozen=True)
class Job:
    """One ms-swift run on this node.

    ``name`` is verb, root PID, "x", start time in base 36 (``sft4711x8k2``): letters and digits,
    since a dash in a slice name is a level of the tree. It is the same after a restart of the
    daemon. ``world_size`` and ``local_world_size`` come from the ranks' environment; None for one
    process.
    """

    name: str
    verb: str
    engine: Engine
    uid: int
    root: ProcessId
    members: tuple[Member, ...]
    world_size: int | None = None
    local_world_size: int | None = None
    registered: bool = False

    @property
    def multi_node(self) -> bool:
        return (
            self.world_size is not None
            and self.local_world_size is not None
            and self.world_size > self.local_world_size
        )

    def with_role(self, *roles: Role) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.role in roles)


# ------------------------------------------------------------------------------------------ sensing


@dataclass(frozen=True)
class GpuProcess:
    """An entry of NVML's process list; ``memory_bytes`` None: the driver can't tell."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True)
class GpuSample:
    """One reading of one GPU. Fields are None where the board or driver can't tell.

    ``fault`` is a short word when this GPU is quarantined ("lost", "reset-required"), else "".
    ``at`` is CLOCK_MONOTONIC seconds of the reading (the same clock on the whole node).
    """

    uuid: str
    index: int
    name: str
    at: float
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    mig: bool = False
    fault: str = ""


class SamplerStatus(str, enum.Enum):
    """What is known of the NVML sampler. NO_DRIVER and NO_GPU are normal, visible states."""

    OK = "ok"
    NO_DRIVER = "no-driver"
    NO_GPU = "no-gpu"
    FAILING = "failing"
    ABSENT = "absent"


@dataclass(frozen=True)
class GpuReading:
    """The sampler's last word: all GPUs at one moment. ``at`` None: it has never spoken."""

    status: SamplerStatus
    detail: str = ""
    at: float | None = None
    driver: str = ""
    gpus: tuple[GpuSample, ...] = ()


@dataclass(frozen=True)
class UnitReading:
    """What cgroupfs says of one unit of ours, never what a D-Bus call promised.

    ``cpu_quota_cores`` None means "max" (no quota); ``cpu_weight`` 0 means idle.
    cpu.stat counters are cumulative, in seconds and counts.
    """

    unit: str
    cgroup: str
    populated: bool
    pids: tuple[int, ...] = ()
    cpu_quota_cores: float | None = None
    cpu_period_s: float | None = None
    cpu_weight: int | None = None
    cpu_usage_s: float | None = None
    nr_periods: int | None = None
    nr_throttled: int | None = None
    throttled_s: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class TrainerReport:
    """The last word of one linked trainer process (one rank), aggregated since its last report.

    ``wait_share`` is the share of wall time spent waiting for data; ``samples_per_s`` and
    ``step_s`` cover the steps since the report before. ``running_micro_batch`` is what really ran.
    ``cannot`` maps what this trainer can't change to the reason.
    """

    process: ProcessId
    at: float
    rank: int
    world_size: int
    base_micro_batch: int
    base_accumulation: int
    rows_per_step: int
    running_micro_batch: int
    optimizer_step: int
    steps: int
    step_s: float | None = None
    samples_per_s: float | None = None
    wait_share: float | None = None
    oom_count: int = 0
    last_oom_micro_batch: int | None = None
    workers: tuple[int, ...] = ()
    phase: str = "train"
    framework: str = ""
    cannot: Mapping[str, str] = field(default_factory=dict)
    answered_sequence: int = 0
    local_rank: int | None = None
    local_world_size: int | None = None


@dataclass(frozen=True)
class Pressure:
    """PSI of the node, the 10 s averages as ratios; None where the kernel has PSI off."""

    cpu_some: float | None = None
    memory_some: float | None = None
    memory_full: float | None = None
    io_some: float | None = None
    io_full: float | None = None


@dataclass(frozen=True)
class Node:
    """Facts of the node that don't change while the daemon runs."""

    hostname: str
    cpus: int
    memory_bytes: int
    boot_id: str
    cpu_controller: bool
    systemd_version: int | None = None


@dataclass(frozen=True)
class Orders:
    """What a person set by hand through the socket; it lasts until unset or the daemon stops.

    ``loops``: GPU index → quota in cores while its loop is off (None: off, and no quota).
    ``micro_batches``: job name → micro-batch.
    """

    loops: Mapping[int, float | None] = field(default_factory=dict)
    micro_batches: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """All that one tick's decision may look at. decide() sees nothing else, and no clock."""

    now: float
    wall: float
    node: Node
    jobs: tuple[Job, ...]
    gpus: GpuReading
    units: Mapping[str, UnitReading] = field(default_factory=dict)
    trainers: Mapping[ProcessId, TrainerReport] = field(default_factory=dict)
    pressure: Pressure = Pressure()
    users: Mapping[int, str] = field(default_factory=dict)
    groups: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    session_leaders: frozenset[int] = frozenset()
    orders: Orders = Orders()


# ----------------------------------------------------------------------------------------- deciding


@dataclass(frozen=True)
class Limits:
    """Wished limits of one unit. None leaves the knob alone (and gives it back if we had it)."""

    cpu_weight: int | None = None
    cpu_quota_cores: float | None = None


@dataclass(frozen=True)
class Placement:
    """These processes belong in scope ``unit``, which lives in ``slice``. ``job`` is the job's
    name.
    """

    unit: str
    slice: str
    job: str
    description: str
    pids: tuple[ProcessId, ...]


@dataclass(frozen=True)
class LeftAlone:
    """A process that is not moved, and why: told once, and shown in status."""

    process: ProcessId
    job: str
    cgroup: str
    reason: str


@dataclass(frozen=True)
class PriorityWish:
    """Nice value and I/O class for every thread of one process."""

    process: ProcessId
    job: str
    nice: int
    io_class: IoClass


@dataclass(frozen=True)
class MicroBatchWish:
    """A micro-batch for one rank's trainer. ``sequence`` grows with each new wish of a job."""

    process: ProcessId
    job: str
    micro_batch: int
    sequence: int
    reason: str


class Constraint(str, enum.Enum):
    """What holds a loop's output where it is. Exactly one is active, and it is told."""

    NONE = "none"
    DEAD_BAND = "dead-band"
    FLOOR = "floor"
    CEILING = "ceiling"
    NOT_BINDING = "not-binding"
    NO_SIGNAL = "no-signal"
    STALE = "stale"
    FAULT = "fault"
    FILLING = "window-filling"
    SETTLING = "settling"
    NO_JOB = "no-job"
    NO_TARGET = "no-actuator"
    OFF = "off"


@dataclass(frozen=True)
class LoopState:
    """One GPU's loop after a tick, as shown in status, metrics and the journal.

    ``process_variable`` is the window mean of utilisation; the terms are the last step's
    increments of ln(quota), dimensionless.
    """

    gpu: str
    index: int
    job: str | None
    unit: str | None
    setpoint: float
    band: float
    process_variable: float | None
    p_term: float
    i_term: float
    d_term: float
    output_cores: float | None
    floor_cores: float
    ceiling_cores: float
    constraint: Constraint
    moves: int
    samples: int


@dataclass(frozen=True)
class JobState:
    """What was decided for one job: its tier, the rule that chose it, its units and its mode."""

    job: str
    tier: str
    tier_rule: str
    mode: Mode
    slice: str
    units: tuple[str, ...]
    gpus: tuple[int, ...] = ()
    micro_batch: int | None = None
    wished_micro_batch: int | None = None
    micro_batch_reason: str = ""


class Severity(enum.IntEnum):
    """syslog(3) levels used by the journal."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


@dataclass(frozen=True)
class Note:
    """Something an operator should be able to read later.

    ``kind`` is a stable word (``job-found``, ``placed``, ``quota-moved``, ``refused`` …);
    ``subject`` the job, GPU, unit or client. Notes with equal ``kind``, ``subject`` and ``key``
    are told once until the condition has gone. ``remedy`` says what to do, where something can be
    done.
    """

    kind: str
    subject: str
    message: str
    severity: Severity = Severity.INFO
    key: str = ""
    remedy: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """All that a tick wishes for. act/ makes it so, report/ tells it.

    ``placements``, ``limits`` and ``priorities`` hold the wishes of enforced jobs only; what an
    observed job would get is in ``observed`` as sentences.
    """

    placements: tuple[Placement, ...] = ()
    limits: Mapping[str, Limits] = field(default_factory=dict)
    priorities: tuple[PriorityWish, ...] = ()
    micro_batches: tuple[MicroBatchWish, ...] = ()
    left_alone: tuple[LeftAlone, ...] = ()
    loops: tuple[LoopState, ...] = ()
    jobs: tuple[JobState, ...] = ()
    observed: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


# ------------------------------------------------------------------------------------------- acting


@dataclass(frozen=True)
class ActState:
    """What act/ knows after applying: shown in status and metrics.

    ``contained`` maps each contained process to the unit that the kernel says it is in;
    ``admin_properties`` names properties an admin set in /etc and that are therefore not written.
    ``containment_s`` are the latencies from a process's discovery to its containment, newest last.
    """

    contained: Mapping[ProcessId, str] = field(default_factory=dict)
    pending: int = 0
    drift_total: int = 0
    writes_total: int = 0
    failures_total: int = 0
    timeouts_total: int = 0
    prioritised_threads: int = 0
    admin_properties: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    containment_s: tuple[float, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
