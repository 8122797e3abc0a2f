# SPDX-License-Identifier: Apache-2.0
"""The frame of the command line, and check-config, run as a person runs them."""

from __future__ import annotations

import argparse
import os
import pty
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
from swift_governor.cli import __main__ as frame
from swift_governor.cli import commands
from swift_governor.version import VERSION

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "etc" / "swift-governor" / "config.yaml"
PROGRAM = [sys.executable, "-m", "swift_governor.cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )


def test_check_config_says_which_files_it_read_and_that_they_are_right(tmp_path):
    (tmp_path / "config.yaml").write_text("mode: observe\n")
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "a.yaml").write_text("tick: {period: 2 s}\n")
    done = run("check-config", str(tmp_path / "config.yaml"))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"read {tmp_path}/config.yaml\nread {tmp_path}/config.d/a.yaml\n" in done.stdout


def test_check_config_tells_each_error_on_a_line_of_its_own_and_ends_with_2(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("mode: observ\ntick: {period: 3}\n")
    done = run("check-config", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    first, second, last = done.stderr.splitlines()
    assert first == (
        f"{file}:1:7: mode: `observ` is not known here; allowed: enforce or observe; "
        "did you mean `observe`?"
    )
    assert second.startswith(f"{file}:2:16: tick.period: `3` has no unit")
    assert last == "2 errors; nothing was taken up."


def test_the_effective_output_is_itself_a_configuration(tmp_path):
    shown = run("check-config", str(SHIPPED), "--effective")
    assert shown.returncode == 0
    assert f"# {SHIPPED}:" in shown.stdout
    (tmp_path / "config.yaml").write_text(shown.stdout)
    assert run("check-config", str(tmp_path / "config.yaml")).returncode == 0


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_is_for_terminals_and_can_be_refused(tmp_path, no_color, coloured):
    file = tmp_path / "config.yaml"
    file.write_text("mode: observ\n")
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [*PROGRAM, "check-config", str(file)],
            env={**ENVIRONMENT, "NO_COLOR": no_color},
            stderr=theirs,
            timeout=60,
        )
        assert (b"\x1b[" in os.read(ours, 65536)) is coloured
    finally:
        os.close(ours)
        os.close(theirs)
    assert "\x1b[" not in run("check-config", str(file)).stderr


def test_an_unknown_command_is_told_the_nearest_one():
    done = run("check-confg")
    assert done.returncode == 2
    assert done.stderr == "swift-governor: no command `check-confg`; did you mean `check-config`?\n"
    assert "see swift-governor --help" in run("zzzzz").stderr


def test_wrong_arguments_end_with_2_and_change_nothing():
    done = run("check-config", "--no-such-option")
    assert done.returncode == 2
    assert "usage: swift-governor check-config" in done.stderr


def test_the_version_is_told_and_has_one_home():
    assert run("--version").stdout == f"swift-governor {VERSION}\n"
    assert f'version = "{VERSION}"' not in (ROOT / "pyproject.toml").read_text()


def test_a_reader_that_stops_early_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*PROGRAM, "check-config", str(SHIPPED), "--effective"],
        env=ENVIRONMENT,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_ends_a_command_with_130_and_without_a_traceback(monkeypatch, capsys):
    def interrupted(args: argparse.Namespace) -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    slow = types.SimpleNamespace(HELP="", configure=lambda parser: None, run=interrupted)
    monkeypatch.setattr(frame, "command", lambda name: slow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert frame.main(["status"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == ""


def test_a_command_imports_no_other_command():
    script = (
        "import sys\nfrom swift_governor.cli.__main__ import main\n"
        f"main(['check-config', {str(SHIPPED)!r}])\nprint(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.split()
    others = set(commands.COMMANDS.values()) - {"swift_governor.cli.check_config"}
    assert "swift_governor.cli.check_config" in loaded
    assert not others & set(loaded)


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_command_of_the_table_has_what_a_command_has(name):
    module = commands.command(name)
    assert name == module.NAME
    assert module.HELP
    module.configure(argparse.ArgumentParser())
    assert callable(module.run)


def test_help_names_every_command_within_80_columns():
    done = run("--help")
    assert done.returncode == 0
    for name in commands.COMMANDS:
        assert f"\n  {name} " in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    nothing = run()
    assert (nothing.returncode, nothing.stdout) == (2, "")
