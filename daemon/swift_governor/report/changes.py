# SPDX-License-Identifier: Apache-2.0
"""What is worth telling about the difference between two ticks. Pure: notes come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from swift_governor.model import (
    Decision,
    GpuReading,
    Job,
    LeftAlone,
    Note,
    ProcessId,
    Role,
    SamplerStatus,
    Severity,
    TrainerReport,
)

SAMPLER_REMEDY = "systemctl status swift-governor-sampler; journalctl -u swift-governor-sampler"


def job_notes(
    before: Sequence[Job], after: Sequence[Job], decision: Decision, users: Mapping[int, str]
) -> Iterator[Note]:
    """Jobs found and ended, and loaders that appeared."""
    old = {job.name: job for job in before}
    new = {job.name for job in after}
    states = {state.job: state for state in decision.jobs}
    for job in after:
        state = states.get(job.name)
        known = old.get(job.name)
        loaders = job.with_role(Role.LOADER)
        fields = {"job": job.name, "verb": job.verb, "uid": str(job.uid), "pid": str(job.root.pid)}
        if known is None and state is not None:
            fields.update(tier=state.tier, mode=state.mode.value, unit=state.slice)
            user = users.get(job.uid, f"uid {job.uid}")
            message = (
                f"ms-swift {job.verb} of {user}, PID {job.root.pid}: tier {state.tier} "
                f"({state.tier_rule}), {state.mode.value}"
            )
            yield Note("job-found", job.name, message, Severity.NOTICE, fields=fields)
        if loaders and not (known and known.with_role(Role.LOADER)):
            message = "its data loaders have started"
            yield Note("loaders-found", job.name, message, fields=fields)
    for name, job in old.items():
        if name not in new:
            fields = {"job": name, "verb": job.verb, "uid": str(job.uid)}
            yield Note(
                "job-ended", name, "its last process has ended", Severity.NOTICE, fields=fields
            )


def trainer_notes(
    before: Mapping[ProcessId, TrainerReport],
    after: Mapping[ProcessId, TrainerReport],
    jobs: Sequence[Job],
) -> Iterator[Note]:
    """Trainers that linked or left, micro-batches that changed, memory errors."""
    job_of = {member.id: job.name for job in jobs for member in job.members}
    for process, report in after.items():
        job = job_of.get(process)
        if job is None:
            continue
        old = before.get(process)
        fields = {"job": job, "pid": str(process.pid), "rank": str(report.rank)}
        if old is None:
            message = (
                f"rank {report.rank} linked: {report.framework or 'trainer'}, micro-batch "
                f"{report.base_micro_batch} x {report.base_accumulation}"
            )
            yield Note("trainer-linked", job, message, fields=fields)
            for what, why in report.cannot.items():
                message = f"the trainer can't change {what}: {why}"
                yield Note("trainer-cannot", job, message, key=what, fields=fields)
            continue
        if report.running_micro_batch != old.running_micro_batch:
            fields["micro_batch"] = str(report.running_micro_batch)
            message = (
                f"micro-batch {old.running_micro_batch} -> {report.running_micro_batch} applied by "
                f"the trainer at optimizer step {report.optimizer_step}"
            )
            yield Note("micro-batch-applied", job, message, Severity.NOTICE, fields=fields)
        if report.oom_count > old.oom_count:
            size = report.last_oom_micro_batch or old.running_micro_batch
            message = f"out of GPU memory at micro-batch {size}; the trainer went on"
            yield Note("out-of-memory", job, message, Severity.WARNING, fields=fields)
    for process in before:
        if process not in after and process in job_of:
            message = f"PID {process.pid} hung up; its micro-batch stays as it is"
            yield Note("trainer-left", job_of[process], message)


def left_alone_notes(left: Sequence[LeftAlone]) -> Iterator[Note]:
    """One note for each job and reason, however many processes."""
    reasons: dict[tuple[str, str], list[int]] = {}
    for item in left:
        reasons.setdefault((item.job, item.reason), []).append(item.process.pid)
    for (job, reason), pids in reasons.items():
        message = f"{len(pids)} of its processes stay where they are: {reason}"
        fields = {"job": job, "pids": " ".join(str(p) for p in sorted(pids)[:20])}
        yield Note("left-alone", job, message, key=reason, fields=fields)


def sampler_notes(reading: GpuReading, age_s: float | None, stale_s: float) -> Iterator[Note]:
    """Conditions of the GPU readings; no GPU and no driver are normal and only informed of."""
    if reading.status is SamplerStatus.ABSENT or reading.at is None:
        message = "the NVML sampler has not spoken yet: jobs are contained, GPU loops wait"
        yield Note("sampler", "sampler", message, key="absent", remedy=SAMPLER_REMEDY)
    elif age_s is not None and age_s > stale_s:
        message = f"no GPU reading for more than {stale_s:g} s: loops hold"
        severity = Severity.WARNING
        yield Note("sampler", "sampler", message, severity, "stale", remedy=SAMPLER_REMEDY)
    elif reading.status in (SamplerStatus.NO_DRIVER, SamplerStatus.NO_GPU):
        detail = f" ({reading.detail})" if reading.detail else ""
        message = f"no GPU to control: {reading.status.value}{detail}; it keeps looking"
        yield Note("sampler", "sampler", message, key=reading.status.value)
    elif reading.status is SamplerStatus.FAILING:
        message = f"NVML is failing: {reading.detail}"
        severity = Severity.WARNING
        yield Note("sampler", "sampler", message, severity, "failing", remedy=SAMPLER_REMEDY)
    for gpu in reading.gpus:
        if gpu.fault:
            message = f"GPU {gpu.index} ({gpu.name}) is out: {gpu.fault}; its loop holds"
            remedy = "nvidia-smi -q; dmesg | grep -i xid"
            yield Note("gpu-fault", gpu.uuid, message, Severity.ERROR, gpu.fault, remedy)


def reading_notes(trouble: str, unreadable: Mapping[int, str]) -> Iterator[Note]:
    """What could not be read of processes: the reader child's state, and each process that hung."""
    if trouble:
        message = f"processes can't be read: {trouble}"
        yield Note("reader", "reader", message, Severity.WARNING, key=trouble)
    for pid, reason in unreadable.items():
        message = f"what PID {pid} runs could not be read: {reason}; tried again later"
        remedy = f"is it in D state, or its program on a dead file system?  ps -o stat,wchan {pid}"
        yield Note("unreadable", f"PID {pid}", message, Severity.WARNING, reason, remedy)


def observed_notes(sentences: Sequence[str]) -> Iterator[Note]:
    """What observe mode would have done: once a job and sentence."""
    for sentence in sentences:
        job, _, rest = sentence.partition(": ")
        yield Note("observed", job, rest, key=rest)
