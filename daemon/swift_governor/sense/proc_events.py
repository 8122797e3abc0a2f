# SPDX-License-Identifier: Apache-2.0
"""The kernel's proc connector: fork, exec, exit and renames of processes as they happen.

A netlink socket that needs CAP_NET_ADMIN and the initial namespaces; kernel
Documentation/driver-api/connector.rst, structures in linux/cn_proc.h and linux/connector.h. Where
it is not to be had, ``ProcEvents.open`` raises ``ProcEventsError`` with the reason, and
polling of /proc does the work alone. Threads are skipped here: only processes come out.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

NETLINK_CONNECTOR = 11
CN_IDX_PROC = 1
CN_VAL_PROC = 1
PROC_CN_MCAST_LISTEN = 1
NLMSG_NOOP, NLMSG_ERROR, NLMSG_DONE, NLMSG_OVERRUN = 1, 2, 3, 4
SO_RCVBUFFORCE = 33

NLMSGHDR = struct.Struct("=IHHII")  # length, type, flags, sequence, port
CN_MSG = struct.Struct("=IIIIHH")  # idx, val, sequence, ack, length, flags
PROC_EVENT = struct.Struct("=IIQ")  # what, cpu, timestamp in ns

EVENT_ACK = 0x00000000
EVENT_FORK = 0x00000001
EVENT_EXEC = 0x00000002
EVENT_COMM = 0x00000200
EVENT_EXIT = 0x80000000

# A fork storm of some 50,000 processes fits before the kernel drops events.
RECEIVE_BUFFER_BYTES = 8 * 1024 * 1024
DATAGRAM_BYTES = 4096
ANSWER_S = 1.0

REMEDY = "needs CAP_NET_ADMIN in the initial namespaces and CONFIG_PROC_EVENTS; /proc is polled"


class ProcEventsError(Exception):
    """The proc connector can't be used; the text says why and what happens instead."""


@dataclass(frozen=True)
class Fork:
    """``parent_pid`` made the new process ``pid``, which is still a copy of it."""

    parent_pid: int
    pid: int


@dataclass(frozen=True)
class Exec:
    """``pid`` now runs another program."""

    pid: int


@dataclass(frozen=True)
class Comm:
    """``pid`` renamed its main thread, as torch does for loader workers."""

    pid: int
    comm: str


@dataclass(frozen=True)
class Exit:
    """``pid`` has ended."""

    pid: int


@dataclass(frozen=True)
class Overrun:
    """The kernel dropped events: what is known has to be checked against /proc."""


Event = Union[Fork, Exec, Comm, Exit, Overrun]


def parse_events(datagram: bytes) -> Iterator[Event]:
    """The events of one datagram; messages that are cut short or not ours are skipped."""
    offset = 0
    while offset + NLMSGHDR.size <= len(datagram):
        length, kind, _, _, _ = NLMSGHDR.unpack_from(datagram, offset)
        if length < NLMSGHDR.size or offset + length > len(datagram):
            return
        if kind == NLMSG_OVERRUN:
            yield Overrun()
        elif kind == NLMSG_DONE:
            event = _parse_message(datagram[offset + NLMSGHDR.size : offset + length])
            if event is not None:
                yield event
        offset += (length + 3) & ~3


def _parse_message(message: bytes) -> Event | None:
    if len(message) < CN_MSG.size + PROC_EVENT.size:
        return None
    idx, val, _, _, _, _ = CN_MSG.unpack_from(message)
    if (idx, val) != (CN_IDX_PROC, CN_VAL_PROC):
        return None
    what, _, _ = PROC_EVENT.unpack_from(message, CN_MSG.size)
    return _parse_event(what, message[CN_MSG.size + PROC_EVENT.size :])


def _parse_event(what: int, data: bytes) -> Event | None:
    words = struct.unpack(f"={min(len(data) // 4, 4)}I", data[: min(len(data) // 4, 4) * 4])
    if what == EVENT_FORK and len(words) >= 4:
        _, parent, pid, process = words
        return Fork(parent, process) if pid == process else None
    if len(words) < 2:
        return None
    pid, process = words[:2]
    if what == EVENT_EXEC:
        return Exec(process)
    if pid != process:
        return None
    if what == EVENT_EXIT:
        return Exit(process)
    if what == EVENT_COMM and len(data) >= 24:
        return Comm(process, data[8:24].split(b"\0")[0].decode("utf-8", "surrogateescape"))
    return None


class ProcEvents:
    """A subscription. ``fileno`` is for a main loop; ``read`` never blocks."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.overruns = 0

    @classmethod
    def open(cls) -> ProcEvents:
        """Subscribes; raises ProcEventsError."""
        try:
            connection = socket.socket(
                socket.AF_NETLINK,
                socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
                NETLINK_CONNECTOR,
            )
        except OSError as error:
            raise _unavailable("open a netlink connector socket", error) from error
        try:
            connection.bind((0, CN_IDX_PROC))
            _enlarge(connection)
            connection.send(_request(PROC_CN_MCAST_LISTEN))
            _await_answer(connection)
        except OSError as error:
            connection.close()
            raise _unavailable("subscribe to process events", error) from error
        return cls(connection)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self, limit: int = 2000) -> list[Event]:
        """What has arrived, at most about ``limit`` events, so that a storm can't hold a loop.

        An overrun is counted and comes out as ``Overrun``. Any other failure of the socket ends
        it with ProcEventsError.
        """
        events: list[Event] = []
        while len(events) < limit:
            try:
                datagram, (sender, _) = self._socket.recvfrom(DATAGRAM_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                if error.errno != errno.ENOBUFS:
                    raise _unavailable("read process events", error) from error
                self.overruns += 1
                events.append(Overrun())
                continue
            # Only the kernel's port is 0; another process could send us a datagram too.
            if sender == 0:
                events.extend(parse_events(datagram))
        return events


def _enlarge(connection: socket.socket) -> None:
    for option in (SO_RCVBUFFORCE, socket.SO_RCVBUF):
        try:
            connection.setsockopt(socket.SOL_SOCKET, option, RECEIVE_BUFFER_BYTES)
        except OSError:
            continue
        return


def _await_answer(connection: socket.socket) -> None:
    """Raises OSError where the kernel refuses, or where it says nothing.

    It answers at once, with an errno for a process without the capability (Linux 6.6 and later),
    and not at all outside the initial namespaces. Answers go to every listener: ours has our
    number.
    """
    end = time.monotonic() + ANSWER_S
    while select.select([connection], [], [], max(0.0, end - time.monotonic()))[0]:
        datagram, (sender, _) = connection.recvfrom(DATAGRAM_BYTES)
        refusal = _read_answer(datagram) if sender == 0 else None
        if refusal == 0:
            return
        if refusal is not None:
            raise OSError(refusal, os.strerror(refusal))
    raise OSError(errno.ETIMEDOUT, "the kernel does not answer")


def _read_answer(datagram: bytes) -> int | None:
    """The errno in the answer to our request, 0 for success; None for any other datagram."""
    body = NLMSGHDR.size + CN_MSG.size
    if len(datagram) < body + PROC_EVENT.size + 4:
        return None
    _, _, _, ack, _, _ = CN_MSG.unpack_from(datagram, NLMSGHDR.size)
    what, _, _ = PROC_EVENT.unpack_from(datagram, body)
    if what != EVENT_ACK or ack != _our_number() + 1:
        return None
    (number,) = struct.unpack_from("=I", datagram, body + PROC_EVENT.size)
    return int(number)


def _our_number() -> int:
    return os.getpid() & 0x3FFFFFFF


def _request(operation: int) -> bytes:
    body = struct.pack("=I", operation)
    message = CN_MSG.pack(CN_IDX_PROC, CN_VAL_PROC, 0, _our_number(), len(body), 0) + body
    return NLMSGHDR.pack(NLMSGHDR.size + len(message), NLMSG_DONE, 0, 0, _our_number()) + message


def _unavailable(what: str, error: OSError) -> ProcEventsError:
    return ProcEventsError(f"could not {what}: {error.strerror or error}; {REMEDY}")
