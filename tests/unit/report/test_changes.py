# SPDX-License-Identifier: Apache-2.0
"""What is told about the difference between two ticks."""

from __future__ import annotations

from dataclasses import replace

from swift_governor.model import (
    Decision,
    GpuReading,
    JobState,
    LeftAlone,
    Mode,
    ProcessId,
    SamplerStatus,
    Severity,
)
from swift_governor.report import changes

from tests.unit.decide.nodes import gpu, job, trainer

STATE = JobState("sft100x1", "training", "verb sft", Mode.ENFORCE, "x.slice", ())
DECISION = Decision(jobs=(STATE,))


def test_a_job_is_told_when_it_comes_and_when_it_goes_and_not_between() -> None:
    found = list(changes.job_notes((), (job(loaders=0),), DECISION, {1000: "ana"}))
    assert [n.kind for n in found] == ["job-found"]
    assert "ms-swift sft of ana, PID 100" in found[0].message
    assert not list(changes.job_notes((job(),), (job(),), DECISION, {}))
    ended = list(changes.job_notes((job(),), (), Decision(), {}))
    assert [n.kind for n in ended] == ["job-ended"]


def test_loaders_are_told_once_when_the_first_appears() -> None:
    notes = list(changes.job_notes((job(loaders=0),), (job(loaders=2),), DECISION, {}))
    assert [n.kind for n in notes] == ["loaders-found"]
    assert not list(changes.job_notes((job(loaders=1),), (job(loaders=2),), DECISION, {}))


def test_a_micro_batch_is_told_when_the_trainer_applied_it_with_its_step() -> None:
    before = {ProcessId(101, 707): trainer(1)}
    after = {ProcessId(101, 707): trainer(2, running_micro_batch=2, optimizer_step=17)}
    (note,) = changes.trainer_notes(before, after, (job(),))
    assert note.kind == "micro-batch-applied"
    assert "4 -> 2" in note.message
    assert "step 17" in note.message


def test_an_oom_names_the_size_that_ran() -> None:
    before = {ProcessId(101, 707): trainer(1)}
    after = {ProcessId(101, 707): trainer(2, oom_count=1, last_oom_micro_batch=4)}
    (note,) = changes.trainer_notes(before, after, (job(),))
    assert note.severity is Severity.WARNING
    assert "micro-batch 4" in note.message


def test_what_a_trainer_cannot_change_is_told_with_the_reason_when_it_links() -> None:
    after = {ProcessId(101, 707): trainer(2, cannot={"micro_batch": "GRPO buffers rows"})}
    notes = list(changes.trainer_notes({}, after, (job(),)))
    assert [n.kind for n in notes] == ["trainer-linked", "trainer-cannot"]
    assert "GRPO buffers rows" in notes[1].message


def test_a_trainer_of_no_job_is_not_told_of() -> None:
    assert not list(changes.trainer_notes({}, {ProcessId(9, 9): trainer(1)}, (job(),)))


def test_processes_left_for_one_reason_are_one_note() -> None:
    left = [LeftAlone(ProcessId(n, n), "j", "/x", "it belongs to Docker") for n in range(40)]
    (note,) = changes.left_alone_notes(left)
    assert note.message.startswith("40 of its processes")
    assert note.key


def test_each_state_of_the_sampler_is_one_condition() -> None:
    def kinds(reading: GpuReading, age: float | None) -> list[tuple[str, Severity]]:
        return [(n.key, n.severity) for n in changes.sampler_notes(reading, age, 5.0)]

    assert kinds(GpuReading(SamplerStatus.ABSENT), None) == [("absent", Severity.INFO)]
    fine = GpuReading(SamplerStatus.OK, at=1.0, gpus=(gpu(1, 0.5),))
    assert kinds(fine, 1.0) == []
    assert kinds(fine, 9.0) == [("stale", Severity.WARNING)]
    no_gpu = GpuReading(SamplerStatus.NO_GPU, at=1.0)
    assert kinds(no_gpu, 1.0) == [("no-gpu", Severity.INFO)]
    lost = replace(fine, gpus=(replace(gpu(1, None), fault="lost"),))
    assert kinds(lost, 1.0) == [("lost", Severity.ERROR)]


def test_what_could_not_be_read_is_told_with_what_to_do() -> None:
    notes = list(changes.reading_notes("4 readers hang", {7: "no answer within 2 s"}))
    assert [n.kind for n in notes] == ["reader", "unreadable"]
    assert "ps -o stat,wchan 7" in notes[1].remedy
