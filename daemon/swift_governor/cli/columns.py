# SPDX-License-Identifier: Apache-2.0
"""Columns that line up in a terminal, whatever characters are in them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

ELLIPSIS = "…"


def width(text: str) -> int:
    """Terminal cells: two for wide East Asian characters, none for combining marks."""
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, cells: int, right: bool = False) -> str:
    """``text`` in exactly ``cells``, cut with an ellipsis or filled up with spaces."""
    if width(text) > cells:
        kept, used = [], 0
        for character in text:
            used += _cells(character)
            if used > cells - 1:
                break
            kept.append(character)
        text = "".join(kept) + ELLIPSIS
    space = " " * (cells - width(text))
    return space + text if right else text + space


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    widest: Sequence[int],
    sides: str,
    columns: int = 80,
) -> list[str]:
    """Lines of at most ``columns`` cells: the head, then the rows.

    A column is as wide as it needs and at most ``widest``; the last one has what is left. ``sides``
    holds "l" or "r" for each column. Two spaces between columns become one where it is tight.
    """
    needs = [
        min(most, max(width(row[i]) for row in (head, *rows))) for i, most in enumerate(widest)
    ]
    gap = 2 if sum(needs) + 2 * (len(needs) - 1) <= columns else 1
    needs[-1] = max(1, min(needs[-1], columns - sum(needs[:-1]) - gap * (len(needs) - 1)))
    return [
        (" " * gap)
        .join(fit(cell, need, side == "r") for cell, need, side in zip(row, needs, sides))
        .rstrip()
        for row in (head, *rows)
    ]


def ranges(numbers: Sequence[int]) -> str:
    """``0-3,6`` for 0, 1, 2, 3 and 6."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
