# SPDX-License-Identifier: Apache-2.0
"""Real ``swift sft`` runs: governed, badly governed and ungoverned ones train the same."""

from __future__ import annotations

import json

import pytest

from tests.trainer.conftest import PLUGIN, Run
from tests.trainer.governor import MOODS, NOTHING, Governor

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1800)]

# From which optimizer step on which micro-batch is wished; the run has 13 steps of 8 rows.
WISHES = ((0, 4), (1, 2), (5, 8), (9, 3))


def wish_for(call: dict) -> dict:
    step = call.get("optimizer_step", 0)
    number, micro_batch = [
        (number, micro) for number, (first, micro) in enumerate(WISHES, 1) if step >= first
    ][-1]
    return {"sequence": number, "micro_batch": micro_batch}


@pytest.fixture(scope="module")
def ungoverned(sft) -> Run:
    """Without our plugin: what every other run is compared with."""
    return sft()


@pytest.fixture(scope="module")
def governed(sft, tmp_path_factory) -> tuple[Run, Governor]:
    """Two loader workers, and a micro-batch of 4, 2, 8 and 3 as it runs."""
    path = tmp_path_factory.mktemp("governor") / "socket"
    with Governor(path, wish_for) as governor:
        run = sft(
            *("--dataloader_num_workers", "2"),
            plugins=(PLUGIN,),
            environment={"SWIFT_GOVERNOR_SOCKET": str(path), "RECORD_PAUSE_S": "0.5"},
        )
    return run, governor


def trains_like(run: Run, other: Run, most_loss_difference: float) -> None:
    assert run.status == 0
    assert run.record["optimizer_steps"] == other.record["optimizer_steps"] == 13
    assert run.rows_of_steps() == other.rows_of_steps()
    rows = sorted(row for rows in run.rows_of_steps().values() for row in rows)
    assert rows == list(range(100))
    mine, others = run.record["steps"], other.record["steps"]
    assert [(s["step"], s["lr"], s["epoch"]) for s in mine] == [
        (s["step"], s["lr"], s["epoch"]) for s in others
    ]
    worst = max(abs(a["loss"] - b["loss"]) for a, b in zip(mine, others))
    print(f"largest difference of a step's loss: {worst:.2e}")
    assert worst <= most_loss_difference
    moved = abs(mine[0]["loss"] - mine[-1]["loss"])
    assert moved > 0.01, "nothing was trained, nothing is shown"
    assert run.record["weights"] == pytest.approx(other.record["weights"], rel=1e-6)


def test_the_run_that_is_compared_with_is_a_plain_one(ungoverned):
    assert ungoverned.lines() == []
    assert {size for sizes in ungoverned.sizes().values() for size in sizes} == {4}


def test_a_micro_batch_changed_while_running_leaves_samples_steps_schedule_and_loss(
    governed, ungoverned
):
    run, _ = governed
    trains_like(run, ungoverned, most_loss_difference=1e-5)


def test_the_wished_micro_batches_are_what_ran(governed):
    run, governor = governed
    sizes = run.sizes()
    ran = [sizes[step] for step in sorted(sizes)]
    assert [4, 4] in ran
    assert [2, 2, 2, 2] in ran
    assert [8] in ran
    assert [3, 3, 2] in ran
    assert run.record["accumulations"][-1] == 4
    assert run.record["accumulation_after"] == 2
    answered = {r["answered"]: r["running_micro_batch"] for r in governor.reports}
    assert {number: answered[number] for number in (1, 2, 3, 4)} == {1: 4, 2: 2, 3: 8, 4: 3}


def test_the_trainers_own_log_says_each_change(governed):
    run, _ = governed
    sizes = run.sizes()
    changed = [line for line in run.lines() if " -> " in line]
    assert len(changed) == 3
    first = next(step for step in sorted(sizes) if len(sizes[step]) == 4)
    assert changed[0] == (
        f"micro-batch 4 -> 2 at optimizer step {first} (accumulation 2 -> 4; 8 rows a step kept)"
    )


def test_it_registers_what_it_is_and_reports_what_it_did(governed):
    run, governor = governed
    (registration,) = governor.registrations
    assert (registration["micro_batch"], registration["accumulation"]) == (4, 2)
    assert (registration["rows_per_step"], registration["cannot"]) == (8, {})
    assert registration["framework"] == "ms-swift 4.6.0, Seq2SeqTrainer"
    last = governor.reports[-1]
    assert (last["phase"], last["optimizer_step"]) == ("end", 13)
    assert sum(r["steps"] for r in governor.reports) == 13
    assert sum(r["samples"] for r in governor.reports) == 100
    seconds = sum(r["seconds"] for r in governor.reports)
    assert 0 < sum(r["wait_s"] for r in governor.reports) < seconds < run.record["seconds"]
    assert max(len(r["workers"]) for r in governor.reports) == 2


def test_forked_loader_workers_do_not_hold_the_socket(governed):
    run, governor = governed
    assert run.record["workers"] > 0
    assert governor.connections == 1
    assert run.record["shared_sockets"] == []


def test_a_hostile_governor_neither_stops_nor_changes_the_run(sft, ungoverned, tmp_path):
    # First sessions that are none, then one with wishes that can't be had, then silence.
    absurd = [0, 10**12, -4, 9]
    given: list[int] = []

    def wish(call: dict) -> dict:
        if len(given) < len(absurd) and call.get("answered", 0) == len(given):
            given.append(absurd[len(given)])
        return {"sequence": len(given), "micro_batch": given[-1]} if given else NOTHING

    path = tmp_path / "socket"
    moods = [MOODS["garbage"], MOODS["half a message"], b"good", *([None] * 50)]
    with Governor(path, wish, moods=moods) as governor:
        run = sft(
            plugins=(PLUGIN,),
            environment={"SWIFT_GOVERNOR_SOCKET": str(path), "RECORD_PAUSE_S": "0.6"},
        )
    assert governor.connections >= 3
    refused = [line for line in run.lines() if "refused" in line]
    assert len(refused) >= 2, run.lines()
    assert {size for sizes in run.sizes().values() for size in sizes} == {4}
    trains_like(run, ungoverned, most_loss_difference=0)


def test_with_nobody_listening_training_is_what_it_was_to_the_last_bit(sft, ungoverned):
    run = sft(plugins=(PLUGIN,))
    assert [line for line in run.lines() if "nobody listens" in line] == run.lines()
    assert len(run.lines()) == 1
    trains_like(run, ungoverned, most_loss_difference=0)
    assert run.record["weights"] == ungoverned.record["weights"]
    assert run.record["flos"] == ungoverned.record["flos"]


@pytest.mark.slow
def test_a_loss_that_compares_rows_is_refused_and_said(sft, tmp_path):
    path = tmp_path / "socket"
    with Governor(path, lambda call: {"sequence": 1, "micro_batch": 2}) as governor:
        run = sft(
            *("--label_smoothing_factor", "0.1"),
            plugins=(PLUGIN,),
            environment={"SWIFT_GOVERNOR_SOCKET": str(path), "RECORD_PAUSE_S": "0.3"},
        )
    assert "label smoothing" in governor.registrations[0]["cannot"]["micro_batch"]
    assert {size for sizes in run.sizes().values() for size in sizes} == {4}
    assert [line for line in run.lines() if "can't be changed" in line]
    assert [r for r in governor.reports if r["answered"] == 1 and "label" in r["refused"]]
    assert sum(r["samples"] for r in governor.reports) == 100


@pytest.mark.slow
def test_a_classifier_whose_loss_is_a_mean_over_rows_trains_the_same(sft, tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": f"id{n} red green"}], "label": n % 2}
        for n in range(100)
    ]
    dataset, path = tmp_path / "labelled.jsonl", tmp_path / "socket"
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--task_type", "seq_cls", "--num_labels", "2", "--dataset", str(dataset))
    plain = sft(*options)
    with Governor(path, wish_for):
        run = sft(
            *options,
            plugins=(PLUGIN,),
            environment={"SWIFT_GOVERNOR_SOCKET": str(path), "RECORD_PAUSE_S": "0.5"},
        )
    assert [3, 3, 2] in list(run.sizes().values())
    trains_like(run, plain, most_loss_difference=1e-5)
