# SPDX-License-Identifier: Apache-2.0
"""The fake GPU is as busy as the trainer says it is, and no longer than the trainer lives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from tests.fake_nvml.activity import Activity
from tests.unit.sampler.stage import ROOT

TRAINER = """
import sys, time
from activity import Activity
gpu = Activity(sys.argv[1])
gpu.set_memory(7 << 30)
gpu.begin()
print("busy", flush=True)
sys.stdin.readline()
gpu.end()
print("idle", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def path(gpus):
    where = gpus.folder / "gpu0.activity"
    gpus.set("count 1", f"0.activity {where}", "0.memory_total 150000000000", "0.memory_used 1000")
    return where


@pytest.fixture
def trainer(path):
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "fake_nvml")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "busy\n"
    yield process
    process.kill()
    process.communicate()


def share_busy(intervals, end_ns: int) -> float:
    begin_ns = end_ns - 10**9
    return sum(max(0, min(e, end_ns) - max(b, begin_ns)) for b, e in intervals) / 1e9


def test_utilisation_is_the_busy_share_of_the_last_second(path, rounds):
    activity = Activity(str(path))
    reader = rounds()
    done = threading.Event()
    intervals: list[tuple[int, int]] = []

    def train() -> None:
        while not done.is_set():
            begin = time.monotonic_ns()
            activity.begin()
            time.sleep(0.03)
            activity.end()
            intervals.append((begin, time.monotonic_ns()))
            time.sleep(0.05)

    thread = threading.Thread(target=train)
    thread.start()
    readings = []
    for _ in range(5):
        time.sleep(0.4)
        before = time.monotonic_ns()
        value = reader.at(1)["gpus"][0]["utilization"]
        readings.append((before, value, time.monotonic_ns()))
    done.set()
    thread.join()
    for before, value, after in readings:
        slack = (after - before) / 1e9 + 0.02  # the library's own clock lies between the two
        assert value == pytest.approx(share_busy(intervals, before), abs=slack)
    assert any(value > 0.05 for _, value, _ in readings)


def test_a_trainer_that_computes_without_a_pause_fills_the_gpu(path, trainer, rounds):
    time.sleep(1.1)
    assert rounds().at(1)["gpus"][0]["utilization"] == 1.0


def test_an_idle_trainer_leaves_the_gpu_idle(path, trainer, rounds):
    trainer.stdin.write("\n")
    trainer.stdin.flush()
    assert trainer.stdout.readline() == "idle\n"
    time.sleep(1.1)
    gpu = rounds().at(1)["gpus"][0]
    assert gpu["utilization"] == 0.0
    assert gpu["processes"] == [{"pid": trainer.pid, "memory_bytes": 7 << 30}]
    assert gpu["memory_used_bytes"] == (7 << 30) + 1000


def test_what_a_killed_trainer_held_is_free(path, trainer, rounds):
    trainer.kill()
    trainer.wait()
    gpu = rounds().at(1)["gpus"][0]
    assert (gpu["utilization"], gpu["processes"], gpu["memory_used_bytes"]) == (0.0, [], 1000)


def test_a_reused_pid_is_not_the_trainer(path, rounds):
    activity = Activity(str(path))
    activity.set_memory(1 << 30)
    reader = rounds()
    assert len(reader.at(1)["gpus"][0]["processes"]) == 1
    with open(path, "r+b") as file:  # as if this PID had belonged to a process started before
        file.seek(3 * 8)
        started = int.from_bytes(file.read(8), "little")
        file.seek(3 * 8)
        file.write((started - 1).to_bytes(8, "little"))
    gpu = reader.at(2)["gpus"][0]
    assert (gpu["processes"], gpu["memory_used_bytes"]) == ([], 1000)


def test_a_closed_activity_has_left_the_gpu(path, rounds):
    activity = Activity(str(path))
    activity.set_memory(1 << 30)
    activity.begin()
    activity.close()
    gpu = rounds().at(1)["gpus"][0]
    assert (gpu["utilization"], gpu["processes"], gpu["memory_used_bytes"]) == (0.0, [], 1000)


def test_a_new_trainer_takes_the_place_of_the_old_one(path, rounds):
    Activity(str(path), pid=1).set_memory(1 << 30)
    reader = rounds()
    assert [process["pid"] for process in reader.at(1)["gpus"][0]["processes"]] == [1]
    Activity(str(path)).set_memory(2 << 30)
    assert reader.at(2)["gpus"][0]["processes"] == [{"pid": os.getpid(), "memory_bytes": 2 << 30}]


def test_two_trainers_on_one_gpu_share_it_without_counting_time_twice(gpus, rounds):
    paths = [gpus.folder / "a", gpus.folder / "b"]
    gpus.set("count 1", *(f"0.activity {path}" for path in paths), "0.memory_total 150000000000")
    first, second = (Activity(str(path), pid=pid) for path, pid in zip(paths, (1, os.getpid())))
    first.set_memory(1 << 30)
    second.set_memory(1 << 30)
    reader = rounds()
    begin = time.monotonic_ns()
    first.begin()
    time.sleep(0.1)
    second.begin()
    time.sleep(0.2)
    first.end()
    time.sleep(0.1)
    second.end()
    end = time.monotonic_ns()
    gpu = reader.at(1)["gpus"][0]
    slack = (time.monotonic_ns() - end) / 1e9 + 0.02
    assert gpu["utilization"] == pytest.approx(share_busy([(begin, end)], end), abs=slack)
    assert (len(gpu["processes"]), gpu["memory_used_bytes"]) == (2, 2 << 30)


@pytest.mark.parametrize("content", [b"", b"FNVMLAC1", b"\0" * 4160, b"x" * 10_000])
def test_a_file_that_is_no_activity_file_is_an_idle_gpu(path, rounds, content):
    path.write_bytes(content)
    assert rounds().at(1)["gpus"][0]["utilization"] == 0.0


def test_many_short_steps_are_measured_over_what_is_remembered(path, rounds):
    activity = Activity(str(path))
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        activity.begin()
        activity.end()
    activity.begin()
    assert rounds().at(1)["gpus"][0]["utilization"] > 0.0


def test_begin_and_end_may_be_repeated(tmp_path):
    activity = Activity(str(tmp_path / "file"))
    activity.end()
    assert activity.busy_total_ns == 0
    activity.begin()
    activity.begin()
    activity.end()
    total = activity.busy_total_ns
    activity.end()
    assert activity.busy_total_ns == total > 0
