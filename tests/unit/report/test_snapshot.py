# SPDX-License-Identifier: Apache-2.0
"""The snapshot is complete, strict JSON, and tells nobody's secrets."""

from __future__ import annotations

import dataclasses
import json
import math

from swift_governor.model import ActState, Decision, GpuReading, SamplerStatus
from swift_governor.report import snapshot
from swift_governor.report.cpu_rates import CpuRates
from swift_governor.report.safe_text import printable

from tests.unit.report.examples import NOW, SECRET, Tick, example_job, gpu_uuid, job_name, node


def strict(tick: Tick) -> dict:
    told = snapshot.make(*tick)
    text = json.dumps(told, allow_nan=False)
    text.encode("utf-8")
    assert json.loads(text) == told
    return told


def test_a_job_tells_its_tier_units_processes_and_trainer():
    told = strict(node())
    job = told["jobs"][1]
    assert (job["name"], job["user"], job["tier"], job["mode"]) == (
        job_name(1),
        "bob",
        "training",
        "enforce",
    )
    assert job["processes"] == {"launcher": 1, "rank": 1, "loader": 4}
    assert job["contained"] == 6
    assert [unit["unit"].rpartition(".")[2] for unit in job["units"]] == ["slice", "scope", "scope"]
    loader = job["units"][2]
    assert (loader["quota_cores"], loader["wished_quota_cores"], loader["cpu_cores"]) == (4, 4, 3.4)
    assert loader["throttled_s"] == 9.25
    assert job["micro_batch"] == {"running": 4, "wished": 8, "reason": "the job waits for nothing"}
    assert job["trainer"]["samples_per_s"] == 17.75
    assert job["trainer"]["cannot"] == {"workers": "the loader has been made"}
    assert told["jobs"][2]["multi_node"]


def test_no_command_line_environment_or_users_path_is_told():
    text = json.dumps(snapshot.make(*node()))
    assert SECRET not in text
    assert "CUDA_VISIBLE_DEVICES" not in text
    assert "/opt/conda" not in text


def test_a_tier_without_jobs_is_told_too():
    tiers = {tier["name"]: tier for tier in strict(node())["tiers"]}
    assert tiers["evaluation"]["jobs"] == 0
    assert tiers["training"]["jobs"] == 2


def test_values_of_a_stale_gpu_reading_are_not_told_as_current():
    tick = node()
    late = dataclasses.replace(tick.snapshot, now=NOW + 60)
    told = strict(tick._replace(snapshot=late))
    assert told["gpus"][0]["stale"]
    assert told["gpus"][0]["utilization"] is None
    assert told["gpus"][0]["age_s"] == 60.5
    assert not told["sampler"]["up"]


def test_a_node_without_driver_and_jobs_is_a_normal_snapshot():
    tick = node(jobs=0, gpus=0)
    bare = dataclasses.replace(tick.snapshot, gpus=GpuReading(SamplerStatus.NO_DRIVER, "no libs"))
    told = strict(Tick(bare, Decision(), ActState(), tick.self_state))
    assert told["sampler"] == {
        "status": "no-driver",
        "up": False,
        "detail": "no libs",
        "driver": "",
        "age_s": None,
    }
    assert told["act"]["containment"]["median_s"] is None


def test_a_job_nothing_was_decided_for_is_told_all_the_same():
    tick = node(jobs=1)
    new = dataclasses.replace(tick.snapshot, jobs=(*tick.snapshot.jobs, example_job(9)))
    assert strict(tick._replace(snapshot=new))["jobs"][1]["tier"] is None


def test_hostile_text_and_numbers_become_printable_and_finite():
    tick = node(users=("ev\x1b]0;il\udcff",))
    gpu = dataclasses.replace(
        tick.snapshot.gpus.gpus[0], uuid=gpu_uuid(0) + "\n", utilization=math.nan, power_w=math.inf
    )
    reading = dataclasses.replace(tick.snapshot.gpus, gpus=(gpu,))
    told = strict(tick._replace(snapshot=dataclasses.replace(tick.snapshot, gpus=reading)))
    assert told["jobs"][0]["user"] == "ev\\x1b]0;il\\xff"
    assert told["gpus"][0]["uuid"].endswith("4\\x0a")
    assert told["gpus"][0]["utilization"] is None
    assert told["gpus"][0]["power_w"] is None


def test_text_is_cut_where_it_is_too_long():
    assert printable("x" * 10_000_000, 8) == "x" * 7 + "…"


def test_cpu_rates_follow_the_counters_and_forget_units():
    rates = CpuRates()
    tick = node(jobs=1)
    unit, reading = next(iter(tick.snapshot.units.items()))

    def at(seconds, usage):
        units = {} if usage is None else {unit: dataclasses.replace(reading, cpu_usage_s=usage)}
        return dataclasses.replace(tick.snapshot, now=NOW + seconds, units=units)

    assert rates.update(at(0, 10.0)) == {}
    assert rates.update(at(2, 13.0)) == {unit: 1.5}
    assert rates.update(at(2.1, 13.3)) == {unit: 1.5}, "two readings too near are no new rate"
    assert rates.update(at(4, 2.0)) == {}, "a unit made anew counts from zero"
    assert rates.update(at(6, 4.0)) == {unit: 1.0}
    assert rates.update(at(7, None)) == {}
    assert rates.update(at(8, 9.0)) == {}
