# SPDX-License-Identifier: Apache-2.0
"""Varlink's wire format over a Unix stream socket, from the calling side, and what may come back.

One JSON object a message, ended by a NUL byte (https://varlink.org/Method-Call). Nothing that the
other end sends is believed: an answer is bounded in size, time, depth and range before it is used.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

INTERFACE = "org.swiftgovernor.Governor"
PROTOCOL = 1
MAX_ANSWER_BYTES = 64 * 1024
MAX_INTEGER = 2**53
"""Above this, JSON readers that use doubles change an integer."""
DEFAULT_INTERVAL_S = 2.0


class WireError(Exception):
    """No usable answer: garbage, too long, too late, of the wrong shape, or an error reply."""


@dataclass(frozen=True)
class Wish:
    """The micro-batch the governor wishes, in rows. Sequence 0 or None: nothing is wished."""

    sequence: int = 0
    micro_batch: Optional[int] = None

    @property
    def is_one(self) -> bool:
        return self.sequence > 0 and self.micro_batch is not None


def call(
    connection: socket.socket, method: str, parameters: Mapping[str, Any], deadline_s: float
) -> Mapping[str, Any]:
    """Calls ``method`` of the governor and returns the reply's parameters.

    Raises WireError, or OSError where the connection fails. The deadline holds for the whole call,
    so that a byte a second doesn't keep it open.
    """
    request = {"method": f"{INTERFACE}.{method}", "parameters": dict(parameters)}
    until = time.monotonic() + deadline_s
    connection.settimeout(deadline_s)
    connection.sendall(json.dumps(request).encode("ascii") + b"\0")
    return _parameters(_read_message(connection, until))


def _read_message(connection: socket.socket, until: float) -> bytes:
    received = bytearray()
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise WireError("no complete answer in time")
        connection.settimeout(left)
        try:
            piece = connection.recv(4096)
        except socket.timeout as error:
            raise WireError("no complete answer in time") from error
        if not piece:
            raise WireError("the connection was closed" + (" mid-answer" if received else ""))
        received += piece
        end = received.find(b"\0")
        if end == len(received) - 1:
            return bytes(received[:end])
        if end >= 0:
            raise WireError("more than one answer to one call")
        if len(received) > MAX_ANSWER_BYTES:
            raise WireError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")


def _parameters(message: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(message.decode("utf-8"))
    # RecursionError: a few thousand opening brackets are enough.
    except (ValueError, RecursionError) as error:
        raise WireError("an answer that is not JSON") from error
    if not isinstance(answer, dict):
        raise WireError("an answer that is not an object")
    if "error" in answer:
        raise WireError(f"the governor refused: {printable(answer['error'])}{_why(answer)}")
    parameters = answer.get("parameters", {})
    if not isinstance(parameters, dict):
        raise WireError("parameters that are not an object")
    return parameters


def _why(answer: Mapping[str, Any]) -> str:
    parameters = answer.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        return ""
    words = [printable(parameters[key]) for key in ("field", "message") if key in parameters]
    return f" ({': '.join(words)})" if words else ""


def wish_in(parameters: Mapping[str, Any]) -> Wish:
    """The wish of a reply. Raises WireError where it has none or one that is no wish.

    A whole number that can't be had as a micro-batch (0, a million) passes: it gets an answer that
    refuses it, which says more than a dropped connection.
    """
    wish = parameters.get("wish")
    if not isinstance(wish, dict):
        raise WireError("an answer without a wish")
    sequence = _integer(wish.get("sequence"), "sequence")
    if sequence < 0:
        raise WireError("a wish whose sequence is negative")
    if wish.get("micro_batch") is None:
        return Wish(sequence)
    return Wish(sequence, _integer(wish["micro_batch"], "micro-batch"))


def session_in(parameters: Mapping[str, Any]) -> str:
    """The session's name. Raises WireError where there is none that could be sent back."""
    session = parameters.get("session")
    if not isinstance(session, str) or not 0 < len(session) <= 256:
        raise WireError("a registration without a session")
    return session


def interval_in(parameters: Mapping[str, Any]) -> float:
    """Seconds between reports, from 0.2 to 60; the default where the answer names none in there."""
    value = parameters.get("report_interval_s")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return DEFAULT_INTERVAL_S
    # Written this way round, NaN is out of range too.
    return float(value) if 0.2 <= value <= 60 else DEFAULT_INTERVAL_S


def printable(text: object) -> str:
    """Foreign text for a log line: printable ASCII, at most 200 characters."""
    return "".join(c if " " <= c <= "~" else "?" for c in str(text)[:200])


def _integer(value: object, name: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INTEGER:
        return value
    raise WireError(f"a wish whose {name} is not a whole number")
