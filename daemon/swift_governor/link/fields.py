# SPDX-License-Identifier: Apache-2.0
"""Parameters of a call, checked before anybody uses them. One table a method, see methods.py.

Unknown parameters are ignored: either side may be newer. A missing or wrong one is BadInput with
the field's name and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LARGEST_COUNT = 2**53
"""Beyond this a JSON number is no exact integer in every reader (RFC 8259, section 6)."""


class BadInputError(Exception):
    """A parameter is missing or wrong: ``field`` and what is allowed."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.field = name
        self.message = message


@dataclass(frozen=True)
class Field:
    """``kind``: int, float, str, bool, ints, strs (a mapping of strings) or objects.

    ``low`` and ``high`` bound a number, or the count of a list or mapping, or the length of a
    string. ``optional`` fields may be missing or null and are then None.
    """

    name: str
    kind: str
    low: float = 0
    high: float = LARGEST_COUNT
    optional: bool = False


def check(table: tuple[Field, ...], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The checked parameters by name. Raises BadInputError."""
    return {field.name: _one(field, parameters.get(field.name)) for field in table}


def _one(field: Field, value: object) -> object:
    if value is None:
        if field.optional:
            return None
        raise BadInputError(field.name, "is missing")
    return _KINDS[field.kind](field, value)


def _number(field: Field, value: float) -> float:
    if not field.low <= value <= field.high:
        raise BadInputError(field.name, f"must be {field.low:g} to {field.high:g}")
    return value


def _int(field: Field, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInputError(field.name, "must be a whole number")
    return int(_number(field, value))


def _float(field: Field, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
        raise BadInputError(field.name, "must be a finite number")
    return float(_number(field, value))


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _bool(field: Field, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadInputError(field.name, "must be true or false")
    return value


def _str(field: Field, value: object) -> str:
    if not isinstance(value, str) or len(value) > field.high:
        raise BadInputError(field.name, f"must be a string of at most {field.high:g} characters")
    return value


def _ints(field: Field, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > field.high:
        raise BadInputError(field.name, f"must be a list of at most {field.high:g} entries")
    entries = value
    if not all(isinstance(e, int) and not isinstance(e, bool) and 0 < e < 2**31 for e in entries):
        raise BadInputError(field.name, "must be a list of positive whole numbers")
    return tuple(entries)


def _strs(field: Field, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > field.high:
        raise BadInputError(field.name, f"must be a mapping of at most {field.high:g} entries")
    entries = value
    if not all(isinstance(v, str) and len(v) <= 400 and len(k) <= 80 for k, v in entries.items()):
        raise BadInputError(field.name, "must map short strings to strings")
    return dict(entries)


def _objects(field: Field, value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > field.high:
        raise BadInputError(field.name, f"must be a list of at most {field.high:g} entries")
    entries = value
    if not all(isinstance(e, dict) for e in entries):
        raise BadInputError(field.name, "must be a list of objects")
    return list(entries)


_KINDS = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "str": _str,
    "ints": _ints,
    "strs": _strs,
    "objects": _objects,
}
