# SPDX-License-Identifier: Apache-2.0
"""Which tier a job is in, in which mode, and which rule said so. Pure.

The order is fixed: an entry of ``jobs:`` (the first whose match covers the job), then the verb's
tier. The inference tier is for those whom its policy names: a program that only calls itself
``swift/cli/infer.py`` gains nothing by it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from swift_governor.config import TRAINING, Config, Policy
from swift_governor.model import Job, Mode


@dataclass(frozen=True)
class Owner:
    """How a job's owner may be written (login name, number), and the groups' names."""

    names: tuple[str, ...]
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class TierChoice:
    """``rule`` is a sentence for people; ``mode`` is already the most specific one."""

    tier: str
    rule: str
    mode: Mode


def choose_tier(config: Config, job: Job, owner: Owner, units: Sequence[str]) -> TierChoice:
    """``units``: the systemd units (last cgroup path components) that the job's processes came
    from.
    """
    override = next(
        (o for o in config.jobs if o.match.covers(job.name, owner.names, job.verb)), None
    )
    tier, rule = None, ""
    if override is not None and override.tier is not None:
        position = config.jobs.index(override)
        tier, rule = override.tier, f"jobs[{position}] in the configuration"
    if tier is None:
        tier, rule = _by_verb(config, job, owner, units)
    mode = config.mode
    for candidate in (override.mode if override else None, config.tiers[tier].mode):
        if candidate is not None:
            mode = candidate
            break
    return TierChoice(tier, rule, mode)


def _by_verb(config: Config, job: Job, owner: Owner, units: Sequence[str]) -> tuple[str, str]:
    name = config.tier_of_verb(job.verb)
    policy = config.tiers[name].policy
    if policy is None:
        return name, f"verb {job.verb} is of tier {name}"
    named = _named_by(policy, owner, units)
    if named is not None:
        return name, f"verb {job.verb}, and {named} is named by the policy of tier {name}"
    otherwise = config.tiers[name].otherwise or TRAINING
    return otherwise, f"verb {job.verb} asks for tier {name}, whose policy does not name this job"


def _named_by(policy: Policy, owner: Owner, units: Sequence[str]) -> str | None:
    checks = (
        ("user", policy.users, owner.names),
        ("group", policy.groups, owner.groups),
        ("unit", policy.units, units),
    )
    for kind, patterns, values in checks:
        for value in values:
            if any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns):
                return f"{kind} {value}"
    return None
