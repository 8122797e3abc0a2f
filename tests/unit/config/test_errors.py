# SPDX-License-Identifier: Apache-2.0
"""Every kind of error says where it is, what is allowed, and what was probably meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from swift_governor.config import ConfigError, Problem, load


def errors_of(path: Path) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    return caught.value.errors


def only_error(tmp_path: Path, text: str) -> Problem:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    errors = errors_of(file)
    assert len(errors) == 1, [str(e) for e in errors]
    assert errors[0].file == str(file)
    return errors[0]


# what is written, line, column, a part of what is said, a part of what is allowed, nearest
KINDS = {
    "an unknown key": (
        "tiers:\n  training:\n    weigth: 5\n",
        (3, 5),
        "unknown key `weigth` in tiers.training",
        "verbs, weight, cap",
        "weight",
    ),
    "an unknown key at the top": ("mod: observe\n", (1, 1), "`mod`", "mode, poll", "mode"),
    "an unknown word": ("mode: enforced\n", (1, 7), "`enforced`", "enforce or observe", "enforce"),
    "an unknown verb": (
        "tiers: {training: {verbs: [sft, rlfh]}}",
        (1, 33),
        "`rlfh`",
        "app, deploy, eval",
        "rlhf",
    ),
    "text for a number": (
        "tiers:\n  training:\n    weight: heavy\n",
        (3, 13),
        "`heavy` is not a whole number",
        "a whole number from 1 to 10000",
        "",
    ),
    "a fraction for a whole number": (
        "tiers: {training: {nice: 1.5}}",
        (1, 26),
        "`1.5` is not a whole number",
        "from 0 to 19",
        "",
    ),
    "a number in quotes": ('control: {gain: "1"}', (1, 17), "in quotes", "from 0.01 to 10", "1"),
    "no number at all": ("control: {gain: .nan}", (1, 17), "`.nan`", "from 0.01 to 10", ""),
    "a value above its range": (
        "tiers: {training: {nice: 20}}",
        (1, 26),
        "`20` is out of range",
        "from 0 to 19",
        "",
    ),
    "a value below its range": (
        "control: {period: 1 s}",
        (1, 19),
        "`1 s` is out of range",
        "from 5 s to 10 min",
        "",
    ),
    "a missing unit": (
        "control:\n  period: 30\n",
        (2, 11),
        "`30` has no unit",
        "a time from 5 s to 10 min",
        "30 s",
    ),
    "a missing percent sign": ("control: {target: 95}", (1, 19), "no unit", "5 % to", "95 %"),
    "a missing unit of a cap": (
        "tiers: {training: {cap: 3}}",
        (1, 25),
        "no unit",
        "or none",
        "3 cores",
    ),
    "a missing percent sign of a cap, which as cores would be no cap at all": (
        "tiers: {training: {cap: 80}}",
        (1, 25),
        "no unit",
        "or none",
        "80 %",
    ),
    "a unit that there is not": ("tick: {period: 1 sec}", (1, 16), "`sec`", "a time", "1 s"),
    "a unit of something else": (
        "micro_batch: {memory_ceiling: 16 GiB}",
        (1, 31),
        "`16 GiB` is an amount of memory",
        "a share from 10 % to 100 %",
        "",
    ),
    "cores where time is due": ("tick: {period: 2 cores}", (1, 16), "a number of cores", "", ""),
    "a word for a flag": ("control: {enabled: ture}", (1, 20), "`ture`", "true or false", "true"),
    "a cap that is no word for none": (
        "tiers: {training: {cap: unlimited}}",
        (1, 25),
        "`unlimited`",
        "or none",
        "none",
    ),
    "a key without a value": ("mode:\n", (1, 6), "has no value", "enforce or observe", ""),
    "a list for a value": ("mode: [observe]\n", (1, 7), "a list is no value", "enforce", ""),
    "a mapping for a value": ("mode: {a: b}\n", (1, 7), "a mapping is no value", "enforce", ""),
    "a value for a list": (
        "carriers: cron.service\n",
        (1, 11),
        "carriers is not a list",
        "a list, or [] for none",
        "",
    ),
    "a value for a mapping": ("poll: 30 s\n", (1, 7), "poll is not a mapping", "key: value", ""),
    "a list for a mapping": ("tiers: []\n", (1, 8), "tiers is not a mapping", "key: value", ""),
    "a mapping for a list": ("jobs: {mode: observe}\n", (1, 7), "jobs is not a list", "[]", ""),
    "an entry twice": ("carriers: [a.service, a.service]", (1, 23), "there twice", "", ""),
    "a carrier that is no service": (
        "carriers: [cron]",
        (1, 12),
        "does not end in .service",
        "*.service",
        "cron.service",
    ),
    "a carrier that is everything": ('carriers: ["*.service"]', (1, 12), "sshd.service", "", ""),
    "a duplicate key": ("mode: observe\nmode: enforce\n", (2, 1), "first in line 1", "", ""),
    "a duplicate key deep down": (
        "poll:\n  period: 30 s\n  period: 31 s\n",
        (3, 3),
        "`period` is there twice: first in line 2",
        "",
        "",
    ),
    "a key that is a list": ("? [a]\n: b\n", (1, 3), "one word", "", ""),
    "a GPU that there can't be": (
        "control: {gpus: {first: {target: 70 %}}}",
        (1, 18),
        "`first`",
        "GPU-",
        "",
    ),
    "a user that YAML takes for false": (
        "jobs: [{match: {user: no}, mode: observe}]",
        (1, 23),
        "`no`",
        "a user name",
        '"no"',
    ),
    "a host name to listen on": (
        "exporter: {listen: 'localhost:80'}",
        (1, 20),
        "`localhost` is not an IP address",
        "127.0.0.1:11470",
        "127.0.0.1:80",
    ),
    "a port that there is not": ("exporter: {listen: '::1:99999'}", (1, 20), "", "[::1]", ""),
    "an override without a match": (
        "jobs:\n  - mode: observe\n",
        (2, 5),
        "matches no job",
        "job, user, verb",
        "",
    ),
    "an override without an effect": (
        "jobs:\n  - match: {user: al}\n",
        (2, 5),
        "changes nothing",
        "mode, tier",
        "",
    ),
    "not a mapping": ("- a\n- b\n", (1, 1), "not a mapping", "key: value", ""),
    "one word": ("hello", (1, 1), "not a mapping", "key: value", ""),
    "no YAML": ("mode: observe\npoll: {period: 30 s\n", (3, 1), "not YAML", "", ""),
    "a tab": ("poll:\n\tperiod: 30 s\n", (2, 1), "not YAML", "", ""),
    "two documents": ("mode: observe\n---\nmode: enforce\n", (2, 1), "single document", "", ""),
    "an alias": ("mode: &a observe\npoll: *a\n", (2, 7), "aliases", "", ""),
    "a tag": ("mode: !!python/name:os.system observe\n", (1, 7), "the tag", "no tags", ""),
    "a control character": ("mode: obs\x00erve\n", (1, 10), "no place in a text", "", ""),
    "an impossible escape": ('mode: "\\UFFFFFFFF"\n', (1, 8), "not YAML", "", ""),
    "a directive with 5000 digits": (f"%YAML 1.{'1' * 5000}\n---\n", (1, 1), "not YAML", "", ""),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_says_where_and_what_is_allowed_and_what_was_meant(tmp_path, kind):
    text, (line, column), what, allowed, nearest = KINDS[kind]
    problem = only_error(tmp_path, text)
    assert what in problem.what
    assert allowed in problem.allowed
    assert problem.nearest == nearest
    if kind not in ("an impossible escape", "a directive with 5000 digits", "two documents"):
        assert (problem.line, problem.column) == (line, column)
    assert problem.line == line
    assert str(problem).startswith(f"{problem.file}:{line}:")


# set so that each value alone is fine
CONTRADICTIONS = {
    "micro_batch: {memory_ceiling: 97 %, memory_protect: 95 %}": ("memory_protect", (1, 37)),
    "micro_batch: {memory_ceiling: 98 %}": ("memory_protect", (1, 15)),
    "control: {floor_per_rank: 4 cores}\ntiers: {training: {cap: 2 cores}}": ("cap", (1, 11)),
    "tiers: {training: {cap: 0.5 cores}}": ("floor_per_rank", (1, 20)),
    "poll: {period: 1 s}": ("fallback_period", (1, 8)),
    "tick: {period: 10 s}": ("control.period", (1, 8)),
    "control: {stale_after: 40 s}": ("stale_after", (1, 11)),
    "control: {target: 5 %, dead_band: 6 %}": ("dead_band", (1, 24)),
    "control: {dead_band: 8 %, gpus: {'0': {target: 7 %}}}": ("gpus.0.target", (1, 40)),
    "control: {gpus: {'0': {}}}": ("sets nothing", (1, 18)),
    "tiers: {evaluation: {verbs: [sft]}}": ("`sft` is in two tiers, training and", (1, 22)),
    "tiers: {inference: {verbs: [eval]}}": ("`eval` is in two tiers", (1, 21)),
}


@pytest.mark.parametrize("text", CONTRADICTIONS)
def test_values_that_contradict_each_other_are_told_at_the_one_that_was_set(tmp_path, text):
    what, place = CONTRADICTIONS[text]
    problem = only_error(tmp_path, text)
    assert what in problem.what
    assert (problem.line, problem.column) == place


def test_all_errors_are_told_in_the_order_of_the_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "mode: enforced\ntiers: {training: {verbs: [sft, x, y], nice: 77}}\ntick: {period: 3}\n"
    )
    errors = errors_of(file)
    assert [(e.line, e.column) for e in errors] == [(1, 7), (2, 33), (2, 36), (2, 46), (3, 16)]


def test_an_error_in_a_drop_in_points_to_the_drop_in(tmp_path):
    (tmp_path / "config.yaml").write_text("mode: observe\n")
    (tmp_path / "config.d").mkdir()
    drop_in = tmp_path / "config.d" / "50-site.yaml"
    drop_in.write_text("\n\ntick: {period: 1}\n")
    (error,) = errors_of(tmp_path / "config.yaml")
    assert error.place == f"{drop_in}:3:16"


def test_a_contradiction_between_files_is_told_in_the_drop_in_that_made_it(tmp_path):
    (tmp_path / "config.yaml").write_text("micro_batch: {memory_ceiling: 90 %}\n")
    (tmp_path / "config.d").mkdir()
    drop_in = tmp_path / "config.d" / "a.yaml"
    drop_in.write_text("micro_batch: {memory_protect: 50 %}\n")
    (error,) = errors_of(tmp_path / "config.yaml")
    assert error.place == f"{drop_in}:1:15"


def test_a_drop_in_whose_name_would_hide_it_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "site.yml").write_text("mode: observe\n")
    (error,) = errors_of(tmp_path / "config.yaml")
    assert error.nearest == "site.yaml"


def test_a_file_that_is_not_utf8_is_refused_at_the_byte(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_bytes("mode: observe\n# für ".encode() + b"\xff\n")
    (error,) = errors_of(file)
    assert (error.line, error.column, error.what) == (2, 7, "byte 0xff is not UTF-8")


def test_a_file_over_one_mebibyte_is_refused_unread(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_bytes(b"#" * (1 << 20))
    load(str(file))
    file.write_bytes(b"#" * ((1 << 20) + 1))
    (error,) = errors_of(file)
    assert "1 MiB" in error.allowed


def test_a_fifo_is_refused_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    (error,) = errors_of(tmp_path / "config.yaml")
    assert error.what == "is not a regular file"


def test_missing_and_unreadable_files_are_told_as_such(tmp_path):
    (missing,) = errors_of(tmp_path / "config.yaml")
    assert "No such file" in missing.what
    (folder,) = errors_of(tmp_path)
    assert "Is a directory" in folder.what
    (odd,) = errors_of(tmp_path / "a\0b")
    assert "can't be read" in odd.what


def test_deep_nesting_and_masses_of_nodes_are_cut_short(tmp_path):
    file = tmp_path / "config.yaml"
    for text, what in (
        ("[" * 100_000, "deep"),
        ("jobs:\n" + "- 1\n" * 100_000, "more than 5000"),
        ("a: " + "{b: " * 50, "deep"),
    ):
        file.write_text(text)
        (error,) = errors_of(file)
        assert what in error.what


def test_a_thousand_errors_are_summed_up(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("".join(f"wrong{i}: 1\n" for i in range(1000)))
    errors = errors_of(file)
    assert len(errors) == 101
    assert (errors[-1].line, errors[-1].what) == (101, "from here on 900 more errors")


def test_what_an_error_quotes_can_not_steer_a_terminal(tmp_path):
    problem = only_error(tmp_path, 'mode: "\\e[2Jx"\n')
    assert "\x1b" not in str(problem)
    assert str(problem).isprintable()


def test_a_huge_value_is_not_quoted_whole(tmp_path):
    assert len(str(only_error(tmp_path, f"mode: {'x' * 100_000}\n"))) < 400
