# SPDX-License-Identifier: Apache-2.0
"""Whose is this process? What another manager owns is never moved. Pure.

Kubernetes, Slurm and container engines put their processes back, or lose track of them, when
somebody moves them (CNTO PR#250, tuned#368). A process of a ``*.service`` that was moved is no
longer reached by ``systemctl stop`` of that service (systemd#6356), and a session's leader belongs
to logind (systemd#10761).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

# (a whole path segment, who owns what is below it). A driver that doesn't use systemd makes plain
# directories ("docker/ID"), one that does makes scopes ("docker-ID.scope").
_FOREIGN = tuple(
    (re.compile(pattern), owner)
    for pattern, owner in (
        (r"kubepods.*|kubelet.*", "Kubernetes"),
        (r"cri-containerd-.*|crio-.*|crio", "Kubernetes"),
        (r"docker-.*\.scope|docker|buildkit|moby", "Docker"),
        (r"libpod-.*|libpod_parent|podman-.*\.scope", "Podman"),
        (r"nerdctl-.*\.scope|nerdctl|containerd|containerd-.*\.scope", "containerd"),
        (r"machine\.slice|machine-.*\.scope", "systemd-machined"),
        (r"slurm|slurm_.*|slurmstepd\.scope|slurmstepd-.*\.scope|.*_slurmstepd\.scope", "Slurm"),
        (r"lxc|lxc\.payload.*|lxc\.monitor.*|lxc-.*\.scope|\.lxc", "LXC"),
        (r"apptainer-.*\.scope|singularity-.*\.scope", "Apptainer"),
        (r"htcondor|condor_.*", "HTCondor"),
    )
)


def _is_carrier(service: str, carriers: Sequence[str]) -> bool:
    stem = service[: -len(".service")]
    return any(fnmatchcase(service, c) or fnmatchcase(stem, c) for c in carriers)


def keep_out(cgroup: str, pid_is_session_leader: bool, carriers: Sequence[str]) -> str | None:
    """The reason why a process in ``cgroup`` must stay where it is, or None when it may be moved.

    ``cgroup`` is the path of /proc/PID/cgroup below the cgroup2 mount. ``pid_is_session_leader``
    tells that logind knows the process as a session's Leader (not merely that it called setsid(2):
    every torchrun rank does). ``carriers`` are fnmatch patterns of services that only carry other
    people's programs (``user@*.service``, ``cron``), with or without ".service".
    """
    segments = [s for s in cgroup.removesuffix(" (deleted)").split("/") if s]
    if ".." in segments:
        return "it is outside the cgroup namespace of this daemon"
    for segment in segments:
        for pattern, owner in _FOREIGN:
            if pattern.fullmatch(segment):
                return f"it belongs to {owner} ({segment})"
    if segments and segments[-1] == "init.scope":
        return "it is a service manager (init.scope)"
    for segment in segments:
        if segment.endswith(".service") and not _is_carrier(segment, carriers):
            return f"it belongs to {segment}, and moved it would outlive `systemctl stop {segment}`"
    if pid_is_session_leader:
        return "it is the leader of a login session"
    return None
