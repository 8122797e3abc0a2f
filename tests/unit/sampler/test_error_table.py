# SPDX-License-Identifier: Apache-2.0
"""Every row of the NVML error table, met by the real bindings over the fake library."""

from __future__ import annotations

import pytest
from swift_governor.sampler.errors import TABLE, Reaction, Status, rule_for

POWER = "error.nvmlDeviceGetPowerUsage.0"
UNLISTED = (2, 8, 11, 14, 17, 20, 23, 27, 777)


def codes(*reactions: Reaction) -> list[int]:
    return [code for code, rule in TABLE.items() if code and rule.reaction in reactions]


def test_these_tests_walk_every_reaction():
    walked = {
        *codes(Reaction.OFF, Reaction.DENIED, Reaction.LARGER, Reaction.EMPTY, Reaction.MISSING),
        *codes(Reaction.QUARANTINE, Reaction.REINIT, Reaction.RESTART),
    }
    assert walked == set(TABLE) - {0}
    assert {code: rule.reaction.name for code, rule in TABLE.items()} == {
        0: "EMPTY", 1: "REINIT", 3: "OFF", 4: "DENIED", 6: "EMPTY", 7: "LARGER", 9: "REINIT",
        10: "MISSING", 12: "REINIT", 13: "OFF", 15: "QUARANTINE", 16: "QUARANTINE", 18: "RESTART",
        25: "OFF", 28: "QUARANTINE", 999: "REINIT",
    }  # fmt: skip


@pytest.mark.parametrize("code", codes(Reaction.OFF, Reaction.DENIED))
def test_what_a_gpu_cannot_tell_is_not_asked_every_second(gpus, rounds, code):
    gpus.set_healthy(1, f"{POWER} {code} 1")
    reader = rounds()
    for now in (1, 2, 3):
        (gpu,) = reader.at(now)["gpus"]
        assert gpu["power_w"] is None
        assert (gpu["utilization"], gpu["fault"]) == (0.40, "")


def test_what_was_off_is_tried_again_after_some_minutes(gpus, rounds):
    gpus.set_healthy(1, f"{POWER} 3 1")
    reader = rounds()
    assert reader.at(1)["gpus"][0]["power_w"] is None
    assert reader.at(2)["gpus"][0]["power_w"] is None
    assert reader.at(400)["gpus"][0]["power_w"] == 512.5


@pytest.mark.parametrize("code", [*codes(Reaction.EMPTY, Reaction.MISSING), *UNLISTED])
def test_a_passing_error_costs_one_value_of_one_round(gpus, rounds, code):
    gpus.set_healthy(1, f"{POWER} {code} 1")
    reader = rounds()
    first, second = reader.at(1), reader.at(2)
    assert first["status"] == second["status"] == Status.OK
    assert first["gpus"][0]["power_w"] is None
    assert second["gpus"][0]["power_w"] == 512.5


@pytest.mark.parametrize("code", codes(Reaction.LARGER))
def test_a_list_that_grew_while_it_was_read_is_read_again(gpus, rounds, code):
    # The bindings ask for the size (which is answered with 7 anyway) and then for the list.
    gpus.set_healthy(1, f"error.nvmlDeviceGetComputeRunningProcesses_v3.0 {code} 3")
    assert len(rounds().at(1)["gpus"][0]["processes"]) == 1


@pytest.mark.parametrize("code", codes(Reaction.LARGER))
def test_a_list_that_never_fits_costs_only_itself(gpus, rounds, code):
    gpus.set_healthy(1, f"error.nvmlDeviceGetComputeRunningProcesses_v3.0 {code}")
    sample = rounds().at(1)
    assert sample["status"] == Status.OK
    assert (sample["gpus"][0]["processes"], sample["gpus"][0]["power_w"]) == ([], 512.5)


@pytest.mark.parametrize("code", codes(Reaction.EMPTY))
def test_no_processes_is_an_answer(gpus, rounds, code):
    gpus.set_healthy(1, f"error.nvmlDeviceGetComputeRunningProcesses_v3.0 {code}")
    sample = rounds().at(1)
    assert (sample["status"], sample["detail"], sample["gpus"][0]["processes"]) == ("ok", "", [])


def test_success_with_zero_samples_which_the_bindings_raise_is_an_answer():
    assert rule_for(0).reaction is Reaction.EMPTY


def test_a_forbidden_reading_says_what_to_do(gpus, rounds):
    gpus.set_healthy(1, f"{POWER} 4")
    assert "/dev/nvidia*" in rounds().at(1)["detail"]


@pytest.mark.parametrize("code", codes(Reaction.QUARANTINE))
def test_a_lost_gpu_is_alone_in_quarantine(gpus, rounds, code):
    gpus.set_healthy(3)
    reader = rounds()
    uuid = reader.at(1)["gpus"][1]["uuid"]
    gpus.set_healthy(3, f"error.*.1 {code}")
    for now in (2, 3):
        sample = reader.at(now)
        assert sample["status"] == Status.OK
        assert [gpu["utilization"] for gpu in sample["gpus"]] == [0.40, None, 0.42]
        assert [gpu["fault"] for gpu in sample["gpus"]] == ["", TABLE[code].fault, ""]
        assert sample["gpus"][1]["uuid"] == uuid
        assert "GPU 1" in sample["detail"]


def test_a_gpu_lost_before_the_start_is_in_quarantine_too(gpus, rounds):
    gpus.set_healthy(2, "error.*.0 15")
    sample = rounds().at(1)
    assert [(gpu["index"], gpu["fault"]) for gpu in sample["gpus"]] == [(0, "lost"), (1, "")]


def test_a_gpu_that_was_reset_comes_back(gpus, rounds):
    gpus.set_healthy(2, "error.*.1 15")
    reader = rounds()
    assert reader.at(1)["gpus"][1]["fault"] == "lost"
    gpus.set_healthy(2)
    assert reader.at(2)["gpus"][1]["fault"] == "lost"  # not hammered
    back = reader.at(40)
    assert (back["gpus"][1]["fault"], back["gpus"][1]["utilization"]) == ("", 0.41)
    assert back["detail"] == ""


@pytest.mark.parametrize("code", codes(Reaction.REINIT))
def test_an_nvml_that_broke_is_started_anew(gpus, rounds, code, tmp_path):
    log = tmp_path / "shutdowns"
    gpus.set_healthy(2, f"{POWER} {code} 1", f"shutdown_log {log}")
    reader = rounds()
    broken = reader.at(1)
    assert broken["status"] == TABLE[code].at_init
    assert f"NVML error {code}" in broken["detail"]
    assert log.read_text() == "nvmlShutdown\n"
    assert reader.at(1.5)["status"] == TABLE[code].at_init  # the back-off
    healthy = reader.at(10)
    assert (healthy["status"], healthy["detail"]) == ("ok", "")
    assert healthy["gpus"][0]["power_w"] == 512.5


@pytest.mark.parametrize("code", codes(Reaction.REINIT))
def test_one_gpu_that_keeps_breaking_nvml_does_not_take_the_others_along(gpus, rounds, code):
    gpus.set_healthy(2, f"{POWER} {code}")
    reader = rounds()
    assert reader.at(1)["gpus"] == []
    for now in (10, 11, 60):
        sample = reader.at(now)
        assert sample["status"] == Status.OK
        assert [gpu["fault"] for gpu in sample["gpus"]] == ["failing", ""]
        assert sample["gpus"][1]["utilization"] == 0.41


def test_when_every_gpu_fails_nvml_is_started_anew_with_growing_back_off(gpus, rounds):
    gpus.set_healthy(2, "error.nvmlDeviceGetUtilizationRates 999")
    reader = rounds()
    assert {reader.at(now)["status"] for now in range(1, 200)} == {Status.FAILING}
    gpus.set_healthy(2)
    assert reader.at(300)["status"] == Status.OK


@pytest.mark.parametrize("code", [code for code in TABLE if code not in (0, 18)])
def test_an_init_that_fails_is_a_state_that_ends(gpus, rounds, code):
    gpus.set_healthy(1, f"error.nvmlInitWithFlags {code}")
    reader = rounds()
    sample = reader.at(1)
    assert sample["status"] == TABLE[code].at_init
    assert (sample["status"] == Status.NO_DRIVER) == (code in (9, 12))
    assert str(code) in sample["detail"]
    gpus.set_healthy(1)
    assert reader.at(40)["status"] == Status.OK


@pytest.mark.parametrize("where", ["nvmlInitWithFlags", "nvmlDeviceGetPowerUsage.0"])
def test_after_a_driver_upgrade_only_a_new_process_can_go_on(gpus, rounds, where):
    gpus.set_healthy(1, f"error.{where} 18")
    assert "differ in version" in rounds().at(1)["must_restart"]
