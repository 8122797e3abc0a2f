# SPDX-License-Identifier: Apache-2.0
"""Whole decisions: tiers, units, priorities, modes, and who is left where it is."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from swift_governor.config import default_config
from swift_governor.config_model import JobMatch, JobOverride, Policy
from swift_governor.decide.batch import rungs
from swift_governor.decide.decide import decide
from swift_governor.decide.layout import adopted_gpus, adopted_tier
from swift_governor.decide.memory import Memory
from swift_governor.model import IoClass, Job, Limits, Mode, Orders, ProcessId, Role, Snapshot

from tests.unit.decide.nodes import gpu, job, member, snapshot, trainer

CONFIG = default_config()


def test_a_training_job_gets_its_slice_scopes_weight_cap_and_priorities() -> None:
    decision, _ = decide(CONFIG, snapshot(1, job(), sample=gpu(1, 0.5)), Memory())
    placed = {p.unit: (p.slice, [i.pid for i in p.pids]) for p in decision.placements}
    in_slice = "msswift-training-u1000-sft100x1.slice"
    assert placed == {
        "msswift-sft100x1-main.scope": (in_slice, [100, 101]),
        "msswift-sft100x1-gpu0.scope": (in_slice, [110, 111]),
    }
    assert decision.limits["msswift-training.slice"] == Limits(20, pytest.approx(9.6))
    assert {(w.nice, w.io_class) for w in decision.priorities} == {(15, IoClass.IDLE)}
    assert len(decision.priorities) == 4


def test_a_job_whose_gpu_is_not_known_is_contained_all_the_same() -> None:
    decision, _ = decide(CONFIG, snapshot(1, job()), Memory())
    (main,) = decision.placements
    assert main.unit == "msswift-sft100x1-main.scope"
    assert len(main.pids) == 4


TREE = "/msswift.slice/msswift-training.slice/msswift-training-u1000.slice"


def _contained(gpu_index: int, below: str = "") -> Job:
    made = job()
    job_slice = f"{below}{TREE}/msswift-training-u1000-{made.name}.slice"
    scopes = {Role.LOADER: f"msswift-{made.name}-gpu{gpu_index}.scope"}
    main = f"msswift-{made.name}-main.scope"
    return replace(
        made,
        members=tuple(
            replace(m, process=replace(m.process, cgroup=f"{job_slice}/{scopes.get(m.role, main)}"))
            for m in made.members
        ),
    )


def test_after_a_restart_loaders_stay_in_their_scope_though_nvml_says_nothing_yet() -> None:
    decision, memory = decide(CONFIG, snapshot(1, _contained(2)), Memory())
    placed = {p.unit: [i.pid for i in p.pids] for p in decision.placements}
    assert placed["msswift-sft100x1-gpu2.scope"] == [110, 111]
    # NVML knows better as soon as it speaks.
    decision, _ = decide(CONFIG, snapshot(2, _contained(2), sample=gpu(2, 0.5)), memory)
    assert "msswift-sft100x1-gpu0.scope" in {p.unit for p in decision.placements}


def test_a_cgroup_that_a_user_named_like_ours_tells_nothing_of_tier_or_gpu() -> None:
    made = _contained(2, below="/user.slice/user-1000.slice/user@1000.service")
    assert adopted_tier(made) is None
    assert not adopted_gpus(made)
    assert adopted_tier(_contained(2)) == "training"


def test_in_observe_nothing_is_wished_and_everything_is_told() -> None:
    config = replace(CONFIG, mode=Mode.OBSERVE)
    memory = Memory()
    for now in range(120):
        seen = snapshot(now, job(), sample=gpu(now, 1.0, used=0.99), trainers=_linked(now))
        decision, memory = decide(config, seen, memory)
        assert not decision.placements
        assert not decision.limits
        assert not decision.priorities
        assert not decision.micro_batches
    assert "would be placed in msswift-training-u1000-sft100x1.slice" in decision.observed[0]


def _linked(now: float, **more: object) -> dict[ProcessId, object]:
    report = trainer(now, **more)
    return {report.process: report}


@pytest.mark.parametrize(
    ("cgroup", "word"),
    [
        ("/system.slice/foo.service", "foo.service"),
        ("/kubepods.slice/kubepods-pod1.slice/cri-containerd-x.scope", "Kubernetes"),
        ("/system.slice/docker-0a1b.scope", "Docker"),
        ("/system.slice/slurmstepd.scope/job_1/step_0/user/task_0", "Slurm"),
    ],
)
def test_what_another_manager_owns_is_left_where_it_is_with_the_reason(cgroup: str, word: str):
    decision, _ = decide(CONFIG, snapshot(1, job(cgroup=cgroup)), Memory())
    assert not decision.placements
    assert not decision.priorities
    assert not decision.limits
    assert len(decision.left_alone) == 4
    assert all(word in left.reason for left in decision.left_alone)


def test_nobody_gets_the_inference_tier_by_choosing_a_verb() -> None:
    decision, _ = decide(CONFIG, snapshot(1, job("infer100x1", "infer")), Memory())
    assert decision.jobs[0].tier == "training"
    assert "policy" in decision.jobs[0].tier_rule


def test_the_policy_names_users_groups_and_units_of_the_inference_tier() -> None:
    seen = snapshot(1, job("infer100x1", "infer"), users={1000: "ana"}, groups={1000: ("ml",)})
    inference = CONFIG.tiers["inference"]
    for policy in (
        Policy(("ana",), (), ()),
        Policy(("1000",), (), ()),
        Policy((), ("ml",), ()),
        Policy((), (), ("session-*.scope",)),
    ):
        tiers = {**CONFIG.tiers, "inference": replace(inference, policy=policy)}
        decision, _ = decide(replace(CONFIG, tiers=tiers), seen, Memory())
        assert decision.jobs[0].tier == "inference"


def test_a_tier_given_by_the_unit_it_came_from_stays_after_it_was_moved() -> None:
    policy = Policy((), (), ("session-*.scope",))
    tiers = {**CONFIG.tiers, "inference": replace(CONFIG.tiers["inference"], policy=policy)}
    config = replace(CONFIG, tiers=tiers)
    _, memory = decide(config, snapshot(1, job("infer100x1", "infer")), Memory())
    moved = (
        "/msswift.slice/msswift-inference.slice/msswift-inference-u1000.slice/"
        "msswift-inference-u1000-infer100x1.slice/msswift-infer100x1-main.scope"
    )
    seen = snapshot(2, job("infer100x1", "infer", cgroup=moved))
    for remembered in (memory, Memory()):
        decision, _ = decide(config, seen, remembered)
        assert decision.jobs[0].tier == "inference"


def test_the_first_matching_entry_of_jobs_decides_tier_and_mode() -> None:
    overrides = (
        JobOverride(JobMatch(user="1000"), tier="evaluation", mode=Mode.OBSERVE),
        JobOverride(JobMatch(verb="sft"), tier="training"),
    )
    decision, _ = decide(replace(CONFIG, jobs=overrides), snapshot(1, job()), Memory())
    assert (decision.jobs[0].tier, decision.jobs[0].mode) == ("evaluation", Mode.OBSERVE)
    assert not decision.placements


def test_an_order_by_hand_switches_one_loop_off_and_sets_its_quota() -> None:
    orders = Orders(loops={0: 1.25})
    memory, decision, told = Memory(), None, []
    for now in range(60):
        seen = snapshot(now, job(), sample=gpu(now, 0.3), orders=orders)
        decision, memory = decide(CONFIG, seen, memory)
        told += [note.kind for note in decision.notes]
    assert decision is not None
    assert "quota-moved" not in told
    assert decision.loops[0].moves == 0
    assert decision.limits["msswift-sft100x1-gpu0.scope"].cpu_quota_cores == 1.25
    assert decision.loops[0].constraint.value == "off"


def test_two_jobs_on_one_gpu_have_no_loop_between_them() -> None:
    other = job("sft200x1")
    shifted = tuple(
        dataclasses.replace(m, process=replace(m.process, id=ProcessId(m.process.pid + 100, 5)))
        for m in other.members
    )
    other = replace(other, members=shifted)
    seen = snapshot(1, job(), other, sample=gpu(1, 0.5, pids=(101, 201)))
    decision, _ = decide(CONFIG, seen, Memory())
    assert decision.loops[0].job is None
    assert decision.loops[0].constraint.value == "no-actuator"


def test_loops_of_gpus_that_share_the_main_scope_never_write_it_twice() -> None:
    ranks = (
        member(Role.LAUNCHER, 100),
        replace(member(Role.RANK, 101, rank=0), gpu_hint="0"),
        replace(member(Role.RANK, 102, rank=1), gpu_hint="1"),
    )
    seen = snapshot(1, replace(job(), members=ranks))
    gpus = (gpu(1, 0.5), replace(gpu(1, 0.5, pids=(102,)), uuid="GPU-b", index=1))
    seen = replace(seen, gpus=replace(seen.gpus, gpus=gpus))
    decision, _ = decide(CONFIG, seen, Memory())
    units = [state.unit for state in decision.loops if state.unit]
    assert units == ["msswift-sft100x1-main.scope"]
    floors = [state.floor_cores for state in decision.loops if state.unit]
    assert floors == [2 * CONFIG.control.floor_per_rank_cores]


# ------------------------------------------------------------------------------------ micro-batch


def run_batch(seconds: int, used: float = 0.5, utilization: float = 0.5, **report: object):
    memory, decision = Memory(), None
    running = report.pop("running_micro_batch", 4)
    sizes = []
    for now in range(seconds):
        linked = _linked(now, running_micro_batch=running, **report)
        seen = snapshot(now, job(), sample=gpu(now, utilization, used), trainers=linked)
        decision, memory = decide(CONFIG, seen, memory)
        if decision.micro_batches:
            running = decision.micro_batches[0].micro_batch
        sizes.append(running)
    return decision, sizes


def test_memory_above_the_protected_share_halves_the_micro_batch_once() -> None:
    """And not again while the memory does not fall: halving did not help."""
    _, sizes = run_batch(600, used=0.98)
    assert sizes[-1] == 2
    assert sorted(set(sizes)) == [2, 4]


def test_a_job_that_waits_for_data_never_gets_a_larger_micro_batch() -> None:
    _, sizes = run_batch(600, wait_share=0.2)
    assert set(sizes) == {4}


def test_a_larger_micro_batch_that_brings_nothing_is_taken_back() -> None:
    _, sizes = run_batch(900, used=0.2, wait_share=0.0)
    assert sizes[-1] == 4
    assert 8 in sizes


def test_a_larger_micro_batch_is_not_tried_where_memory_would_not_hold_it() -> None:
    _, sizes = run_batch(900, used=0.6, wait_share=0.0)
    assert set(sizes) == {4}


def test_an_out_of_memory_error_blames_the_running_size_and_is_remembered() -> None:
    memory = Memory()
    decision, memory = decide(CONFIG, _batch_snapshot(0), memory)
    decision, memory = decide(
        CONFIG, _batch_snapshot(1, oom_count=1, last_oom_micro_batch=4), memory
    )
    assert decision.micro_batches[0].micro_batch == 2
    for now in range(2, 900):
        report = {"oom_count": 1, "last_oom_micro_batch": 4, "running_micro_batch": 2}
        decision, memory = decide(CONFIG, _batch_snapshot(now, **report), memory)
        assert decision.micro_batches[0].micro_batch == 2


def _batch_snapshot(now: float, **report: object) -> Snapshot:
    return snapshot(now, job(), sample=gpu(now, 0.5, 0.2), trainers=_linked(now, **report))


def test_a_trainer_that_refuses_is_asked_again_when_memory_is_short_and_does_not_block() -> None:
    memory, asked = Memory(), set()
    for now in range(400):
        report = {"answered_sequence": max(asked, default=0), "running_micro_batch": 4}
        seen = snapshot(now, job(), sample=gpu(now, 0.5, 0.99), trainers=_linked(now, **report))
        decision, memory = decide(CONFIG, seen, memory)
        asked |= {w.sequence for w in decision.micro_batches}
    assert len(asked) > 1
    assert "keeps 4" in decision.jobs[0].micro_batch_reason or decision.micro_batches


def test_a_trainer_that_cannot_change_is_asked_nothing() -> None:
    _, sizes = run_batch(300, used=0.99, cannot={"micro_batch": "GRPO"})
    assert set(sizes) == {4}


def test_a_micro_batch_set_by_hand_becomes_the_nearest_rung_below() -> None:
    seen = replace(_batch_snapshot(1), orders=Orders(micro_batches={"sft100x1": 7}))
    decision, _ = decide(CONFIG, seen, Memory())
    assert decision.micro_batches[0].micro_batch == 6
    assert decision.micro_batches[0].reason == "set by hand"


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 16, 64, 100, 999])
def test_rungs_are_exactly_the_near_equal_chunk_sizes(rows: int) -> None:
    assert rungs(rows) == tuple(sorted({-(-rows // n) for n in range(1, rows + 1)}))
