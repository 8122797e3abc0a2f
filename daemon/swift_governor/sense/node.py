# SPDX-License-Identifier: Apache-2.0
"""Facts of the node that don't change while the daemon runs, and what would make limits useless."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
from swift_governor.model import Node

LEGACY = (
    "{root} is not a unified cgroup v2 hierarchy (legacy or hybrid mode): limits would do nothing. "
    "Boot with systemd.unified_cgroup_hierarchy=1"
)
NO_CPU_CONTROLLER = (
    "the cpu controller is not in {root}/cgroup.controllers: a CPU quota would do nothing. "
    "Check for a cgroup v1 mount of cpu, and cgroup_disable= on the kernel's command line"
)


def read_node(
    proc: str = "/proc", cgroup_root: str = "/sys/fs/cgroup", systemd_version: int | None = None
) -> Node:
    """The node's facts; ``boot_id`` is "" where the kernel does not tell."""
    return Node(
        hostname=socket.gethostname(),
        cpus=psutil.cpu_count(logical=True) or 1,
        memory_bytes=int(psutil.virtual_memory().total),
        boot_id=_read(Path(proc) / "sys/kernel/random/boot_id").strip(),
        cpu_controller=cgroup_problem(cgroup_root) is None,
        systemd_version=systemd_version,
    )


def cgroup_problem(root: str = "/sys/fs/cgroup") -> str | None:
    """Why CPU limits can't work on this node, with what to do; None where they can.

    In hybrid mode the unified hierarchy is mounted below, at ``unified``, without controllers.
    """
    controllers = Path(root) / "cgroup.controllers"
    if not controllers.is_file():
        return LEGACY.format(root=root)
    if "cpu" not in _read(controllers).split():
        return NO_CPU_CONTROLLER.format(root=root)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
