# SPDX-License-Identifier: Apache-2.0
"""swift-governor's GPU sampler: ``python3 -m swift_governor.sampler [--socket PATH] [--once]``.

Reads every GPU once a second and sends what it read to the daemon. systemd hears WATCHDOG=1 only
after a finished round: a driver call that hangs therefore ends in a restart of this program alone.

Exit statuses: 0 asked to stop; 2 usage; 75 NVML needs a new process (systemd should start one);
78 the Python bindings can't be used (systemd should not).
"""

from __future__ import annotations

import json
import signal
import sys
import time

from swift_governor.service_notify import notify

from .bindings import UnusableBindingsError, load
from .errors import MustRestartError, Status
from .link import DaemonLink
from .reader import Reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_SOCKET = "/run/swift-governor/governor.sock"
PERIOD_S = 1.0
# Before exit 75 the reason is told this long: systemd's start limit (5 in 10 s) is never reached.
LAST_WORDS_S = 5.0
EXIT_USAGE, EXIT_RESTART, EXIT_BINDINGS = 2, 75, 78
USAGE = "usage: python3 -m swift_governor.sampler [--socket PATH] [--once]"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Sampler:
    """The schedule: read, send, tell systemd, wait."""

    def __init__(self, reader: Reader, link: DaemonLink) -> None:
        self._reader = reader
        self._link = link
        self._ready = False
        self._told = ""

    def run(self) -> int:
        """Until a stop signal (0) or until only a new process can go on (75)."""
        due = time.monotonic()
        while True:
            now = time.monotonic()
            try:
                sample = self._reader.round(now)
            except MustRestartError as error:
                return self._last_words(str(error))
            self._publish(sample)
            due = next_due(due, time.monotonic())
            if stop_asked_within(due - time.monotonic()):
                return 0

    def _last_words(self, detail: str) -> int:
        end = time.monotonic() + LAST_WORDS_S
        while time.monotonic() < end:
            self._publish(failing(detail))
            if stop_asked_within(PERIOD_S):
                return 0
        return EXIT_RESTART

    def _publish(self, sample: dict[str, Any]) -> None:
        self._link.send(sample, time.monotonic())
        status = describe(sample, self._link.trouble)
        lines = ["WATCHDOG=1"]
        if not self._ready:
            lines.append("READY=1")
        if status != self._told:
            lines.append(f"STATUS={status}")
            print(status, file=sys.stderr, flush=True)  # noqa: T201  the journal
        notify(*lines)
        self._ready = True
        self._told = status


def next_due(due: float, now: float) -> float:
    """The next point of the 1 s grid after ``now``: a slow round is not followed by a burst."""
    missed = int((now - due) / PERIOD_S)
    return due + (missed + 1) * PERIOD_S


def stop_asked_within(seconds: float) -> bool:
    """Waits. The signals are blocked all the time, so none is lost between two waits."""
    return signal.sigtimedwait(STOP_SIGNALS, max(seconds, 0.0)) is not None


def failing(detail: str) -> dict[str, Any]:
    """A Sample that says why there is none."""
    now = time.monotonic()
    return {"status": Status.FAILING, "detail": detail, "at": now, "driver": "", "gpus": []}


def describe(sample: dict[str, Any], link_trouble: str) -> str:
    """One line for ``systemctl status`` and, when it changes, for the journal."""
    status, detail, count = sample["status"], sample["detail"], len(sample["gpus"])
    line = f"reading {count} GPU{'s' * (count != 1)}" if status == Status.OK else str(status)
    if detail:
        line += f": {detail}"
    return f"{line} [daemon: {link_trouble}]" if link_trouble else line


def parse(arguments: list[str]) -> tuple[str, bool] | None:
    """(socket, once), or None. By hand: argparse would be a tenth of this program's memory."""
    path, once = DEFAULT_SOCKET, False
    rest = iter(arguments)
    for argument in rest:
        if argument == "--once":
            once = True
        elif argument == "--socket":
            path = next(rest, "")
        elif argument.startswith("--socket="):
            path = argument.partition("=")[2]
        else:
            return None
    return (path, once) if path else None


def main(arguments: list[str]) -> int:
    """The program; see the module's docstring."""
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)  # noqa: T201
        return 0
    options = parse(arguments)
    if options is None:
        print(USAGE, file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    path, once = options
    link = DaemonLink(path)
    try:
        reader = Reader(load())
    except UnusableBindingsError as error:
        print(f"swift-governor-sampler: {error}", file=sys.stderr)  # noqa: T201
        link.send(failing(str(error)), time.monotonic())
        notify(STATUS=str(error))
        return EXIT_BINDINGS
    if once:
        return read_once(reader)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        return Sampler(reader, link).run()
    finally:
        notify("STOPPING=1")
        reader.close()
        link.close()


def read_once(reader: Reader) -> int:
    """Prints one sample as JSON, for a person or a test."""
    try:
        print(json.dumps(reader.round(time.monotonic()), indent=2))  # noqa: T201
    except MustRestartError as error:
        print(json.dumps(failing(str(error)), indent=2))  # noqa: T201
        return EXIT_RESTART
    finally:
        reader.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
