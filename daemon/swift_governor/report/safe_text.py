# SPDX-License-Identifier: Apache-2.0
"""Text and numbers from processes, users and drivers, made safe to print, to log and to encode.

Command names, user names and cgroup paths may hold terminal escape sequences, bidirectional
overrides, line breaks or bytes that are not UTF-8 (decoded with ``surrogateescape``). Everything
that Python does not call printable is written as a visible escape, so that the result always
encodes to UTF-8, is one line, and moves no cursor.
"""

from __future__ import annotations

import math

ELLIPSIS = "…"


def printable(text: object, limit: int = 1024, keep_newlines: bool = False) -> str:
    """``text`` with each unprintable character as ``\\xNN``, ``\\uNNNN`` or ``\\UNNNNNNNN``.

    At most ``limit`` characters, the last one an ellipsis where something was cut off.
    """
    # A little more than the limit is looked at, so that a string of many MiB costs nothing.
    raw = text if isinstance(text, str) else str(text)
    head = raw[: limit + 1]
    if not (head.isascii() and head.isprintable()):
        head = "".join(
            c if c.isprintable() or (keep_newlines and c == "\n") else _escape(c) for c in head
        )
    return head if len(head) <= limit else head[: limit - 1] + ELLIPSIS


def optional(text: object | None, limit: int = 1024) -> str | None:
    """None stays None: it means "not known", which no string does."""
    return None if text is None else printable(text, limit)


def number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity: they are "not known". Nine decimals stay."""
    if value is None or isinstance(value, int):
        return value
    return round(value, 9) if math.isfinite(value) else None


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8, kept by surrogateescape (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
