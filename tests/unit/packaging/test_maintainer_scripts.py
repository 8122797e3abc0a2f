# SPDX-License-Identifier: Apache-2.0
"""The package's scripts, taken from the .deb and really run, in a root of their own.

Absolute paths in the script's text are moved below a temporary root; the commands that would touch
the machine are stand-ins that write down how they were called. Everything else is the real shell.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.packaging.conftest import Deb

UNITS = "swift-governor.service swift-governor-sampler.service swift-governor-exporter.service"
STANDINS = ("systemctl", "systemd-sysusers", "py3compile", "py3clean")


class Node:
    """A root with the package unpacked in it, and a log of what the scripts called."""

    def __init__(self, deb: Deb, place: Path) -> None:
        self.deb = deb
        self.root = place / "node"
        self.bin = place / "bin"
        self.calls_file = place / "calls"
        self.slices = place / "slices"
        self.slices.write_text("")
        shutil.copytree(deb.root, self.root, symlinks=True)
        (self.root / "run/systemd/system").mkdir(parents=True)
        self.bin.mkdir()
        for name in STANDINS:
            self.stand_in(self.bin / name, "")
        self.stand_in(
            self.bin / "systemctl",
            f'case "$1" in list-units) cat {self.slices};; '
            'show) for last; do :; done; echo "/msswift.slice/$last";; esac',
        )
        release = self.root / "usr/lib/swift-governor/swift-governor-release"
        release.unlink()
        self.stand_in(release, "")

    def stand_in(self, path: Path, does: str) -> None:
        path.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >>{self.calls_file}\n{does}\n')
        path.chmod(0o755)

    def run(self, script: str, *arguments: str) -> list[str]:
        """The calls, one a line; fails where the script does."""
        text = (self.deb.control / script).read_text()
        moved = re.sub(r"(?<![\w$}.-])/(usr|run|etc|sys)/", rf"{self.root}/\1/", text)
        path = self.root / script
        path.write_text(moved)
        self.calls_file.write_text("")
        done = subprocess.run(
            ["/bin/sh", path, *arguments],
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "LC_ALL": "C"},
            capture_output=True,
            text=True,
        )
        self.said = done.stdout + done.stderr
        assert done.returncode == 0, self.said
        return self.calls_file.read_text().replace(str(self.root), "").splitlines()

    def slice(self, name: str, populated: bool) -> None:
        """Let systemd list ``name``, with a cgroup that holds processes or none."""
        with self.slices.open("a") as listed:
            listed.write(f"{name} loaded active active Description\n")
        cgroup = self.root / "sys/fs/cgroup/msswift.slice" / name
        cgroup.mkdir(parents=True)
        (cgroup / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")


@pytest.fixture
def node(deb: Deb, tmp_path: Path) -> Node:
    return Node(deb, tmp_path)


def test_a_first_install_makes_users_and_bytecode_and_touches_systemd_not_at_all(node: Node):
    assert node.run("preinst", "install") == []
    assert node.run("postinst", "configure", "") == [
        "systemd-sysusers /usr/lib/sysusers.d/swift-governor.conf",
        "py3compile -p swift-governor /usr/lib/swift-governor",
    ]


def test_an_upgrade_with_the_same_units_restarts_only_what_runs_and_reloads_nothing(node: Node):
    node.run("preinst", "upgrade", "0.0.9-1")
    calls = node.run("postinst", "configure", "0.0.9-1")
    assert f"systemctl try-restart {UNITS}" in calls
    assert not any("daemon-reload" in call for call in calls)
    assert not (node.root / "run/swift-governor.units").exists()


def test_an_upgrade_that_changes_a_unit_reloads_once_before_the_restart_and_says_so(node: Node):
    unit = node.root / "usr/lib/systemd/system/swift-governor-sampler.service"
    new = unit.read_text()
    unit.write_text(new.replace("TasksMax=32", "TasksMax=16"))
    node.run("preinst", "upgrade", "0.0.9-1")
    unit.write_text(new)
    calls = node.run("postinst", "configure", "0.0.9-1")
    assert [call for call in calls if call.startswith("systemctl")] == [
        "systemctl daemon-reload",
        f"systemctl try-restart {UNITS}",
    ]
    assert "daemon-reload" in node.said


def test_an_upgrade_does_not_stop_the_daemon_while_files_are_replaced(node: Node):
    assert node.run("prerm", "upgrade", "0.2.0-1") == ["py3clean -p swift-governor"]


def test_a_removal_stops_releases_and_disables_without_a_reload(node: Node):
    calls = node.run("prerm", "remove")
    assert calls == [
        f"systemctl stop {UNITS}",
        "swift-governor-release ",
        f"systemctl reset-failed {UNITS}",
        "systemctl list-units --all --plain --no-legend --type=slice msswift*.slice",
        "systemctl --no-reload disable swift-governor.service",
        "py3clean -p swift-governor",
    ]


def test_a_removal_stops_empty_slices_children_first_and_never_one_with_a_job_in_it(node: Node):
    node.slice("msswift.slice", populated=True)
    node.slice("msswift-training.slice", populated=True)
    node.slice("msswift-training-u1000-sft4711x8k2.slice", populated=True)
    node.slice("msswift-inference.slice", populated=False)
    node.slice("msswift-inference-u1001.slice", populated=False)
    residue = node.root / "run/systemd/system.control/msswift-inference.slice.d"
    residue.mkdir(parents=True)
    kept = node.root / "run/systemd/system.control/msswift-training.slice.d"
    kept.mkdir()
    stopped = [c for c in node.run("prerm", "remove") if re.match(r"systemctl stop msswift", c)]
    assert stopped == [
        "systemctl stop msswift-inference-u1001.slice",
        "systemctl stop msswift-inference.slice",
    ]
    assert not residue.exists()
    assert kept.exists()


def test_a_removal_goes_through_where_the_release_fails_and_tells_what_to_do(node: Node):
    node.stand_in(node.root / "usr/lib/swift-governor/swift-governor-release", "exit 1")
    node.run("prerm", "remove")
    assert "not everything was given back" in node.said


def test_a_removed_package_keeps_the_configuration_and_nothing_else_of_its_own(node: Node):
    (node.root / "run/swift-governor").mkdir()
    (node.root / "run/swift-governor/ledger").write_text("{}")
    node.run("postrm", "remove")
    assert not (node.root / "run/swift-governor").exists()
    assert not (node.root / "usr/lib/swift-governor").exists()
    assert (node.root / "etc/swift-governor/config.yaml").exists()


def test_a_purge_takes_the_admins_drop_ins_too(node: Node):
    (node.root / "etc/swift-governor/config.d/50-mine.yaml").write_text("mode: observe\n")
    node.run("postrm", "purge")
    assert not (node.root / "etc/swift-governor").exists()


@pytest.mark.parametrize("script", ["preinst", "postinst", "prerm", "postrm"])
@pytest.mark.parametrize(
    "argument", ["abort-upgrade", "abort-install", "failed-upgrade", "triggered"]
)
def test_what_dpkg_undoes_calls_nothing_in_systemd(node: Node, script: str, argument: str):
    assert node.run(script, argument, "0.0.9-1") == []
    assert (node.root / "etc/swift-governor/config.yaml").exists()


def test_without_a_running_systemd_no_script_speaks_to_it(node: Node):
    shutil.rmtree(node.root / "run/systemd")
    node.run("preinst", "upgrade", "0.0.9-1")
    calls = node.run("postinst", "configure", "0.0.9-1")
    calls += node.run("prerm", "remove")
    # Disabling works on links in /etc alone, so it works in a chroot.
    assert [call for call in calls if call.startswith("systemctl")] == [
        "systemctl --no-reload disable swift-governor.service"
    ]


def test_the_rpm_counts_are_understood_like_the_words_of_dpkg(node: Node):
    assert node.run("preinst", "1") == []
    assert not any(c.startswith("systemctl") for c in node.run("postinst", "1"))
    node.run("preinst", "2")
    assert f"systemctl try-restart {UNITS}" in node.run("postinst", "2")
    assert node.run("prerm", "1") == []
    assert node.run("postrm", "1") == []
    assert (node.root / "usr/lib/swift-governor").exists()
    assert any(
        c.startswith("systemctl stop swift-governor.service") for c in node.run("prerm", "0")
    )


def test_the_scripts_are_posix_shell_that_dash_reads(deb: Deb):
    for script in ("preinst", "postinst", "prerm", "postrm"):
        subprocess.run(["dash", "-n", deb.control / script], check=True)
        assert os.access(deb.control / script, os.X_OK)
