# SPDX-License-Identifier: Apache-2.0
"""Snapshots of small nodes, to decide upon."""

from __future__ import annotations

from dataclasses import replace

from swift_governor.model import (
    Engine,
    GpuProcess,
    GpuReading,
    GpuSample,
    Job,
    Member,
    Node,
    Process,
    ProcessId,
    Role,
    SamplerStatus,
    Snapshot,
    TrainerReport,
    UnitReading,
)

GIB = 1024**3
NODE = Node("node1", 16, 128 * GIB, "boot", cpu_controller=True, systemd_version=252)
SESSION = "/user.slice/user-1000.slice/session-3.scope"


def process(pid: int, ppid: int = 1, cgroup: str | None = SESSION, uid: int = 1000) -> Process:
    return Process(ProcessId(pid, pid * 7), ppid, uid, "python3", cgroup=cgroup)


def member(role: Role, pid: int, cgroup: str | None = SESSION, rank: int | None = None) -> Member:
    return Member(process(pid, cgroup=cgroup), role, "test", rank, rank, "0")


def job(
    name: str = "sft100x1", verb: str = "sft", cgroup: str | None = SESSION, loaders: int = 2
) -> Job:
    members = [member(Role.LAUNCHER, 100, cgroup), member(Role.RANK, 101, cgroup)]
    members += [member(Role.LOADER, 110 + i, cgroup) for i in range(loaders)]
    return Job(name, verb, Engine.SWIFT, 1000, ProcessId(100, 700), tuple(members))


def gpu(now: float, utilization: float | None, used: float = 0.5, pids: tuple[int, ...] = (101,)):
    return GpuSample(
        uuid="GPU-a",
        index=0,
        name="Test",
        at=now,
        utilization=utilization,
        memory_used_bytes=int(used * 80 * GIB),
        memory_total_bytes=80 * GIB,
        processes=tuple(GpuProcess(p, GIB) for p in pids),
    )


def snapshot(now: float, *jobs: Job, sample: GpuSample | None = None, **more: object) -> Snapshot:
    gpus = GpuReading(SamplerStatus.OK, at=now, gpus=(sample,) if sample else ())
    made = Snapshot(now=now, wall=now, node=NODE, jobs=jobs, gpus=gpus)
    return replace(made, **more)  # type: ignore[arg-type]


def trainer(now: float, **more: object) -> TrainerReport:
    made = TrainerReport(
        process=ProcessId(101, 707),
        at=now,
        rank=0,
        world_size=1,
        base_micro_batch=4,
        base_accumulation=4,
        rows_per_step=16,
        running_micro_batch=4,
        optimizer_step=10,
        steps=10,
        step_s=1.0,
        samples_per_s=16.0,
        wait_share=0.0,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def unit_reading(unit: str, quota: float | None, usage: float, throttled: int, periods: int):
    return UnitReading(
        unit=unit,
        cgroup="/x",
        populated=True,
        cpu_quota_cores=quota,
        cpu_usage_s=usage,
        nr_throttled=throttled,
        nr_periods=periods,
    )
