# SPDX-License-Identifier: Apache-2.0
"""Disk images: an ext4 file system made from a directory, without mounting anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.node.vm.host import LOG, only_one, run, tools

BLOCK_BYTES = 4096
SPARE_BYTES = 64 * 1024**2
# Half a block a file: ext4's inode is 256 bytes, the rest is directories, maps and room to round.
BYTES_AN_ENTRY = BLOCK_BYTES // 2


@dataclass(frozen=True)
class ExtraDisk:
    """A disk image (ext4) that the guest sees read-only at `mountpoint`."""

    image: Path
    mountpoint: str


def make_disk_image(tree: Path, image: Path) -> Path:
    """Make the ext4 `image` hold what the directory `tree` holds; returns `image`.

    An image that is newer than everything in the tree stays. Owners are kept as they are, so the
    tree should be readable by whom it is for. Raises VmError if mke2fs fails.
    """
    with only_one(f"disk-{image.name}"):
        size_bytes, newest = _measure(tree)
        if image.exists() and image.stat().st_mtime > newest:
            return image
        LOG.info("making %s (%d MiB) from %s", image.name, size_bytes >> 20, tree)
        image.parent.mkdir(parents=True, exist_ok=True)
        unfinished, log = image.with_suffix(".unfinished"), image.with_suffix(".log")
        log.unlink(missing_ok=True)
        argv = mke2fs_argv(tools()["mke2fs"], tree, unfinished, size_bytes)
        run(f"making {image} from {tree}", argv, 900, log)
        unfinished.rename(image)
    return image


def mke2fs_argv(mke2fs: str, tree: Path, image: Path, size_bytes: int) -> list[str]:
    """The mke2fs command for a sparse image: no journal (nothing to recover), nothing reserved."""
    image.unlink(missing_ok=True)
    kibibytes = f"{-(-size_bytes // 1024)}k"
    no_journal = ["-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", "root_owner=0:0"]
    return [mke2fs, "-q", "-F", *no_journal, "-d", str(tree), str(image), kibibytes]


def _measure(tree: Path) -> tuple[int, float]:
    """Bytes that the image needs, and the newest change time of anything in the tree."""
    used, newest = 0, tree.stat().st_ctime
    for entry in tree.rglob("*"):
        stat = entry.lstat()
        used += -(-stat.st_size // BLOCK_BYTES) * BLOCK_BYTES + BYTES_AN_ENTRY
        newest = max(newest, stat.st_ctime)
    return used + used // 20 + SPARE_BYTES, newest
