# SPDX-License-Identifier: Apache-2.0
"""The kinds of value that have a unit: shares, times, cores, and the cap on CPU that is one of two.

Amounts are scaled in decimal and never in binary, so that 30.3 % is 0.303, and is shown as 30.3 %.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from .config_kinds import RefusedError, Scalar, nearest, plain, quote
from .config_model import Cap

# Each unit that a person may write: what it measures, and its size in the unit the program uses.
UNITS: Mapping[str, tuple[str, Decimal]] = {
    "%": ("a share", Decimal("0.01")),
    "cores": ("a number of cores", Decimal(1)),
    "core": ("a number of cores", Decimal(1)),
    "ms": ("a time", Decimal("0.001")),
    "s": ("a time", Decimal(1)),
    "min": ("a time", Decimal(60)),
    "h": ("a time", Decimal(3600)),
    "KiB": ("an amount of memory", Decimal(1 << 10)),
    "MiB": ("an amount of memory", Decimal(1 << 20)),
    "GiB": ("an amount of memory", Decimal(1 << 30)),
    "TiB": ("an amount of memory", Decimal(1 << 40)),
}
# How an amount is shown: in the first of these units in which it is whole, else in the last.
SHOWN_UNITS: Mapping[str, tuple[str, ...]] = {
    "a share": ("%",),
    "a number of cores": ("cores",),
    "a time": ("h", "min", "s", "ms"),
}
_AMOUNT = re.compile(r"([+-]?[0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([A-Za-zµ%]{0,12})")


def _show_amount(value: float, dimension: str) -> str:
    exact = Decimal(repr(value))
    if not exact and dimension == "a time":
        return "0 s"
    units = SHOWN_UNITS[dimension]
    unit = next((u for u in units if exact % UNITS[u][1] == 0), units[-1])
    return f"{plain(exact / UNITS[unit][1])} {unit}"


@dataclass(frozen=True)
class Amount:
    """A number with a unit, such as ``60 %``; read as a float in the program's unit."""

    dimension: str
    low: str
    high: str
    suffix: str = ""

    @property
    def allowed(self) -> str:
        return f"{self.dimension} from {self.low} to {self.high}"

    def parse(self, written: Scalar) -> float:
        matched = _AMOUNT.fullmatch(written.text.strip())
        if written.tag in ("bool", "null") or not matched:
            raise RefusedError(f"{quote(written.text)} is not {self.dimension}")
        number, unit = matched.groups()
        default_unit = _AMOUNT.fullmatch(self.low).group(2)  # type: ignore[union-attr]
        if not unit:
            raise RefusedError(f"{quote(number)} has no unit", f"{number} {default_unit}")
        dimension, factor = UNITS.get(unit, ("", Decimal(0)))
        if not dimension:
            ours = [name for name in UNITS if UNITS[name][0] == self.dimension]
            guess = nearest(unit, ours) or next((u for u in ours if unit[:1] == u[:1]), "")
            raise RefusedError(f"`{unit}` is not a unit", f"{number} {guess}" if guess else "")
        if dimension != self.dimension:
            raise RefusedError(
                f"{quote(written.text)} is {dimension}, and {self.dimension} is due here"
            )
        value = Decimal(number) * factor
        if not self._bound(self.low) <= value <= self._bound(self.high):
            raise RefusedError(f"{quote(written.text)} is out of range")
        return float(value)

    def show(self, value: float) -> str:
        return _show_amount(value, self.dimension)

    @staticmethod
    def _bound(text: str) -> Decimal:
        number, unit = text.split(" ")
        return Decimal(number) * UNITS[unit][1]


def share(low: str, high: str) -> Amount:
    """A part of a whole, read as a ratio 0-1."""
    return Amount("a share", low, high)


def duration(low: str, high: str) -> Amount:
    """A time, read in seconds."""
    return Amount("a time", low, high, "_s")


def core_count(low: str, high: str) -> Amount:
    """A number of CPU cores."""
    return Amount("a number of cores", low, high, "_cores")


LIKELY_SHARE = 20
"""A cap without a unit is likely a percentage from here on."""


@dataclass(frozen=True)
class CapKind:
    """A ``Cap``: a share of the node, a number of cores, or none."""

    allowed = "a share of the node (60 %), a number of cores (2 cores), or none"
    suffix = ""
    _share = share("1 %", "100 %")
    _cores = core_count("0.1 cores", "4096 cores")

    def parse(self, written: Scalar) -> Cap:
        text = written.text.strip()
        if text == "none":
            return Cap()
        if written.tag == "null" or text.lower() in ("no", "off", "max", "unlimited", "false"):
            raise RefusedError(f"{quote(written.text)} is not a cap", "none")
        if text.endswith("%"):
            return Cap(share=self._share.parse(written))
        if text.isdecimal() and len(text) < 5 and int(text) >= LIKELY_SHARE:
            # Guessing cores would lift the cap on a smaller node: the careful guess is the share.
            raise RefusedError(f"{quote(text)} has no unit", f"{text} %")
        return Cap(count=self._cores.parse(written))

    def show(self, value: Cap) -> str:
        if value.share is not None:
            return self._share.show(value.share)
        return "none" if value.count is None else self._cores.show(value.count)
