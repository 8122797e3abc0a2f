# SPDX-License-Identifier: Apache-2.0
"""What a good configuration reads as, and that what ships is what the table says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml
from swift_governor.config import (
    Address,
    Cap,
    Config,
    GpuControl,
    JobMatch,
    JobOverride,
    default_config,
    effective,
    load,
)
from swift_governor.config_kinds import Scalar
from swift_governor.config_schema import KEYS, SECTIONS, VERBS, Key, Section, children
from swift_governor.model import Mode

SHIPPED = Path(__file__).parents[3] / "etc" / "swift-governor" / "config.yaml"


def config_of(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return load(str(file))


def test_the_shipped_file_is_the_defaults():
    assert load(str(SHIPPED)) == default_config()


def test_the_shipped_file_sets_every_key_of_the_table():
    config = load(str(SHIPPED))
    chosen_by_the_person = {key.path for key in KEYS if "[]" in key.path or "*" in key.path}
    assert {key.path for key in KEYS} - chosen_by_the_person <= set(config.sources)
    text = SHIPPED.read_text(encoding="utf-8")
    for path in chosen_by_the_person:
        assert re.search(rf"^ *#.*\b{path.rpartition('.')[2]}: ", text, re.M), path


def test_the_examples_in_the_shipped_comments_are_right(tmp_path):
    text = SHIPPED.read_text(encoding="utf-8")
    examples = re.findall(r"^(?: *#   (?:  )*\S.*\n)+", text, re.M)
    examples = [re.sub(r"^ *#   ", "", example, flags=re.M) for example in examples]
    jobs, gpus = (
        next(e for e in examples if e.startswith(f"{name}:")) for name in ("jobs", "gpus")
    )
    assert len(config_of(tmp_path, jobs).jobs) == 2
    indented = "".join(f"  {line}\n" for line in gpus.splitlines())
    assert len(config_of(tmp_path, "control:\n" + indented).control.gpus) == 2


def test_every_section_makes_what_its_fields_say():
    for section in SECTIONS:
        if section.make is dict:
            continue
        names = {
            what.field if isinstance(what, Key) else name
            for name, what in children(section.path).items()
        }
        fields = {f.name for f in dataclasses.fields(section.make)}
        optional = {"policy", "otherwise", "sources", "files"}
        assert names <= fields
        assert fields - names <= optional


def test_every_key_has_help_and_every_default_can_be_shown_and_read_again():
    for key in KEYS:
        assert key.help
        if key.default is not None and not key.many:
            value = key.kind.parse(Scalar(key.default, tag=_tag(key.default)))
            shown = yaml.compose(key.kind.show(value), yaml.SafeLoader)
            assert key.kind.parse(Scalar(shown.value, tag=shown.tag.rpartition(":")[2])) == value
    assert all(isinstance(s, Section) and (s.help or not s.path) for s in SECTIONS)


def _tag(text: str) -> str:
    return "bool" if text in ("true", "false") else "str"


def test_an_empty_file_and_empty_sections_give_the_defaults(tmp_path):
    assert config_of(tmp_path, "") == default_config()
    assert config_of(tmp_path, "# nothing\n---\n") == default_config()
    assert config_of(tmp_path, "poll:\ntiers:\n  training:\n") == default_config()
    assert config_of(tmp_path, "\ufeffpoll: {}\n") == default_config()


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("30 s", 30), ("30s", 30), ("5 min", 300), ("0.1 h", 360), ("5500 ms", 5.5), ('"30 s"', 30)],
)
def test_times_have_units(tmp_path, written, seconds):
    assert config_of(tmp_path, f"control: {{period: {written}}}").control.period_s == seconds


@pytest.mark.parametrize(
    ("written", "cap", "of_16"),
    [
        ("60 %", Cap(share=0.6), 9.6),
        ("2 cores", Cap(count=2.0), 2.0),
        ("1 core", Cap(count=1.0), 1.0),
        ("2.5 cores", Cap(count=2.5), 2.5),
        ("none", Cap(), None),
    ],
)
def test_a_cap_is_of_the_node_or_in_cores(tmp_path, written, cap, of_16):
    read = config_of(tmp_path, f"tiers: {{training: {{cap: {written}}}}}").tiers["training"].cap
    assert read == cap
    assert read.cores(16) == (None if of_16 is None else pytest.approx(of_16))


def test_the_first_override_that_matches_has_its_say(tmp_path):
    config = config_of(
        tmp_path,
        "jobs:\n  - {match: {user: 1000, verb: sft}, mode: observe}\n"
        '  - {match: {job: "sft*"}, tier: evaluation}\n',
    )
    assert config.jobs == (
        JobOverride(JobMatch(user="1000", verb="sft"), mode=Mode.OBSERVE),
        JobOverride(JobMatch(job="sft*"), tier="evaluation"),
    )
    first, second = config.jobs
    assert first.match.covers("sft1x2", ("alice", "1000"), "sft")
    assert not first.match.covers("sft1x2", ("alice", "1000"), "pt")
    assert not first.match.covers("sft1x2", ("bob", "1001"), "sft")
    assert second.match.covers("sft1x2", ("bob",), "sft")
    assert not second.match.covers("pt1x2", ("bob",), "pt")


def test_a_gpu_has_the_target_of_its_uuid_then_of_its_index_then_of_all(tmp_path):
    uuid = "GPU-5f0d8a3e-7c1b-4a92-8e64-2b9c1d7f6a05"
    control = config_of(
        tmp_path,
        f'control: {{target: 90 %, gpus: {{"0": {{target: 70 %}}, {uuid}: {{target: 80 %}}}}}}',
    ).control
    assert control.gpus["0"] == GpuControl(0.7)
    assert control.target_of(0, uuid) == 0.8
    assert control.target_of(0, "GPU-other") == 0.7
    assert control.target_of(1, "GPU-other") == 0.9


def test_the_defaults_give_every_verb_a_tier():
    tiers = default_config().tiers.values()
    assert sorted(verb for tier in tiers for verb in tier.verbs) == sorted(VERBS)


def test_a_verb_that_no_tier_lists_is_training(tmp_path):
    config = config_of(tmp_path, "tiers: {evaluation: {verbs: [eval]}}")
    assert config.tier_of_verb("eval") == "evaluation"
    assert config.tier_of_verb("deploy") == "inference"
    assert config.tier_of_verb("merge-lora") == "training"


@pytest.mark.parametrize(
    ("written", "address"),
    [("127.0.0.1:80", Address("127.0.0.1", 80)), ('"[::1]:11470"', Address("::1", 11470))],
)
def test_addresses_of_both_families(tmp_path, written, address):
    assert config_of(tmp_path, f"exporter: {{listen: {written}}}").exporter.listen == address


def test_drop_ins_are_laid_over_in_the_order_of_their_names(tmp_path):
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "20-b.yaml").write_text(
        "tiers: {training: {nice: 10}}\ncarriers: []\n"
    )
    (tmp_path / "config.d" / "10-a.yaml").write_text("tiers: {training: {nice: 5, weight: 7}}\n")
    (tmp_path / "config.d" / ".hidden.yaml").write_text("mode: nonsense\n")
    (tmp_path / "config.d" / "README").write_text("not read\n")
    config = config_of(
        tmp_path, "tiers: {training: {cap: 50 %, weight: 3}}\ncarriers: [a.service]\n"
    )
    training = config.tiers["training"]
    assert (training.nice, training.weight, training.cap) == (10, 7, Cap(share=0.5))
    assert config.carriers == ()
    assert [Path(f).name for f in config.files] == ["config.yaml", "10-a.yaml", "20-b.yaml"]
    assert config.sources["tiers.training.weight"].endswith("10-a.yaml:1")
    assert config.sources["tiers.training.cap"].endswith("config.yaml:1")
    assert "tiers.training.io_class" not in config.sources


def test_a_drop_in_can_be_checked_alone(tmp_path):
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "a.yaml").write_text("mode: observe\n")
    (tmp_path / "config.d" / "b.yaml").write_text("mode: nonsense\n")
    assert load(str(tmp_path / "config.d" / "a.yaml")).mode is Mode.OBSERVE


def test_the_effective_configuration_names_the_source_of_each_value(tmp_path):
    text = effective(
        config_of(tmp_path, "tick:\n  period: 2 s\njobs:\n- {match: {verb: pt}, mode: observe}\n")
    )
    file = tmp_path / "config.yaml"
    assert re.search(rf"^  period: 2 s +# {file}:2$", text, re.M)
    assert re.search(rf"^    mode: observe +# {file}:4$", text, re.M)
    assert re.search(r"^mode: enforce +# default$", text, re.M)
