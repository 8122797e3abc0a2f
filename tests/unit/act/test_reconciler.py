# SPDX-License-Identifier: Apache-2.0
"""What the reconciler does when systemd, the kernel or the processes don't play along."""

from __future__ import annotations

import dataclasses
import json

import pytest
from swift_governor.act.calls import Reply
from swift_governor.act.ledger import Ledger, UnitRecord
from swift_governor.act.limits import properties_of
from swift_governor.act.reconciler import Reconciler
from swift_governor.model import (
    Decision,
    IoClass,
    Limits,
    Note,
    Placement,
    PriorityWish,
    ProcessId,
)

from tests.unit.act.scripted_systemd import UNSET, ScriptedSystemd

SCOPE = "msswift-sft1x1-main.scope"
SLICE = "msswift-training-u1000-sft1x1.slice"
PATH = f"/msswift.slice/msswift-training.slice/msswift-training-u1000.slice/{SLICE}/{SCOPE}"


class Bench:
    def __init__(self, base) -> None:
        self.base = base
        self.systemd = ScriptedSystemd(base)
        self.notes: list[Note] = []
        self.now = 100.0
        self.restart()

    def restart(self) -> None:
        self.ledger = Ledger(str(self.base / "ledger.jsonl"))
        self.reconciler = Reconciler(
            self.systemd,
            self.ledger,
            proc_root=str(self.systemd.proc),
            cgroup_root=str(self.systemd.cgroup),
            carriers=["user@*.service"],
            note=self.notes.append,
        )

    def tick(self, decision: Decision, seconds: float = 1.0):
        self.now += seconds
        self.reconciler.apply(decision, self.now)
        self.systemd.pump()
        self.reconciler.apply(decision, self.now)
        return self.reconciler.state()

    def kinds(self) -> list[str]:
        return [n.kind for n in self.notes]


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)


def placed(*pids: int, start: int = 5) -> Decision:
    ids = tuple(ProcessId(pid, start) for pid in pids)
    return Decision(placements=(Placement(SCOPE, SLICE, "sft1x1", "swift sft", ids),))


def limited(unit: str = SCOPE, **limits) -> Decision:
    return Decision(limits={unit: Limits(**limits)})


def test_without_wishes_nothing_is_called_and_nothing_is_written(bench) -> None:
    bench.systemd.process(7)
    for _ in range(20):
        bench.tick(Decision(observed=("sft1x1 would be placed",)))
    assert bench.systemd.calls == []
    assert (bench.base / "ledger.jsonl").read_bytes() == b""
    assert bench.notes == []


def test_a_process_is_placed_once_and_then_only_looked_at(bench) -> None:
    bench.systemd.process(7)
    state = bench.tick(placed(7))
    assert state.contained == {ProcessId(7, 5): SCOPE}
    assert (state.pending, len(state.containment_s)) == (0, 1)
    before = len(bench.systemd.calls)
    for _ in range(5):
        bench.tick(placed(7))
    assert len(bench.systemd.calls) == before


def test_the_scope_is_delegated_collected_and_ordered_before_its_file_systems(bench) -> None:
    bench.systemd.process(7)
    bench.tick(placed(7))
    _, scope, properties, slices = bench.systemd.calls[0]
    assert scope == SCOPE
    assert properties["Delegate"] is True
    assert properties["CollectMode"] == "inactive-or-failed"
    assert properties["OOMPolicy"] == "continue"
    assert properties["After"] == ["remote-fs.target", "network-online.target"]
    assert properties["TimeoutStopUSec"] > 0
    # The tiers are unit files; the slices of users and jobs go when they are not needed.
    assert list(slices) == ["msswift-training-u1000.slice", SLICE]
    assert all(s["StopWhenUnneeded"] for s in slices.values())


def test_oom_policy_is_left_out_once_this_systemd_has_refused_it_on_a_scope(bench) -> None:
    for pid in (7, 8):
        bench.systemd.process(pid)
    bench.systemd.errors["start"] = [Reply(error="PropertyReadOnly", message="OOMPolicy")]
    assert bench.tick(placed(7)).contained
    other = Placement("msswift-sft2x2-main.scope", SLICE, "sft2x2", "", (ProcessId(8, 5),))
    assert bench.tick(Decision(placements=(*placed(7).placements, other))).pending == 0
    tries = ["OOMPolicy" in c[2] for c in bench.systemd.calls if c[0] == "start"]
    assert tries == [True, False, False]


def test_a_later_process_is_attached(bench) -> None:
    bench.systemd.process(7)
    bench.tick(placed(7))
    bench.systemd.process(8)
    assert len(bench.tick(placed(7, 8)).contained) == 2
    assert bench.systemd.count("start") == 1
    assert ("attach", SCOPE, (8,)) in bench.systemd.calls


def test_a_scope_that_exists_already_is_adopted(bench) -> None:
    bench.systemd.process(7)
    bench.systemd.unit(f"/msswift.slice/msswift-evaluation.slice/{SCOPE}")
    exists = Reply(error="UnitExists", message="already loaded")
    bench.systemd.errors["start"] = [exists, exists]
    assert bench.tick(placed(7)).contained == {ProcessId(7, 5): SCOPE}
    assert "stays" in bench.kinds()


def test_a_slice_that_came_in_between_does_not_stop_the_scope(bench) -> None:
    bench.systemd.process(7)
    bench.systemd.errors["start"] = [Reply(error="UnitExists", message=SLICE)]
    assert bench.tick(placed(7)).contained
    assert bench.systemd.calls[1][3] == {}


def test_a_process_that_ends_between_look_and_call_does_not_keep_the_others_out(bench) -> None:
    bench.systemd.process(7)
    bench.systemd.process(8)
    bench.reconciler.apply(placed(7, 8), bench.now)
    bench.systemd.end(8)
    bench.systemd.pump()
    state = bench.tick(placed(7, 8))
    assert state.contained == {ProcessId(7, 5): SCOPE}
    assert state.failures_total == 0
    assert "refused" not in bench.kinds()


def test_a_reused_pid_is_not_placed(bench) -> None:
    bench.systemd.process(7, start=6)
    state = bench.tick(placed(7, start=5))
    assert bench.systemd.calls == []
    assert not state.contained


def test_a_scope_dead_right_after_its_start_is_tried_again_under_the_same_name(bench) -> None:
    bench.systemd.process(7)
    real = bench.systemd.get_property
    states = ["failed"]

    def first_dead(unit, path, name):
        if name == "ActiveState" and states:
            bench.systemd.properties[(unit, name)] = states.pop()
        return real(unit, path, name)

    bench.systemd.get_property = first_dead
    bench.tick(placed(7))
    assert bench.reconciler.state().failures_total == 1
    for _ in range(3):
        state = bench.tick(placed(7))
    assert bench.systemd.count("start") == 2
    assert state.contained
    assert not state.errors


def test_what_systemd_accepts_and_the_kernel_does_not_show_is_retried_later_and_later(
    bench,
) -> None:
    bench.systemd.process(7)
    bench.systemd.loses_processes = True
    for _ in range(60):
        state = bench.tick(placed(7))
    assert 3 <= bench.systemd.count("start") + bench.systemd.count("attach") <= 10
    assert bench.kinds().count("refused") == 1
    assert state.pending == 1
    assert SCOPE in state.errors
    bench.systemd.loses_processes = False
    state = bench.tick(placed(7), seconds=60)
    assert (state.pending, state.errors) == (0, {})


def test_a_lost_bus_is_told_once_and_the_work_is_done_when_it_is_back(bench) -> None:
    bench.systemd.process(7)
    bench.systemd.errors["start"] = [Reply(error="Disconnected", message="no bus")] * 3
    for _ in range(20):
        state = bench.tick(placed(7))
    assert state.contained
    assert [n.subject for n in bench.notes if n.kind == "refused"] == ["systemd"]


def test_a_process_that_somebody_moved_away_is_drift_and_moved_back(bench) -> None:
    bench.systemd.process(7)
    bench.tick(placed(7))
    bench.systemd.move(7, "/user.slice/session-1.scope")
    state = bench.tick(placed(7))
    assert (state.drift_total, state.pending) == (1, 0)


@pytest.mark.parametrize(
    "cgroup",
    [
        "/system.slice/docker-0123456789ab.scope",
        "/kubepods.slice/x",
        "/system.slice/swift-deploy.service",
        "/system.slice/slurmstepd.scope/job_1/step_0",
    ],
)
def test_what_belongs_to_others_is_left_and_told_once(bench, cgroup: str) -> None:
    bench.systemd.process(7, cgroup)
    for _ in range(5):
        state = bench.tick(placed(7))
    assert bench.systemd.calls == []
    assert state.pending == 0
    assert bench.kinds() == ["left-alone"]


def test_a_loader_that_goes_on_to_its_gpus_scope_is_neither_drift_nor_late(bench) -> None:
    bench.systemd.process(7)
    bench.tick(placed(7))
    loader = Placement("msswift-sft1x1-gpu0.scope", SLICE, "sft1x1", "", (ProcessId(7, 5),))
    state = bench.tick(Decision(placements=(loader,)), seconds=3600)
    assert state.contained == {ProcessId(7, 5): "msswift-sft1x1-gpu0.scope"}
    assert state.drift_total == 0
    assert len(bench.reconciler._placer._first_seen) == 0


def test_only_scopes_of_ours_are_ever_asked_for(bench) -> None:
    bench.systemd.process(7)
    evil = Placement("ssh.service", SLICE, "j", "", (ProcessId(7, 5),))
    bench.tick(Decision(placements=(evil,), limits={"ssh.service": Limits(cpu_weight=1)}))
    assert bench.systemd.calls == []
    assert "bug" in bench.kinds()


def test_a_limit_is_on_file_before_it_is_set_and_read_back_after(bench) -> None:
    directory = bench.systemd.unit(PATH)
    seen: list[bytes] = []
    real = bench.systemd.set_properties

    def watched(unit, properties):
        seen.append((bench.base / "ledger.jsonl").read_bytes())
        return real(unit, properties)

    bench.systemd.set_properties = watched
    state = bench.tick(limited(cpu_quota_cores=1.5, cpu_weight=20))
    assert json.loads(seen[0].splitlines()[0])["record"]["unit"] == SCOPE
    assert (directory / "cpu.max").read_text() == "150000 100000"
    assert (directory / "cpu.weight").read_text() == "20"
    assert (state.writes_total, state.errors) == (1, {})


def test_what_is_in_force_already_is_not_written(bench) -> None:
    (bench.systemd.unit(PATH) / "cpu.max").write_text("150000 100000")
    bench.tick(limited(cpu_quota_cores=1.5))
    assert bench.systemd.calls == []


def test_a_wish_that_vanished_is_given_back_as_it_was_and_forgotten(bench) -> None:
    directory = bench.systemd.unit(PATH)
    bench.systemd.properties[(SCOPE, "CPUQuotaPerSecUSec")] = 3_000_000
    bench.tick(limited(cpu_quota_cores=1.5, cpu_weight=20))
    bench.tick(limited(cpu_weight=20))
    assert (directory / "cpu.max").read_text() == "300000 100000"
    assert (directory / "cpu.weight").read_text() == "20"
    bench.tick(Decision())
    bench.tick(Decision())
    assert (directory / "cpu.weight").read_text() == "100"
    assert (bench.base / "ledger.jsonl").read_bytes() == b""


def test_after_a_restart_wishes_that_are_no_more_are_given_back(bench) -> None:
    directory = bench.systemd.unit(PATH)
    bench.tick(limited(cpu_quota_cores=1.5))
    bench.restart()
    bench.tick(Decision())
    assert (directory / "cpu.max").read_text() == "max 100000"


def test_a_value_that_somebody_changed_is_drift_and_mended(bench) -> None:
    directory = bench.systemd.unit(PATH)
    bench.tick(limited(cpu_quota_cores=1.5))
    (directory / "cpu.max").write_text("max 100000")
    state = bench.tick(limited(cpu_quota_cores=1.5))
    assert (directory / "cpu.max").read_text() == "150000 100000"
    assert state.drift_total == 1
    assert bench.kinds() == ["drift"]


def test_a_loop_that_moves_its_quota_is_not_drift(bench) -> None:
    bench.systemd.unit(PATH)
    for n in range(10):
        state = bench.tick(limited(cpu_quota_cores=1.0 + n / 10))
    assert (state.drift_total, state.writes_total) == (0, 10)


def test_what_the_admin_sets_in_etc_is_never_written_and_told_once(bench, monkeypatch) -> None:
    monkeypatch.setattr("swift_governor.act.unitfile.ADMIN_PLACES", (str(bench.base),))
    unit = "msswift-training.slice"
    (bench.base / "override.conf").write_text("[Slice]\nCPUQuota=50%\n")
    bench.systemd.properties[(unit, "DropInPaths")] = [str(bench.base / "override.conf")]
    directory = bench.systemd.unit(f"/msswift.slice/{unit}")
    for _ in range(5):
        state = bench.tick(limited(unit, cpu_quota_cores=8.0, cpu_weight=30))
    assert (directory / "cpu.weight").read_text() == "30"
    assert all("CPUQuotaPerSecUSec" not in c[2] for c in bench.systemd.calls if c[0] == "set")
    assert state.admin_properties == {unit: ("CPUQuotaPerSecUSec",)}
    assert bench.kinds() == ["admin-property"]
    assert [u for u, _ in bench.ledger.book.units] == [unit]
    (bench.base / "override.conf").write_text("")
    bench.systemd.reloaded()
    bench.tick(limited(unit, cpu_quota_cores=8.0, cpu_weight=30))
    assert (directory / "cpu.max").read_text() == "800000 100000"


def test_a_limit_from_before_an_admins_file_is_given_back_once_that_file_has_gone(
    bench, monkeypatch
) -> None:
    monkeypatch.setattr("swift_governor.act.unitfile.ADMIN_PLACES", (str(bench.base),))
    unit = "msswift-training.slice"
    directory = bench.systemd.unit(f"/msswift.slice/{unit}")
    bench.tick(limited(unit, cpu_quota_cores=8.0))
    (bench.base / "override.conf").write_text("[Slice]\nCPUQuota=50%\n")
    bench.systemd.properties[(unit, "DropInPaths")] = [str(bench.base / "override.conf")]
    (directory / "cpu.max").write_text("50000 100000")
    bench.systemd.reloaded()
    for _ in range(3):
        bench.tick(Decision())
    assert (directory / "cpu.max").read_text() == "50000 100000"
    (bench.base / "override.conf").unlink()
    (directory / "cpu.max").write_text("800000 100000")  # our drop-in, after the admin's reload
    bench.systemd.reloaded()
    for _ in range(3):
        bench.tick(Decision())
    assert (directory / "cpu.max").read_text().startswith("max")
    assert bench.ledger.book.units == {}


def test_a_missing_cpu_controller_is_told_once_with_what_to_look_at(bench) -> None:
    directory = bench.systemd.unit(PATH)
    for name in ("cpu.max", "cpu.weight"):
        (directory / name).unlink()
    bench.systemd.kernel_ignores = True
    for _ in range(20):
        state = bench.tick(limited(cpu_quota_cores=1.5))
    assert bench.kinds() == ["not-in-force"]
    assert "controller" in bench.notes[0].message
    assert "cgroup.subtree_control" in bench.notes[0].remedy
    assert state.writes_total < 10


def test_without_a_ledger_no_limit_is_set(bench) -> None:
    bench.systemd.unit(PATH)
    bench.ledger.add = lambda _records: False
    bench.ledger.trouble = "no space left"
    state = bench.tick(limited(cpu_quota_cores=1.5))
    assert bench.systemd.count("set") == 0
    assert "no space left" in state.errors[SCOPE]


def test_a_unit_that_has_gone_leaves_the_ledger_without_a_call(bench) -> None:
    bench.ledger.add([UnitRecord(SCOPE, "CPUWeight", UNSET)])
    bench.tick(Decision())
    assert bench.systemd.calls == []
    assert not bench.ledger.book.units


def test_a_tier_without_a_cgroup_now_is_given_back_all_the_same(bench) -> None:
    bench.ledger.add([UnitRecord("msswift-training.slice", "CPUWeight", UNSET)])
    bench.tick(Decision())
    assert ("set", "msswift-training.slice", {"CPUWeight": UNSET}) in bench.systemd.calls
    assert not bench.ledger.book.units


def test_a_wish_for_a_process_that_has_gone_changes_nothing(bench) -> None:
    gone = PriorityWish(ProcessId(999_999_999, 1), "sft1x1", 15, IoClass.IDLE)
    bench.tick(Decision(priorities=(gone,)))
    assert (bench.base / "ledger.jsonl").read_bytes() == b""


def test_a_bug_in_one_part_is_told_and_the_others_go_on(bench) -> None:
    bench.systemd.process(7)
    nonsense = limited(cpu_quota_cores=float("nan"))
    state = bench.tick(dataclasses.replace(placed(7), limits=nonsense.limits))
    assert state.contained
    assert state.failures_total
    assert "bug" in bench.kinds()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), {}),
        (Limits(cpu_quota_cores=0.5), {"CPUQuotaPerSecUSec": 500_000}),
        (Limits(cpu_quota_cores=0.0001), {"CPUQuotaPerSecUSec": 10_000}),
        (Limits(cpu_quota_cores=float("inf")), {"CPUQuotaPerSecUSec": UNSET}),
        (Limits(cpu_weight=0), {"CPUWeight": 0}),
        (Limits(cpu_weight=99_999), {"CPUWeight": 10_000}),
    ],
)
def test_wishes_are_brought_into_what_the_kernel_takes(limits: Limits, expected) -> None:
    assert properties_of(limits) == expected
