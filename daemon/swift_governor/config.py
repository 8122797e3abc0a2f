# SPDX-License-Identifier: Apache-2.0
"""The configuration: YAML files in, one checked and frozen ``Config`` out.

    config = load("/etc/swift-governor/config.yaml")     # with config.d/*.yaml beside it

Either every value is known to be good, or ``ConfigError`` tells everything that is wrong, with
file, line, column, what is allowed and the nearest valid name. Nothing else is raised, whatever the
files hold.
"""

from __future__ import annotations

from .config_model import (
    EVALUATION,
    INFERENCE,
    TIER_NAMES,
    TRAINING,
    Address,
    Cap,
    Config,
    ConfigError,
    Control,
    Exporter,
    GpuControl,
    JobMatch,
    JobOverride,
    Link,
    MicroBatch,
    Policy,
    Poll,
    Problem,
    Tick,
    Tier,
)
from .config_read import Reading
from .config_rules import broken_rules
from .config_show import effective
from .config_yaml import Place, Table, drop_ins, laid_over, read_tree

DEFAULT_PATH = "/etc/swift-governor/config.yaml"
MAX_TOLD = 100  # a file that is no configuration at all is not told line by line

__all__ = [
    "DEFAULT_PATH",
    "EVALUATION",
    "INFERENCE",
    "TIER_NAMES",
    "TRAINING",
    "Address",
    "Cap",
    "Config",
    "ConfigError",
    "Control",
    "Exporter",
    "GpuControl",
    "JobMatch",
    "JobOverride",
    "Link",
    "MicroBatch",
    "Policy",
    "Poll",
    "Problem",
    "Tick",
    "Tier",
    "default_config",
    "effective",
    "load",
]


def load(path: str = DEFAULT_PATH) -> Config:
    """The configuration in ``path`` with its drop-ins laid over it, or ConfigError."""
    problems: list[Problem] = []
    files = (path, *drop_ins(path, problems))
    tree = Table(Place(path))
    for file in files:
        tree = laid_over(tree, read_tree(file, problems))
    return _checked(tree, files, problems)


def default_config() -> Config:
    """What an empty file gives."""
    return _checked(Table(Place("<defaults>")), (), [])


def _checked(tree: Table, files: tuple[str, ...], problems: list[Problem]) -> Config:
    reading = Reading(problems)
    config = reading.config(tree, files)
    if not problems:
        # Where a default stands in for a bad value, these would mislead.
        problems.extend(broken_rules(config, reading.places))
    if problems:
        order = {file: position for position, file in enumerate(files)}
        problems.sort(key=lambda p: (order.get(p.file, len(order)), p.line, p.column))
        untold = problems[MAX_TOLD:]
        if untold:
            rest = Place(untold[0].file, untold[0].line, untold[0].column)
            problems[MAX_TOLD:] = [rest.problem(f"from here on {len(untold)} more errors")]
        raise ConfigError(tuple(problems))
    return config
