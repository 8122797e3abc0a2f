# SPDX-License-Identifier: Apache-2.0
"""The table, what is rendered from it, promtool and the naming rules agree."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families
from swift_governor.exporter.page import render
from swift_governor.model import Decision
from swift_governor.report import snapshot
from swift_governor.report.metrics_table import EXPORTER_TABLE, GOVERNOR_TABLE, PREFIX, TABLE

from tests.unit.report.examples import gpu_uuid, job_name, node


def page(tick) -> str:
    head = render(EXPORTER_TABLE, {"exporter": {"up": 1, "failures": 0}})
    return (head + render(GOVERNOR_TABLE, snapshot.make(*tick))).decode()


def samples(text: str) -> dict[str, list]:
    found: dict[str, list] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def rich():
    tick = node(jobs=5, gpus=8, users=('ali"ce\\', "李小龍"))
    units = {
        name: dataclasses.replace(next(iter(tick.snapshot.units.values())), cpu_quota_cores=38.4)
        for name in tick.self_state.tier_slices.values()
    }
    full = dataclasses.replace(tick.snapshot, units={**tick.snapshot.units, **units})
    return tick._replace(snapshot=full)


def test_promtool_finds_nothing_wrong_with_a_rich_page():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=page(rich()),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_tables_names_and_labels_are_those_rendered():
    found = samples(page(rich()))
    assert set(found) == {metric.name for metric in TABLE}
    for metric in TABLE:
        assert {tuple(sorted(sample.labels)) for sample in found[metric.name]} == {
            tuple(sorted(metric.labels))
        }


def test_no_series_is_told_twice():
    found = samples(page(rich()))
    for name, series in found.items():
        keys = [tuple(sorted(sample.labels.items())) for sample in series]
        assert len(keys) == len(set(keys)), name


def test_names_are_unique_prefixed_and_carry_no_forbidden_label():
    names = [metric.name for metric in TABLE]
    assert len(names) == len(set(names))
    for metric in TABLE:
        assert metric.name.startswith(PREFIX)
        assert not {"job", "pid", "cmdline", "instance"} & set(metric.labels)
        assert metric.help
        assert metric.kind == ("counter" if metric.name.endswith("_total") else "gauge")
        if "gpu" in metric.labels:
            assert "UUID" in metric.labels, "joins with dcgm-exporter"


def test_an_unlimited_quota_has_no_sample():
    found = samples(page(node()))
    quotas = {s.labels["unit"]: s.value for s in found[PREFIX + "unit_cpu_quota_cores"]}
    assert set(quotas.values()) == {4.0}
    assert not any(unit.endswith("-main.scope") for unit in quotas)
    assert PREFIX + "tier_cpu_quota_cores" not in found


def test_the_series_of_an_ended_job_vanish():
    tick = node(jobs=3)
    assert job_name(1) in page(tick)
    ended = dataclasses.replace(
        tick.snapshot, jobs=tuple(j for j in tick.snapshot.jobs if j.name != job_name(1))
    )
    assert job_name(1) not in page(tick._replace(snapshot=ended, decision=Decision()))


def test_a_loops_constraint_is_one_of_all_states():
    found = samples(page(node(gpus=8)))
    states = [s for s in found[PREFIX + "loop_constraint"] if s.labels["UUID"] == gpu_uuid(1)]
    assert sum(s.value for s in states) == 1
    assert next(s for s in states if s.value).labels["constraint"] == "dead-band"


def test_ratios_are_between_0_and_1():
    for name, series in samples(page(rich())).items():
        if name.endswith("_ratio"):
            assert all(0 <= sample.value <= 1 for sample in series), name
