# SPDX-License-Identifier: Apache-2.0
"""The grid cut anew, measured on gradients: one process, a plain trainer, errors raised by hand."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.trainer.conftest import HERE, OFFLINE

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1800)]

# float32 sums in another order differ by a few units in the last place.
SAME_GRADIENT = 1e-6
SAME_LOSS = 1e-5


@pytest.fixture(scope="module")
def cases(ms_swift) -> dict[str, Any]:
    done = subprocess.run(
        [ms_swift / "python", HERE / "grid_cases.py"],
        env=OFFLINE,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    cases: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for name, case in cases.items():
        print(name, case["gradient_difference"], case["loss_difference"], case["sizes"])
    return cases


@pytest.mark.parametrize("name", ["tokens, its own size", "rows, its own size"])
def test_without_a_wish_nothing_differs_by_a_bit(cases, name):
    case = cases[name]
    assert case["gradient_difference"] == 0
    assert case["loss_difference"] == 0
    assert case["sizes"] == [[4, 4]] * 4 + [[4, 1]]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("tokens, changing", [[2] * 4, [1] * 8, [8], [3, 3, 2], [2, 2, 1]]),
        ("rows, equal", [[2] * 4, [1] * 8, [8], [8], [4, 1]]),
        ("rows, unequal", [[3, 3, 2], [4, 4], [4, 4], [3, 3, 2], [2, 2, 1]]),
    ],
)
def test_steps_cut_otherwise_have_the_same_gradients_and_schedule(cases, name, sizes):
    case = cases[name]
    assert case["sizes"] == sizes
    assert case["steps"] == 5
    assert case["same_rates"]
    assert case["gradient_difference"] <= SAME_GRADIENT
    assert case["loss_difference"] <= SAME_LOSS


def test_the_trainer_gets_its_own_accumulation_back_after_each_step(cases):
    for case in cases.values():
        assert case["accumulation_seen"] == [2]
        assert case["accumulation_after"] == 2
        assert case["backward_is_its_own"]


def test_wishes_that_cannot_be_had_are_refused_and_change_nothing(cases):
    case = cases["absurd"]
    assert case["gradient_difference"] == 0
    assert case["said"] == [
        "micro-batch 0 refused: a micro-batch has at least one row",
        "micro-batch -3 refused: a micro-batch has at least one row",
        "micro-batch 9 refused: an optimizer step has 8 rows",
        "micro-batch 1000000000000 refused: an optimizer step has 8 rows",
    ]


@pytest.mark.parametrize(
    ("name", "sizes", "running", "ooms"),
    [
        # The counting hook comes after the one that raises: it sees no forward pass that failed.
        ("forward", [[4, 4], [2] * 4, [2] * 4, [2] * 4, [2, 2, 1]], 2, [4]),
        ("backward", [[4, 4], [4, 2, 2, 2, 2], [2] * 4, [2] * 4, [2, 2, 1]], 2, [4]),
        ("forward, rows", [[4, 4], [1] * 8, [1] * 8, [1] * 8, [1] * 5], 1, [4, 2]),
        ("backward, rows", [[4, 4], [3, 2] + [1] * 8, [1] * 8, [1] * 8, [1] * 5], 1, [3, 2]),
    ],
)
def test_out_of_memory_is_survived_with_the_same_gradients(cases, name, sizes, running, ooms):
    case = cases[name]
    assert case["sizes"] == sizes
    assert case["error"] == ""
    assert case["steps"] == 5
    assert case["gradient_difference"] <= SAME_GRADIENT
    assert case["loss_difference"] <= SAME_LOSS
    assert case["reported"]["oom_count"] == len(ooms)
    assert case["reported"]["last_oom_micro_batch"] == ooms[-1]
    assert case["standing"] == running
    said = [line for line in case["said"] if line.startswith("out of memory")]
    for size, line in zip(ooms, said):
        assert f"in the {name.split(',')[0]} pass with micro-batch {size} at" in line


@pytest.mark.parametrize("name", ["one row forward", "one row backward"])
def test_one_row_that_does_not_fit_raises_as_ever(cases, name):
    case = cases[name]
    assert case["error"] == "OutOfMemoryError: CUDA out of memory (by hand)"
    assert case["steps"] == 1
    # 4, 2, and the one row that ends it: the last report says so.
    assert case["reported"]["oom_count"] == 3
    assert case["reported"]["last_oom_micro_batch"] == 1


def test_where_nothing_can_be_changed_out_of_memory_is_still_counted(cases):
    case = cases["refused, out of memory"]
    assert case["error"] == "OutOfMemoryError: CUDA out of memory (by hand)"
    assert (case["reported"]["oom_count"], case["reported"]["last_oom_micro_batch"]) == (1, 4)
    assert case["said"] == ["micro-batch 2 refused: not proven"]
    assert case["sizes"][0] == [4, 4]


def test_another_error_passes_through_and_puts_everything_back(cases):
    case = cases["another error"]
    assert case["error"] == "ValueError: an error of the model's own"
    assert (case["accumulation_after"], case["steps"]) == (2, 1)
