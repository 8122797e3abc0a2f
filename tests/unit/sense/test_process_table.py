# SPDX-License-Identifier: Apache-2.0
"""The process table over real processes, noticed by events and by polling."""

from __future__ import annotations

import os
import select
import signal
import subprocess

from swift_governor.jobs.grouping import group
from swift_governor.model import Role
from swift_governor.sense.proc_events import Exec, Exit, Fork, Overrun
from swift_governor.sense.process_table import ProcessTable
from swift_governor.sense.reader_child import Reading
from swift_governor.sense.stat import read_stat

from tests.unit.sense.live import PYTHON, Senses, is_job, until


def roles(processes):
    return sorted(member.role.value for job in group(processes) for member in job.members)


def test_a_tree_started_later_is_found_whole(tree, senses):
    senses.table.poll()
    launcher = tree.launch(workers=2)
    whole = ["launcher", "loader", "loader", "rank"]
    processes = senses.until(lambda processes: roles(processes) == whole)
    (job,) = group(processes)
    assert job.root.pid == launcher.pid
    assert job.uid == os.getuid()
    assert processes[launcher.pid].comm == "swift"
    assert processes[launcher.pid].script_names_swift is True


def test_a_tree_that_was_there_before_is_found_whole(tree, senses):
    launcher = tree.launch(workers=2)
    until(lambda: _comms_below(launcher.pid).count("pt_data_worker") == 2, "the workers")
    senses.table.poll()
    senses.until(lambda processes: roles(processes) == ["launcher", "loader", "loader", "rank"])


def _comms_below(pid):
    listing = subprocess.run(
        ["ps", "-s", str(pid), "-o", "comm="], capture_output=True, text=True, check=False
    )
    return listing.stdout.split()


def test_a_poll_tells_a_tree_at_once_and_never_a_rank_without_its_launcher(tree):
    launcher = tree.launch(workers=1)
    until(lambda: "pt_data_worker" in _comms_below(launcher.pid), "the worker")
    senses = Senses(tree, with_events=False)
    try:
        senses.table.poll()
        seen = []
        while not senses.changes:
            seen.append(roles(senses.table.processes()))
            ready, _, _ = select.select([senses.reader], [], [], 1)
            if ready:
                senses.reader.on_readable()
        assert not any(seen)
        assert roles(senses.table.processes()) == ["launcher", "loader", "rank"]
    finally:
        senses.close()


def test_what_ends_is_forgotten(tree, senses):
    launcher = tree.launch(workers=1)
    senses.table.poll()
    senses.until(lambda processes: len(roles(processes)) == 3)
    tree.end()
    senses.until(lambda processes: launcher.pid not in processes and not processes)


def test_a_rank_whose_launcher_is_killed_stays_with_its_worker(tree, senses):
    launcher = tree.launch(workers=1)
    senses.table.poll()
    before = group(senses.until(lambda processes: len(roles(processes)) == 3))
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    processes = senses.until(lambda processes: launcher.pid not in processes)
    rank = next(m.process for m in before[0].members if m.role is Role.RANK)
    processes = senses.until(lambda processes: processes[rank.pid].ppid != launcher.pid)
    (job,) = group(processes, before)
    assert job.name == before[0].name
    assert sorted(member.role.value for member in job.members) == ["loader", "rank"]


def test_a_worker_whose_rank_is_killed_stays_in_the_table(tree, senses):
    rank = tree.train(workers=1)
    senses.table.poll()
    before = group(senses.until(lambda processes: roles(processes) == ["loader", "rank"]))
    rank.send_signal(signal.SIGKILL)
    rank.wait()
    processes = senses.until(lambda processes: rank.pid not in processes)
    (job,) = group(processes, before)
    assert [member.role for member in job.members] == [Role.LOADER]


def test_a_process_that_becomes_a_trainer_by_exec_is_noticed(tree, senses):
    shell = tree.start(
        "/bin/sh", "-c", f"read go; exec {PYTHON} -S {tree.trainer}", stdin=subprocess.PIPE
    )
    senses.table.poll()
    senses.turn()
    assert shell.pid not in senses.table.processes()
    shell.stdin.write(b"go\n")
    shell.stdin.close()
    senses.until(lambda processes: shell.pid in processes)


def test_a_python_that_becomes_a_trainer_under_the_same_name_is_noticed(tree, senses):
    code = (
        f"import os, sys; input(); os.execv({PYTHON!r}, ['python3', '-S', {str(tree.trainer)!r}])"
    )
    python = tree.start(PYTHON, "-S", "-c", code, stdin=subprocess.PIPE)
    senses.table.poll()
    for _ in range(5):
        senses.turn()
    assert python.pid not in senses.table.processes()
    python.stdin.write(b"go\n")
    python.stdin.close()
    senses.until(lambda processes: python.pid in processes)


def test_everything_a_trainer_starts_belongs_whatever_it_is(tree, senses):
    tree.trainer.write_text("import subprocess; subprocess.run(['sh', '-c', 'sleep 100; true'])")
    tree.train()
    senses.table.poll()
    whole = ["python3", "sh", "sleep"]
    senses.until(lambda processes: sorted(p.comm for p in processes.values()) == whole)


def test_impostors_never_come_in(tree, senses):
    tree.start(PYTHON, "-S", "-c", "import time; time.sleep(60)", str(tree.trainer))
    openstack = tree.script.with_name("openstack") / "swift"
    openstack.parent.mkdir()
    openstack.write_text(f"#!{PYTHON} -S\nimport time; time.sleep(60)  # swiftclient\n")
    openstack.chmod(0o755)
    tree.start(openstack, "export")
    rank = tree.train()
    senses.table.poll()
    processes = senses.until(lambda processes: rank.pid in processes and senses.reader.idle)
    assert list(processes) == [rank.pid]


def test_names_arguments_and_variables_that_are_not_utf8_are_carried(tree, senses):
    environ = {b"RANK": b"0", b"MASTER_ADDR": b"\xff\xfe", b"SECRET": b"not to be kept"}
    rank = tree.start(PYTHON, "-S", tree.trainer, b"0", b"\xff\xfe", env=environ)
    senses.table.poll()
    process = senses.until(lambda processes: rank.pid in processes)[rank.pid]
    assert process.argv[-1] == "\udcff\udcfe"
    assert process.environ == {"RANK": "0", "MASTER_ADDR": "\udcff\udcfe"}


def test_a_command_line_of_a_hundred_thousand_arguments_is_taken(tree, senses):
    rank = tree.start(PYTHON, "-S", tree.trainer, "0", *["x"] * 100_000)
    senses.table.poll()
    process = senses.until(lambda processes: rank.pid in processes)[rank.pid]
    assert 10_000 < len(process.argv) <= 100_004


def test_a_registered_process_is_kept_whatever_its_command_line(tree, senses):
    api = tree.start(PYTHON, "-S", "-c", "import time; time.sleep(60)")
    until(lambda: (read_stat("/proc", api.pid) or ("",) * 2)[1].startswith("python"), "exec")
    senses.table.include(api.pid)
    senses.until(lambda processes: api.pid in processes)


def test_a_change_is_told_once_until_the_table_is_read(tree):
    senses = Senses(tree)
    try:
        senses.table.poll()
        while not senses.reader.idle:
            senses.turn()
        senses.table.processes()
        senses.changes = 0
        tree.train(workers=3)
        for _ in range(100):
            senses.turn(0.02)
        assert senses.changes == 1
        assert len(senses.table.processes()) >= 1
    finally:
        senses.close()


class CountingReader:
    """Answers nothing, and notes who was asked for."""

    def __init__(self):
        self.asked = []
        self.callback = None

    def read(self, pids, callback):
        self.asked.extend(pids)
        self.callback = callback

    def forget(self, pid):
        pass


def test_a_second_poll_reads_no_command_line_again(tree):
    process = tree.start(PYTHON, "-S", "-c", "import time; time.sleep(60)")
    until(lambda: (read_stat("/proc", process.pid) or ("",) * 2)[1].startswith("python"), "exec")
    reader = CountingReader()
    table = ProcessTable(reader, is_job)
    table.poll()
    assert process.pid in reader.asked
    stat = read_stat("/proc", process.pid)
    argv = ("python3", "-c", "…")
    reader.callback(Reading(process.pid, stat.start_ticks, stat.arg_start, argv, {}, PYTHON))
    before = reader.asked.count(process.pid)
    table.poll()
    assert reader.asked.count(process.pid) == before == 1
    assert table.processes() == {}


def test_a_process_that_could_not_be_read_is_asked_for_again(tree):
    process = tree.train()
    until(lambda: (read_stat("/proc", process.pid) or ("",) * 2)[1].startswith("python"), "exec")
    reader = CountingReader()
    table = ProcessTable(reader, is_job)
    table.poll()
    reader.callback(Reading(process.pid, available=False, reason="it hangs"))
    assert table.unreadable == {process.pid: "it hangs"}
    table.poll()
    assert reader.asked.count(process.pid) == 2


def test_an_answer_about_the_last_bearer_of_a_pid_is_not_taken(tree):
    process = tree.train()
    until(lambda: (read_stat("/proc", process.pid) or ("",) * 2)[1].startswith("python"), "exec")
    reader = CountingReader()
    table = ProcessTable(reader, is_job)
    table.handle_event(Exec(process.pid))
    table.flush()
    stat = read_stat("/proc", process.pid)
    argv = (PYTHON, str(tree.trainer))
    reader.callback(Reading(process.pid, 1, stat.arg_start, argv, {}, PYTHON))
    assert table.processes() == {}
    assert reader.asked == [process.pid] * 2
    reader.callback(Reading(process.pid, stat.start_ticks, 4096, argv, {}, PYTHON))
    assert table.processes() == {}, "it has run another program since"
    assert reader.asked == [process.pid] * 3
    reader.callback(Reading(process.pid, stat.start_ticks, stat.arg_start, argv, {}, PYTHON))
    assert list(table.processes()) == [process.pid]


def test_a_process_that_execs_without_end_is_not_read_without_end(tree):
    process = tree.train()
    until(lambda: (read_stat("/proc", process.pid) or ("",) * 2)[1].startswith("python"), "exec")
    reader = CountingReader()
    table = ProcessTable(reader, is_job)
    table.poll()
    for _ in range(20):
        reader.callback(Reading(process.pid, 1))
    assert reader.asked.count(process.pid) == 4
    assert "another program" in table.unreadable[process.pid]


def test_what_came_and_went_between_two_flushes_is_never_looked_at(tree):
    rank = tree.train()
    until(lambda: (read_stat("/proc", rank.pid) or ("",) * 2)[1].startswith("python"), "exec")
    reader = CountingReader()
    table = ProcessTable(reader, is_job)
    table.handle_event(Exec(rank.pid))
    table.flush()
    stat = read_stat("/proc", rank.pid)
    reader.callback(
        Reading(rank.pid, stat.start_ticks, stat.arg_start, (PYTHON, str(tree.trainer)), {}, PYTHON)
    )
    assert list(table.processes()) == [rank.pid]
    for pid in range(4_000_000, 4_050_000):
        table.handle_event(Fork(rank.pid, pid))
        table.handle_event(Exit(pid))
    assert not table._forked
    table.flush()
    assert list(table.processes()) == [rank.pid]


def test_what_a_process_starts_while_it_is_being_read_comes_in_with_it(tree):
    tree.trainer.write_text("import subprocess; subprocess.run(['sh', '-c', 'sleep 100; true'])")
    rank = tree.train()
    until(lambda: "sleep" in _comms_below(rank.pid), "the whole family")
    listing = subprocess.run(
        ["ps", "-s", str(rank.pid), "-o", "pid="], capture_output=True, text=True, check=True
    )
    _, shell, sleeper = sorted(int(pid) for pid in listing.stdout.split())
    reader = CountingReader()
    table = ProcessTable(reader, is_job)
    for event in (Exec(os.getpid()), Fork(os.getpid(), rank.pid), Exec(rank.pid)):
        table.handle_event(event)
    table.flush()
    for event in (Fork(rank.pid, shell), Exec(shell), Fork(shell, sleeper), Exec(sleeper)):
        table.handle_event(event)
    table.flush()
    assert reader.asked == [os.getpid(), rank.pid]
    ours = read_stat("/proc", os.getpid())
    reader.callback(Reading(os.getpid(), ours.start_ticks, ours.arg_start, ("pytest",), {}, PYTHON))
    assert table.processes() == {}, "their grandparent is nobody"
    stat = read_stat("/proc", rank.pid)
    argv = (PYTHON, str(tree.trainer))
    reader.callback(Reading(rank.pid, stat.start_ticks, stat.arg_start, argv, {}, PYTHON))
    assert reader.asked[2:] == [shell, sleeper]


def test_events_about_processes_that_have_gone_do_nothing():
    table = ProcessTable(CountingReader(), is_job)
    for event in (Exec(4_190_000), Fork(4_190_000, 4_190_001), Exit(4_190_001), Exit(0)):
        table.handle_event(event)
    table.flush()
    assert table.processes() == {}


def test_an_overrun_is_counted_and_what_was_missed_is_found(tree):
    senses = Senses(tree, with_events=False)
    try:
        launcher = tree.launch(workers=1)
        until(lambda: "pt_data_worker" in _comms_below(launcher.pid), "the worker")
        senses.table.handle_event(Overrun())
        senses.table.flush()
        assert senses.table.overruns == 1
        senses.until(lambda processes: len(roles(processes)) == 3)
    finally:
        senses.close()


def test_without_proc_there_is_nothing_and_no_error(tmp_path):
    table = ProcessTable(CountingReader(), is_job, proc=str(tmp_path / "none"))
    table.poll()
    assert table.processes() == {}
