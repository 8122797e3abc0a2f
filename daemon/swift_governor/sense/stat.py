# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH208
# No pathlib: a poll does this for each process of the node.
"""/proc/PID/stat, status and cgroup: the reads of another process that never wait for its locks.

proc_pid_stat(5). The name in it may hold anything, parentheses and line feeds included, so that
fields are counted from behind the last parenthesis.
"""

from __future__ import annotations

import os
from typing import NamedTuple

MAX_STAT_BYTES = 4096


class Stat(NamedTuple):
    """One process as its stat file shows it.

    ``arg_start`` is the address of its arguments, 0 where the kernel hides it: it changes with
    every exec, so that one can be noticed without reading the command line.
    """

    pid: int
    comm: str
    state: str
    ppid: int
    start_ticks: int
    arg_start: int


def parse_stat(raw: bytes) -> Stat | None:
    """Reads a stat file's bytes; None when they are not one."""
    opening, closing = raw.find(b"("), raw.rfind(b")")
    if not 0 < opening < closing:
        return None
    fields = raw[closing + 1 :].split()
    try:
        return Stat(
            pid=int(raw[:opening]),
            comm=raw[opening + 1 : closing].decode("utf-8", "surrogateescape"),
            state=fields[0].decode("ascii"),
            ppid=int(fields[1]),
            start_ticks=int(fields[19]),
            arg_start=int(fields[45]) if len(fields) > 45 else 0,
        )
    except (ValueError, IndexError):
        return None


def read_stat(proc: str, pid: int) -> Stat | None:
    """The stat of one process; None when it has gone."""
    raw = _read(f"{proc}/{pid}/stat", MAX_STAT_BYTES)
    return parse_stat(raw) if raw else None


def read_uid(proc: str, pid: int) -> int | None:
    """The real user of one process; None when gone.

    From status, since the owner of /proc/PID is the effective one: a set-user-ID program that a
    user starts is still that user's.
    """
    for line in (_read(f"{proc}/{pid}/status", MAX_STAT_BYTES) or b"").splitlines():
        if line.startswith(b"Uid:"):
            words = line.split()
            return int(words[1]) if len(words) > 1 and words[1].isdigit() else None
    return None


def read_cgroup(proc: str, pid: int) -> str | None:
    """Its path in the unified hierarchy, beginning with "/"; None when gone or not in one."""
    raw = _read(f"{proc}/{pid}/cgroup", 65536) or b""
    for line in raw.splitlines():
        if line.startswith(b"0::"):
            return line[3:].decode("utf-8", "surrogateescape")
    return None


def list_pids(proc: str) -> list[int]:
    """The PIDs that /proc lists now; none when it can't be listed."""
    try:
        return [int(name) for name in os.listdir(proc) if name.isdecimal()]
    except OSError:
        return []


def _read(path: str, limit: int) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(handle, limit)
    except OSError:
        return None
    finally:
        os.close(handle)
