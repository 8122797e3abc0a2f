# SPDX-License-Identifier: Apache-2.0
"""Whose a process is, by its cgroup path: real paths of real managers."""

from __future__ import annotations

import pytest
from swift_governor.act.processes import session_leader
from swift_governor.jobs.ownership import keep_out

CARRIERS = ("user@*.service", "cron", "atd.service", "supervisor*")

KEPT = {
    "Kubernetes, systemd driver": ("/kubepods.slice/kubepods-pod1f.slice/cri-containerd-ab.scope"),
    "Kubernetes, cgroupfs driver": "/kubepods/besteffort/pod1f/ab12",
    "Kubernetes within kind": "/kubelet.slice/kubelet-kubepods.slice/cri-containerd-1.scope",
    "CRI-O": "/kubepods.slice/crio-0123.scope",
    "CRI-O monitor": "/system.slice/crio-conmon-0123.scope",
    "Docker, systemd driver": "/system.slice/docker-0123456789ab.scope",
    "Docker below our own tree (cgroup-parent)": "/msswift.slice/docker-0123456789ab.scope",
    "Docker, cgroupfs driver": "/docker/0123456789ab",
    "Docker within a container": "/docker/0123/init.scope",
    "Podman as root": "/machine.slice/libpod-0123.scope/container",
    "Podman of a user": (
        "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-0123.scope/container"
    ),
    "nspawn": "/machine.slice/systemd-nspawn@deb.service/payload",
    "a virtual machine": "/machine.slice/machine-qemu\\x2d1.scope/libvirt/emulator",
    "Slurm on cgroup v2": "/system.slice/slurmstepd.scope/job_17/step_0/user/task_0",
    "Slurm with several daemons": "/system.slice/node1_slurmstepd.scope/job_17/step_0",
    "Slurm on cgroup v1 names": "/slurm/uid_1000/job_17/step_0",
    "LXC": "/lxc.payload.web",
    "LXC monitor": "/lxc.monitor.web",
    "old LXC": "/lxc/web",
    "Apptainer": "/user.slice/user-1000.slice/user@1000.service/user.slice/apptainer-77.scope",
    "a service": "/system.slice/swift-deploy.service",
    "a service with cgroups of its own": "/system.slice/foo.service/worker-1",
    "a service of a user": "/user.slice/user-1000.slice/user@1000.service/app.slice/train.service",
    "a template": "/system.slice/system-train.slice/train@7.service",
    "PID 1": "/init.scope",
    "a user's service manager": "/user.slice/user-1000.slice/user@1000.service/init.scope",
    "another cgroup namespace": "/../../system.slice/x.scope",
    "a service that has gone": "/system.slice/foo.service (deleted)",
}

MOVED = {
    "a login": "/user.slice/user-1000.slice/session-3.scope",
    "a terminal of a desktop": (
        "/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope"
    ),
    "tmux under the user manager": "/user.slice/user-1000.slice/user@1000.service/tmux-1.scope",
    "cron, by its short name": "/system.slice/cron.service",
    "at": "/system.slice/atd.service",
    "supervisord, by a pattern": "/system.slice/supervisord.service",
    "no unit at all": "/",
    "ours, in another scope": "/msswift.slice/msswift-training.slice/msswift-sft1x1-main.scope",
    "systemd-run": "/system.slice/run-r0123.scope",
    "a name that only contains docker": "/user.slice/my-docker-notes.scope",
    "a name that only begins like Slurm": "/user.slice/slurmy.scope",
}


@pytest.mark.parametrize("who", KEPT)
def test_what_another_manager_owns_stays(who: str) -> None:
    assert keep_out(KEPT[who], False, CARRIERS)


@pytest.mark.parametrize("who", MOVED)
def test_what_nobody_else_owns_may_be_moved(who: str) -> None:
    assert keep_out(MOVED[who], False, CARRIERS) is None


def test_the_leader_of_a_login_session_stays_and_says_so() -> None:
    reason = keep_out("/user.slice/user-1000.slice/session-3.scope", True, CARRIERS)
    assert reason
    assert "session" in reason


def test_the_reason_names_the_service_that_would_lose_its_process() -> None:
    assert "systemctl stop foo.service" in (keep_out("/system.slice/foo.service", False, ()) or "")


def test_without_carriers_what_runs_under_a_user_manager_stays() -> None:
    path = "/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope"
    assert keep_out(path, False, ())


def test_logind_tells_who_leads_a_session_and_setsid_does_not(tmp_path) -> None:
    (tmp_path / "3").write_text("# private\nUID=1000\nLEADER=812\nTYPE=tty\n")
    (tmp_path / "4").write_text("UID=1000\nLEADER=\n")
    base = "/user.slice/user-1000.slice"
    assert session_leader(f"{base}/session-3.scope", str(tmp_path)) == 812
    assert session_leader(f"{base}/session-4.scope", str(tmp_path)) is None
    assert session_leader(f"{base}/session-5.scope", str(tmp_path)) is None
    assert session_leader(f"{base}/user@1000.service/app.slice", str(tmp_path)) is None
