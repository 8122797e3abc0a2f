# SPDX-License-Identifier: Apache-2.0
"""journald's native protocol: one datagram an entry (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/).

A field is ``NAME=value\\n``, or, where the value has a line break, ``NAME\\n``, its length as a
little-endian 64-bit number, the value, ``\\n``. Nothing here blocks: an entry that the journal
doesn't take at once is lost and counted by the caller. A datagram may be as large as the socket's
send buffer, so long fields are cut.
"""

from __future__ import annotations

import contextlib
import enum
import re
import select
import socket
import struct
import sys
from collections.abc import Mapping
from typing import TextIO

SOCKET_PATH = "/run/systemd/journal/socket"
MESSAGE_LIMIT = 8192
FIELD_LIMIT = 2048
FIELD_COUNT = 40
LINE_LIMIT = 2048  # below PIPE_BUF: a pipe that polls writable takes it whole

_NAME = re.compile(r"[^A-Z0-9_]")


class Sent(enum.Enum):
    """What became of an entry: ``NO_JOURNAL`` where none listens, ``LOST`` where it was full."""

    OK = "ok"
    NO_JOURNAL = "no-journal"
    LOST = "lost"


def field_name(name: str) -> str:
    """A name journald accepts: capitals, digits and "_", a letter first, 64 at most."""
    cleaned = _NAME.sub("_", name.upper()).lstrip("_")[:64]
    return f"F{cleaned}"[:64] if not cleaned or cleaned[0].isdigit() else cleaned


def encode(fields: Mapping[str, str]) -> bytes:
    """The datagram. Values must encode to UTF-8 (safe_text); the longest are cut."""
    parts = []
    for name, value in list(fields.items())[:FIELD_COUNT]:
        limit = MESSAGE_LIMIT if name == "MESSAGE" else FIELD_LIMIT
        data = value.encode("utf-8", "replace")
        if len(data) > limit:
            # A cut within a character would make the field binary for journalctl.
            data = data[:limit].decode("utf-8", "ignore").encode()
        key = field_name(name).encode("ascii")
        if b"\n" in data:
            parts.append(key + b"\n" + struct.pack("<Q", len(data)) + data + b"\n")
        else:
            parts.append(key + b"=" + data + b"\n")
    return b"".join(parts)


class JournalSocket:
    """Sends to the path anew each time, so that a restarted journald, or a late one, is found."""

    def __init__(self, path: str = SOCKET_PATH) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, fields: Mapping[str, str]) -> Sent:
        try:
            self._socket.sendto(encode(fields), self._path)
        except (FileNotFoundError, ConnectionRefusedError):
            return Sent.NO_JOURNAL
        except OSError:  # EAGAIN: journald is stuck; EMSGSIZE: a small send buffer; EACCES
            return Sent.LOST
        return Sent.OK

    def close(self) -> None:
        self._socket.close()


def write_line(text: str, stream: TextIO | None = None) -> bool:
    """One line on stderr where it can take one now; False where it would block or is closed."""
    stream = sys.stderr if stream is None else stream
    with contextlib.suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        ready = poll.poll(0)
        if not ready or not ready[0][1] & select.POLLOUT:
            return False
    try:
        stream.write(text.encode("utf-8", "replace")[:LINE_LIMIT].decode("utf-8", "ignore") + "\n")
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return False
    return True
