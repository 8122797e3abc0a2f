# SPDX-License-Identifier: Apache-2.0
"""One call on the governor's socket: Varlink's wire format, JSON objects that end with a NUL.

https://varlink.org/Method-Call. The deadline covers the whole call: connect, send, and the last
byte of the reply, however slowly the other side sends.
"""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

SOCKET_PATH = "/run/swift-governor/governor.sock"
INTERFACE = "org.swiftgovernor.Governor"
LARGEST_REPLY_BYTES = 16 * 1024 * 1024

# Reasons of a LinkError, for callers that act on them.
ABSENT, DENIED, TIMEOUT, BROKEN, ERROR = "absent", "denied", "timeout", "broken", "error"


class LinkError(Exception):
    """A call that brought no result.

    ``reason``: ``absent`` (nobody listens), ``denied`` (no access to the socket), ``timeout``,
    ``broken`` (hung up, or not Varlink), ``error`` (the governor answered with the error ``name``
    and ``parameters``).
    """

    def __init__(
        self, reason: str, message: str, name: str = "", parameters: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.name = name
        self.parameters = parameters or {}


def call(
    method: str,
    parameters: Mapping[str, Any] | None = None,
    socket_path: str = SOCKET_PATH,
    timeout_s: float = 5.0,
) -> dict[str, Any]:
    """The reply's parameters; raises LinkError only. A method without a dot is INTERFACE's."""
    name = method if "." in method else f"{INTERFACE}.{method}"
    request = json.dumps({"method": name, "parameters": dict(parameters or {})}).encode() + b"\0"
    deadline = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(timeout_s)
            link.connect(socket_path)
            _before(deadline, link)
            link.sendall(request)
            reply = _reply(link, deadline)
    except LinkError:
        raise
    # A full backlog makes connect(2) of a socket with a time-out fail with EAGAIN: nobody accepts.
    except (TimeoutError, socket.timeout, BlockingIOError) as error:
        raise LinkError(TIMEOUT, f"{socket_path}: no answer within {timeout_s:g} s") from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise LinkError(ABSENT, f"{socket_path}: {error.strerror}") from error
    except OSError as error:
        reason = DENIED if error.errno in (errno.EACCES, errno.EPERM) else BROKEN
        raise LinkError(reason, f"{socket_path}: {error.strerror or error}") from error
    return _result(reply, socket_path)


def _before(deadline: float, link: socket.socket) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    link.settimeout(left)


def _reply(link: socket.socket, deadline: float) -> bytes:
    received = bytearray()
    while True:
        _before(deadline, link)
        chunk = link.recv(262144)
        if not chunk:
            raise LinkError(BROKEN, "the governor hung up before its reply was complete")
        end = chunk.find(b"\0")
        received += chunk if end < 0 else chunk[:end]
        if len(received) > LARGEST_REPLY_BYTES:
            raise LinkError(BROKEN, f"the reply is larger than {LARGEST_REPLY_BYTES} bytes")
        if end >= 0:
            return bytes(received)


def _result(reply: bytes, socket_path: str) -> dict[str, Any]:
    try:
        message = json.loads(reply)
    except (ValueError, RecursionError) as error:
        raise LinkError(BROKEN, f"{socket_path}: the reply is not JSON: {error}") from error
    parameters = message.get("parameters", {}) if isinstance(message, dict) else None
    if not isinstance(parameters, dict):
        raise LinkError(BROKEN, f"{socket_path}: the reply is not a Varlink reply")
    if "error" in message:
        told = parameters.get("message", "")
        raise LinkError(ERROR, f"{message['error']}: {told}", str(message["error"]), parameters)
    return parameters
