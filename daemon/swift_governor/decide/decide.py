# SPDX-License-Identifier: Apache-2.0
"""decide(config, snapshot, memory) -> (decision, memory): the whole of a tick's thinking. Pure.

The same inputs give the same decision, on the node, in a test and in a replay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from swift_governor.config import Config
from swift_governor.decide import layout as lay
from swift_governor.decide.batch import BatchMemory, BatchSettings, batch_tick, rung_at_most
from swift_governor.decide.gpu_loop import LoopInput, LoopMemory, LoopSettings, loop_tick
from swift_governor.decide.memory import JobMemory, Memory
from swift_governor.decide.pid import PidGains
from swift_governor.decide.tiers import Owner, TierChoice, choose_tier
from swift_governor.model import (
    Constraint,
    Decision,
    GpuSample,
    Job,
    JobState,
    LeftAlone,
    Limits,
    LoopState,
    MicroBatchWish,
    Mode,
    Note,
    Placement,
    PriorityWish,
    Role,
    Severity,
    Snapshot,
    TrainerReport,
)

LOOPED_TIERS = ("training",)
"""GPU loops act on training jobs; inference is never throttled by one."""

SETTLE_SHARE = 0.25
"""After a move the next window begins this share of a period later: the loader queue is dead time.
"""


@dataclass
class _Draft:
    """A decision in the making."""

    placements: list[Placement] = field(default_factory=list)
    limits: dict[str, Limits] = field(default_factory=dict)
    priorities: list[PriorityWish] = field(default_factory=list)
    micro_batches: list[MicroBatchWish] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)
    loops: list[LoopState] = field(default_factory=list)
    jobs: list[JobState] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def limit(self, unit: str, wish: Limits) -> None:
        have = self.limits.get(unit, Limits())
        self.limits[unit] = Limits(
            cpu_weight=wish.cpu_weight if wish.cpu_weight is not None else have.cpu_weight,
            cpu_quota_cores=(
                wish.cpu_quota_cores if wish.cpu_quota_cores is not None else have.cpu_quota_cores
            ),
        )

    def done(self) -> Decision:
        return Decision(
            placements=tuple(self.placements),
            limits=self.limits,
            priorities=tuple(self.priorities),
            micro_batches=tuple(self.micro_batches),
            left_alone=tuple(self.left_alone),
            loops=tuple(self.loops),
            jobs=tuple(self.jobs),
            observed=tuple(self.observed),
            notes=tuple(self.notes),
        )


@dataclass(frozen=True)
class _JobPlan:
    job: Job
    choice: TierChoice
    layout: lay.Layout
    memory: JobMemory

    @property
    def enforced(self) -> bool:
        return self.choice.mode is Mode.ENFORCE


def decide(config: Config, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
    """One tick's wishes, and the memory for the next."""
    draft = _Draft()
    plans = [_plan(config, snapshot, memory, job) for job in snapshot.jobs]
    for plan in plans:
        _contain(config, snapshot, plan, draft)
    loops = _loops(config, snapshot, memory, plans, draft)
    jobs = {
        plan.job.name: replace(plan.memory, batch=_micro_batch(config, snapshot, plan, draft))
        for plan in plans
    }
    return draft.done(), Memory(loops=loops, jobs=jobs)


# ---------------------------------------------------------------------------- tiers and placement


def _plan(config: Config, snapshot: Snapshot, memory: Memory, job: Job) -> _JobPlan:
    kept = memory.jobs.get(job.name) or JobMemory(
        origins=lay.origin_units(job),
        adopted_tier=lay.adopted_tier(job),
        gpus=lay.adopted_gpus(job),
    )
    name = snapshot.users.get(job.uid)
    owner = Owner(
        names=(name, str(job.uid)) if name else (str(job.uid),),
        groups=tuple(snapshot.groups.get(job.uid, ())),
    )
    choice = choose_tier(config, job, owner, kept.origins)
    if kept.adopted_tier in config.tiers and not kept.origins and "policy" in choice.rule:
        # Where it came from is not to be seen any more after a restart: the slice it is in tells.
        choice = replace(
            choice, tier=kept.adopted_tier or choice.tier, rule="as found in its slice"
        )
    gpus = lay.rank_gpus(job, snapshot.gpus, kept.gpus)
    layout = lay.lay_out(job, choice.tier, gpus, config.carriers, snapshot.session_leaders)
    return _JobPlan(job, choice, layout, replace(kept, gpus=gpus))


def _contain(config: Config, snapshot: Snapshot, plan: _JobPlan, draft: _Draft) -> None:
    job, choice, layout = plan.job, plan.choice, plan.layout
    tier = config.tiers[choice.tier]
    draft.left_alone.extend(layout.left_alone)
    if not plan.enforced:
        cap = tier.cap.cores(snapshot.node.cpus)
        draft.observed.append(
            f"{job.name}: would be placed in {layout.slice} ({choice.rule}), weight {tier.weight}, "
            f"cap {'none' if cap is None else f'{cap:g} cores'}, nice {tier.nice}, "
            f"I/O {tier.io_class.value}"
        )
        return
    draft.placements.extend(layout.placements)
    if layout.placements:
        draft.limit(
            lay.tier_slice(choice.tier),
            Limits(tier.weight, tier.cap.cores(snapshot.node.cpus)),
        )
    placed = {pid for placement in layout.placements for pid in placement.pids}
    draft.priorities.extend(
        PriorityWish(member.id, job.name, tier.nice, tier.io_class)
        for member in job.members
        if member.id in placed
    )


# ---------------------------------------------------------------------------------------- the loops


def _loops(
    config: Config,
    snapshot: Snapshot,
    memory: Memory,
    plans: list[_JobPlan],
    draft: _Draft,
) -> dict[str, LoopMemory]:
    """Every GPU that NVML tells of has a loop, with or without a job."""
    kept: dict[str, LoopMemory] = {}
    for gpu in snapshot.gpus.gpus:
        candidates = [p for p in plans if gpu.index in p.layout.loop_units]
        plan = candidates[0] if len(candidates) == 1 else None
        if plan is not None and plan.choice.tier not in LOOPED_TIERS:
            plan = None
        unit = plan.layout.loop_units[gpu.index] if plan else None
        seen = LoopInput(
            now=snapshot.now,
            gpu=gpu.uuid,
            index=gpu.index,
            sample=gpu,
            job=plan.job.name if plan else None,
            unit=unit,
            reading=snapshot.units.get(unit) if unit else None,
        )
        settings = loop_settings(
            config,
            snapshot.node.cpus,
            gpu,
            plan.choice.tier if plan else None,
            _ranks_behind(plan, unit, gpu.index) if plan else 1,
        )
        before = memory.loops.get(gpu.uuid, LoopMemory())
        after = loop_tick(settings, before, seen)
        state = after.state
        if len(candidates) > 1 and state is not None:
            after = replace(after, state=replace(state, constraint=Constraint.NO_TARGET))
        manual = gpu.index in snapshot.orders.loops
        if (manual or not config.control.enabled) and plan is not None:
            after = _manual(snapshot, before, after, gpu.index)
        if after.state is not None:
            draft.loops.append(after.state)
            _tell_move(before, after, draft)
        if (
            plan is not None
            and unit is not None
            and plan.enforced
            and after.output_cores is not None
        ):
            draft.limit(unit, Limits(cpu_quota_cores=after.output_cores))
        kept[gpu.uuid] = after
    return kept


def _manual(snapshot: Snapshot, before: LoopMemory, after: LoopMemory, index: int) -> LoopMemory:
    """The loop is off: the quota set by hand stands, the measuring goes on."""
    quota = snapshot.orders.loops.get(index)
    state = after.state
    if state is not None:
        state = replace(state, constraint=Constraint.OFF, output_cores=quota, moves=before.moves)
    return replace(
        after, output_cores=quota, state=state, pid=after.pid.forget(), moves=before.moves
    )


def _ranks_behind(plan: _JobPlan, unit: str | None, index: int) -> int:
    """How many ranks starve where a unit does: all of them where it is the main scope."""
    if unit == lay.main_scope(plan.job.name):
        return max(1, len(plan.job.with_role(Role.RANK)))
    return max(1, sum(gpu == index for gpu in plan.memory.gpus.values()))


def loop_settings(
    config: Config, node_cpus: int, gpu: GpuSample, tier: str | None, ranks: int
) -> LoopSettings:
    """One GPU's loop settings from the configuration; quotas in cores, the floor for ``ranks``."""
    control = config.control
    cap = config.tiers[tier].cap.cores(node_cpus) if tier else None
    ceiling = float(node_cpus) if cap is None else min(cap, float(node_cpus))
    return LoopSettings(
        target=control.target_of(gpu.index, gpu.uuid),
        dead_band=control.dead_band,
        period_s=control.period_s,
        settle_s=control.period_s * SETTLE_SHARE,
        stale_after_s=control.stale_after_s,
        min_samples=max(1, math.floor(control.period_s * control.min_samples_ratio)),
        max_step=control.max_step,
        gains=PidGains(control.gain, control.integral_time_s, control.derivative_time_s),
        floor_cores=min(control.floor_per_rank_cores * ranks, ceiling),
        ceiling_cores=ceiling,
    )


def _tell_move(before: LoopMemory, after: LoopMemory, draft: _Draft) -> None:
    state = after.state
    if state is None or after.moves == before.moves or state.process_variable is None:
        return
    old = "max" if before.output_cores is None else f"{before.output_cores:.2f}"
    draft.notes.append(
        Note(
            kind="quota-moved",
            subject=f"gpu{state.index}",
            message=(
                f"GPU {state.index} busy {state.process_variable:.0%} (target {state.setpoint:.0%} "
                f"±{state.band * 100:.0f}): quota {old} -> {state.output_cores:.2f} cores"
            ),
            severity=Severity.INFO,
            fields={
                "gpu": str(state.index),
                "job": state.job or "",
                "unit": state.unit or "",
                "process_variable": f"{state.process_variable:.4f}",
                "output_cores": f"{state.output_cores:.4f}",
            },
        )
    )


# ------------------------------------------------------------------------------------ micro-batch


def _micro_batch(config: Config, snapshot: Snapshot, plan: _JobPlan, draft: _Draft) -> BatchMemory:
    job, choice = plan.job, plan.choice
    trainers = [
        snapshot.trainers[m.id] for m in job.with_role(Role.RANK) if m.id in snapshot.trainers
    ]
    gpus = tuple(sorted(set(plan.memory.gpus.values())))
    memory = plan.memory.batch
    if len(trainers) == 1 and trainers[0].world_size == 1 and plan.enforced:
        memory = _wish(config, snapshot, plan, trainers[0], draft)
    draft.jobs.append(
        JobState(
            job=job.name,
            tier=choice.tier,
            tier_rule=choice.rule,
            mode=choice.mode,
            slice=plan.layout.slice,
            units=plan.layout.units,
            gpus=gpus,
            micro_batch=trainers[0].running_micro_batch if trainers else None,
            wished_micro_batch=memory.wished,
            micro_batch_reason=memory.reason,
        )
    )
    return memory


def _wish(
    config: Config, snapshot: Snapshot, plan: _JobPlan, trainer: TrainerReport, draft: _Draft
) -> BatchMemory:
    before = plan.memory.batch
    memory = before
    if "micro_batch" in trainer.cannot:
        return memory
    ordered = snapshot.orders.micro_batches.get(plan.job.name)
    if ordered is not None:
        size = rung_at_most(trainer, ordered)
        if memory.wished != size:
            memory = replace(
                memory,
                wished=size,
                sequence=memory.sequence + 1,
                reason="set by hand",
                changed_at=snapshot.now,
            )
    elif config.micro_batch.enabled and plan.choice.tier in LOOPED_TIERS:
        limits = config.micro_batch
        settings = BatchSettings(
            limits.memory_ceiling, limits.memory_protect, limits.wait_share, limits.settle_s
        )
        index = next(iter(plan.memory.gpus.values()), None)
        gpu = next((g for g in snapshot.gpus.gpus if g.index == index), None)
        loop = next((s for s in draft.loops if s.index == index and s.job == plan.job.name), None)
        memory = batch_tick(settings, memory, snapshot.now, trainer, gpu, loop)
    if memory.wished is None:
        return memory
    draft.micro_batches.append(
        MicroBatchWish(
            trainer.process, plan.job.name, memory.wished, memory.sequence, memory.reason
        )
    )
    if memory.sequence != before.sequence:
        draft.notes.append(_batch_note(plan.job.name, trainer, memory))
    return memory


def _batch_note(job: str, trainer: TrainerReport, memory: BatchMemory) -> Note:
    return Note(
        kind="micro-batch-wished",
        subject=job,
        message=(
            f"micro-batch {trainer.running_micro_batch} -> {memory.wished} asked of the trainer "
            f"({memory.reason})"
        ),
        fields={"job": job, "micro_batch": str(memory.wished), "reason": memory.reason},
    )
