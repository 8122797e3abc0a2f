# SPDX-License-Identifier: Apache-2.0
"""The VM as a test or the demo uses it: boot, run, copy, wait, collect what a person needs."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, TypeVar, overload

from tests.node.vm import accelerator
from tests.node.vm.disk import ExtraDisk
from tests.node.vm.failure import CommandError, Result, VmError
from tests.node.vm.host import LOG
from tests.node.vm.image import Image, build
from tests.node.vm.qemu import Qemu, serial
from tests.node.vm.ssh import Ssh

T = TypeVar("T")
BOOT_FINISHED_WITHIN_S = 300
# Generous: emulated, on a busy machine, a Python program takes half a minute to import.
DEADLINE_S = 120

# What collect() saves: file → command in the guest.
EVIDENCE = {
    "journal.txt": ["journalctl", "--no-pager", "-o", "short-monotonic"],
    "status.txt": ["systemctl", "status", "--no-pager", "--full", "--all", "--lines=20"],
    "failed.txt": ["systemctl", "list-units", "--failed", "--no-pager", "--no-legend"],
    "cgroups.txt": ["systemd-cgls", "--no-pager", "--full", "--all"],
    "processes.txt": ["ps", "-eLo", "pid,tid,ppid,user,ni,cls,stat,cgroup:80,comm,args"],
}


class Vm:
    """A booted guest, root inside; leaving the ``with`` ends it and forgets all it wrote.

    Commands have deadlines, and errors name the step and the console's log. Boot it in the thread
    that outlives it (the main one): QEMU ends with the thread that started it, even by SIGKILL.
    """

    running: ClassVar[list[Vm]] = []  # in the order they were booted

    def __init__(self, image: Image, directory: Path, qemu: Qemu, ssh: Ssh) -> None:
        self.suite = image.suite
        self.console = qemu.console
        self.accelerator = qemu.accelerator.name
        self._directory = directory
        self._qemu = qemu
        self._ssh = ssh
        self._followers: list[subprocess.Popen[str]] = []

    @classmethod
    def boot(
        cls, suite: str = "bookworm", disks: Sequence[ExtraDisk] = (), memory_mib: int = 2048
    ) -> Vm:
        """Boot `suite` (its image is built first if need be) and wait until systemd is done.

        Raises VmError; the console's log is then kept where the error says.
        """
        image = build(suite)
        candidates = accelerator.candidates()
        for candidate in candidates:
            try:
                vm = cls._boot_with(candidate, image, disks, memory_mib)
            except VmError as error:
                if candidate is candidates[-1]:
                    raise
                LOG.info("%s does not boot a guest here (%s): emulating", candidate.name, error)
            else:
                accelerator.remember(candidate)
                return vm
        raise AssertionError("candidates() is never empty")

    @classmethod
    def _boot_with(
        cls,
        candidate: accelerator.Accelerator,
        image: Image,
        disks: Sequence[ExtraDisk],
        memory_mib: int,
    ) -> Vm:
        # Not in the cache: a socket's path has 108 bytes at most (unix(7)).
        directory = Path(tempfile.mkdtemp(prefix=f"vm-{image.suite}-"))
        started = time.monotonic()
        qemu = Qemu(image, candidate, directory, memory_mib, disks)
        ssh = None
        try:
            qemu.wait_for_ssh()
            ssh = Ssh(qemu.ssh_port, image.ssh_key, directory)
            vm = cls(image, directory, qemu, ssh)
            # Its exit status says whether a unit failed, which is for a test to judge.
            waiting = ["systemctl", "is-system-running", "--wait"]
            state = vm.run(waiting, BOOT_FINISHED_WITHIN_S, check=False).stdout.strip()
            for number, disk in enumerate(disks):
                device = f"/dev/disk/by-id/virtio-{serial(number)}"
                vm.run(["mkdir", "-p", disk.mountpoint])
                vm.run(["mount", "-o", "ro", device, disk.mountpoint])
        except BaseException as error:
            if ssh is not None:
                ssh.end()
            qemu.end()
            if isinstance(error, VmError):
                told = f"booting {image.suite} with {candidate.name}: {error}"
                raise VmError(f"{told}; console: {qemu.console}") from error
            raise
        took_s = time.monotonic() - started
        cls.running.append(vm)
        LOG.info("%s is up with %s after %.0f s: %s", image.suite, candidate.name, took_s, state)
        return vm

    def __enter__(self) -> Vm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the guest and everything that was started over here for it. Can be called again."""
        if self in Vm.running:
            Vm.running.remove(self)
        for follower in self._followers:
            follower.kill()
            follower.wait()
        self._ssh.end()
        self._qemu.end()
        shutil.rmtree(self._directory, ignore_errors=True)

    def run(
        self,
        argv: Sequence[str],
        timeout_s: float = DEADLINE_S,
        check: bool = True,
        stdin: str = "",
    ) -> Result:
        """Run `argv` as root. Raises CommandError on another status than 0, unless not checked.

        A command that is not done after `timeout_s` is left behind, and VmError says so.
        """
        try:
            return self._ssh.run(argv, timeout_s, check, stdin)
        except CommandError:
            raise
        except VmError as error:
            raise VmError(f"{error}; console: {self.console}") from None

    def sh(self, script: str, timeout_s: float = DEADLINE_S, check: bool = True) -> Result:
        """Run a bash script as root: the first command that fails ends it."""
        return self.run(["bash", "-euo", "pipefail", "-c", script], timeout_s, check)

    def put(self, local: Path, remote: str, timeout_s: float = DEADLINE_S) -> None:
        """Copy a file, or a directory with all in it, into the guest."""
        self._ssh.copy(str(local), f"guest:{remote}", timeout_s)

    def get(self, remote: str, local: Path, timeout_s: float = DEADLINE_S) -> None:
        """Copy a file, or a directory with all in it, out of the guest."""
        self._ssh.copy(f"guest:{remote}", str(local), timeout_s)

    def write(self, remote: str, text: str) -> None:
        """Make the guest's file `remote` hold `text`; its directory is made if it lacks."""
        script = 'mkdir -p "$(dirname "$1")"; cat >"$1"'
        self.run(["sh", "-euc", script, "sh", remote], stdin=text)

    @overload
    def wait_for(
        self, description: str, condition: Callable[[], T], timeout_s: float = DEADLINE_S
    ) -> T: ...

    @overload
    def wait_for(
        self, description: str, condition: Sequence[str], timeout_s: float = DEADLINE_S
    ) -> Result: ...

    def wait_for(
        self,
        description: str,
        condition: Callable[[], T] | Sequence[str],
        timeout_s: float = DEADLINE_S,
    ) -> T | Result:
        """Wait until `condition` holds, and return what it gave.

        It is a command that ends with status 0, or a callable whose answer is true (CommandError
        counts as not yet). Raises VmError that says what was waited for and the last answer.
        """
        LOG.info("waiting for %s", description)
        until = time.monotonic() + timeout_s
        while True:
            try:
                answer = condition() if callable(condition) else self.run(condition)
                if answer:
                    return answer
                last = repr(answer)
            except CommandError as not_yet:
                last = str(not_yet)
            if time.monotonic() > until:
                told = f"waited {timeout_s:g} s in vain for {description}; last: {last}"
                raise VmError(f"{told}; console: {self.console}")
            time.sleep(0.5)

    def popen(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        """Start `argv` and follow it: iterate over its ``stdout``, which has both its outputs.

        It is ended with the VM. To stop the command itself earlier, stop it in the guest: an
        ended ssh channel does not signal a command that never writes.
        """
        follower = self._ssh.popen(argv)
        self._followers.append(follower)
        return follower

    def forward(self, guest_port: int) -> int:
        """A port on this machine's 127.0.0.1 that leads to the guest's 127.0.0.1:`guest_port`."""
        return self._ssh.forward(guest_port)

    def interactive(self, argv: Sequence[str]) -> int:
        """Run `argv` in the guest on our own terminal; returns its exit status."""
        return subprocess.call(self._ssh.argv(argv, "-t"))

    def collect(self, directory: Path) -> None:
        """Save journal, units, cgroups, processes and console in `directory`, made anew.

        Never raises for a guest that no longer answers: its files then say so.
        """
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        if self.console.exists():
            shutil.copy(self.console, directory / "console.log")
        for name, argv in EVIDENCE.items():
            try:
                result = self.run(argv, timeout_s=60, check=False)
                text = result.stdout + result.stderr
            except VmError as error:
                text = f"{shlex.join(argv)}: {error}\n"
            (directory / name).write_text(text)
