# SPDX-License-Identifier: Apache-2.0
"""What the socket offers: one table of methods, each with its fields and who may call it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_governor.link.fields import Field
from swift_governor.version import VERSION

INTERFACE = "org.swiftgovernor.Governor"
SERVICE = "org.varlink.service"
_COUNT = 10**9
_SECONDS = 10.0**7


class Who(enum.Enum):
    """Who may call a method."""

    ANYONE = "anyone"
    SAMPLER = "the NVML sampler"
    ADMIN = "root or the group swift-governor"


@dataclass(frozen=True)
class Method:
    """``session``: the call belongs to a trainer's session on this connection."""

    who: Who
    fields: tuple[Field, ...] = ()


METHODS: Mapping[str, Method] = {
    f"{INTERFACE}.Register": Method(
        Who.ANYONE,
        (
            Field("protocol", "int", 1, 1000),
            Field("rank", "int", 0, _COUNT),
            Field("local_rank", "int", 0, 1024),
            Field("world_size", "int", 1, _COUNT),
            Field("local_world_size", "int", 1, 1024),
            Field("micro_batch", "int", 1, 10**6),
            Field("accumulation", "int", 1, 10**6),
            Field("rows_per_step", "int", 1, 10**6),
            Field("framework", "str", high=100),
            Field("workers", "ints", high=1024),
            Field("cannot", "strs", high=32),
            Field("max_length", "int", 0, _COUNT, optional=True),
        ),
    ),
    f"{INTERFACE}.Report": Method(
        Who.ANYONE,
        (
            Field("session", "str", high=64),
            Field("optimizer_step", "int", 0, _COUNT),
            Field("running_micro_batch", "int", 1, 10**6),
            Field("steps", "int", 0, 10**6),
            Field("seconds", "float", 0, _SECONDS),
            Field("wait_s", "float", 0, _SECONDS),
            Field("samples", "int", 0, _COUNT),
            Field("phase", "str", high=32),
            Field("workers", "ints", high=1024),
            Field("oom_count", "int", 0, _COUNT),
            Field("last_oom_micro_batch", "int", 1, 10**6, optional=True),
            Field("answered", "int", 0, _COUNT),
            Field("refused", "str", high=400, optional=True),
        ),
    ),
    f"{INTERFACE}.Sample": Method(
        Who.SAMPLER,
        (
            Field("status", "str", high=32),
            Field("detail", "str", high=400),
            Field("at", "float", 0, 10.0**12),
            Field("driver", "str", high=80),
            Field("gpus", "objects", high=64),
        ),
    ),
    f"{INTERFACE}.Snapshot": Method(Who.ANYONE),
    f"{INTERFACE}.SetLoop": Method(
        Who.ADMIN,
        (
            Field("gpu", "int", 0, 1024),
            Field("enabled", "bool"),
            Field("quota_cores", "float", 0.01, 10.0**5, optional=True),
        ),
    ),
    f"{INTERFACE}.SetMicroBatch": Method(
        Who.ADMIN,
        (Field("job", "str", high=80), Field("micro_batch", "int", 1, 10**6, optional=True)),
    ),
    f"{SERVICE}.GetInfo": Method(Who.ANYONE),
    f"{SERVICE}.GetInterfaceDescription": Method(
        Who.ANYONE, (Field("interface", "str", high=200),)
    ),
}


class CallError(Exception):
    """A Varlink error: its full name and parameters."""

    def __init__(self, name: str, **parameters: str) -> None:
        super().__init__(name)
        self.name = name
        self.parameters = parameters


def not_allowed(message: str) -> CallError:
    """The error for a caller without the right."""
    return CallError(f"{INTERFACE}.NotAllowed", message=message)


def not_found(message: str) -> CallError:
    """The error for a GPU or job that isn't there."""
    return CallError(f"{INTERFACE}.NotFound", message=message)


def get_info() -> Mapping[str, Any]:
    """org.varlink.service.GetInfo, https://varlink.org/Service"""
    return {
        "vendor": "swift-governor",
        "product": "swift-governor",
        "version": VERSION,
        "url": "https://github.com/swift-governor/swift-governor",
        "interfaces": [SERVICE, INTERFACE],
    }


def get_interface_description(name: str) -> Mapping[str, Any]:
    """The interface files beside this module. Raises CallError for another interface."""
    if name not in (INTERFACE, SERVICE):
        raise CallError(f"{SERVICE}.InterfaceNotFound", interface=name)
    return {"description": (Path(__file__).parent / f"{name}.varlink").read_text("utf-8")}
