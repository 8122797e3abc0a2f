# SPDX-License-Identifier: Apache-2.0
"""The Debian root that each VM starts from: built once a recipe, kept in .cache/vm, never written.

The recipe is mmdebstrap's arguments and the files in guest/; its hash is in the directory's name,
so a changed recipe builds anew and an unchanged one never does. Takes about a minute, from the
Debian mirror that SWIFT_GOVERNOR_VM_MIRROR names (default deb.debian.org).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.node.vm.disk import mke2fs_argv
from tests.node.vm.failure import VmError
from tests.node.vm.host import CACHE, LOG, only_one, run, tools

SUITES = ("bookworm", "trixie")
MIRROR = os.environ.get("SWIFT_GOVERNOR_VM_MIRROR", "http://deb.debian.org/debian")
GUEST_FILES = Path(__file__).resolve().parent / "guest"
DISK_BYTES = 6 * 1024**3  # sparse: the room a test's own files have
BUILD_TIMEOUT_S = 1200

PACKAGES = (
    # a node
    *("systemd", "systemd-sysv", "libpam-systemd", "dbus", "udev", "openssh-server"),
    *("procps", "iproute2", "util-linux", "kmod", "initramfs-tools", "linux-image-cloud-amd64"),
    # what the package depends on, so that it installs without a network
    *("python3", "python3-gi", "python3-pydbus", "python3-psutil", "python3-yaml"),
    "python3-prometheus-client",
    # what the tests look with (dbus-bin: dbus-monitor)
    *("prometheus", "dbus-bin"),
    # what PyTorch's wheels are linked with
    *("libgomp1", "libstdc++6"),
)
# Installed, started by nobody but a test.
DISABLED = ("prometheus.service",)
# Each would only take time from a VM that lives minutes.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "serial-getty@ttyS0.service",
    "systemd-networkd-wait-online.service",
)
USERS = ("alice", "bob")  # uid 1000 and 1001: two tenants

CUSTOMIZE = (
    f'chroot "$1" systemctl --quiet mask {" ".join(MASKED)}',
    f'chroot "$1" systemctl --quiet disable {" ".join(DISABLED)}',
    'chroot "$1" systemctl --quiet enable systemd-networkd.service',
    *(f'chroot "$1" useradd --create-home --shell /bin/bash {user}' for user in USERS),
    # mmdebstrap leaves the builder's; an empty one makes a look-up fail at once, not time out
    ': >"$1/etc/resolv.conf"',
    'echo node >"$1/etc/hostname"; echo 127.0.0.1 localhost node >"$1/etc/hosts"',
    'install -d -m 700 "$1/root/.ssh"',
)

# $1 the tar, $2 the tree, $3 and $4 where kernel and initrd go, then a command that uses the tree
UNPACK_THEN = """
tar -xf "$1" -C "$2"
cp "$2"/boot/vmlinuz-* "$3"
cp "$2"/boot/initrd.img-* "$4"
shift 4
exec "$@"
"""


@dataclass(frozen=True)
class Image:
    """A finished Debian root and what it takes to boot it and to log in as root."""

    suite: str
    directory: Path

    @property
    def disk(self) -> Path:
        return self.directory / "disk.img"

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd.img"

    @property
    def ssh_key(self) -> Path:
        return self.directory / "key"


def build(suite: str) -> Image:
    """The image of `suite`, built now if the cache has none of this recipe. Raises VmError."""
    if suite not in SUITES:
        raise VmError(f"no suite {suite!r}: there is {' and '.join(SUITES)}")
    found = tools()
    recipe = _mmdebstrap_arguments(suite)
    image = Image(suite, CACHE / f"{suite}-{_fingerprint(recipe)}")
    with only_one(f"image-{suite}"):
        if image.directory.exists():
            return image
        LOG.info("building %s in %s, once: about a minute or two", suite, image.directory)
        unfinished = Image(suite, CACHE / f"{suite}.unfinished")
        shutil.rmtree(unfinished.directory, ignore_errors=True)
        unfinished.directory.mkdir(parents=True)
        _build_in(unfinished, recipe, found)
        for outdated in CACHE.glob(f"{suite}-*"):
            shutil.rmtree(outdated)
        unfinished.directory.rename(image.directory)
    return image


def _mmdebstrap_arguments(suite: str) -> list[str]:
    files = shlex.quote(str(GUEST_FILES))
    return [
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        # not sync-in: that gives / and /etc the modes they have in this checkout
        f'--essential-hook=umask 022; cp -rT --no-preserve=mode {files} "$1"',
        *(f"--customize-hook={command}" for command in CUSTOMIZE),
        suite,
    ]


def _fingerprint(recipe: list[str]) -> str:
    digest = hashlib.sha256("\0".join(recipe).encode())
    for file in sorted(path for path in GUEST_FILES.rglob("*") if path.is_file()):
        digest.update(f"\0{file.relative_to(GUEST_FILES)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _build_in(image: Image, recipe: list[str], found: dict[str, str]) -> None:
    """mmdebstrap to a tar (works for root and, unshared, for a user), tree, disk."""
    directory, log = image.directory, image.directory / "build.log"
    archive, tree, key = directory / "root.tar", directory / "tree", image.ssh_key
    keygen = [found["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-C", "test VM", "-f", str(key)]
    run("making the VM's ssh key", keygen, 60, log)
    *options, suite = recipe
    login = f"--customize-hook=upload {key}.pub /root/.ssh/authorized_keys"
    mirror = f"deb {MIRROR} {suite} main"
    mmdebstrap = [found["mmdebstrap"], *options, login, suite, str(archive), mirror]
    run(f"building Debian {suite} with mmdebstrap from {MIRROR}", mmdebstrap, BUILD_TIMEOUT_S, log)

    tree.mkdir()
    as_root = [] if os.geteuid() == 0 else [found["fakeroot"]]
    paths = [str(path) for path in (archive, tree, image.kernel, image.initrd)]
    mke2fs = mke2fs_argv(found["mke2fs"], tree, image.disk, DISK_BYTES)
    shell = [*as_root, "sh", "-euc", UNPACK_THEN, "sh", *paths, *mke2fs]
    run(f"making the disk of {suite}", shell, 600, log)
    shutil.rmtree(tree)
    archive.unlink()
