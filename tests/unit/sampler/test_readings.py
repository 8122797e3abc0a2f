# SPDX-License-Identifier: Apache-2.0
"""What is believed of what a driver says."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pynvml
import pytest
from swift_governor.model import GpuProcess, GpuSample, SamplerStatus
from swift_governor.sampler import reader as reader_module
from swift_governor.sampler.errors import MustRestartError, Status


def test_a_healthy_gpu_is_read_in_the_models_units(gpus, rounds):
    gpus.set_healthy(1, "driver 570.1")
    sample = rounds().at(12.5)
    assert (sample["status"], sample["detail"], sample["driver"]) == ("ok", "", "570.1")
    assert sample["gpus"] == [
        {
            "uuid": "GPU-fa4e0000-0000-4000-8000-000000000000",
            "index": 0,
            "name": "NVIDIA H200",
            "at": 12.5,
            "utilization": 0.40,
            "memory_used_bytes": 50_000_000_000,
            "memory_total_bytes": 150_000_000_000,
            "temperature_c": 61.0,
            "power_w": 512.5,
            "power_limit_w": 700.0,
            "processes": [{"pid": os.getpid(), "memory_bytes": 4_000_000_000}],
            "mig": False,
            "fault": "",
        }
    ]


def test_a_sample_has_exactly_the_models_fields(gpus, rounds):
    gpus.set_healthy(2, "error.*.1 15")
    for gpu in rounds().at(1)["gpus"]:
        assert list(gpu) == [field.name for field in dataclasses.fields(GpuSample)]
        for process in gpu["processes"]:
            assert list(process) == [field.name for field in dataclasses.fields(GpuProcess)]
    words = {value for name, value in vars(Status).items() if name.isupper()}
    assert words == {status.value for status in SamplerStatus} - {SamplerStatus.ABSENT.value}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("0.util 4294967295", "utilization"),
        ("0.util 101", "utilization"),
        ("0.memory_used 150000000001", "memory_used_bytes"),
        ("0.memory_used 18446744073709551615", "memory_used_bytes"),
        ("0.memory_total 0", "memory_total_bytes"),
        ("0.memory_total 18446744073709551615", "memory_total_bytes"),
        ("0.temperature 4294967295000", "temperature_c"),
        ("0.temperature -274", "temperature_c"),
        ("0.power_mw 4294967295", "power_w"),
        ("0.power_limit_mw 4294967295", "power_limit_w"),
    ],
)
def test_a_value_that_cannot_be_is_no_value(gpus, rounds, line, field):
    gpus.set_healthy(1, line)
    gpu = rounds().at(1)["gpus"][0]
    assert gpu[field] is None
    assert gpu["fault"] == ""
    assert gpu["name"] == "NVIDIA H200"


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("0.util 0", "utilization", 0.0),
        ("0.util 100", "utilization", 1.0),
        ("0.memory_used 150000000000", "memory_used_bytes", 150_000_000_000),
        ("0.temperature -5", "temperature_c", -5.0),
    ],
)
def test_a_value_at_its_limit_is_believed(gpus, rounds, line, field, value):
    gpus.set_healthy(1, line)
    assert rounds().at(1)["gpus"][0][field] == value


@pytest.fixture
def gone_pid():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_pids_that_do_not_exist_are_left_out(gpus, rounds, gone_pid):
    mine = os.getpid()
    gpus.set_healthy(
        1,
        "0.process 4000000000 1000",
        "0.process 0 1000",
        f"0.process {gone_pid} 1000",
        "0.process 1 unknown",
    )
    assert rounds().at(1)["gpus"][0]["processes"] == [
        {"pid": mine, "memory_bytes": 4_000_000_000},
        {"pid": 1, "memory_bytes": None},
    ]


def test_a_process_cannot_hold_more_memory_than_there_is(gpus, rounds):
    gpus.set_healthy(1, "0.process 1 150000000001")
    processes = rounds().at(1)["gpus"][0]["processes"]
    assert {"pid": 1, "memory_bytes": None} in processes


def test_a_process_in_several_mig_instances_is_listed_once(gpus, rounds):
    gpus.set_healthy(1, "0.process 1 1000 1 0", "0.process 1 500 2 0")
    processes = rounds().at(1)["gpus"][0]["processes"]
    assert {"pid": 1, "memory_bytes": 1500} in processes
    assert len(processes) == 2


def test_a_gpu_in_mig_mode_has_no_utilisation_and_says_so(gpus, rounds):
    gpus.set_healthy(2, "0.mig 1")
    sample = rounds().at(1)
    assert [(gpu["mig"], gpu["utilization"]) for gpu in sample["gpus"]] == [
        (True, None),
        (False, 0.41),
    ]
    assert "MIG mode" in sample["detail"]


def test_memory_the_driver_reserves_is_not_used_memory(gpus, rounds):
    gpus.set_healthy(1, "0.memory_reserved 600000000")
    assert rounds().at(1)["gpus"][0]["memory_used_bytes"] == 50_000_000_000


@pytest.mark.parametrize("code", [3, 13, 25])
@pytest.mark.parametrize(
    ("newer", "field", "value"),
    [
        ("nvmlDeviceGetMemoryInfo_v2", "memory_used_bytes", 50_600_000_000),
        ("nvmlDeviceGetTemperatureV", "temperature_c", 61.0),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "processes", [(4_000_000_000)]),
    ],
)
def test_an_older_driver_is_read_the_older_way(gpus, rounds, code, newer, field, value):
    gpus.set_healthy(1, f"error.{newer} {code}", "0.memory_reserved 600000000")
    found = rounds().at(1)["gpus"][0][field]
    if field == "processes":
        found = [process["memory_bytes"] for process in found]
    assert found == value


def test_a_null_handle_is_never_used(gpus, rounds):
    gpus.set_healthy(2, "0.null_handle 1")
    sample = rounds().at(1)  # the library aborts, and with it this reader, if it is
    assert [gpu["fault"] for gpu in sample["gpus"]] == ["lost", ""]


def test_a_name_that_is_not_text_costs_the_name_alone(gpus, rounds):
    gpus.set_healthy(1)
    with open(gpus.state, "ab") as state:
        state.write(b"0.name \xff\xfe\x1b[31m\n")
    gpu = rounds().at(1)["gpus"][0]
    assert (gpu["name"], gpu["utilization"]) == ("", 0.40)


def test_control_characters_in_a_name_are_left_out(gpus, rounds):
    gpus.set_healthy(1, "0.name H200\x1b[31m")
    assert rounds().at(1)["gpus"][0]["name"] == "H200[31m"


def test_of_two_gpus_with_one_uuid_the_second_is_left_out(gpus, rounds):
    gpus.set_healthy(2, "0.uuid GPU-same", "1.uuid GPU-same")
    sample = rounds().at(1)
    assert [gpu["index"] for gpu in sample["gpus"]] == [0]
    assert "GPU 1 has the UUID of another" in sample["detail"]


def test_the_largest_node_with_full_process_lists_fits_into_one_message(gpus, rounds):
    many = [f"{gpu}.process {pid} 1000" for gpu in range(64) for pid in (1, os.getpid())]
    gpus.set_healthy(64, *many)
    sample = rounds().at(1)
    assert len(sample["gpus"]) == 64
    assert len(str(sample)) < 200_000
    assert max(len(gpu["processes"]) for gpu in sample["gpus"]) <= 2048 // 64


def test_values_follow_the_state_without_a_new_start(gpus, rounds):
    gpus.set_healthy(1)
    reader = rounds()
    assert reader.at(1)["gpus"][0]["utilization"] == 0.40
    gpus.set_healthy(1, "0.util 97")
    assert reader.at(2)["gpus"][0]["utilization"] == 0.97


def test_without_library_there_is_no_driver_until_one_is_installed(gpus, rounds, tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    gpus.set_healthy(1)
    reader = rounds(LD_LIBRARY_PATH=str(folder))
    sample = reader.at(1)
    assert (sample["status"], sample["gpus"]) == ("no-driver", [])
    assert "install the NVIDIA driver" in sample["detail"]
    (folder / "libnvidia-ml.so.1").symlink_to(gpus.library)
    assert reader.at(40)["status"] == "ok"


def test_a_driver_that_is_loaded_later_is_found(gpus, rounds):
    gpus.set("no_driver 1")
    reader = rounds()
    assert reader.at(1)["status"] == "no-driver"
    gpus.set_healthy(2)
    assert len(reader.at(40)["gpus"]) == 2


def test_a_driver_that_is_unloaded_is_missed_and_found_again(gpus, rounds):
    gpus.set_healthy(1)
    reader = rounds()
    assert reader.at(1)["status"] == "ok"
    gpus.set_healthy(1, "no_driver 1")
    assert reader.at(2)["status"] == "no-driver"
    gpus.set_healthy(1)
    assert reader.at(60)["status"] == "ok"


def test_without_gpus_nothing_is_held_open_and_one_added_later_is_found(gpus, rounds, tmp_path):
    log = tmp_path / "shutdowns"
    gpus.set("count 0", f"shutdown_log {log}")
    reader = rounds()
    assert reader.at(1)["status"] == "no-gpu"
    assert log.read_text() == "nvmlShutdown\n"
    gpus.set_healthy(1)
    assert reader.at(40)["status"] == "ok"


def test_a_second_gpu_is_found_while_the_first_is_read(gpus, rounds):
    gpus.set_healthy(1)
    reader = rounds()
    assert len(reader.at(1)["gpus"]) == 1
    gpus.set_healthy(2)
    reader.at(2)
    assert len(reader.at(5)["gpus"]) == 2


def test_looking_for_a_driver_backs_off_to_half_a_minute(gpus, rounds):
    gpus.set("no_driver 1")
    reader = rounds()
    for now in range(200):
        assert reader.at(now)["status"] == "no-driver"
    gpus.set_healthy(1)
    found = next(now for now in range(200, 300) if reader.at(now)["status"] == "ok")
    assert found <= 231


def test_a_driver_loaded_after_the_unit_needs_a_new_process(tmp_path, monkeypatch):
    """systemd looks up DeviceAllow=char-nvidia* once, when the unit starts."""
    devices = tmp_path / "devices"
    devices.write_text("Character devices:\n  1 mem\n 10 misc\n")
    monkeypatch.setattr(reader_module, "_DEVICES", str(devices))
    reader = reader_module.Reader(pynvml)
    devices.write_text("Character devices:\n  1 mem\n 10 misc\n195 nvidia-frontend\n")
    with pytest.raises(MustRestartError, match="loaded after"):
        reader.round(1.0)
