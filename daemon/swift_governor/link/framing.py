# SPDX-License-Identifier: Apache-2.0
"""Varlink's framing, taken apart piece by piece: JSON objects, each ended by a NUL byte.

Pure: bytes in, messages out. https://varlink.org/Method-Call
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

LARGEST_MESSAGE_BYTES = 256 * 1024


class BadFrameError(Exception):
    """The peer does not speak the protocol; the connection is of no more use."""


@dataclass
class Decoder:
    """Collects bytes until a message is whole. Holds at most ``LARGEST_MESSAGE_BYTES``."""

    pending: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that ``data`` completes. Raises BadFrameError."""
        messages = []
        self.pending += data
        while True:
            end = self.pending.find(b"\0")
            if end < 0:
                break
            raw = bytes(self.pending[:end])
            del self.pending[: end + 1]
            messages.append(_parse(raw))
        if len(self.pending) > LARGEST_MESSAGE_BYTES:
            raise BadFrameError(f"a message of more than {LARGEST_MESSAGE_BYTES} bytes")
        return messages


def _parse(raw: bytes) -> dict[str, Any]:
    if len(raw) > LARGEST_MESSAGE_BYTES:
        raise BadFrameError(f"a message of more than {LARGEST_MESSAGE_BYTES} bytes")
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadFrameError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadFrameError("a message must be a JSON object")
    return message


def encode(message: dict[str, Any]) -> bytes:
    """One message as bytes. NaN and infinity are no JSON and raise ValueError; hostile text is
    escaped.
    """
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\0"
