# SPDX-License-Identifier: Apache-2.0
"""release on a tree that looks like cgroupfs, with a systemctl that keeps a record and obeys."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from swift_governor.act import ledger as books
from swift_governor.act.ledger import Ledger, ThreadRecord, UnitRecord, decode
from swift_governor.act.release import Release, assignment
from swift_governor.act.threads import IDLE, ioprio, read_priority

from tests.unit.act.threaded import threaded

UNSET = 2**64 - 1
TIER = "msswift-training.slice"
SCOPE = "msswift-sft1x1-gpu0.scope"
DAEMON = Path(__file__).resolve().parents[3] / "daemon"

# What systemd would do, on files: argv is kept, and set-property and thaw are done.
SYSTEMCTL = r"""#!{python}
import json, pathlib, sys
base = pathlib.Path({base!r})
argv = [a for a in sys.argv[1:] if a not in ("--no-ask-password", "--no-pager")]
with open(base / "calls", "a") as calls:
    calls.write(json.dumps(argv) + "\n")
if (base / "broken").exists():
    sys.exit((base / "broken").read_text())
units = {{p.name: p for p in (base / "cgroup").rglob("msswift*") if p.is_dir()}}
if argv[0] == "show":
    for unit in argv[argv.index("--") + 1:]:
        print(f"Id={{unit}}\nFragmentPath=\nDropInPaths={{(base / 'dropins').read_text()}}\n")
elif argv[0] == "thaw":
    (units[argv[1]] / "cgroup.freeze").write_text("0\n")
else:
    for setting in argv[3:]:
        key, value = setting.split("=")
        if argv[2] not in units:
            continue
        if key == "CPUWeight":
            (units[argv[2]] / "cpu.weight").write_text((value or "100") + "\n")
        else:
            quota = str(int(float(value[:-1]) * 1000)) if value else "max"
            (units[argv[2]] / "cpu.max").write_text(quota + " 100000\n")
"""


class Node:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.cgroup = base / "cgroup"
        self.run_dir = base / "run"
        self.run_dir.mkdir()
        self.ledger = self.run_dir / "ledger.jsonl"
        self.said: list[tuple[int, str]] = []
        (base / "dropins").write_text("")
        self.systemctl = base / "systemctl"
        self.systemctl.write_text(SYSTEMCTL.format(python=sys.executable, base=str(base)))
        self.systemctl.chmod(0o755)
        self.tier = self.unit(f"msswift.slice/{TIER}")
        self.scope = self.unit(f"msswift.slice/{TIER}/msswift-training-u1.slice/{SCOPE}")

    def unit(self, path: str) -> Path:
        directory = self.cgroup / path
        directory.mkdir(parents=True)
        for one in (directory, *directory.parents):
            if one == self.cgroup:
                break
            for name, text in (("cpu.max", "max 100000"), ("cpu.weight", "100")):
                (one / name).write_text(text)
            (one / "cgroup.procs").write_text("")
            (one / "cgroup.freeze").write_text("0")
        return directory

    def release(self) -> int:
        return Release(
            ledger_path=str(self.ledger),
            cgroup_root=str(self.cgroup),
            proc_root="/proc",
            systemctl=str(self.systemctl),
            say=lambda level, line: self.said.append((level, line)),
        ).run()

    def calls(self, verb: str) -> list[list[str]]:
        text = (self.base / "calls").read_text() if (self.base / "calls").exists() else ""
        return [c for c in map(json.loads, text.splitlines()) if c[0] == verb]

    def limit(self) -> None:
        (self.scope / "cpu.max").write_text("50000 100000")
        (self.tier / "cpu.weight").write_text("30")

    def record(self, old_quota: int = UNSET) -> None:
        records = [
            UnitRecord(SCOPE, "CPUQuotaPerSecUSec", old_quota),
            UnitRecord(TIER, "CPUWeight", UNSET),
        ]
        assert Ledger(str(self.ledger)).add(records)

    def is_free(self) -> bool:
        return (self.scope / "cpu.max").read_text().split()[0] == "max" and (
            self.tier / "cpu.weight"
        ).read_text().strip() == "100"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_the_ledger_tells_is_given_back_and_the_ledger_is_empty_then(node) -> None:
    node.limit()
    node.record()
    assert node.release() == 0
    assert node.is_free()
    assert node.ledger.read_bytes() == b""
    assert sorted(node.calls("set-property")) == [
        ["set-property", "--runtime", SCOPE, "CPUQuota="],
        ["set-property", "--runtime", TIER, "CPUWeight="],
    ]


def test_an_old_value_that_was_finite_is_put_back_as_it_was(node) -> None:
    node.limit()
    node.record(old_quota=1_500_000)
    assert node.release() == 0
    assert (node.scope / "cpu.max").read_text() == "150000 100000\n"


def test_doing_it_again_calls_nothing(node) -> None:
    node.limit()
    node.record()
    node.release()
    before = len(node.calls("set-property"))
    assert node.release() == 0
    assert len(node.calls("set-property")) == before


def test_with_an_empty_ledger_limits_of_others_are_left(node) -> None:
    node.limit()
    node.ledger.write_bytes(b"")
    assert node.release() == 0
    assert not node.is_free()
    assert not node.calls("set-property")


def test_without_a_ledger_cgroupfs_is_believed(node) -> None:
    node.limit()
    assert node.release() == 0
    assert node.is_free()
    assert node.ledger.read_bytes() == b""


def test_with_a_damaged_ledger_both_are_believed(node) -> None:
    node.limit()
    node.record(old_quota=1_500_000)
    data = node.ledger.read_bytes()
    node.ledger.write_bytes(data[: data.index(b"\n")] + b"\n\xff\x00rubbish" + data[-40:])
    assert node.release() == 0
    assert (node.scope / "cpu.max").read_text() == "150000 100000\n"
    assert (node.tier / "cpu.weight").read_text() == "100\n"


def test_what_a_file_in_etc_sets_is_left(node, monkeypatch) -> None:
    monkeypatch.setattr("swift_governor.act.unitfile.ADMIN_PLACES", (str(node.base),))
    (node.base / "admin.conf").write_text("[Slice]\nCPUWeight=30\n")
    (node.base / "dropins").write_text(str(node.base / "admin.conf"))
    node.limit()
    node.record()
    assert node.release() == 0
    assert (node.tier / "cpu.weight").read_text() == "30"
    assert (node.scope / "cpu.max").read_text().startswith("max")


def test_a_limit_from_before_an_admins_file_is_given_back_once_that_file_has_gone(
    node, monkeypatch
) -> None:
    monkeypatch.setattr("swift_governor.act.unitfile.ADMIN_PLACES", (str(node.base),))
    (node.base / "admin.conf").write_text("[Slice]\nCPUWeight=30\n")
    (node.base / "dropins").write_text(str(node.base / "admin.conf"))
    node.limit()
    node.record()
    assert node.release() == 0
    (node.base / "dropins").write_text("")
    assert node.release() == 0
    assert node.is_free()
    assert node.ledger.read_bytes() == b""


def test_when_systemctl_fails_it_says_so_keeps_the_record_and_succeeds_later(node) -> None:
    node.limit()
    node.record()
    (node.base / "broken").write_text("Failed to connect to bus: No such file")
    assert node.release() == 1
    assert any(level == 3 and "No such file" in line for level, line in node.said)
    assert len(decode(node.ledger.read_bytes())[0]) == 2
    (node.base / "broken").unlink()
    assert node.release() == 0
    assert node.is_free()


def test_a_lost_ledger_is_not_replaced_by_an_empty_one_while_something_remains(node) -> None:
    node.limit()
    (node.base / "broken").write_text("no")
    assert node.release() == 1
    assert not node.ledger.exists()


def test_without_systemctl_it_fails_with_one_line_a_property(node) -> None:
    node.limit()
    node.record()
    node.systemctl.unlink()
    assert node.release() == 1
    assert sum(level == 3 for level, _ in node.said) == 2


def test_units_that_ended_with_their_job_need_nothing(node) -> None:
    Ledger(str(node.ledger)).add([UnitRecord("msswift-sft9x9-main.scope", "CPUWeight", UNSET)])
    assert node.release() == 0
    assert not node.calls("set-property")
    assert node.ledger.read_bytes() == b""


def test_a_tier_that_has_no_cgroup_now_still_loses_its_runtime_property(node) -> None:
    name = "msswift-evaluation.slice"
    Ledger(str(node.ledger)).add([UnitRecord(name, "CPUWeight", UNSET)])
    assert node.release() == 0
    assert node.calls("set-property") == [["set-property", "--runtime", name, "CPUWeight="]]


def test_a_record_of_a_unit_that_is_not_ours_is_never_acted_on(node) -> None:
    Ledger(str(node.ledger)).add(
        [UnitRecord("ssh.service", "CPUWeight", UNSET), UnitRecord(TIER, "ExecStart", 1)]
    )
    assert node.release() == 0
    assert not node.calls("set-property")


def test_frozen_units_are_thawed_and_others_not_touched(node) -> None:
    (node.scope / "cgroup.freeze").write_text("1")
    node.ledger.write_bytes(b"")
    assert node.release() == 0
    assert node.calls("thaw") == [["thaw", SCOPE]]


def test_directories_that_users_make_in_their_scopes_are_not_units(node) -> None:
    fake = node.scope / "msswift-evil.slice"
    fake.mkdir()
    (fake / "cpu.max").write_text("1000 100000")
    assert node.release() == 0
    assert not any("msswift-evil.slice" in c for c in node.calls("set-property"))


@pytest.mark.skipif(os.geteuid() != 0, reason="raising a priority again needs root")
def test_priorities_go_back_by_record_also_on_threads_born_after_it(node) -> None:
    with threaded(nice=15) as process:
        pid, start = process.id.pid, process.id.start_ticks
        record = ThreadRecord(pid, start, pid, start, "sft1x1", 2, 0, 15, ioprio(IDLE))
        Ledger(str(node.ledger)).add([record])
        assert node.release() == 0
        assert {p.nice for p in process.priorities()} == {2}
        assert node.ledger.read_bytes() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="raising a priority again needs root")
def test_without_a_ledger_slow_processes_below_msswift_slice_are_freed(node) -> None:
    with threaded(nice=15) as process, threaded(nice=15) as bystander:
        (node.scope / "cgroup.procs").write_text(f"{process.id.pid}\n")
        assert node.release() == 0
        assert {p.nice for p in process.priorities()} == {0}
        assert {p.nice for p in bystander.priorities()} == {15}


@pytest.mark.skipif(os.geteuid() != 0, reason="raising a priority again needs root")
def test_with_an_empty_ledger_a_users_own_nice_is_left(node) -> None:
    node.ledger.write_bytes(b"")
    with threaded(nice=10) as process:
        (node.scope / "cgroup.procs").write_text(f"{process.id.pid}\n")
        assert node.release() == 0
        assert read_priority(process.id.pid).nice == 10


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("CPUWeight", UNSET, "CPUWeight="),
        ("CPUWeight", 0, "CPUWeight=idle"),
        ("CPUWeight", 300, "CPUWeight=300"),
        ("CPUQuotaPerSecUSec", UNSET, "CPUQuota="),
        ("CPUQuotaPerSecUSec", 1_505_000, "CPUQuota=150.50%"),
    ],
)
def test_values_are_spelled_as_systemctl_reads_them(name: str, value: int, text: str) -> None:
    assert assignment(name, value) == text


def test_it_runs_as_a_program_without_glib_and_without_a_configuration(tmp_path) -> None:
    program = (
        "import sys; sys.modules['gi'] = sys.modules['pydbus'] = sys.modules['yaml'] = None\n"
        "import swift_governor.act.release as r\n"
        "assert 'swift_governor.model' not in sys.modules\n"
        "sys.exit(r.main(['--ledger', sys.argv[1]]))"
    )
    done = subprocess.run(
        ["/usr/bin/python3", "-S", "-c", program, str(tmp_path / "none" / "ledger.jsonl")],
        env={"PYTHONPATH": str(DAEMON)},
        check=False,
    )
    assert done.returncode == 0
    assert not (tmp_path / "none").exists()


def test_every_module_it_needs_is_of_the_standard_library_or_of_act() -> None:
    seen, pending = set(), ["swift_governor.act.release"]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        source = (DAEMON / Path(*name.split("."))).with_suffix(".py").read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module:
                found = [node.module]
                if node.module == "swift_governor.act":
                    found = [f"{node.module}.{a.name}" for a in node.names]
            elif isinstance(node, ast.Import):
                found = [a.name for a in node.names]
            else:
                continue
            for module in found:
                if module.startswith("swift_governor."):
                    assert module.startswith("swift_governor.act.")
                    pending.append(module)
                else:
                    assert module.split(".")[0] in sys.stdlib_module_names or module == "__future__"
    assert books.__name__ in seen
