# SPDX-License-Identifier: Apache-2.0
"""What must be known of a process before it is touched: identity, threads, cgroup.
proc_pid_stat(5).

Only files that never wait for the process's memory lock or for its file systems are read here, so
a read can't hang. A process that has gone reads as None.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat (or /proc/PID/task/TID/stat) that identify a thread."""

    state: str
    ppid: int
    nice: int
    threads: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        return self.state not in "ZXx"


def read_small(path: str, limit: int = 1 << 16) -> bytes | None:
    """The file's first ``limit`` bytes; None when it is gone or may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    chunks: list[bytes] = []
    try:
        while limit > 0:  # a seq_file gives a page at a time, however much is asked for
            chunk = os.read(fd, limit)
            if not chunk:
                break
            chunks.append(chunk)
            limit -= len(chunk)
    except OSError:
        return None
    finally:
        os.close(fd)
    return b"".join(chunks)


def read_stat(proc_root: str, pid: int, tid: int | None = None) -> Stat | None:
    """The comm field is the process's own choice, so fields are counted from the last ")"."""
    path = f"{proc_root}/{pid}/stat" if tid is None else f"{proc_root}/{pid}/task/{tid}/stat"
    text = read_small(path)
    if text is None:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    try:
        return Stat(
            state=fields[0].decode("ascii"),
            ppid=int(fields[1]),
            nice=int(fields[16]),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
        )
    except (IndexError, ValueError):
        return None


def is_same(proc_root: str, pid: int, start_ticks: int) -> bool:
    """Whether ``pid`` is still the process that started then, and not a zombie."""
    stat = read_stat(proc_root, pid)
    return stat is not None and stat.alive and stat.start_ticks == start_ticks


def cgroup_of(proc_root: str, pid: int) -> str | None:
    """The process's path below the cgroup2 mount, cgroups(7); also on a node in hybrid mode."""
    text = read_small(f"{proc_root}/{pid}/cgroup")
    for line in (text or b"").split(b"\n"):
        if line.startswith(b"0::/"):
            return line[3:].decode("utf-8", "surrogateescape")
    return None


def thread_ids(proc_root: str, pid: int) -> Iterator[int]:
    """TIDs of a process; none when it has gone."""
    try:
        names = os.listdir(  # noqa: PTH208
            f"{proc_root}/{pid}/task"
        )
    except OSError:
        return
    yield from (int(n) for n in names if n.isdigit())


def session_leader(cgroup: str, sessions_root: str = "/run/systemd/sessions") -> int | None:
    """The PID that logind knows as Leader of the session whose scope this is; None: no such
    session."""
    for segment in cgroup.split("/"):
        if segment.startswith("session-") and segment.endswith(".scope"):
            text = read_small(f"{sessions_root}/{segment[len('session-') : -len('.scope')]}") or b""
            for line in text.split(b"\n"):
                if line.startswith(b"LEADER=") and line[7:].strip().isdigit():
                    return int(line[7:])
    return None
