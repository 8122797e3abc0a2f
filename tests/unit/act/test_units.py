# SPDX-License-Identifier: Apache-2.0
"""The closed set of units, and what an admin's files say of them."""

from __future__ import annotations

import pytest
from swift_governor.act.unitfile import assignments, set_by_admin
from swift_governor.act.units import (
    ForbiddenError,
    is_transient,
    lineage,
    require_ours,
    slice_path,
    unit_of,
)

OURS = (
    "msswift.slice",
    "msswift-training.slice",
    "msswift-training-u1000.slice",
    "msswift-training-u1000-sft4711x8k2.slice",
    "msswift-sft4711x8k2-main.scope",
    "msswift-sft4711x8k2-gpu0.scope",
)
NOT_OURS = (
    "ssh.service",
    "system.slice",
    "user.slice",
    "-.slice",
    "init.scope",
    "msswift.scope",
    "msswift.service",
    "msswift-training.service",
    "msswiftx.slice",
    "xmsswift.slice",
    "msswift-.slice",
    "msswift--a.slice",
    "msswift-a.slice\n",
    "msswift-a/../../system.slice",
    "msswift-a.slice.slice.d",
    "msswift-\u00e9.slice",
    "msswift-\\x2d.slice",
    "msswift-" + "a" * 250 + ".slice",
    "",
)


@pytest.mark.parametrize("name", OURS)
def test_units_of_the_tree_are_ours(name: str) -> None:
    assert require_ours(name) == name


@pytest.mark.parametrize("name", NOT_OURS)
def test_any_other_unit_is_refused(name: str) -> None:
    with pytest.raises(ForbiddenError):
        require_ours(name)


def test_a_dash_in_a_slice_name_is_a_level_of_the_tree() -> None:
    assert lineage("msswift-a-b.slice") == ("msswift.slice", "msswift-a.slice", "msswift-a-b.slice")
    assert slice_path("msswift-a-b.slice") == "/msswift.slice/msswift-a.slice/msswift-a-b.slice"


def test_tiers_stay_and_what_is_below_them_ends_with_its_jobs() -> None:
    assert [is_transient(n) for n in OURS] == [False, False, True, True, True, True]


def test_the_innermost_unit_of_ours_is_where_a_process_is() -> None:
    job = "/msswift.slice/msswift-training.slice/msswift-sft1x1-main.scope"
    assert unit_of(job) == "msswift-sft1x1-main.scope"
    assert unit_of(f"{job}/made/by/the/user") == "msswift-sft1x1-main.scope"
    assert unit_of("/system.slice/msswift-sft1x1-main.scope") is None
    assert unit_of("/") is None


def test_unit_files_are_read_as_systemd_reads_them() -> None:
    text = (
        "[Slice]\n# CPUQuota=1%\n ; x\nCPUQuota = \\\n# within\n 50%\nbroken\n[Unit]\nCPUWeight=3\n"
    )
    assert list(assignments(text)) == [("Slice", "CPUQuota", "50%"), ("Unit", "CPUWeight", "3")]


def test_only_files_of_the_admin_count_and_the_last_word_wins(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("swift_governor.act.unitfile.ADMIN_PLACES", (f"{tmp_path}/etc/",))
    etc, run = tmp_path / "etc", tmp_path / "run"
    for place in (etc, run):
        place.mkdir()
    (run / "50-CPUWeight.conf").write_text("[Slice]\nCPUWeight=7\n")
    (etc / "a.conf").write_text("[Slice]\nCPUQuota=10%\nMemoryMax=1G\n")
    (etc / "b.conf").write_text("[Slice]\nCPUQuota=\n")
    (etc / "c.conf").write_bytes(b"[Scope]\nCPUWeight=9\n\xff\xfe")
    files = [str(run / "50-CPUWeight.conf"), str(etc / "a.conf")]
    assert set_by_admin("", files) == {"CPUQuotaPerSecUSec": str(etc / "a.conf")}
    assert set_by_admin("", [*files, str(etc / "b.conf")]) == {}
    assert set_by_admin(str(etc / "c.conf"), [str(etc / "gone.conf")]) == {
        "CPUWeight": str(etc / "c.conf")
    }
