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
    head: Sequence[str], rows: Sequence[Sequence[str]], widest: Sequence[int], right: str = ""
) -> list[str]:
    """Lines: the head, then the rows. A column is as wide as it needs, at most ``widest``.

    ``right`` holds the letters "r" or "l" for each column.
    """
    needs = [
        min(most, max(width(row[i]) for row in (head, *rows))) for i, most in enumerate(widest)
    ]
    return [
        "  ".join(
            fit(cell, need, side == "r") for cell, need, side in zip(row, needs, right)
        ).rstrip()
        for row in (head, *rows)
    ]
