# SPDX-License-Identifier: Apache-2.0
"""What must hold between keys: a table of rules, each told at the key that a person set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .config_model import TIER_NAMES, Config, Problem
from .config_yaml import Place


@dataclass(frozen=True)
class Rule:
    """``holds`` says so of a configuration; else ``keys`` (the first that is set) gets ``what``."""

    keys: tuple[str, ...]
    what: str
    holds: Callable[[Config], bool]


def _floor_fits_cap(config: Config) -> bool:
    cap = config.tiers["training"].cap.count
    return cap is None or config.control.floor_per_rank_cores <= cap


RULES: tuple[Rule, ...] = (
    Rule(
        ("micro_batch.memory_protect", "micro_batch.memory_ceiling"),
        "micro_batch.memory_protect has to be above micro_batch.memory_ceiling",
        lambda c: c.micro_batch.memory_protect > c.micro_batch.memory_ceiling,
    ),
    Rule(
        ("control.floor_per_rank", "tiers.training.cap"),
        "control.floor_per_rank is above tiers.training.cap: no rank could have it",
        _floor_fits_cap,
    ),
    Rule(
        ("poll.fallback_period", "poll.period"),
        "poll.fallback_period is above poll.period: without events it has to be read more often",
        lambda c: c.poll.fallback_period_s <= c.poll.period_s,
    ),
    Rule(
        ("control.period", "tick.period"),
        "control.period has to be at least 5 times tick.period: a step needs a window of readings",
        lambda c: c.control.period_s >= 5 * c.tick.period_s,
    ),
    Rule(
        ("control.stale_after", "control.period"),
        "control.stale_after is above control.period: a whole window could be old readings",
        lambda c: c.control.stale_after_s <= c.control.period_s,
    ),
    Rule(
        ("control.dead_band", "control.target"),
        "control.dead_band has to be below control.target",
        lambda c: c.control.dead_band < c.control.target,
    ),
)


def broken_rules(config: Config, places: Mapping[str, Place]) -> Iterator[Problem]:
    """A problem for each rule that does not hold. ``places``: where the keys that are set are."""
    nowhere = Place(config.files[0] if config.files else "<defaults>")

    def at(*paths: str) -> Place:
        return next((places[path] for path in paths if path in places), nowhere)

    for rule in RULES:
        if not rule.holds(config):
            yield at(*rule.keys).problem(rule.what)
    yield from _verbs_in_two_tiers(config, at)
    for name, gpu in config.control.gpus.items():
        path = f"control.gpus.{name}"
        if gpu.target is None:
            yield at(path).problem(f"{path} sets nothing", "target")
        elif gpu.target <= config.control.dead_band:
            yield at(f"{path}.target").problem(f"{path}.target has to be above control.dead_band")
    for index, override in enumerate(config.jobs):
        path = f"jobs[{index}]"
        if override.match.job is override.match.user is override.match.verb is None:
            yield at(f"{path}.match", path).problem(f"{path} matches no job", "job, user, verb")
        if override.mode is None and override.tier is None:
            yield at(path).problem(f"{path} changes nothing", "mode, tier")


def _verbs_in_two_tiers(config: Config, at: Callable[..., Place]) -> Iterator[Problem]:
    home: dict[str, str] = {}
    for name in TIER_NAMES:
        for verb in config.tiers[name].verbs:
            first = home.setdefault(verb, name)
            if first != name:
                place = at(f"tiers.{name}.verbs", f"tiers.{first}.verbs")
                yield place.problem(f"the verb `{verb}` is in two tiers, {first} and {name}")
