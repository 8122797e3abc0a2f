# SPDX-License-Identifier: Apache-2.0
"""A throw-away Debian VM with real systemd and cgroup v2, for the node tests and the demo.

    with Vm.boot("bookworm") as vm:
        vm.run(["systemctl", "is-active", "ssh"])

One Debian root a suite is built once (image.py) and never written to again; each boot works on a
snapshot that is gone with QEMU. KVM is used where a guest really boots with it (accelerator.py).
By hand: ``python -m tests.node.vm shell --suite trixie``.
"""

from __future__ import annotations

from tests.node.vm.disk import ExtraDisk, make_disk_image
from tests.node.vm.failure import CommandError, Result, VmError
from tests.node.vm.image import SUITES, Image, build
from tests.node.vm.machine import Vm

__all__ = [
    "SUITES",
    "CommandError",
    "ExtraDisk",
    "Image",
    "Result",
    "Vm",
    "VmError",
    "build",
    "make_disk_image",
]
