# SPDX-License-Identifier: Apache-2.0
"""Any bytes give a Config or a ConfigError, and any Config shown reads as the same again."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from swift_governor.config import (
    Cap,
    Config,
    ConfigError,
    GpuControl,
    JobMatch,
    JobOverride,
    default_config,
    effective,
    load,
)
from swift_governor.model import Mode

SHIPPED = (Path(__file__).parents[3] / "etc" / "swift-governor" / "config.yaml").read_bytes()
relaxed = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


def load_bytes(data: bytes) -> Config | ConfigError:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_bytes(data)
        try:
            return load(str(file))
        except ConfigError as error:
            refusal = error
    assert refusal.errors
    assert all(p.line >= 1 and p.column >= 1 for p in refusal.errors)
    # Each can be printed, on one line, whatever it quotes.
    assert all(str(p).isprintable() for p in refusal.errors), str(refusal)
    return refusal


WORDS = (
    "mode tiers training jobs match control gpus target carriers 0 60 % 2 cores 30 s none ~ no : - "
    "[ ] { } , ? & * ! | > ' \" # @ ` << !!binary &a *a \\U00110000 \\ud800 --- ... %YAML "
    "\t \ufeff \u2028 \x85 \x00 é"
)
pieces = st.sampled_from([*WORDS.split(" "), " ", "\n", "\n  ", ": ", "- ", '"', "\r\n"])


@relaxed
@given(st.binary(max_size=200))
def test_any_bytes_give_a_config_or_a_config_error(data):
    load_bytes(data)


@relaxed
@given(st.lists(pieces, max_size=40))
def test_any_pieces_of_yaml_give_a_config_or_a_config_error(parts):
    load_bytes("".join(parts).encode())


@relaxed
@given(st.integers(0, len(SHIPPED)), st.integers(0, 12), st.one_of(st.binary(max_size=4), pieces))
def test_the_shipped_file_with_a_hole_or_a_patch_gives_a_config_or_a_config_error(at, cut, patch):
    patch = patch.encode() if isinstance(patch, str) else patch
    load_bytes(SHIPPED[:at] + patch + SHIPPED[at + cut :])


thousandths = st.integers(50, 1000).map(lambda n: n / 1000)
seconds = st.one_of(
    st.integers(5, 600).map(float), st.integers(5000, 600_000).map(lambda n: n / 1000)
)
names = st.text(min_size=1, max_size=30).filter(lambda t: t.isprintable() and t == t.strip())
maybe_name = st.none() | names
caps = st.one_of(
    st.just(Cap()),
    st.integers(10, 1000).map(lambda n: Cap(share=n / 1000)),
    st.integers(10, 40_960).map(lambda n: Cap(count=n / 10)),
)
overrides = st.builds(
    JobOverride,
    st.builds(JobMatch, names, maybe_name, st.sampled_from([None, "sft", "merge-lora"])),
    st.sampled_from(list(Mode)),
    st.sampled_from([None, "inference", "evaluation"]),
)


@st.composite
def configs(draw):
    config = default_config()
    control = dataclasses.replace(
        config.control,
        period_s=draw(seconds),
        stale_after_s=5.0,
        target=draw(thousandths),
        gain=draw(st.integers(10, 10_000)) / 1000,
        enabled=draw(st.booleans()),
        dead_band=0.01,
        gpus={str(i): GpuControl(draw(thousandths)) for i in range(draw(st.integers(0, 3)))},
    )
    training = dataclasses.replace(config.tiers["training"], cap=draw(caps))
    inference = config.tiers["inference"]
    policy = dataclasses.replace(inference.policy, users=tuple(draw(st.sets(names, max_size=5))))
    tiers = {
        **config.tiers,
        "training": training,
        "inference": dataclasses.replace(inference, policy=policy),
    }
    return dataclasses.replace(
        config, tiers=tiers, control=control, jobs=tuple(draw(st.lists(overrides, max_size=3)))
    )


@relaxed
@given(configs())
def test_what_is_shown_as_effective_reads_as_an_equal_config(config):
    assert load_bytes(effective(config).encode()) == config
