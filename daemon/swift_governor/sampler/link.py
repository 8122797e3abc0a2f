# SPDX-License-Identifier: Apache-2.0
"""The sampler's end of the daemon's socket: one Varlink oneway call for each sample.

Nothing waits here for longer than the deadline. A sample that can't be sent is dropped, since the
next one is better.
"""

from __future__ import annotations

import json
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

METHOD = "org.swiftgovernor.Governor.Sample"
_DEADLINE_S = 0.2
_BACK_OFF_S = (1.0, 5.0)


class DaemonLink:
    """Connects to ``path`` when there is something to send, with back-off where nobody listens."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._back_off_s = _BACK_OFF_S[0]
        self._next_try = 0.0
        self.trouble = "not connected yet"  # "" while samples arrive

    def send(self, sample: dict[str, Any], now: float) -> bool:
        """Whether the daemon's socket took the whole message. Never raises OSError."""
        try:
            if self._socket is None:
                if now < self._next_try:
                    return False
                self._socket = self._connect()
            self._hear(self._socket)
            call = {"method": METHOD, "parameters": sample, "oneway": True}
            self._socket.sendall(json.dumps(call, separators=(",", ":")).encode() + b"\0")
        except OSError as error:
            self._fail(now, error)
            return False
        self._back_off_s = _BACK_OFF_S[0]
        self.trouble = ""
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        channel.settimeout(_DEADLINE_S)
        try:
            channel.connect(self._path)
        except OSError:
            channel.close()
            raise
        return channel

    def _hear(self, channel: socket.socket) -> None:
        """A oneway call has no reply; what comes is the end, or an error that nobody waits for."""
        # Not MSG_DONTWAIT: on a socket with a timeout Python would wait for it all the same.
        channel.setblocking(False)
        try:
            while channel.recv(4096):
                pass
            raise ConnectionResetError("the daemon closed the connection")
        except BlockingIOError:
            channel.settimeout(_DEADLINE_S)

    def _fail(self, now: float, error: OSError) -> None:
        # A message sent in part can't be finished later: the next needs a new connection.
        self.close()
        self.trouble = f"{self._path}: {error.strerror or error}"
        self._next_try = now + self._back_off_s
        self._back_off_s = min(self._back_off_s * 2, _BACK_OFF_S[1])
