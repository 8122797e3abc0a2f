# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH115, PTH120
# No pathlib: paths here are bytes, and pathlib would double the start-up time.
"""The reader child: does the reads of other processes that can hang, so that the daemon never does.

cmdline and environ take the process's mmap lock, which a stuck GPU driver may hold for good, and
/proc/PID/root may be dead NFS or FUSE. A stuck read costs this child, never a tick. Started by
``reader_client`` as ``python3 -I -S reader.py PROC`` with one stream socket as standard input; ends
at the end of file. Standard library only, and only what starts fast.

Frames are four bytes of length, big-endian, and that much JSON. A request is ``{"pids": [int…],
"environ_keys": [str…]}``; each PID is answered in turn by one frame ``{"pid", "start",
"arg_start", "argv", "environ", "exe", "cgroup", "names_swift"}`` with null for what could not be
read; ``start`` is null, and the rest not there, when the process was gone, or became another one
or another program meanwhile.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Sequence
from typing import Any

MAX_ARGV_BYTES = 128 * 1024
MAX_ENVIRON_BYTES = 1024 * 1024
MAX_ENVIRON_VALUE_BYTES = 4096
MAX_SCRIPT_BYTES = 4096
MAX_REQUEST_BYTES = 256 * 1024
MAX_LINKS = 8

# argv's script comes within the first few arguments: interpreter, its options, script.
SCRIPT_WITHIN = 16
SCRIPT_NAMES = ("swift", "megatron")
# What a console script of ms-swift has in its head: the import of today's pip, uv and conda, or the
# distribution's name where setuptools wrote it.
SWIFT_MARKS = (b"swift.cli", b"ms-swift", b"ms_swift")


def decode(raw: bytes) -> str:
    """Bytes of the kernel as text; what is not UTF-8 comes as lone surrogates (PEP 383)."""
    return raw.decode("utf-8", "surrogateescape")


def read_bounded(path: str, limit: int) -> bytes | None:
    """At most ``limit`` bytes of a file under /proc; None when it can't be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            chunks, size = [], 0
            while size < limit:
                chunk = file.read(min(limit - size, 65536))
                if not chunk:
                    break
                chunks.append(chunk)
                size += len(chunk)
    except OSError:
        return None
    return b"".join(chunks)


def identity(directory: str) -> tuple[int, int] | None:
    """Start time and address of the arguments: another process, and another program, differ.

    Fields 22 and 48 of proc_pid_stat(5), counted from behind the name, which may hold anything.
    """
    raw = read_bounded(directory + "/stat", 4096)
    try:
        fields = raw[raw.rindex(b")") + 1 :].split() if raw else []
        return int(fields[19]), int(fields[45])
    except (ValueError, IndexError):
        return None


def read_argv(directory: str) -> list[str] | None:
    """The command line; empty for kernel threads and zombies, None when it can't be read."""
    raw = read_bounded(directory + "/cmdline", MAX_ARGV_BYTES)
    if raw is None:
        return None
    return [decode(argument) for argument in raw.removesuffix(b"\0").split(b"\0")] if raw else []


def read_environ(directory: str, keys: frozenset[bytes]) -> dict[str, str] | None:
    """The variables named in ``keys``, first mention first as getenv(3) has it."""
    raw = read_bounded(directory + "/environ", MAX_ENVIRON_BYTES)
    if raw is None:
        return None
    kept: dict[str, str] = {}
    for entry in raw.split(b"\0"):
        key, equals, value = entry.partition(b"=")
        if equals and key in keys and len(value) <= MAX_ENVIRON_VALUE_BYTES:
            kept.setdefault(decode(key), decode(value))
    return kept


def read_link(path: str) -> str | None:
    """Where a link of /proc points to; None when it can't be read."""
    try:
        return decode(os.readlink(os.fsencode(path)))
    except OSError:
        return None


def read_cgroup(directory: str) -> str | None:
    """The path in the unified hierarchy, from the line ``0::/…`` of proc_pid_cgroup(5)."""
    raw = read_bounded(directory + "/cgroup", 65536) or b""
    for line in raw.splitlines():
        if line.startswith(b"0::"):
            return decode(line[3:])
    return None


def swift_script(argv: Sequence[str]) -> str | None:
    """The argument that would be ms-swift's console script, by its name."""
    for argument in argv[:SCRIPT_WITHIN]:
        if argument.rsplit("/", 1)[-1] in SCRIPT_NAMES:
            return argument
    return None


def script_names_swift(root: str, cwd: str, script: bytes) -> bool | None:
    """Whether a script's head names ms-swift's package, as a process with this root sees it.

    ``root`` and ``cwd`` may be the links /proc/PID/root and /proc/PID/cwd. None when the script
    can't be read or is no regular file. It is opened by O_PATH first, since opening a device or a
    FIFO that a user named would be a side effect; absolute links are followed inside ``root``.
    """
    if b"/" not in script:
        return None
    path = os.fsencode(root if script.startswith(b"/") else cwd).rstrip(b"/") + b"/" + script
    try:
        for _ in range(MAX_LINKS):
            if not stat.S_ISLNK(os.lstat(path).st_mode):
                break
            target = os.readlink(path)
            parent = os.fsencode(root) if target.startswith(b"/") else os.path.dirname(path)
            path = parent.rstrip(b"/") + b"/" + target
        return _head_names_swift(path)
    except (OSError, ValueError):
        return None


def names_swift(directory: str, script: str | None) -> bool | None:
    """Whether the console script of a process is ms-swift's; None where it has none."""
    if script is None:
        return None
    name = script.encode("utf-8", "surrogateescape")
    return script_names_swift(directory + "/root", directory + "/cwd", name)


def _head_names_swift(path: bytes) -> bool | None:
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        file = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            head = os.read(file, MAX_SCRIPT_BYTES)
        finally:
            os.close(file)
    finally:
        os.close(handle)
    return any(mark in head for mark in SWIFT_MARKS)


def read_process(proc: str, pid: int, keys: frozenset[bytes]) -> dict[str, Any]:
    """All of one process, or ``start`` null when it was not the same before and after."""
    directory = f"{proc}/{pid}"
    before = identity(directory)
    if before is None:
        return {"pid": pid, "start": None}
    argv = read_argv(directory)
    answer = {
        "pid": pid,
        "start": before[0],
        "arg_start": before[1],
        "argv": argv,
        "environ": read_environ(directory, keys),
        "exe": read_link(directory + "/exe"),
        "cgroup": read_cgroup(directory),
        "names_swift": names_swift(directory, swift_script(argv or [])),
    }
    return answer if identity(directory) == before else {"pid": pid, "start": None}


def receive(connection: socket.socket, size: int) -> bytes | None:
    """Exactly ``size`` bytes; None at the end of the stream."""
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return data


def serve(connection: socket.socket, proc: str) -> None:
    """Answers requests until the daemon closes its end."""
    while True:
        head = receive(connection, 4)
        size = int.from_bytes(head or b"", "big")
        if head is None or size > MAX_REQUEST_BYTES:
            return
        body = receive(connection, size)
        if body is None:
            return
        request = json.loads(body)
        keys = frozenset(key.encode() for key in request["environ_keys"])
        for pid in request["pids"]:
            answer = json.dumps(read_process(proc, pid, keys)).encode()
            connection.sendall(len(answer).to_bytes(4, "big") + answer)


def main() -> None:
    """Serves the socket on standard input; a closed one is the normal end."""
    with socket.socket(fileno=0) as connection:
        try:
            serve(connection, sys.argv[1])
        except (BrokenPipeError, ConnectionResetError):
            return


if __name__ == "__main__":
    main()
