# SPDX-License-Identifier: Apache-2.0
"""Programs that start one process a rank: torchrun, accelerate, deepspeed, and what they run.

Their options, from the argument parsers of torch.distributed.run, accelerate.commands.launch,
deepspeed.launcher.runner and deepspeed.launcher.launch: only those without a value need to be
known by name to find the training script behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swift_governor.jobs.argv import Invocation, Kind, base_name, is_file_of


@dataclass(frozen=True)
class Agent:
    """A program that starts one process a rank, and how to find the program those ranks run.

    ``scripts`` are names of console scripts, ``modules`` dotted names (as a file: the same path
    with ``.py``). ``subcommand`` has to come first where there is one. ``flags`` take no value,
    in the spelling with underscores; every other option takes one. ``module_flags`` make the
    target a module's name.
    """

    name: str
    scripts: frozenset[str]
    modules: frozenset[str]
    flags: frozenset[str]
    subcommand: str = ""
    module_flags: frozenset[str] = frozenset({"-m", "--module"})

    def runs(self, invocation: Invocation) -> bool:
        """Whether this agent is what the interpreter was told to run."""
        if invocation.kind is Kind.MODULE:
            return invocation.target in self.modules
        if invocation.kind is not Kind.SCRIPT:
            return False
        return base_name(invocation.target) in self.scripts or any(
            is_file_of(invocation.target, module) for module in self.modules
        )

    def target(self, arguments: Sequence[str]) -> Invocation | None:
        """The training script or module in the agent's own arguments, with what follows it."""
        position = 0
        if self.subcommand:
            if not arguments or arguments[0] != self.subcommand:
                return None
            position = 1
        kind = Kind.SCRIPT
        while position < len(arguments):
            argument = arguments[position]
            position += 1
            if not argument.startswith("-"):
                return Invocation(kind, argument, arguments[position:])
            if argument == "--":
                continue
            option = "--" + argument[2:].replace("-", "_") if argument[:2] == "--" else argument
            if option in self.module_flags:
                kind = Kind.MODULE
            elif option not in self.flags and "=" not in option:
                position += _takes_next(arguments, position)
        return None


def _takes_next(arguments: Sequence[str], position: int) -> bool:
    """Whether an option that may take a value takes the next argument.

    No agent has an option whose value is a Python file: such an argument is the training script
    behind a flag that is newer than these tables.
    """
    if position >= len(arguments):
        return False
    following = arguments[position]
    return not following.startswith("-") and not following.endswith(".py")


ACCELERATE_FLAGS = frozenset(
    [
        "-h",
        "--help",
        "-q",
        "--quiet",
        "--cpu",
        "--multi_gpu",
        "--tpu",
        "--ipex",
        "--use_deepspeed",
        "--use_fsdp",
        "--use_megatron_lm",
        "--use_xpu",
        "--use_parallelism_config",
        "--enable_cpu_affinity",
        "--dynamo_use_fullgraph",
        "--dynamo_use_dynamic",
        "--dynamo_use_regional_compilation",
        "--same_network",
        "--no_python",
        "--debug",
        "--tpu_cluster",
        "--no_tpu_cluster",
        "--tpu_use_sudo",
        "--downcast_bf16",
    ]
)

AGENTS = (
    Agent(
        name="torchrun",
        scripts=frozenset({"torchrun"}),
        modules=frozenset({"torch.distributed.run", "torch.distributed.launch"}),
        flags=frozenset(["-h", "--help", "--standalone", "--no_python", "--run_path", "--use_env"]),
    ),
    Agent(
        name="accelerate",
        scripts=frozenset({"accelerate"}),
        modules=frozenset({"accelerate.commands.accelerate_cli"}),
        subcommand="launch",
        flags=ACCELERATE_FLAGS,
    ),
    Agent(
        name="accelerate-launch",
        scripts=frozenset({"accelerate-launch"}),
        modules=frozenset({"accelerate.commands.launch"}),
        flags=ACCELERATE_FLAGS,
    ),
    Agent(
        name="deepspeed",
        scripts=frozenset({"deepspeed", "deepspeed.pt", "ds"}),
        modules=frozenset({"deepspeed.launcher.runner", "deepspeed.launcher.launch"}),
        flags=frozenset(
            [
                "-h",
                "--help",
                "--no_python",
                "--no_local_rank",
                "--no_ssh_check",
                "--no_ssh",
                "--force_multi",
                "--elastic_training",
                "--enable_elastic_training",
                "--bind_cores_to_rank",
            ]
        ),
        module_flags=frozenset({"--module"}),
    ),
)
