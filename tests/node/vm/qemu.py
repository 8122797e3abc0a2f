# SPDX-License-Identifier: Apache-2.0
"""One QEMU process with a guest in it: how it is started, whether it has booted, how it ends."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.node.vm.accelerator import Accelerator
from tests.node.vm.disk import ExtraDisk
from tests.node.vm.failure import VmError
from tests.node.vm.host import ends_with_us, free_port, tools
from tests.node.vm.image import Image

# psi=1: some kernels have pressure figures switched off. panic=-1 with -no-reboot ends QEMU.
# The root is named by its serial: with more disks, vda is any of them.
KERNEL_ARGUMENTS = "root=/dev/disk/by-id/virtio-root rw console=ttyS0 psi=1 panic=-1"
FIRST_WORDS = b"Linux version"
CPUS = 2


class Qemu:
    """A running guest; its one service to the outside is sshd, on 127.0.0.1:`ssh_port`.

    The guest has no way out (restrict=on): a test that passes needs no network. It ends with the
    thread that made it.
    """

    def __init__(
        self,
        image: Image,
        accelerator: Accelerator,
        directory: Path,
        memory_mib: int,
        disks: Sequence[ExtraDisk],
    ) -> None:
        self.accelerator = accelerator
        self.console = directory / "console.log"
        self.ssh_port = free_port()
        self._started = time.monotonic()
        self._complaints = directory / "qemu.log"
        with self._complaints.open("wb") as complaints:
            self._process = subprocess.Popen(
                ends_with_us(
                    [tools()["qemu-system-x86_64"], *self._arguments(image, memory_mib, disks)]
                ),
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
                start_new_session=True,  # Ctrl-C is ours: the guest still tells what went wrong
            )

    def _arguments(self, image: Image, memory_mib: int, disks: Sequence[ExtraDisk]) -> list[str]:
        network = f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self.ssh_port}-:22"
        arguments = [
            *("-machine", "q35", *self.accelerator.qemu, "-smp", str(CPUS), "-m", str(memory_mib)),
            *("-nodefaults", "-display", "none", "-no-reboot"),
            *("-kernel", str(image.kernel), "-initrd", str(image.initrd)),
            *("-append", KERNEL_ARGUMENTS, "-serial", f"file:{self.console}"),
            *("-netdev", network, "-device", "virtio-net-pci,netdev=net,romfile="),
            *("-device", "virtio-rng-pci"),
            *("-drive", f"if=none,id=root,file={image.disk},format=raw,cache=unsafe,snapshot=on"),
            *("-device", "virtio-blk-pci,drive=root,serial=root"),
        ]
        for number, disk in enumerate(disks):
            arguments += [
                *(
                    "-blockdev",
                    f"driver=file,node-name=f{number},read-only=on,filename={disk.image}",
                ),
                *("-device", f"virtio-blk-pci,drive=f{number},serial={serial(number)}"),
            ]
        return arguments

    def wait_for_ssh(self) -> None:
        """Return when sshd has greeted. Raises VmError when the guest is silent, slow or gone."""
        speaks_until = self._started + self.accelerator.kernel_speaks_within_s
        until = self._started + self.accelerator.ssh_within_s
        while not self._sshd_greets():
            if self._process.poll() is not None:
                said = self._complaints.read_text(errors="replace").strip()
                raise VmError(f"QEMU ended while the guest booted: {said or 'it said nothing'}")
            if time.monotonic() > speaks_until and not self._kernel_has_spoken():
                silence_s = self.accelerator.kernel_speaks_within_s
                raise VmError(f"the guest's kernel printed nothing in {silence_s:g} s")
            if time.monotonic() > until:
                raise VmError(f"sshd did not answer within {self.accelerator.ssh_within_s:g} s")
            time.sleep(0.3)

    def _kernel_has_spoken(self) -> bool:
        return self.console.exists() and FIRST_WORDS in self.console.read_bytes()

    def _sshd_greets(self) -> bool:
        """QEMU accepts before the guest listens, so only the banner tells."""
        try:
            with socket.create_connection(("127.0.0.1", self.ssh_port), timeout=5) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def end(self) -> None:
        """End the guest at once: nothing in it is kept."""
        self._process.kill()
        self._process.wait()


def serial(number: int) -> str:
    """The serial of extra disk `number`: the guest finds it as /dev/disk/by-id/virtio-SERIAL."""
    return f"extra{number}"
