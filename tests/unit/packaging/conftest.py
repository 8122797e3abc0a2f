# SPDX-License-Identifier: Apache-2.0
"""The real .deb, built by the Makefile and unpacked by dpkg-deb."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Deb:
    """The package file, what it installs below ``root``, and its maintainer scripts."""

    path: Path
    root: Path
    control: Path

    def names(self) -> list[str]:
        """Every path that dpkg would make, as ``/usr/…``, folders with a closing slash."""
        listing = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", self.path], check=True, capture_output=True
        ).stdout
        listed = subprocess.run(["tar", "-t"], input=listing, check=True, capture_output=True)
        return [line[1:] for line in listed.stdout.decode().splitlines()]


@pytest.fixture(scope="session")
def deb(tmp_path_factory: pytest.TempPathFactory) -> Deb:
    # Not the options of a make that may have started these tests.
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    subprocess.run(["make", "-s", "deb"], cwd=REPOSITORY, env=environ, check=True)
    path = max((REPOSITORY / "dist").glob("*.deb"), key=lambda p: p.stat().st_mtime)
    place = tmp_path_factory.mktemp("deb")
    subprocess.run(["dpkg-deb", "-x", path, place / "root"], check=True)
    subprocess.run(["dpkg-deb", "-e", path, place / "control"], check=True)
    return Deb(path, place / "root", place / "control")
