# SPDX-License-Identifier: Apache-2.0
"""``swift-governor match``, as a person and as a program use it."""

from __future__ import annotations

import argparse
import json

import pytest
from swift_governor.cli import match as command

from tests.unit.jobs.command_lines import NEGATIVE, POSITIVE


def run(*arguments):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(arguments))


def ask(capsys, *arguments):
    assert run("--json", *arguments) == 0
    return json.loads(capsys.readouterr().out)


def options(line):
    if line.comm:
        yield from ("--comm", line.comm)
    if line.exe:
        yield from ("--exe", line.exe)


# The heads of the scripts in the lists are not on this machine: those that need one are left out.
LINES = [line for line in POSITIVE + NEGATIVE if line.argv and line.head is not False]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.command)
def test_the_command_reads_what_the_rules_read(capsys, line):
    answer = ask(capsys, *options(line), "--", *line.argv)
    assert (answer["role"], answer["verb"], answer["engine"]) == (line.role, line.verb, line.engine)
    assert answer["rule"]
    assert answer["reason"]


@pytest.mark.parametrize(
    ("head", "role"), [("from swift.cli.main import x", "launcher"), ("import swiftclient", None)]
)
def test_a_script_on_this_machine_is_looked_at(capsys, tmp_path, head, role):
    script = tmp_path / "swift"
    script.write_text(head)
    assert ask(capsys, "--", "python3", str(script), "export")["role"] == role
    assert ask(capsys, "--", str(script), "export")["role"] == role


def test_a_person_reads_a_sentence(capsys):
    assert run("--", "swift", "sft", "--model", "q") == 0
    assert "launcher of swift sft (rule console-script)" in capsys.readouterr().out
    assert run("--", "swift", "build") == 0
    assert "not ms-swift (rule foreign-verb)" in capsys.readouterr().out


def test_without_a_command_line_it_says_how_to_give_one(capsys):
    assert run() == 2
    assert "--" in capsys.readouterr().out


def test_words_that_are_not_utf8_are_no_trouble(capsys):
    assert ask(capsys, "--", "python3", "\udcff/swift", "sft")["role"] == "launcher"
    assert run("--", "\udcff") == 0


def test_a_line_without_the_two_dashes_shows_where_they_belong(capsys):
    with pytest.raises(SystemExit):
        run("swift", "sft", "--model", "q")
    assert "-- ARGV" in capsys.readouterr().err
