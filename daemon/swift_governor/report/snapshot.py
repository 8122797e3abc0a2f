# SPDX-License-Identifier: Apache-2.0
"""The snapshot: one tick as a JSON object, for ``status``, the exporter and other readers.

Schema 1. Keys are only ever added within a schema number; null means "not known" (for a quota: none
is set). Cores are cores, shares and utilisations are ratios 0-1, times are seconds. All text is
printable (safe_text). It holds no command line, no environment and no path of a user's file, since
anybody may read it.

``schema sequence wall_s monotonic_s``   ``sequence`` grows by one a tick, see SelfState.ticks
``self``      version, mode, started_s, uptime_s, ticks, tick_s, tick_total_s, tick_period_s,
              overruns, event_overruns, events_live, reader_stuck, reader_timeouts, dbus_errors,
              refusals {reason: count}, notes {kind: count}, journal_lost, link_clients,
              config_generation, config_reload_failures
``act``       contained, pending, drift, writes, failures, timeouts, prioritised_threads,
              admin_properties {unit: [property]}, containment {count, last_s, median_s, worst_s},
              errors {unit: message}
``node``      hostname, cpus, memory_bytes, cpu_controller, systemd_version
``pressure``  cpu_some, memory_some, memory_full, io_some, io_full (10 s averages)
``sampler``   status (model.SamplerStatus), up, detail, driver, age_s
``tiers[]``   name, slice, jobs, processes, and ``unit`` (as below) or null
``jobs[]``    name, verb, engine, user, uid, tier, tier_rule, mode, slice, gpus [index], world_size,
              multi_node, registered, processes {role: count}, contained, units [unit],
              micro_batch {running, wished, reason}, trainer (below) or null
``unit``      unit, cgroup, present, populated, processes, quota_cores, wished_quota_cores, weight,
              wished_weight, cpu_cores, cpu_usage_s, periods, throttled_periods, throttled_s,
              memory_bytes
``trainer``   linked_ranks, framework, phase, optimizer_step, steps, samples_per_s (of all ranks),
              wait_share (of the rank that waits most), step_s (of the slowest), workers, ooms,
              cannot {what: why}, ranks [{rank, micro_batch, optimizer_step, samples_per_s,
              wait_share, step_s, workers, ooms, answered}]
``gpus[]``    uuid, index, name, fault, mig, age_s, stale, utilization, memory_used_bytes,
              memory_total_bytes, temperature_c, power_w, power_limit_w, processes; values of a
              stale reading are null
``loops[]``   uuid, index, job, unit, setpoint, band, process_variable, p_term, i_term, d_term,
              output_cores, floor_cores, ceiling_cores, constraint, held_by, moves, samples
``orders``    what a person set by hand: loops {gpu index: cores or null, its loop being off},
              micro_batches {job: size}
``left_alone`` {count, shown: [{pid, job, cgroup, reason}]};  ``observed`` [sentence]
``notes[]``   wall_s, kind, subject, message, severity (syslog level), remedy: oldest first
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from swift_governor.model import (
    ActState,
    Decision,
    GpuReading,
    GpuSample,
    LoopState,
    SamplerStatus,
    Snapshot,
)
from swift_governor.report.safe_text import number, optional, printable
from swift_governor.report.self_state import SelfState
from swift_governor.report.snapshot_jobs import Units, job_section, tier_section
from swift_governor.report.words import held_by

SCHEMA = 1
RECENT_NOTES = 200
SHOWN_LEFT_ALONE = 200
SHOWN_SENTENCES = 200

Json = dict[str, Any]


def make(snapshot: Snapshot, decision: Decision, act: ActState, self_state: SelfState) -> Json:
    """The tick as the JSON object described above; equal arguments give equal objects."""
    states = {state.job: state for state in decision.jobs}
    units = Units(snapshot, decision.limits, self_state.cpu_cores)
    return {
        "schema": SCHEMA,
        "sequence": self_state.ticks,
        "wall_s": number(snapshot.wall),
        "monotonic_s": number(snapshot.now),
        "self": _self(snapshot, self_state),
        "act": _act(act),
        "node": {
            "hostname": printable(snapshot.node.hostname, 64),
            "cpus": snapshot.node.cpus,
            "memory_bytes": snapshot.node.memory_bytes,
            "cpu_controller": snapshot.node.cpu_controller,
            "systemd_version": snapshot.node.systemd_version,
        },
        "pressure": {
            name: number(getattr(snapshot.pressure, name))
            for name in ("cpu_some", "memory_some", "memory_full", "io_some", "io_full")
        },
        "sampler": _sampler(snapshot.gpus, snapshot.now, self_state.gpu_stale_s),
        "tiers": tier_section(snapshot, decision, self_state.tier_slices, units),
        "jobs": [
            job_section(job, states.get(job.name), snapshot, act, units) for job in snapshot.jobs
        ],
        "gpus": [_gpu(gpu, snapshot.now, self_state.gpu_stale_s) for gpu in snapshot.gpus.gpus],
        "loops": [_loop(loop) for loop in decision.loops],
        "orders": {
            "loops": {str(gpu): number(cores) for gpu, cores in snapshot.orders.loops.items()},
            "micro_batches": {
                printable(name, 64): size for name, size in snapshot.orders.micro_batches.items()
            },
        },
        "left_alone": {
            "count": len(decision.left_alone),
            "shown": [
                {
                    "pid": left.process.pid,
                    "job": printable(left.job, 64),
                    "cgroup": printable(left.cgroup, 256),
                    "reason": printable(left.reason, 256),
                }
                for left in decision.left_alone[:SHOWN_LEFT_ALONE]
            ],
        },
        "observed": [printable(line, 512) for line in decision.observed[:SHOWN_SENTENCES]],
        "notes": [
            {
                "wall_s": number(told.wall),
                "kind": printable(told.note.kind, 64),
                "subject": printable(told.note.subject, 128),
                "message": printable(told.note.message, 512),
                "severity": int(told.note.severity),
                "remedy": printable(told.note.remedy, 512),
            }
            for told in self_state.recent[-RECENT_NOTES:]
        ],
    }


def _self(snapshot: Snapshot, state: SelfState) -> Json:
    return {
        "version": printable(state.version, 64),
        "mode": state.mode.value,
        "started_s": number(state.started),
        "uptime_s": number(max(0.0, snapshot.now - state.started)),
        "ticks": state.ticks,
        "tick_s": number(state.tick_s),
        "tick_total_s": number(state.tick_total_s),
        "tick_period_s": number(state.tick_period_s),
        "overruns": state.overruns_total,
        "event_overruns": state.event_overruns_total,
        "events_live": state.events_live,
        "reader_stuck": state.reader_stuck,
        "reader_timeouts": state.reader_timeouts_total,
        "dbus_errors": state.dbus_errors_total,
        "refusals": _counts(state.refusals),
        "notes": _counts(state.notes_total),
        "journal_lost": state.journal_lost_total,
        "link_clients": state.link_clients,
        "config_generation": state.config_generation,
        "config_reload_failures": state.config_reload_failures_total,
    }


def _counts(counts: Mapping[str, int]) -> dict[str, int]:
    return {printable(name, 64): count for name, count in sorted(counts.items())}


def _act(act: ActState) -> Json:
    seen = act.containment_s
    return {
        "contained": len(act.contained),
        "pending": act.pending,
        "drift": act.drift_total,
        "writes": act.writes_total,
        "failures": act.failures_total,
        "timeouts": act.timeouts_total,
        "prioritised_threads": act.prioritised_threads,
        "admin_properties": {
            printable(unit, 256): [printable(name, 64) for name in names]
            for unit, names in sorted(act.admin_properties.items())
        },
        "containment": {
            "count": len(seen),
            "last_s": number(seen[-1]) if seen else None,
            "median_s": number(statistics.median(seen)) if seen else None,
            "worst_s": number(max(seen)) if seen else None,
        },
        "errors": {
            printable(unit, 256): printable(message, 512)
            for unit, message in sorted(act.errors.items())
        },
    }


def _sampler(reading: GpuReading, now: float, stale_s: float) -> Json:
    age = None if reading.at is None else max(0.0, now - reading.at)
    return {
        "status": reading.status.value,
        "up": reading.status is SamplerStatus.OK and age is not None and age <= stale_s,
        "detail": printable(reading.detail, 256),
        "driver": printable(reading.driver, 64),
        "age_s": number(age),
    }


def _gpu(gpu: GpuSample, now: float, stale_s: float) -> Json:
    age = max(0.0, now - gpu.at)
    stale = age > stale_s
    told: Json = {
        "uuid": printable(gpu.uuid, 96),
        "index": gpu.index,
        "name": printable(gpu.name, 96),
        "fault": printable(gpu.fault, 64),
        "mig": gpu.mig,
        "age_s": number(age),
        "stale": stale,
        "processes": len(gpu.processes),
    }
    for name in (
        "utilization",
        "memory_used_bytes",
        "memory_total_bytes",
        "temperature_c",
        "power_w",
        "power_limit_w",
    ):
        told[name] = None if stale else number(getattr(gpu, name))
    return told


def _loop(loop: LoopState) -> Json:
    return {
        "uuid": printable(loop.gpu, 96),
        "index": loop.index,
        "job": optional(loop.job, 64),
        "unit": optional(loop.unit, 256),
        "setpoint": number(loop.setpoint),
        "band": number(loop.band),
        "process_variable": number(loop.process_variable),
        "p_term": number(loop.p_term),
        "i_term": number(loop.i_term),
        "d_term": number(loop.d_term),
        "output_cores": number(loop.output_cores),
        "floor_cores": number(loop.floor_cores),
        "ceiling_cores": number(loop.ceiling_cores),
        "constraint": loop.constraint.value,
        "held_by": held_by(loop.constraint.value),
        "moves": loop.moves,
        "samples": loop.samples,
    }
