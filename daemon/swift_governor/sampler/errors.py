# SPDX-License-Identifier: Apache-2.0
"""What each NVML error code means for the sampler: one table, and the words an operator reads.

Codes are those of nvmlReturn_t in NVIDIA's NVML API reference.
"""

from __future__ import annotations

import enum


class Reaction(enum.Enum):
    """What to do when a reading returns an error."""

    EMPTY = "nothing to list: that is an answer"
    OFF = "take the next older way to read it, or stop reading it on this GPU"
    DENIED = "stop reading it on this GPU, and say who forbids it"
    LARGER = "read again, with more room"
    MISSING = "no value this round"
    QUARANTINE = "leave this GPU alone for a while; the others go on"
    REINIT = "shut NVML down and initialise it again, with back-off"
    RESTART = "only a new process can go on: the library stays loaded in this one"


class Status:
    """The values of ``model.SamplerStatus`` that a sampler can say of itself."""

    OK = "ok"
    NO_DRIVER = "no-driver"
    NO_GPU = "no-gpu"
    FAILING = "failing"


class Rule:
    """One row: the reaction to a reading, the status if NVML's init returns it, and what to do."""

    __slots__ = ("at_init", "fault", "reaction", "text")

    def __init__(
        self, reaction: Reaction, text: str, fault: str = "", at_init: str = Status.FAILING
    ) -> None:
        self.reaction = reaction
        self.text = text
        self.fault = fault  # the short word of a quarantined GPU
        self.at_init = at_init


_LOST = "reset it (nvidia-smi --gpu-reset) or reboot; see the kernel's log for its XID"

TABLE: dict[int, Rule] = {
    # pynvml raises NVMLError(0) where a call succeeds with zero samples.
    0: Rule(Reaction.EMPTY, "nothing to list"),
    1: Rule(Reaction.REINIT, "NVML says it isn't initialised", "failing"),
    3: Rule(Reaction.OFF, "not supported by this GPU"),
    4: Rule(
        Reaction.DENIED,
        "no permission: the sampler's user needs /dev/nvidia* (see DeviceAllow= of its unit)",
    ),
    6: Rule(Reaction.EMPTY, "nothing to list"),
    7: Rule(Reaction.LARGER, "the list grew while it was read"),
    9: Rule(
        Reaction.REINIT,
        "the NVIDIA driver isn't loaded: modprobe nvidia, if this node has GPUs",
        "failing",
        Status.NO_DRIVER,
    ),
    10: Rule(Reaction.MISSING, "the driver took too long"),
    12: Rule(
        Reaction.REINIT,
        "no libnvidia-ml.so.1: install the NVIDIA driver, if this node has GPUs",
        "failing",
        Status.NO_DRIVER,
    ),
    13: Rule(Reaction.OFF, "this driver doesn't have that function"),
    15: Rule(Reaction.QUARANTINE, f"the GPU is lost: {_LOST}", "lost"),
    16: Rule(Reaction.QUARANTINE, f"the GPU needs a reset: {_LOST}", "reset-required"),
    18: Rule(
        Reaction.RESTART,
        "driver and libnvidia-ml.so.1 differ in version: reboot, or reload the driver's modules",
    ),
    # The structure's version is one that this driver doesn't know.
    25: Rule(Reaction.OFF, "this driver has an older version of that function"),
    28: Rule(Reaction.QUARANTINE, f"the GPU was not found: {_LOST}", "lost"),
    999: Rule(Reaction.REINIT, "NVML failed and can't say why; see the kernel's log", "failing"),
}

_ANY_OTHER = Rule(Reaction.MISSING, "an NVML error without a reaction of its own")


def rule_for(code: int) -> Rule:
    """The row for ``code``; a code that isn't in the table costs the one reading."""
    return TABLE.get(code, _ANY_OTHER)


class MustRestartError(Exception):
    """NVML can't be used again by this process."""
