# SPDX-License-Identifier: Apache-2.0
"""The table of rules, walked by command lines and by nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swift_governor.jobs.rules import REFUSALS, RULES, VERBS, match
from swift_governor.model import Engine, Role

from tests.unit.jobs.command_lines import NEGATIVE, POSITIVE, SFT

APPLE_VERBS = {"build", "test", "run", "package", "repl", "sdk", "format", "plugin"}
OPENSTACK_VERBS = {"upload", "download", "list", "stat", "post", "delete", "copy", "info", "auth"}


def read(line):
    return match(line.argv, line.comm, line.exe, line.head)


@pytest.mark.parametrize("line", POSITIVE, ids=lambda line: line.command)
def test_a_command_line_of_ms_swift_is_read_as_what_it_is(line):
    found = read(line)
    assert found.role is not None, found
    assert (found.role.value, found.verb, found.engine.value) == (line.role, line.verb, line.engine)
    assert found.reason


@pytest.mark.parametrize("line", NEGATIVE, ids=lambda line: line.command)
def test_an_impostor_is_refused_by_the_rule_that_knows_it(line):
    found = read(line)
    assert (found.role, found.verb, found.engine) == (None, None, None)
    assert found.rule == line.rule
    assert found.reason


def test_both_lists_are_long_enough_to_mean_something():
    assert len({(line.command, line.exe, line.head) for line in POSITIVE}) >= 60
    assert len({(line.command, line.exe, line.head) for line in NEGATIVE}) >= 60


def test_every_rule_and_every_refusal_is_used_by_a_command_line():
    used = {read(line).rule for line in POSITIVE + NEGATIVE}
    assert {rule.name for rule in RULES} <= used
    assert {refusal.name for refusal in REFUSALS} <= used


def test_every_verb_is_in_the_list_as_launcher_and_as_rank():
    for engine, verbs in VERBS.items():
        for role in ("launcher", "rank"):
            seen = {p.verb for p in POSITIVE if p.engine == engine.value and p.role == role}
            missing = verbs - seen - ({"pt", "export"} if engine is Engine.MEGATRON else set())
            assert not missing, (engine, role)


def test_no_verb_is_shared_with_apple_or_openstack_so_that_an_unread_head_can_be_judged_by_it():
    assert not (APPLE_VERBS | OPENSTACK_VERBS) & VERBS[Engine.SWIFT]


def test_a_name_given_by_torch_makes_a_rank_a_loader_and_nothing_else_one():
    assert match(["python3", SFT], comm="pt_data_worker").role is Role.LOADER
    assert match(["python3", "other.py"], comm="pt_data_worker").role is None
    assert match(["python3", "venv/bin/swift", "sft"], comm="pt_data_worker").role is Role.LAUNCHER


def test_without_a_command_line_there_is_no_match():
    assert match([]).rule == "no-argv"
    assert match([], exe="/usr/bin/python3").rule == "no-argv"


def test_a_command_line_of_a_hundred_thousand_arguments_is_read():
    argv = ["torchrun", *["--x=1"] * 100_000, SFT]
    assert match(argv).role is Role.AGENT


WORDS = st.one_of(
    st.text(st.characters(), max_size=30),
    st.binary(max_size=30).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    st.sampled_from(
        ["python3", "swift", "sft", "-m", "-c", "-", "--", "-X", "-W", "-um", "torchrun", "launch",
         "accelerate", "deepspeed", "swift.cli.sft", "swift.cli.main", SFT, "", "/", "..",
         "-\udcff", "x" * 100_000]
    ),
)  # fmt: skip


@given(
    st.lists(WORDS, max_size=12),
    st.none() | WORDS,
    st.none() | WORDS,
    st.none() | st.booleans(),
)
def test_nothing_that_a_process_calls_itself_makes_a_rule_raise(argv, comm, exe, head):
    found = match(argv, comm, exe, head)
    assert found.rule
    assert (found.role is None) == (found.verb is None) == (found.engine is None)
