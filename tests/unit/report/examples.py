# SPDX-License-Identifier: Apache-2.0
"""Snapshots, decisions and act states as a real node would give them, for tests of whatever shows
them.

``node(jobs=3, gpus=2)`` makes all four arguments of ``snapshot.make``; the same numbers give the
same node. Jobs are training jobs on one GPU each, linked every second one, with an inference job
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from swift_governor.model import (
    ActState,
    Constraint,
    Decision,
    Engine,
    GpuProcess,
    GpuReading,
    GpuSample,
    Job,
    JobState,
    LeftAlone,
    Limits,
    LoopState,
    Member,
    Mode,
    Node,
    Note,
    Pressure,
    Process,
    ProcessId,
    Role,
    SamplerStatus,
    Severity,
    Snapshot,
    TrainerReport,
    UnitReading,
)
from swift_governor.report.self_state import SelfState, ToldNote

NOW = 86_500.0
WALL = 1_790_000_000.0
GIB = 1024**3
SECRET = "/home/alice/secret-dataset.jsonl"


class Tick(NamedTuple):
    """The arguments of ``snapshot.make``."""

    snapshot: Snapshot
    decision: Decision
    act: ActState
    self_state: SelfState


def gpu_uuid(index: int) -> str:
    return f"GPU-{index:08x}-1111-2222-3333-444444444444"


def job_name(index: int) -> str:
    return f"{'deploy' if index == 0 else 'sft'}{4711 + 100 * index}x8k{index:x}"


def example_job(index: int, uid: int = 1000, loaders: int = 4) -> Job:
    first = 4711 + 100 * index

    def member(offset: int, role: Role) -> Member:
        argv = ("swift", "sft", "--dataset", SECRET)
        process = Process(
            ProcessId(first + offset, 900_000 + offset),
            ppid=1 if offset == 0 else first,
            uid=uid,
            comm="swift",
            exe="/opt/conda/bin/python3.11",
            argv=argv,
            environ={"RANK": "0", "CUDA_VISIBLE_DEVICES": str(index)},
        )
        return Member(process, role, "test", rank=0, local_rank=0)

    members = (
        member(0, Role.LAUNCHER),
        member(1, Role.RANK),
        *(member(2 + i, Role.LOADER) for i in range(loaders)),
    )
    return Job(
        name=job_name(index),
        verb="deploy" if index == 0 else "sft",
        engine=Engine.SWIFT,
        uid=uid,
        root=members[0].id,
        members=members,
        world_size=16 if index == 2 else 1,
        local_world_size=1,
        registered=index % 2 == 1,
    )


def scopes(job: Job, gpu: int) -> tuple[str, str]:
    return f"msswift-{job.name}-main.scope", f"msswift-{job.name}-gpu{gpu}.scope"


def node(
    jobs: int = 3,
    gpus: int = 2,
    users: Sequence[str] = ("alice", "bob"),
    sequence: int = 77,
    constraints: Sequence[Constraint] = tuple(Constraint),
) -> Tick:
    """A node with ``jobs`` jobs and ``gpus`` GPUs; the constraints go round over the loops."""
    all_jobs = [example_job(i, uid=1000 + i % len(users)) for i in range(jobs)]
    states, units, limits, trainers = [], {}, {}, {}
    for index, job in enumerate(all_jobs):
        gpu = index % gpus if gpus else 0
        tier = "inference" if index == 0 else "training"
        slice_ = f"msswift-{tier}-u{job.uid}-{job.name}.slice"
        main, loader = scopes(job, gpu)
        for unit, quota in ((slice_, None), (main, None), (loader, 4.0)):
            pids = tuple(
                m.process.pid
                for m in job.members
                if unit == slice_ or (m.role is Role.LOADER) == (unit == loader)
            )
            units[unit] = UnitReading(
                unit=unit,
                cgroup=f"/msswift.slice/msswift-{tier}.slice/{slice_}/{unit}",
                populated=True,
                pids=pids,
                cpu_quota_cores=quota,
                cpu_period_s=0.1,
                cpu_weight=100,
                cpu_usage_s=1234.5 + index,
                nr_periods=5000,
                nr_throttled=120,
                throttled_s=9.25,
                memory_bytes=3 * GIB,
            )
        limits[loader] = Limits(cpu_weight=100, cpu_quota_cores=4.0)
        if job.registered:
            rank = job.with_role(Role.RANK)[0]
            trainers[rank.id] = TrainerReport(
                process=rank.id,
                at=NOW - 1,
                rank=0,
                world_size=1,
                base_micro_batch=2,
                base_accumulation=8,
                rows_per_step=16,
                running_micro_batch=4,
                optimizer_step=310 + index,
                steps=3,
                step_s=0.9,
                samples_per_s=17.75,
                wait_share=0.034,
                oom_count=1,
                last_oom_micro_batch=16,
                workers=(1, 2, 3, 4),
                framework="transformers 4.5",
                cannot={"workers": "the loader has been made"},
                answered_sequence=2,
            )
        states.append(
            JobState(
                job=job.name,
                tier=tier,
                tier_rule=f"verb {job.verb}",
                mode=Mode.OBSERVE if index == 2 else Mode.ENFORCE,
                slice=slice_,
                units=(main, loader),
                gpus=(gpu,) if gpus else (),
                micro_batch=4 if job.registered else None,
                wished_micro_batch=8 if job.registered else None,
                micro_batch_reason="the job waits for nothing" if job.registered else "",
            )
        )
    samples = tuple(_gpu(index, all_jobs) for index in range(gpus))
    loops = tuple(
        _loop(index, all_jobs, constraints[index % len(constraints)]) for index in range(gpus)
    )
    snapshot = Snapshot(
        now=NOW,
        wall=WALL,
        node=Node("gpu07", 64, 512 * GIB, "b" * 32, cpu_controller=True, systemd_version=252),
        jobs=tuple(all_jobs),
        gpus=GpuReading(SamplerStatus.OK, "", NOW - 0.5, "550.54.15", samples),
        units=units,
        trainers=trainers,
        pressure=Pressure(0.12, 0.0, 0.0, 0.031, 0.02),
        users={1000 + i: name for i, name in enumerate(users)},
    )
    left = (LeftAlone(ProcessId(99, 5), job_name(1), "/docker-1.scope", "in a container"),)
    decision = Decision(
        limits=limits,
        loops=loops,
        jobs=tuple(states),
        left_alone=left,
        observed=("sft4911x8k2 would get a quota of 4 cores",),
    )
    act = ActState(
        contained={m.id: scopes(j, 0)[0] for j in all_jobs for m in j.members},
        pending=1,
        drift_total=2,
        writes_total=150,
        failures_total=3,
        timeouts_total=1,
        prioritised_threads=240,
        admin_properties={"msswift-training.slice": ("CPUWeight",)},
        containment_s=(0.012, 0.02, 0.5),
        errors={"msswift-x.scope": "No such unit"},
    )
    return Tick(snapshot, decision, act, _self_state(sequence))


def _gpu(index: int, jobs: list[Job]) -> GpuSample:
    pids = [m.process.pid for m in jobs[index].with_role(Role.RANK)] if index < len(jobs) else []
    return GpuSample(
        uuid=gpu_uuid(index),
        index=index,
        name="NVIDIA H200",
        at=NOW - 0.5,
        utilization=0.93,
        memory_used_bytes=61 * GIB,
        memory_total_bytes=141 * GIB,
        temperature_c=64.0,
        power_w=512.5,
        power_limit_w=700.0,
        processes=tuple(GpuProcess(pid, 60 * GIB) for pid in pids),
        fault="lost" if index == 5 else "",
    )


def _loop(index: int, jobs: list[Job], constraint: Constraint) -> LoopState:
    job = jobs[index] if index < len(jobs) else None
    return LoopState(
        gpu=gpu_uuid(index),
        index=index,
        job=job.name if job else None,
        unit=scopes(job, index)[1] if job else None,
        setpoint=0.95,
        band=0.03,
        process_variable=0.921 if job else None,
        p_term=0.011,
        i_term=0.004,
        d_term=-0.002,
        output_cores=4.0 if job else None,
        floor_cores=1.0,
        ceiling_cores=38.4,
        constraint=constraint,
        moves=7,
        samples=30,
    )


def _self_state(sequence: int) -> SelfState:
    notes = (
        Note("job-found", job_name(1), "a job of alice was found: swift sft", Severity.NOTICE),
        Note("quota-moved", job_name(1), "quota 3 → 4 cores", remedy="", fields={"gpu": "0"}),
        Note(
            "refused",
            "client",
            "a message was not JSON",
            Severity.WARNING,
            remedy="see journalctl -u swift-governor",
        ),
    )
    return SelfState(
        version="0.1.0",
        mode=Mode.ENFORCE,
        started=100.0,
        ticks=sequence,
        tick_s=0.012,
        tick_total_s=12.5,
        tick_period_s=1.0,
        overruns_total=1,
        event_overruns_total=2,
        events_live=True,
        reader_stuck=False,
        reader_timeouts_total=4,
        dbus_errors_total=5,
        refusals={"bad-input": 6},
        notes_total={"job-found": 3, "quota-moved": 7},
        journal_lost_total=1,
        link_clients=2,
        config_generation=2,
        config_reload_failures_total=1,
        cpu_cores={f"msswift-{job_name(1)}-gpu1.scope": 3.4},
        tier_slices={
            "inference": "msswift-inference.slice",
            "training": "msswift-training.slice",
            "evaluation": "msswift-evaluation.slice",
        },
        recent=tuple(ToldNote(WALL - 60 + i, note) for i, note in enumerate(notes)),
    )
