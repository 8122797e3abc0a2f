# SPDX-License-Identifier: Apache-2.0
"""What a rank's environment says: its place among the ranks, and its GPU. Any user may write there.

torchrun sets all of RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE; deepspeed all but the last;
a single process has none of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# More ranks than any cluster has; what claims more is no number to reckon with.
MAX_RANKS = 1_000_000
MAX_DEVICES = 256

NUMBER = re.compile(r"[0-9]{1,7}\Z")
DEVICE = re.compile(r"(?:[0-9]{1,3}|(?:GPU|MIG)-[0-9A-Za-z/-]{1,80})\Z")


@dataclass(frozen=True)
class Place:
    """A rank's place; None for what is not said, or is said in a way that can't be."""

    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None


def read_place(environ: Mapping[str, str] | None) -> Place:
    """The place among the ranks; values that contradict each other are not believed."""
    environ = environ or {}
    world = _number(environ, "WORLD_SIZE", 1)
    local_world = _number(environ, "LOCAL_WORLD_SIZE", 1)
    rank = _number(environ, "RANK", 0)
    local_rank = _number(environ, "LOCAL_RANK", 0)
    if world is not None and local_world is not None and local_world > world:
        local_world = None
    if rank is not None and world is not None and rank >= world:
        rank = None
    if local_rank is not None and local_rank >= (local_world or world or MAX_RANKS):
        local_rank = None
    return Place(rank, local_rank, world, local_world)


def gpu_hint(environ: Mapping[str, str] | None, local_rank: int | None) -> str | None:
    """The entry of CUDA_VISIBLE_DEVICES that a local rank selects: an index, or a UUID.

    Without the variable CUDA counts all devices, so that the local rank is the index. CUDA takes
    the list up to the first entry that is none, so that "" and "-1" hide every GPU.
    """
    if environ is None:
        return None
    index = local_rank or 0
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return str(index) if index < MAX_DEVICES else None
    devices: list[str] = []
    for entry in listed.split(",", MAX_DEVICES)[:MAX_DEVICES]:
        if not DEVICE.match(entry.strip()):
            break
        devices.append(entry.strip())
    return devices[index] if index < len(devices) else None


def _number(environ: Mapping[str, str], key: str, least: int) -> int | None:
    text = environ.get(key, "")
    if not NUMBER.match(text):
        return None
    number = int(text)
    return number if least <= number <= MAX_RANKS else None
