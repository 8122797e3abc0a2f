# SPDX-License-Identifier: Apache-2.0
"""Every metric there is: name, type, unit, labels, help, and where in the snapshot its values are.

TABLE is the one home of them; the exporter, the manual and the tests read it. Names follow
https://prometheus.io/docs/practices/naming/: base units, ``_total`` on counters, ratios 0-1; so
type and unit follow from the name. What is not known, and a limit that is not set, has no sample.
Our jobs are labelled ``msswift_job``, for ``job`` is Prometheus' own; ``gpu`` and ``UUID`` are
spelled as dcgm-exporter does, so that series join. No label holds a PID or a command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from swift_governor.model import Mode, SamplerStatus
from swift_governor.report import metric_rows as rows_of
from swift_governor.report.metric_rows import Record, Rows

PREFIX = "swift_governor_"
GAUGE, COUNTER = "gauge", "counter"
UNITS = ("seconds", "bytes", "cores", "ratio", "celsius", "watts")


@dataclass(frozen=True)
class Metric:
    """One line of the table.

    ``rows`` yields the series in a snapshot; ``value`` is the key in a series' record, dotted for a
    key within an object. A missing or null value is no sample.
    """

    name: str
    labels: tuple[str, ...]
    help: str
    rows: Rows
    value: str

    @property
    def kind(self) -> str:
        return COUNTER if self.name.endswith("_total") else GAUGE

    @property
    def unit(self) -> str:
        """The unit that the name ends with; "" for a count, a state or a size without one."""
        last = self.name.replace("_total", "").rpartition("_")[2]
        return last if last in UNITS else ""

    def samples(self, snapshot: Record) -> Iterable[tuple[list[str], float]]:
        """Label values in the order of ``labels``, and the value."""
        keys = self.value.split(".")
        for names, record in self.rows(snapshot):
            value: Any = record
            for key in keys:
                value = value.get(key) if isinstance(value, Mapping) else None
            if isinstance(value, (int, float)):
                yield [str(names[label]) for label in self.labels], float(value)


def _metrics(
    rows: Rows, labels: tuple[str, ...], lines: Iterable[tuple[str, str, str]]
) -> tuple[Metric, ...]:
    return tuple(Metric(PREFIX + name, labels, text, rows, value) for name, value, text in lines)


_GPU = ("gpu", "UUID")
_UNIT = ("msswift_job", "unit")
_JOB = ("msswift_job",)
_JOB_INFO = ("msswift_job", "verb", "engine", "user", "tier", "mode", "slice")

_mode = rows_of.states([m.value for m in Mode], "mode", lambda s: str(s["self"]["mode"]))
_status = rows_of.states(
    [s.value for s in SamplerStatus], "status", lambda s: str(s["sampler"]["status"])
)
_refusals = rows_of.counts("self", "refusals", "reason")
_notes = rows_of.counts("self", "notes", "kind")

# fmt: off
# What the exporter knows of itself, read from {"exporter": {…}}: told of a silent governor, too.
EXPORTER_TABLE: tuple[Metric, ...] = _metrics(rows_of.once, (), (
    ("up", "exporter.up",
     "Whether the governor answered; if not, other series are its last, for 5 minutes at most."),
    ("snapshot_failures_total", "exporter.failures", "Snapshots asked for that did not come."),
))

GOVERNOR_TABLE: tuple[Metric, ...] = (
    # the daemon
    *_metrics(rows_of.build, ("version",), (
        ("build_info", "is", "Version of the governor; always 1."),)),
    *_metrics(rows_of.node, ("hostname", "systemd"), (
        ("node_info", "is", "The node and its systemd version; always 1."),)),
    *_metrics(_mode, ("mode",), (
        ("mode", "is", "1 for the mode in force, observe or enforce."),)),
    *_metrics(rows_of.once, (), (
        ("node_cpu_cores", "node.cpus", "Logical CPUs of the node."),
        ("uptime_seconds", "self.uptime_s", "Time since the daemon started."),
        ("last_tick_timestamp_seconds", "wall_s", "When the last tick was, since the epoch."),
        ("ticks_total", "self.ticks", "Ticks since the daemon started."),
        ("tick_duration_seconds", "self.tick_s", "How long the last tick took."),
        ("tick_seconds_total", "self.tick_total_s", "Time spent in ticks."),
        ("tick_period_seconds", "self.tick_period_s", "Configured time between ticks."),
        ("tick_overruns_total", "self.overruns", "Ticks that took longer than their period."),
        ("events_live", "self.events_live", "Whether process events arrive (0: polling)."),
        ("event_overruns_total", "self.event_overruns",
         "Times process events were lost and all processes read again."),
        ("reader_stuck", "self.reader_stuck", "Whether a read of another process hangs."),
        ("reader_timeouts_total", "self.reader_timeouts",
         "Reads of processes given up at their deadline."),
        ("dbus_errors_total", "self.dbus_errors", "D-Bus calls that failed."),
        ("journal_lost_total", "self.journal_lost", "Entries that the journal did not take."),
        ("link_clients", "self.link_clients", "Connections on the governor's socket."),
        ("config_generation", "self.config_generation",
         "Configurations taken since the start, the first included."),
        ("config_reload_failures_total", "self.config_reload_failures",
         "Reloads refused because of a bad configuration."),
    )),
    *_metrics(_refusals, ("reason",), (
        ("refusals_total", "count", "Requests and inputs refused."),)),
    *_metrics(_notes, ("kind",), (
        ("notes_total", "count", "Journal entries by kind."),)),
    # acting
    *_metrics(rows_of.once, (), (
        ("writes_total", "act.writes", "Changes made to units and priorities."),
        ("write_failures_total", "act.failures", "Changes that failed."),
        ("write_timeouts_total", "act.timeouts", "Changes not answered in time."),
        ("writes_pending", "act.pending", "Changes asked for and not yet answered."),
        ("drift_total", "act.drift", "Values found changed by somebody else, and set again."),
        ("contained_processes", "act.contained",
         "Processes that the kernel says are in a unit of ours."),
        ("left_alone_processes", "left_alone.count",
         "Processes of jobs that are left where they are."),
        ("prioritised_threads", "act.prioritised_threads",
         "Threads with a nice value and I/O class of ours."),
        ("containment_median_seconds", "act.containment.median_s",
         "Median time from finding a process to its containment, of the last ones."),
        ("containment_worst_seconds", "act.containment.worst_s",
         "Longest time from finding a process to its containment, of the last ones."),
    )),
    *_metrics(rows_of.pressure, ("resource", "kind"), (
        ("pressure_ratio", "share", "Pressure stall share of the node, mean of 10 s."),)),
    *_metrics(rows_of.tiers, ("tier",), (
        ("tier_jobs", "jobs", "Jobs in a tier."),
        ("tier_processes", "processes", "Processes in a tier."),
        ("tier_cpu_weight", "unit.weight", "cpu.weight of a tier's slice, read back (0: idle)."),
        ("tier_cpu_quota_cores", "unit.quota_cores",
         "cpu.max of a tier's slice, read back; absent: none."),
        ("tier_cpu_seconds_total", "unit.cpu_usage_s", "CPU time used in a tier's slice."),
        ("tier_throttled_seconds_total", "unit.throttled_s", "Time a tier's slice was throttled."),
    )),
    # jobs
    *_metrics(rows_of.jobs, _JOB_INFO, (
        ("job_info", "is", "What a job is; always 1."),)),
    *_metrics(rows_of.job_gpus, ("msswift_job", *_GPU), (
        ("job_gpu_info", "is", "Which GPUs a job has; always 1."),)),
    *_metrics(rows_of.roles, ("msswift_job", "role"), (
        ("job_processes", "count", "Processes of a job by role."),)),
    *_metrics(rows_of.jobs, _JOB, (
        ("job_contained_processes", "contained", "Processes of a job in a unit of ours."),
        ("job_world_size", "world_size", "Ranks of a job over all nodes."),
        ("job_multi_node", "multi_node", "Whether a job runs on other nodes too."),
        ("job_linked", "linked", "Whether a trainer of the job is connected."),
        ("job_linked_ranks", "trainer.linked_ranks", "Ranks whose trainer reports."),
        ("job_micro_batch_size", "micro_batch.running", "Micro-batch that runs."),
        ("job_micro_batch_wished_size", "micro_batch.wished",
         "Micro-batch that is wished for; absent: no wish."),
        ("job_optimizer_step", "trainer.optimizer_step",
         "Optimizer step of the rank that is furthest behind."),
        ("job_samples_per_second", "trainer.samples_per_s",
         "Samples a second, all linked ranks together."),
        ("job_step_seconds", "trainer.step_s", "Time of an optimizer step on the slowest rank."),
        ("job_data_wait_ratio", "trainer.wait_share",
         "Share of time that the rank which waits most waits for data."),
        ("job_loader_workers", "trainer.workers", "Loader workers that the trainers report."),
        ("job_ooms_total", "trainer.ooms", "GPU out-of-memory errors that the trainers report."),
    )),
    *_metrics(rows_of.ranks, ("msswift_job", "rank"), (
        ("rank_samples_per_second", "samples_per_s", "Samples a second of one rank."),
        ("rank_data_wait_ratio", "wait_share", "Share of time that one rank waits for data."),
    )),
    *_metrics(rows_of.units, _UNIT, (
        ("unit_cpu_quota_cores", "quota_cores", "cpu.max of a unit, read back; absent: none."),
        ("unit_cpu_quota_wished_cores", "wished_quota_cores",
         "cpu.max that is wished for; absent: none."),
        ("unit_cpu_weight", "weight", "cpu.weight of a unit, read back (0: idle)."),
        ("unit_cpu_seconds_total", "cpu_usage_s", "CPU time used in a unit."),
        ("unit_periods_total", "periods", "Quota periods in which a unit could run."),
        ("unit_throttled_periods_total", "throttled_periods",
         "Quota periods in which a unit was throttled."),
        ("unit_throttled_seconds_total", "throttled_s", "Time a unit was throttled."),
        ("unit_memory_bytes", "memory_bytes", "Memory charged to a unit."),
        ("unit_processes", "processes", "Processes in a unit."),
    )),
    # GPUs and their sampler
    *_metrics(_status, ("status",), (
        ("sampler_status", "is", "1 for what is known of the GPU sampler."),)),
    *_metrics(rows_of.once, (), (
        ("sampler_up", "sampler.up", "Whether GPU readings are good and fresh."),
        ("sampler_age_seconds", "sampler.age_s", "Age of the last GPU reading at the last tick."),
    )),
    *_metrics(rows_of.gpus, (*_GPU, "model"), (
        ("gpu_info", "is", "A GPU; always 1."),)),
    *_metrics(rows_of.gpus, (*_GPU, "fault"), (
        ("gpu_fault", "faulty", "Whether the GPU is quarantined, and why."),)),
    *_metrics(rows_of.gpus, _GPU, (
        ("gpu_utilization_ratio", "utilization",
         "Share of time in which a kernel ran, the last reading."),
        ("gpu_memory_used_bytes", "memory_used_bytes", "GPU memory in use."),
        ("gpu_memory_total_bytes", "memory_total_bytes", "GPU memory there is."),
        ("gpu_temperature_celsius", "temperature_c", "GPU temperature."),
        ("gpu_power_watts", "power_w", "Power the GPU draws."),
        ("gpu_power_limit_watts", "power_limit_w", "Power the GPU may draw."),
        ("gpu_processes", "processes", "Compute processes on the GPU."),
        ("gpu_sample_age_seconds", "age_s", "Age of the GPU's reading at the last tick."),
    )),
    # loops
    *_metrics(rows_of.loops, (*_GPU, "msswift_job", "unit"), (
        ("loop_job_info", "is", "The job and unit that a GPU's loop moves; always 1."),)),
    *_metrics(rows_of.loops, _GPU, (
        ("loop_setpoint_ratio", "setpoint", "Utilisation the loop aims at."),
        ("loop_band_ratio", "band", "Distance from the set point at which the loop rests."),
        ("loop_process_variable_ratio", "process_variable",
         "Utilisation the loop sees: the mean of its window."),
        ("loop_output_cores", "output_cores", "CPU quota the loop wishes; absent: none."),
        ("loop_floor_cores", "floor_cores", "Lowest quota the loop may wish."),
        ("loop_ceiling_cores", "ceiling_cores", "Highest quota the loop may wish."),
        ("loop_moves_total", "moves", "Times the loop changed the quota."),
        ("loop_window_samples", "samples", "Readings in the loop's window."),
    )),
    *_metrics(rows_of.terms, (*_GPU, "term"), (
        ("loop_term", "value", "The last step's p, i and d increments of ln(quota)."),)),
    *_metrics(rows_of.constraints, (*_GPU, "constraint"), (
        ("loop_constraint", "is", "1 for what holds the loop's output where it is."),)),
)
# fmt: on

TABLE: tuple[Metric, ...] = EXPORTER_TABLE + GOVERNOR_TABLE
