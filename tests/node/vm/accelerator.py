# SPDX-License-Identifier: Apache-2.0
"""What runs the guest's instructions: KVM where a guest has really booted with it, else emulation.

A /dev/kvm that opens proves nothing: nested KVM exists that hangs in the kernel's decompression.
So the first boot on a machine tries, with a deadline, and the cache remembers what succeeded.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from tests.node.vm.host import CACHE

DEVICE = "/dev/kvm"
MEMORY = CACHE / "accelerator.json"


@dataclass(frozen=True)
class Accelerator:
    """QEMU's arguments, how long the kernel may stay silent, and how long until sshd answers."""

    name: str
    qemu: tuple[str, ...]
    kernel_speaks_within_s: float
    ssh_within_s: float


# A KVM guest's kernel speaks within a second, an emulated one's within ten: the rest is for a busy
# machine. Nehalem has no AVX, which PyTorch would use and TCG emulates slowly.
KVM = Accelerator("kvm", ("-accel", "kvm", "-cpu", "host"), 20, 120)
TCG = Accelerator("tcg", ("-accel", "tcg,thread=multi", "-cpu", "Nehalem"), 120, 600)


def candidates() -> list[Accelerator]:
    """Those worth trying on this machine, best first; only one once a boot has succeeded."""
    if not _opens(DEVICE):
        return [TCG]
    for accelerator in (KVM, TCG):
        if _remembered() == {"machine": _machine(), "accelerator": accelerator.name}:
            return [accelerator]
    return [KVM, TCG]


def remember(accelerator: Accelerator) -> None:
    """Keep what a boot succeeded with, for this machine and kernel."""
    answer = {"machine": _machine(), "accelerator": accelerator.name}
    MEMORY.write_text(json.dumps(answer) + "\n")


def _remembered() -> object:
    try:
        return json.loads(MEMORY.read_text())
    except (OSError, ValueError):
        return None


def _machine() -> str:
    """Another machine or kernel may answer otherwise."""
    return f"{os.uname().nodename} {os.uname().release}"


def _opens(device: str) -> bool:
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
