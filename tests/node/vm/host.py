# SPDX-License-Identifier: Apache-2.0
"""What the harness needs of the machine it runs on: tools, the cache, free ports, one builder."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.node.vm.failure import VmError

LOG = logging.getLogger("tests.node.vm")
CACHE = Path(__file__).resolve().parents[3] / ".cache" / "vm"

# Tool → the Debian package that has it.
TOOLS = {
    "mke2fs": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "qemu-system-x86_64": "qemu-system-x86",
    "scp": "openssh-client",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
# Debian leaves these out of a user's PATH, and mke2fs lives in one of them.
SEARCH_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def tools() -> dict[str, str]:
    """Where each needed tool is. Raises VmError with the one command that installs what lacks."""
    needed = dict(TOOLS)
    if os.geteuid() != 0:
        # A user's mmdebstrap works in a user namespace, and fakeroot keeps root's files root's.
        needed.update(fakeroot="fakeroot", newuidmap="uidmap")
    found = {name: shutil.which(name, path=SEARCH_PATH) for name in needed}
    missing = sorted({needed[name] for name, path in found.items() if path is None})
    if missing:
        raise VmError(f"the test VM needs more tools: run `apt-get install {' '.join(missing)}`")
    return {name: path for name, path in found.items() if path is not None}


def run(step: str, argv: Sequence[str], timeout_s: float, log: Path) -> None:
    """Run a command on this machine with its output in `log`; VmError names step and log."""
    with log.open("ab") as output:
        try:
            subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=True,
            )
        except subprocess.TimeoutExpired:
            raise VmError(f"{step}: not done after {timeout_s:g} s; log: {log}") from None
        except subprocess.CalledProcessError as error:
            tail = log.read_text(errors="replace")[-2000:]
            raise VmError(f"{step}: exit status {error.returncode}; log: {log}\n{tail}") from None


@contextlib.contextmanager
def only_one(what: str) -> Iterator[None]:
    """Hold the cache's lock named `what`: a second process waits, then finds the work done."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{what}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            LOG.info("waiting for another process that works on %s", what)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ends_with_us(argv: Sequence[str]) -> list[str]:
    """`argv` as a child that the kernel ends when the thread that started it ends, however it ends.

    PR_SET_PDEATHSIG (prctl(2)) covers SIGKILL and a crash, which atexit and signal handlers do not.
    """
    return ["setpriv", "--pdeathsig", "KILL", "--", *argv]
