# SPDX-License-Identifier: Apache-2.0
"""stat, status, pressure, cgroup files and facts of the node: real ones, and odd ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swift_governor.model import Pressure
from swift_governor.sense.cgroups import find_units, pids_below, read_unit
from swift_governor.sense.node import cgroup_problem, read_node
from swift_governor.sense.pressure import read_pressure
from swift_governor.sense.stat import list_pids, parse_stat, read_cgroup, read_stat, read_uid

from tests.unit.sense.live import PYTHON, until

FIELDS = b" S 7 42 42 0 -1 4194304 95 0 0 0 0 0 0 0 20 0 1 0 887766 2 3" + b" 9" * 24 + b" 4096 1 0"


@pytest.mark.parametrize(
    "comm", [b"python3", b"a) R 1 (b", b"", b"((((", b"))))", b"\n\n", b"\xff\xfe", b"x y z"]
)
def test_a_name_with_anything_in_it_is_read(comm):
    stat = parse_stat(b"42 (" + comm + b")" + FIELDS)
    assert stat.comm == comm.decode("utf-8", "surrogateescape")
    assert (stat.pid, stat.state, stat.ppid, stat.start_ticks) == (42, "S", 7, 887766)


@given(st.binary(max_size=300))
def test_no_bytes_make_the_parser_of_stat_raise(raw):
    parse_stat(raw)


def test_ourselves_are_read_as_the_kernel_knows_us():
    stat = read_stat("/proc", os.getpid())
    assert (stat.pid, stat.ppid) == (os.getpid(), os.getppid())
    assert read_uid("/proc", os.getpid()) == os.getuid()
    assert read_cgroup("/proc", os.getpid()).startswith("/")
    assert os.getpid() in list_pids("/proc")


def test_an_exec_shows_in_the_address_of_the_arguments():
    addresses = set()
    for _ in range(2):
        with subprocess.Popen(["sleep", "60"]) as process:
            until(lambda p=process: read_stat("/proc", p.pid).comm == "sleep", "exec")
            addresses.add(read_stat("/proc", process.pid).arg_start)
            process.kill()
    assert 0 not in addresses
    assert len(addresses) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_set_user_id_program_is_still_its_starters():
    code = "import os, sys; os.setreuid(65534, 0); print('on', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [PYTHON, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"on\n"
        assert Path(f"/proc/{process.pid}").stat().st_uid == 0, "the trap"
        assert read_uid("/proc", process.pid) == 65534
        process.stdin.close()


def test_a_process_that_has_gone_is_none():
    with subprocess.Popen(["true"]) as process:
        pass
    assert read_stat("/proc", process.pid) is None
    assert read_uid("/proc", process.pid) is None
    assert read_cgroup("/proc", process.pid) is None


def files(directory, **contents):
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (directory / name.replace("__", ".")).write_text(text)


SCOPE_FILES = {
    "cgroup__events": "populated 1\nfrozen 0\n",
    "cgroup__procs": "12\n13\n",
    "cpu__max": "200000 1000000\n",
    "cpu__weight": "100\n",
    "cpu__idle": "0\n",
    "cpu__stat": "usage_usec 2500000\nnr_periods 7\nnr_throttled 3\nthrottled_usec 500000\n",
    "memory__current": "4096\n",
}


@pytest.fixture
def root(tmp_path):
    training = tmp_path / "msswift.slice" / "msswift-training.slice"
    files(training / "msswift-sft1x1-gpu0.scope", **SCOPE_FILES)
    files(tmp_path / "msswift.slice", cgroup__events="populated 1\n", cpu__max="max 100000\n")
    files(training, cgroup__events="populated 1\n")
    files(training / "msswift-sft1x1-gpu0.scope" / "msswift-fake.scope", cgroup__procs="14\n")
    files(tmp_path / "user.slice" / "msswift-sft9x9-main.scope", cgroup__procs="99\n")
    return str(tmp_path)


def test_our_units_are_found_and_nobody_elses(root):
    top = "/msswift.slice"
    assert find_units(root) == {
        "msswift.slice": top,
        "msswift-training.slice": f"{top}/msswift-training.slice",
        "msswift-sft1x1-gpu0.scope": f"{top}/msswift-training.slice/msswift-sft1x1-gpu0.scope",
    }
    assert sorted(pids_below(root)) == [12, 13, 14]


def test_a_unit_is_read_in_cores_and_seconds(root):
    name = "msswift-sft1x1-gpu0.scope"
    reading = read_unit(name, find_units(root)[name], root)
    assert (reading.unit, reading.populated, reading.pids) == (name, True, (12, 13))
    assert (reading.cpu_quota_cores, reading.cpu_period_s) == (0.2, 1.0)
    assert (reading.cpu_weight, reading.memory_bytes) == (100, 4096)
    assert (reading.cpu_usage_s, reading.throttled_s) == (2.5, 0.5)
    assert (reading.nr_periods, reading.nr_throttled) == (7, 3)


def test_no_quota_and_idle_and_missing_controllers_are_told_apart(root, tmp_path):
    assert read_unit("msswift.slice", "/msswift.slice", root).cpu_quota_cores is None
    assert read_unit("msswift.slice", "/msswift.slice", root).cpu_period_s == 0.1
    bare = read_unit("t", "/msswift.slice/msswift-training.slice", root)
    assert (bare.cpu_weight, bare.cpu_usage_s, bare.memory_bytes) == (None, None, None)
    files(tmp_path / "msswift.slice", cpu__idle="1\n", cpu__weight="100\n")
    assert read_unit("msswift.slice", "/msswift.slice", root).cpu_weight == 0


@pytest.mark.parametrize("text", ["", "max", "banana 100000", "1 0", "1 2 3", "\x00", "٣ ٣٣"])
def test_a_quota_that_is_none_is_not_invented(root, tmp_path, text):
    files(tmp_path / "msswift.slice", cpu__max=text)
    assert read_unit("msswift.slice", "/msswift.slice", root).cpu_quota_cores is None


def test_a_unit_that_has_gone_is_none(root, tmp_path):
    assert read_unit("gone.scope", "/msswift.slice/gone.scope", root) is None
    assert find_units(str(tmp_path / "none")) == {}
    assert pids_below(str(tmp_path / "none")) == []


def test_pressure_is_a_ratio_and_what_the_kernel_hides_is_none(tmp_path):
    assert read_pressure(str(tmp_path)) == Pressure()
    files(
        tmp_path / "pressure",
        cpu="some avg10=12.50 avg60=1.00 avg300=0.00 total=1\nfull avg10=9.00 avg60=0 total=0\n",
        memory="some avg10=0.00 avg60=0.00 total=0\nfull avg10=100.00 avg60=0.00 total=0\n",
        io="garbage \x00\n",
    )
    assert read_pressure(str(tmp_path)) == Pressure(0.125, 0.0, 1.0, None, None)


def test_this_machines_pressure_is_between_nothing_and_all():
    pressure = read_pressure()
    if pressure.cpu_some is None:
        pytest.skip("this kernel has PSI off")
    assert 0 <= pressure.cpu_some <= 1


def test_a_node_without_unified_cgroups_is_told_with_what_to_do(tmp_path):
    files(tmp_path / "unified", cgroup__controllers="")
    assert "unified_cgroup_hierarchy" in cgroup_problem(str(tmp_path))
    files(tmp_path, cgroup__controllers="cpuset memory\n")
    assert "cpu controller" in cgroup_problem(str(tmp_path))
    files(tmp_path, cgroup__controllers="cpuset cpu io memory\n")
    assert cgroup_problem(str(tmp_path)) is None
    assert read_node(cgroup_root=str(tmp_path)).cpu_controller


def test_the_nodes_facts_are_this_machines():
    node = read_node(systemd_version=252)
    assert (node.cpus, node.systemd_version) == (os.cpu_count(), 252)
    assert node.memory_bytes > 0
    assert len(node.boot_id) == 36
    assert node.hostname
