# SPDX-License-Identifier: Apache-2.0
"""Runs in the VM: what the kernel says of some processes and of our units, as one line of JSON.

    look.py PID…  →  {"processes": {PID: {"cgroup", "threads": {TID: [nice, ioprio]}}},
                      "units": {path: [cpu.max, cpu.weight]}, "snapshot": the daemon's or null}

A process that has gone is left out. ioprio is as ioprio_get(2) encodes it: 0 is none, 3 << 13 idle.
Standard library and few imports: started often, on an emulated CPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys

CGROUPS = "/sys/fs/cgroup"
SOCKET = "/run/swift-governor/governor.sock"
SNAPSHOT = b'{"method": "org.swiftgovernor.Governor.Snapshot"}\0'
IOPRIO_GET_X86_64 = 252
WHO_PROCESS = 1

syscall = ctypes.CDLL(None, use_errno=True).syscall


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()


def process(pid: int) -> dict[str, object]:
    return {
        "cgroup": read(f"/proc/{pid}/cgroup").removeprefix("0::"),
        "threads": {
            tid: [
                os.getpriority(os.PRIO_PROCESS, int(tid)),
                syscall(IOPRIO_GET_X86_64, WHO_PROCESS, int(tid)),
            ]
            for tid in os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
        },
    }


def processes(pids: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for pid in pids:
        try:
            found[pid] = process(int(pid))
        except OSError:
            continue
    return found


def units() -> dict[str, list[str]]:
    return {
        top.removeprefix(CGROUPS): [read(f"{top}/cpu.max"), read(f"{top}/cpu.weight")]
        for top, _, files in os.walk(f"{CGROUPS}/msswift.slice")
        if "cpu.max" in files
    }


def snapshot() -> object:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(SOCKET)
            client.sendall(SNAPSHOT)
            reply = b""
            while not reply.endswith(b"\0"):
                portion = client.recv(1 << 16)
                if not portion:
                    return None
                reply += portion
    except OSError:
        return None
    return json.loads(reply[:-1])["parameters"]["snapshot"]


print(json.dumps({"processes": processes(sys.argv[1:]), "units": units(), "snapshot": snapshot()}))
