# SPDX-License-Identifier: Apache-2.0
"""The units as systemd itself reads them; no running systemd is needed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.packaging.conftest import REPOSITORY, Deb

SERVICES = ("swift-governor", "swift-governor-sampler", "swift-governor-exporter")


def settings(unit: Path) -> dict[str, list[str]]:
    """``Key`` → every value it is given, comments and sections left out."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def unit(name: str) -> dict[str, list[str]]:
    return settings(REPOSITORY / "systemd" / name)


def verify(stage: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [REPOSITORY / "packaging/verify-units.sh", stage], capture_output=True, text=True
    )


def test_systemd_finds_nothing_to_say_about_the_packaged_units(deb: Deb):
    done = verify(deb.root)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ("RuntimeDirectory=", "RuntimeDirectry="),
        ("WatchdogSec=60", "WatchdogSec=soon"),
        ("swift-governord", "swift-governor-gone"),
        ("CapabilityBoundingSet=CAP_SYS_NICE", "CapabilityBoundingSet=~CAP_KILL #"),
    ],
)
def test_a_broken_unit_does_not_pass_the_verification(
    deb: Deb, tmp_path: Path, found: str, instead: str
):
    stage = tmp_path / "stage"
    shutil.copytree(deb.root, stage, symlinks=True)
    path = stage / "usr/lib/systemd/system/swift-governor.service"
    text = path.read_text()
    assert found in text
    path.write_text(text.replace(found, instead))
    assert verify(stage).returncode != 0


@pytest.mark.parametrize(
    ("service", "bar"),
    [("swift-governor", 26), ("swift-governor-sampler", 12), ("swift-governor-exporter", 15)],
)
def test_the_exposure_stays_below_its_bar(service: str, bar: int):
    done = subprocess.run(
        [
            *("systemd-analyze", "security", "--offline=true", "--no-pager"),
            f"--threshold={bar}",
            REPOSITORY / f"systemd/{service}.service",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_only_the_governor_itself_can_be_enabled():
    enabled = [n for n in SERVICES if "WantedBy" in unit(f"{n}.service")]
    assert enabled == ["swift-governor"]


def test_start_brings_all_three_and_stop_ends_all_three():
    helpers = [f"{name}.service" for name in SERVICES[1:]]
    assert unit("swift-governor.service")["Wants"][0].split() == helpers
    for helper in helpers:
        assert unit(helper)["PartOf"] == ["swift-governor.service"]


def test_a_stop_of_the_governor_waits_for_no_hanging_driver():
    for name in SERVICES:
        ordered = " ".join(unit(f"{name}.service").get("After", []))
        assert "swift-governor" not in ordered
        assert "Before" not in unit(f"{name}.service")


def test_the_governor_can_signal_nobody():
    governor = unit("swift-governor.service")
    assert "CAP_KILL" not in " ".join(governor["CapabilityBoundingSet"])
    denied = " ".join(v[1:] for v in governor["SystemCallFilter"] if v.startswith("~")).split()
    assert {"kill", "tkill", "tgkill", "pidfd_send_signal"} <= set(denied)


def test_a_reload_checks_the_file_before_anything_is_told():
    first, second = unit("swift-governor.service")["ExecReload"]
    assert first == "/usr/bin/swift-governor check-config"
    assert second == "+/bin/kill -HUP $MAINPID"


def test_every_end_of_the_governor_runs_the_release_and_keeps_its_ledger():
    governor = unit("swift-governor.service")
    assert governor["ExecStopPost"] == ["/usr/lib/swift-governor/swift-governor-release"]
    assert governor["RuntimeDirectoryPreserve"] == ["yes"]


@pytest.mark.parametrize(
    "name",
    ["msswift", "msswift-inference", "msswift-training", "msswift-evaluation"],
)
def test_a_slice_file_holds_no_limit(name: str):
    assert set(unit(f"{name}.slice")) == {"Description", "Documentation"}


def test_a_user_of_each_helper_exists_and_no_other():
    sysusers = (REPOSITORY / "systemd/sysusers.conf").read_text().splitlines()
    made = {line.split()[1] for line in sysusers if line.startswith("u ")}
    used = {unit(f"{n}.service")["User"][0] for n in SERVICES[1:]}
    assert made == used


def test_the_system_takes_the_users_file(tmp_path: Path):
    for name in ("passwd", "group"):
        (tmp_path / "etc").mkdir(exist_ok=True)
        (tmp_path / "etc" / name).write_text("")
    subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", REPOSITORY / "systemd/sysusers.conf"],
        check=True,
        capture_output=True,
    )
    users = (tmp_path / "etc/passwd").read_text()
    groups = (tmp_path / "etc/group").read_text()
    assert "swift-governor-sampler:" in users
    assert "swift-governor-exporter:" in users
    assert "swift-governor:" in groups
