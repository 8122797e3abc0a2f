# SPDX-License-Identifier: Apache-2.0
"""The daemon: one GLib main loop that wires the rooms together and runs the tick.

    python3 -m swift_governor.loop [--config FILE] [--run-dir DIR]

Exit status: 0 stopped, 1 could not start, 2 the configuration is wrong. What was limited is not
given back here: ExecStopPost= runs ``swift_governor.act.release`` however this process ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gi.repository import GLib
from swift_governor.act.ledger import Ledger
from swift_governor.act.reconciler import Reconciler
from swift_governor.act.systemd import Systemd
from swift_governor.config import DEFAULT_PATH, Config, ConfigError, load
from swift_governor.jobs.rules import ENVIRON_KEYS, match_process
from swift_governor.link.handlers import Handlers
from swift_governor.link.server import Server
from swift_governor.link.sessions import Sessions
from swift_governor.model import Note, Process, ProcessId, Severity
from swift_governor.report.journal import Journal
from swift_governor.sense.accounts import Accounts
from swift_governor.sense.node import cgroup_problem, read_node
from swift_governor.sense.proc_events import ProcEvents, ProcEventsError
from swift_governor.sense.process_table import ProcessTable
from swift_governor.sense.reader_client import ReaderClient
from swift_governor.sense.stat import read_stat, read_uid
from swift_governor.service_notify import notify
from swift_governor.tick import Tick
from swift_governor.version import VERSION

SOON_S = 0.02
"""Two ticks are at least so far apart: changes that come together are one tick."""

READER_TICK_MS = 500
SAMPLER_USER = "swift-governor-sampler"
ADMIN_GROUP = "swift-governor"


def is_job(process: Process) -> bool:
    """Whether a command line by itself makes a process part of a job."""
    return match_process(process).role is not None


class Daemon:
    """Everything that lives as long as the process. ``run`` returns the exit status."""

    def __init__(self, config: Config, config_path: str, run_dir: str) -> None:
        self._config_path = config_path
        self._loop = GLib.MainLoop()
        self._soon = 0
        self._journal = Journal()
        self._accounts = Accounts()
        self._accounts.refresh()
        self._sessions = Sessions()
        self._reader = ReaderClient(ENVIRON_KEYS)
        self._table = ProcessTable(self._reader, is_job, self._on_change)
        self._systemd = Systemd()
        ledger = Ledger(str(Path(run_dir) / "ledger.jsonl"))
        self._reconciler = Reconciler(
            self._systemd, ledger, carriers=config.carriers, note=self._tell
        )
        self.tick = Tick(
            config,
            read_node(),
            self._table,
            self._reader,
            self._sessions,
            self._reconciler,
            self._journal,
            self._accounts,
            time.monotonic(),
        )
        handlers = Handlers(self.tick, self._sessions, self._identify, time.monotonic)
        self._server = Server(
            str(Path(run_dir) / "governor.sock"),
            handlers.table(),
            self._accounts.uid_of(SAMPLER_USER),
            self._accounts.gid_of(ADMIN_GROUP),
            handlers.closed,
            self.tick.refuse,
        )
        self._events: ProcEvents | None = None
        self._polled_at = float("-inf")
        self._ticking = 0
        self._ran_at = float("-inf")

    # ------------------------------------------------------------------------------ beginning

    def run(self) -> int:
        """Until SIGTERM or SIGINT."""
        self._server.listen()
        self._open_events()
        self._watch_in(self._reader.fileno(), self._on_reader)
        self._systemd.connect()
        GLib.timeout_add(READER_TICK_MS, self._guarded(self._on_reader_tick))
        for number in (signal.SIGTERM, signal.SIGINT):
            GLib.unix_signal_add(GLib.PRIORITY_HIGH, number, self._on_stop)
        GLib.unix_signal_add(GLib.PRIORITY_HIGH, signal.SIGHUP, self._guarded(self._on_reload))
        self._tell_start()
        self._schedule()
        self._guarded(self._on_tick)()
        notify("READY=1", STATUS=self._status())
        self._loop.run()
        notify("STOPPING=1")
        self._server.close()
        self._reader.close()
        return 0

    def _tell_start(self) -> None:
        mode = self.tick.config.mode.value
        files = ", ".join(self.tick.config.files) or "defaults"
        self._journal.tell(
            Note(
                "started", "governor", f"swift-governor {VERSION}, {mode}, {files}", Severity.NOTICE
            )
        )
        problem = cgroup_problem()
        if problem is not None:
            self._journal.tell(
                Note("cgroup", "node", problem, Severity.ERROR, remedy="see `systemd-cgls`")
            )

    def _open_events(self) -> None:
        try:
            self._events = ProcEvents.open()
        except ProcEventsError as error:
            self._lose_events(error)
            return
        self.tick.events_live = True
        self._watch_in(self._events.fileno(), self._on_events)

    def _lose_events(self, error: ProcEventsError) -> None:
        self._events = None
        self.tick.events_live = False
        period = self.tick.config.poll.fallback_period_s
        message = f"{error}: processes are looked for every {period:g} s instead"
        self._journal.tell(Note("no-events", "node", message, Severity.WARNING, key="events"))

    def _tell(self, note: Note) -> None:
        self._journal.tell(note)

    def _guarded(self, work: Callable[[], bool]) -> Callable[..., bool]:
        """A source whose callback raises is removed by PyGObject, silently: none may raise."""

        def run(*_: object) -> bool:
            try:
                return work()
            except Exception as error:  # noqa: BLE001 - a bug in a room must not end the daemon
                message = f"{work.__name__.strip('_')}: {type(error).__name__}: {error}"
                self._tell(Note("bug", "loop", message, Severity.ERROR, message[:200], BUG_REMEDY))
                return True

        return run

    def _watch_in(self, fd: int, then: Callable[[], bool]) -> None:
        condition = GLib.IOCondition.IN
        GLib.unix_fd_add_full(GLib.PRIORITY_DEFAULT, fd, condition, self._guarded(then))

    # ------------------------------------------------------------------------------- sources

    def _on_events(self) -> bool:
        if self._events is None:
            return False
        try:
            events = self._events.read()
        except ProcEventsError as error:
            self._lose_events(error)
            return False
        for event in events:
            self._table.handle_event(event)
        self._table.flush()
        return True

    def _on_reader(self) -> bool:
        self._reader.on_readable()
        return True

    def _on_reader_tick(self) -> bool:
        self._reader.tick()
        return True

    def _on_change(self) -> None:
        """The process table changed: a tick at once, or soon where the last was a moment ago."""
        if not self._soon:
            wait_s = self._ran_at + SOON_S - time.monotonic()
            wait_ms = max(0, round(wait_s * 1000))
            self._soon = GLib.timeout_add(wait_ms, self._guarded(self._on_soon))

    def _on_soon(self) -> bool:
        self._soon = 0
        self._run_tick(soon=True)
        return False

    def _schedule(self) -> None:
        period = int(self.tick.config.tick.period_s * 1000)
        self._ticking = GLib.timeout_add(period, self._guarded(self._on_tick))

    def _on_tick(self) -> bool:
        now = time.monotonic()
        poll = self.tick.config.poll
        due = poll.period_s if self._events is not None else poll.fallback_period_s
        if now - self._polled_at >= due:
            self._polled_at = now
            self._table.poll()
        self._run_tick()
        notify("WATCHDOG=1", STATUS=self._status())
        return True

    def _run_tick(self, soon: bool = False) -> None:
        self._ran_at = time.monotonic()
        self.tick.link_clients = len(self._server)
        self.tick.run(self._ran_at, time.time(), soon)

    def _identify(self, pid: int, uid: int) -> ProcessId | None:
        """A trainer that registers belongs to the table, whatever its command line says.

        A connection outlives the process that opened it, in a child; by then its PID may be that of
        another user's process, for which the child must not speak.
        """
        stat = read_stat("/proc", pid) if pid > 0 else None
        if stat is None or read_uid("/proc", pid) != uid:
            return None
        self._table.include(pid)
        return ProcessId(pid, stat.start_ticks)

    def _status(self) -> str:
        jobs = len(self.tick.jobs)
        word = "job" if jobs == 1 else "jobs"
        gpus = len(self.tick.gpus.gpus)
        return f"{self.tick.config.mode.value}: {jobs} {word}, {gpus} GPU{'' if gpus == 1 else 's'}"

    # ----------------------------------------------------------------------------------- ending

    def _on_stop(self) -> bool:
        self._loop.quit()
        return True

    def _on_reload(self) -> bool:
        """A good configuration replaces the old one whole; a bad one changes nothing."""
        notify("RELOADING=1", MONOTONIC_USEC=int(time.monotonic() * 1e6))
        try:
            config = load(self._config_path)
        except ConfigError as error:
            self.tick.config_reload_failures += 1
            for problem in error.errors[:20]:
                self._journal.tell(
                    Note(
                        "config-refused",
                        "config",
                        str(problem),
                        Severity.ERROR,
                        remedy="the old one stays in force; swift-governor check-config",
                    )
                )
        else:
            self._take_up(config)
        notify("READY=1", STATUS=self._status())
        return True

    def _take_up(self, config: Config) -> None:
        self.tick.config = config
        self.tick.config_generation += 1
        self._reconciler.carriers = config.carriers
        GLib.source_remove(self._ticking)
        self._schedule()
        message = f"taken up: {', '.join(config.files) or 'defaults'}; mode {config.mode.value}"
        self._journal.tell(Note("config-loaded", "config", message, Severity.NOTICE))
        self._run_tick()


BUG_REMEDY = "this is a bug: please report it with `journalctl -u swift-governor`"


def main(argv: Sequence[str] | None = None) -> int:
    """The daemon's command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="swift-governord", description="the root daemon")
    parser.add_argument("--config", default=DEFAULT_PATH)
    parser.add_argument("--run-dir", default="/run/swift-governor")
    args = parser.parse_args(argv)
    try:
        config = load(args.config)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        notify(STATUS=f"configuration refused: {error.errors[0]}", ERRNO="22")
        return 2
    os.umask(0o077)
    try:
        daemon = Daemon(config, args.config, args.run_dir)
    except OSError as error:
        sys.stderr.write(f"can't start: {error}\n")
        return 1
    return daemon.run()


if __name__ == "__main__":
    sys.exit(main())
