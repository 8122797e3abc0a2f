# SPDX-License-Identifier: Apache-2.0
"""The rules by which a command line is read as a part of an ms-swift job, as one table.

``match`` walks ``RULES`` from the top; the first that reads the command line wins. Where none
does, an entry of ``REFUSALS`` says why not. Seen with ms-swift 3.12 and 4.6: ``swift VERB``
(launcher) starts ``…/swift/cli/VERB.py`` (rank), or torchrun (agent) which does; loader workers
keep their rank's argv.

What argv alone cannot tell, such as a ``datasets.map`` helper that has its rank's argv, reads
here as what its argv says; ``swift_governor.jobs.grouping`` knows the family and corrects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

from swift_governor.jobs.agents import AGENTS
from swift_governor.jobs.argv import (
    Invocation,
    Kind,
    NotPython,
    base_name,
    path_parts,
    read_command,
)
from swift_governor.model import Engine, Match, Process, Role

# The only variables that are kept of any process's environment.
ENVIRON_KEYS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NPROC_PER_NODE",
    "NNODES",
    "NODE_RANK",
    "SWIFT_GOVERNOR_TIER",
)

# The verbs of each console script. Neither Apple's swift (build, test, run, package, repl …) nor
# OpenStack's (upload, list, stat, download, post …) has any of these, so that a verb can stand in
# for a script's head that could not be read.
VERBS = {
    Engine.SWIFT: frozenset(
        [
            "pt",
            "sft",
            "rlhf",
            "infer",
            "deploy",
            "rollout",
            "sample",
            "export",
            "eval",
            "app",
            "web-ui",
            "merge-lora",
        ]
    ),
    Engine.MEGATRON: frozenset(["pt", "sft", "rlhf", "export"]),
}
CONSOLE_SCRIPTS = {"swift": Engine.SWIFT, "megatron": Engine.MEGATRON}
PACKAGES = {"swift.cli": Engine.SWIFT, "swift.cli._megatron": Engine.MEGATRON}

# torch names the main thread of a loader worker since the middle of 2024.
LOADER_COMM = "pt_data_worker"

SCRIPT_NAMES = frozenset(CONSOLE_SCRIPTS).union(*(agent.scripts for agent in AGENTS))


@dataclass(frozen=True)
class Program:
    """An invocation, and what the head of its script says where it was read."""

    invocation: Invocation
    names_swift: bool | None


@dataclass(frozen=True)
class Run:
    """What a rule found: which trainer, and which of its verbs."""

    engine: Engine
    verb: str


def console_script(program: Program) -> Run | None:
    """``bin/swift VERB``; another program of that name shows in the script's head."""
    if program.invocation.kind is not Kind.SCRIPT or program.names_swift is False:
        return None
    engine = CONSOLE_SCRIPTS.get(base_name(program.invocation.target))
    return _with_verb(engine, program.invocation.arguments) if engine else None


def main_program(program: Program) -> Run | None:
    """``-m swift.cli.main VERB`` or ``…/swift/cli/main.py VERB``: the console script's own code."""
    found = _in_package(program.invocation)
    if found is None or found[1] != "main":
        return None
    return _with_verb(found[0], program.invocation.arguments)


def trainer(program: Program) -> Run | None:
    """``…/swift/cli/VERB.py`` or ``-m swift.cli.VERB``, and their Megatron twins."""
    return _trainer(program.invocation)


def agent(program: Program) -> Run | None:
    """One of ``AGENTS`` whose training script or module is a trainer, or starts one.

    ``torchrun $(which swift) sft`` works: each of its processes is a launcher that hands its rank's
    environment on.
    """
    for candidate in AGENTS:
        if candidate.runs(program.invocation):
            target = candidate.target(program.invocation.arguments)
            if target is None:
                return None
            behind = Program(target, None)
            return trainer(behind) or console_script(behind) or main_program(behind)
    return None


def _trainer(invocation: Invocation) -> Run | None:
    found = _in_package(invocation)
    return _verb(*found) if found else None


def _in_package(invocation: Invocation) -> tuple[Engine, str] | None:
    """The engine and the module's last name, for a module of ``swift.cli`` run by path or by
    name.
    """
    if invocation.kind is Kind.MODULE:
        package, _, name = invocation.target.rpartition(".")
    elif invocation.kind is Kind.SCRIPT and invocation.target.endswith(".py"):
        *parents, file_name = path_parts(invocation.target)
        name = file_name[: -len(".py")]
        package = next((p for p in PACKAGES if parents[-p.count(".") - 1 :] == p.split(".")), "")
    else:
        return None
    engine = PACKAGES.get(package)
    return (engine, name) if engine else None


def _with_verb(engine: Engine, arguments: Sequence[str]) -> Run | None:
    # ms-swift reads its verb from argv[1] alone: nothing may come before it.
    return _verb(engine, arguments[0]) if arguments else None


def _verb(engine: Engine, word: str) -> Run | None:
    verb = word.replace("_", "-")
    return Run(engine, verb) if verb in VERBS[engine] else None


@dataclass(frozen=True)
class Rule:
    """One line of the table. ``comm`` has to be the process's name where it is given."""

    name: str
    reads: Callable[[Program], Run | None]
    role: Role
    why: str
    comm: str | None = None


RULES = (
    Rule(
        "console-script",
        console_script,
        Role.LAUNCHER,
        "Python runs ms-swift's console script with one of its verbs",
    ),
    Rule(
        "main-program",
        main_program,
        Role.LAUNCHER,
        "Python runs swift.cli.main, which the console script calls, with one of its verbs",
    ),
    Rule(
        "named-loader",
        trainer,
        Role.LOADER,
        "the argv of a trainer, and the name that torch gives a data-loader worker",
        comm=LOADER_COMM,
    ),
    Rule("trainer", trainer, Role.RANK, "Python runs a program of swift.cli"),
    Rule("agent", agent, Role.AGENT, "a launcher of ranks, with a program of swift.cli behind it"),
)


def foreign_script(program: Program) -> bool:
    """A script named as ms-swift's whose head tells that it is another's (OpenStack's client)."""
    return program.names_swift is False and _is_console_script(program)


def foreign_verb(program: Program) -> bool:
    """ms-swift's script or main program without one of its verbs in the first place."""
    found = _in_package(program.invocation)
    return _is_console_script(program) or (found is not None and found[1] == "main")


def foreign_target(program: Program) -> bool:
    """torchrun and the like, with another program behind."""
    return any(candidate.runs(program.invocation) for candidate in AGENTS)


def _is_console_script(program: Program) -> bool:
    invocation = program.invocation
    return invocation.kind is Kind.SCRIPT and base_name(invocation.target) in CONSOLE_SCRIPTS


@dataclass(frozen=True)
class Refusal:
    """Why a Python program is none of ms-swift's."""

    name: str
    applies: Callable[[Program], bool]
    why: str


REFUSALS = (
    Refusal("code-string", lambda p: p.invocation.kind is Kind.CODE, "Python runs a -c string"),
    Refusal("no-program", lambda p: p.invocation.kind is Kind.NOTHING, "Python runs no script"),
    Refusal(
        "foreign-script",
        foreign_script,
        "a script of this name whose head does not name swift.cli, such as OpenStack's client",
    ),
    Refusal("foreign-verb", foreign_verb, "its first argument is none of ms-swift's verbs"),
    Refusal("foreign-target", foreign_target, "a launcher of ranks with another program behind it"),
    Refusal("other-program", lambda p: True, "Python runs another program"),
)
NO_ARGV = "no-argv"
NOT_PYTHON = "not-python"


def match(
    argv: Sequence[str],
    comm: str | None = None,
    exe: str | None = None,
    script_names_swift: bool | None = None,
) -> Match:
    """Reads one command line.

    ``comm`` is the name in /proc/PID/comm, ``exe`` what /proc/PID/exe points to, and
    ``script_names_swift`` what the script's head said; None where unknown. Never raises.
    """
    command = read_command(argv, exe, SCRIPT_NAMES)
    if isinstance(command, NotPython):
        if not argv:
            return _no_match(NO_ARGV, "no command line: a kernel thread, a zombie, or not readable")
        return _no_match(NOT_PYTHON, f"{command.program!r} is no Python interpreter")
    program = Program(command, script_names_swift)
    for rule in RULES:
        if rule.comm is not None and rule.comm != comm:
            continue
        run = rule.reads(program)
        if run is not None:
            return Match(rule.role, run.verb, run.engine, rule.name, rule.why)
    refusal = next(refusal for refusal in REFUSALS if refusal.applies(program))
    return _no_match(refusal.name, refusal.why)


def match_process(process: Process) -> Match:
    """Reads the command line of a process; one that could not be read is no match."""
    return match(process.argv or (), process.comm, process.exe, process.script_names_swift)


def _no_match(rule: str, reason: str) -> Match:
    return Match(None, None, None, rule, reason)
