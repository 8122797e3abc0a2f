# SPDX-License-Identifier: Apache-2.0
"""The proc connector: recorded and broken datagrams, and the real thing where there is one."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swift_governor.sense import proc_events
from swift_governor.sense.proc_events import (
    Comm,
    Exec,
    Exit,
    Fork,
    Overrun,
    ProcEvents,
    ProcEventsError,
    parse_events,
)

from tests.unit.sense.live import DEADLINE_S, PYTHON

# Recorded on Linux 6.18: the acknowledgement, and a thread's start in another process.
ACK = bytes.fromhex(
    "4c00000003000000000000000000000001000000010000000000000001000000280000000000000001000000"
    "daf89c96ae000000000000000000000000000000000000000000000000000000"
)
THREAD = bytes.fromhex(
    "4c000000030000000000000000000000010000000100000000000000000000002800000001000000000000"
    "0029395ce9ae0000003c000000010000009f220000251500000000000000000000"
)


def datagram(what, *words, tail=b""):
    data = struct.pack(f"={len(words)}I", *words) + tail
    data = data.ljust(24, b"\0")
    event = struct.pack("=IIQ", what, 0, 1) + data
    message = struct.pack("=IIIIHH", 1, 1, 0, 0, len(event), 0) + event
    return struct.pack("=IHHII", 16 + len(message), 3, 0, 0, 0) + message


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (ACK, []),
        (THREAD, []),
        (datagram(1, 50, 50, 60, 60), [Fork(50, 60)]),
        (datagram(1, 51, 50, 60, 60), [Fork(50, 60)]),
        (datagram(1, 50, 50, 61, 60), []),
        (datagram(2, 60, 60), [Exec(60)]),
        (datagram(0x80000000, 60, 60, 0, 17, 50, 50), [Exit(60)]),
        (datagram(0x80000000, 61, 60, 0, 17, 50, 50), []),
        (datagram(0x200, 60, 60, tail=b"pt_data_worker\0\0"), [Comm(60, "pt_data_worker")]),
        (datagram(0x200, 60, 60, tail=b"\xff\xfe" + b"\0" * 14), [Comm(60, "\udcff\udcfe")]),
        (datagram(0x200, 61, 60, tail=b"pt_data_pin\0\0\0\0\0"), []),
        (datagram(4, 60, 60, 1, 1), []),
        (datagram(2, 60, 60) + datagram(2, 70, 70), [Exec(60), Exec(70)]),
        (datagram(2, 60, 60)[:-30], []),
        (datagram(2, 60, 60)[:20], []),
        (struct.pack("=IHHII", 16, 4, 0, 0, 0), [Overrun()]),
        (struct.pack("=IHHII", 0, 3, 0, 0, 0), []),
        (b"", []),
    ],
)
def test_datagrams_are_read_as_the_processes_they_tell_of(raw, events):
    assert list(parse_events(raw)) == events


@given(st.binary(max_size=200) | st.binary(max_size=80).map(lambda b: datagram(1)[:36] + b))
def test_no_datagram_makes_the_parser_raise(raw):
    list(parse_events(raw))


class Refusing:
    """A socket that can be made, and fails with one errno at whatever is tried."""

    def __init__(self, number):
        self._number = number

    def bind(self, address):
        raise OSError(self._number, "no")

    def recvfrom(self, size):
        raise OSError(self._number, "no")

    def close(self):
        pass


def test_without_permission_the_reason_is_told_and_polling_named(monkeypatch):
    monkeypatch.setattr(proc_events.socket, "socket", lambda *a: Refusing(errno.EPERM))
    with pytest.raises(ProcEventsError, match=r"subscribe.*CAP_NET_ADMIN.*polled"):
        ProcEvents.open()


def test_without_netlink_the_reason_is_told(monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")

    monkeypatch.setattr(proc_events.socket, "socket", refuse)
    with pytest.raises(ProcEventsError, match="Protocol not supported"):
        ProcEvents.open()


def test_a_socket_that_fails_later_says_so():
    with pytest.raises(ProcEventsError, match="read process events"):
        ProcEvents(Refusing(errno.EBADF)).read()


class Scripted:
    """A socket that plays a list: an errno is raised, a pair is received."""

    def __init__(self, *script):
        self._script = list(script)

    def recvfrom(self, size):
        step = self._script.pop(0) if self._script else errno.EAGAIN
        if isinstance(step, int):
            raise OSError(step, "")
        return step


def test_an_overrun_is_an_event_and_counted_and_reading_goes_on():
    events = ProcEvents(Scripted(errno.ENOBUFS, (datagram(2, 60, 60), (0, 1)), errno.EINTR))
    assert events.read() == [Overrun(), Exec(60)]
    assert events.overruns == 1


def test_a_datagram_from_another_process_than_the_kernel_is_not_believed():
    events = ProcEvents(Scripted((datagram(2, 60, 60), (4242, 0)), (datagram(2, 61, 61), (0, 1))))
    assert events.read() == [Exec(61)]


def test_a_storm_is_read_in_portions():
    one = (datagram(2, 60, 60), (0, 1))
    events = ProcEvents(Scripted(*[one] * 30))
    assert [len(events.read(limit=20)), len(events.read(limit=20))] == [20, 10]


def test_the_kernels_answer_to_us_is_told_from_others_and_a_refusal_from_consent():
    answer = bytearray(datagram(0, errno.EPERM))
    assert proc_events._read_answer(bytes(answer)) is None, "another listener's"
    struct.pack_into("=I", answer, 16 + 12, (os.getpid() & 0x3FFFFFFF) + 1)
    assert proc_events._read_answer(bytes(answer)) == errno.EPERM
    assert proc_events._read_answer(bytes(answer[:50])) is None


def test_a_kernel_that_does_not_answer_is_not_waited_for(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    monkeypatch.setattr(proc_events, "ANSWER_S", 0.01)
    with ours, theirs, pytest.raises(OSError, match="does not answer"):
        proc_events._await_answer(ours)


@pytest.fixture
def events():
    try:
        events = ProcEvents.open()
    except ProcEventsError as error:
        pytest.skip(str(error))
    yield events
    events.close()


def collect(events, wanted):
    seen = []
    end = time.monotonic() + DEADLINE_S
    while not set(wanted) <= set(seen):
        assert time.monotonic() < end, wanted
        if select.select([events], [], [], 0.2)[0]:
            seen.extend(events.read())
    return seen


def test_the_kernel_tells_a_processs_whole_life(events):
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b'pt_data_worker', 0, 0, 0)"
    with subprocess.Popen([PYTHON, "-S", "-c", code]) as process:
        process.wait()
    pid = process.pid
    seen = collect(events, [Exec(pid), Comm(pid, "pt_data_worker"), Exit(pid)])
    order = [e for e in seen if getattr(e, "pid", None) == pid]
    assert [type(e) for e in order][-3:] == [Exec, Comm, Exit]
    assert isinstance(order[0], Fork)


def test_an_overrun_of_the_real_socket_is_noticed(events):
    events._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    for _ in range(30):
        subprocess.run(["true"], check=True)
    assert Overrun() in events.read()
    assert events.overruns >= 1
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert any(getattr(e, "pid", None) == process.pid for e in events.read()), "it goes on"
