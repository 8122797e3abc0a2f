# SPDX-License-Identifier: Apache-2.0
"""The one table of everything that can be set: name, kind, range, default, help.

The parser, its error texts, the defaults, ``check-config --effective`` and the test of the shipped
config.yaml all come from it. In a path, ``[]`` is an entry of a list and ``*`` a name that the
person chooses. To add a key: a line here, a field in config_model, a line in
etc/swift-governor/config.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .config_kinds import AddressKind, Choice, Flag, Kind, Number, Text, words
from .config_model import (
    EVALUATION,
    TIER_NAMES,
    TRAINING,
    Config,
    Control,
    Exporter,
    GpuControl,
    JobMatch,
    JobOverride,
    Link,
    MicroBatch,
    Policy,
    Poll,
    Tick,
    Tier,
)
from .config_units import CapKind, core_count, duration, share
from .jobs.rules import VERBS as VERBS_OF_ENGINE
from .model import IoClass, Mode

VERBS = tuple(sorted(frozenset().union(*VERBS_OF_ENGINE.values())))


@dataclass(frozen=True)
class Key:
    """One thing that can be set. ``default`` is as it would be written; None: nothing."""

    path: str
    kind: Kind[Any]
    default: str | None
    help: str
    many: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def field(self) -> str:
        return self.name + self.kind.suffix


@dataclass(frozen=True)
class Section:
    """A mapping of keys, of which ``make`` makes a value. ``names``: what a chosen name must be."""

    path: str
    make: Callable[..., Any]
    help: str = ""
    names: re.Pattern[str] | None = None
    names_allowed: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


_modes = Choice({"enforce": Mode.ENFORCE, "observe": Mode.OBSERVE})
_tier_modes = Choice(
    {"inherit": None, "enforce": Mode.ENFORCE, "observe": Mode.OBSERVE},
)
_io_classes = Choice({io_class.value: io_class for io_class in IoClass})
_verbs = words(*VERBS)
_user = Text("a user name or number, or a glob")
_group = Text("a group name, or a glob")
_unit = Text("a systemd unit's name, or a glob")
_target = share("5 %", "100 %")


def _tier(name: str, verbs: str, weight: str, cap: str, nice: str, io: str) -> tuple[Key, ...]:
    at = f"tiers.{name}."
    return (
        Key(f"{at}verbs", _verbs, verbs, "swift subcommands of this tier", many=True),
        Key(f"{at}weight", Number("1", "10000", whole=True), weight, "CPU weight; 100 is normal"),
        Key(f"{at}cap", CapKind(), cap, "most CPU that the whole tier may use"),
        Key(f"{at}nice", Number("0", "19", whole=True), nice, "nice value of every thread"),
        Key(f"{at}io_class", _io_classes, io, "I/O class of every thread"),
        Key(f"{at}mode", _tier_modes, "inherit", "inherit: as the global mode"),
    )


KEYS: tuple[Key, ...] = (
    Key("mode", _modes, "enforce", "observe: decide and report, change nothing"),
    Key("poll.period", duration("1 s", "1 h"), "30 s", "reading all processes, beside events"),
    Key(
        "poll.fallback_period",
        duration("500 ms", "1 h"),
        "2 s",
        "the same where the kernel sends no process events",
    ),
    Key("tick.period", duration("200 ms", "1 min"), "1 s", "sense, decide, act"),
    *_tier("inference", "[deploy, rollout, infer, app, web-ui]", "200", "none", "0", "best-effort"),
    Key("tiers.inference.policy.users", _user, "[]", "owners whose inference it is", many=True),
    Key("tiers.inference.policy.groups", _group, "[]", "owners' groups", many=True),
    Key("tiers.inference.policy.units", _unit, "[]", "units it was started from", many=True),
    Key(
        "tiers.inference.otherwise",
        words(TRAINING, EVALUATION),
        "training",
        "the tier of those whom the policy does not name",
    ),
    *_tier("training", "[pt, sft, rlhf]", "20", "60 %", "15", "idle"),
    *_tier("evaluation", "[eval, sample, export, merge-lora]", "5", "none", "19", "idle"),
    Key("jobs[].match.job", Text("a job's name, or a glob"), None, "the job's name"),
    Key("jobs[].match.user", _user, None, "its owner"),
    Key("jobs[].match.verb", _verbs, None, "its swift subcommand"),
    Key("jobs[].mode", _modes, None, "the mode of such a job"),
    Key("jobs[].tier", words(*TIER_NAMES), None, "the tier of such a job"),
    Key("control.enabled", Flag(), "true", "move the quota of loaders at all"),
    Key("control.period", duration("5 s", "10 min"), "30 s", "a step of the loop"),
    Key("control.target", _target, "95 %", "the GPU utilisation to hold"),
    Key("control.dead_band", share("0 %", "20 %"), "3 %", "so near the target nothing is moved"),
    Key("control.gain", Number("0.01", "10"), "0.25", "of the loop, on logarithms"),
    Key("control.integral_time", duration("1 s", "1 h"), "15 s", "of the loop"),
    Key("control.derivative_time", duration("0 s", "10 min"), "0 s", "of the loop; 0 s: none"),
    Key(
        "control.floor_per_rank",
        core_count("0.1 cores", "1024 cores"),
        "1 cores",
        "a quota is never under this for each rank",
    ),
    Key("control.max_step", Number("1.05", "10"), "2", "largest factor of one change"),
    Key("control.stale_after", duration("2 s", "5 min"), "5 s", "older readings count as missing"),
    Key(
        "control.min_samples_ratio",
        share("10 %", "100 %"),
        "50 %",
        "with fewer readings in a period the loop holds",
    ),
    Key("control.gpus.*.target", _target, None, "the utilisation to hold on this GPU"),
    Key("micro_batch.enabled", Flag(), "true", "ask trainers for other micro-batches at all"),
    Key("micro_batch.memory_ceiling", share("10 %", "100 %"), "90 %", "not raised above this"),
    Key("micro_batch.memory_protect", share("10 %", "100 %"), "97 %", "lowered above this"),
    Key("micro_batch.wait_share", share("0 %", "100 %"), "3 %", "waiting more is input-bound"),
    Key("micro_batch.settle", duration("0 s", "1 h"), "60 s", "between two changes of a job"),
    Key(
        "carriers",
        Text("names of *.service units, or globs that end in .service", ending=".service"),
        '["user@*.service", cron.service, crond.service, atd.service, supervisor.service, '
        "supervisord.service]",
        "services whose jobs are moved out of them",
        many=True,
    ),
    Key("link.report_interval", duration("200 ms", "1 min"), "1 s", "between trainers' reports"),
    Key("exporter.listen", AddressKind(), "127.0.0.1:11470", "where /metrics is served"),
)

SECTIONS: tuple[Section, ...] = (
    Section("", Config),
    Section("poll", Poll, "reading the process table"),
    Section("tick", Tick, "the rhythm of the daemon"),
    Section("tiers", dict, "what each class of jobs gets"),
    Section("tiers.inference", Tier, "answers somebody waits for"),
    Section("tiers.inference.policy", Policy, "whom the tier is for"),
    Section("tiers.training", Tier, "long runs"),
    Section("tiers.evaluation", Tier, "what may take its time"),
    Section("jobs[]", JobOverride, "exceptions; the first that matches a job decides"),
    Section("jobs[].match", JobMatch, "all of these have to hold"),
    Section("control", Control, "the loop on each GPU's utilisation"),
    Section(
        "control.gpus.*",
        GpuControl,
        "what differs on one GPU",
        re.compile(r"0|[1-9][0-9]{0,2}|GPU-[0-9a-fA-F-]{8,64}"),
        "a GPU's index in quotes, or its UUID (GPU-…)",
    ),
    Section("micro_batch", MicroBatch, "how much a trainer computes at once"),
    Section("link", Link, "the socket to the trainers"),
    Section("exporter", Exporter, "the metrics"),
)


def children(path: str) -> Mapping[str, Key | Section]:
    """What may stand in a section, by name, in the table's order; ``jobs`` and ``gpus`` too."""
    return _CHILDREN[path]


def _all_children() -> dict[str, dict[str, Key | Section]]:
    sections = {section.path: section for section in SECTIONS}
    found: dict[str, dict[str, Key | Section]] = {path: {} for path in sections}
    for key in KEYS:
        here = ""
        steps = key.path.split(".")
        while steps:
            # "gpus.*" is one step: the mapping of names and what each of them holds.
            width = 2 if steps[1:2] == ["*"] else 1
            step, steps = ".".join(steps[:width]), steps[width:]
            path = f"{here}.{step}" if here else step
            name = step.partition(".")[0].partition("[")[0]
            found[here][name] = sections[path] if steps else key
            here = path
    return found


_CHILDREN = _all_children()
