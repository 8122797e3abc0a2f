# SPDX-License-Identifier: Apache-2.0
"""The configuration: YAML files in, one checked and frozen ``Config`` out.

    config = load("/etc/swift-governor/config.yaml")     # with config.d/*.yaml beside it

Either every value is known to be good, or ``ConfigError`` tells everything that is wrong, with file,
line, column, what is allowed and the nearest valid name. Nothing else is raised, whatever the files hold.
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

__all__ = [
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
]
