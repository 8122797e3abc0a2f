# SPDX-License-Identifier: Apache-2.0
"""The kinds of value a configuration has: how each is read, shown, and named to a person.

A kind turns what was written into a value or refuses it, and turns the value back into what could
have been written: reading what ``show`` gives is the same value again. Kinds with a unit are in
config_units.
"""

from __future__ import annotations

import difflib
import fnmatch
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Generic, Protocol, TypeVar

from .config_model import Address

_LONGEST_SHOWN = 40

T = TypeVar("T")


@dataclass(frozen=True)
class Scalar:
    """One value as written. ``tag`` is what YAML takes it for: str, int, float, bool, null …"""

    text: str
    quoted: bool = False
    tag: str = "str"


class RefusedError(Exception):
    """What was written is not of this kind. ``nearest``: what was probably meant, "" if unknown."""

    def __init__(self, what: str, nearest: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.nearest = nearest


class Kind(Protocol[T]):
    """What every kind of value can do."""

    @property
    def allowed(self) -> str:
        """What may be written, for a person."""

    @property
    def suffix(self) -> str:
        """What the dataclass field's name has behind the key's name: the unit, or ""."""

    def parse(self, written: Scalar) -> T:
        """The value, or ``RefusedError``."""

    def show(self, value: T) -> str:
        """The value as YAML, on one line."""


def quote(text: str) -> str:
    """What a person wrote, in backticks: shortened, and nothing that a terminal would obey."""
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:_LONGEST_SHOWN])
    return f"`{shown}{'…' if len(text) > _LONGEST_SHOWN else ''}`"


def nearest(text: str, names: Iterable[str]) -> str:
    """The name most like ``text``, or "" if none is."""
    by_lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(text[:64].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else ""


def either(names: Iterable[str]) -> str:
    """``a, b or c``."""
    *some, last = names
    return f"{', '.join(some)} or {last}" if some else last


def plain(amount: Decimal) -> str:
    """A number without an exponent or needless zeros."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class Number:
    """A number without a unit; ``whole``: an integer."""

    low: str
    high: str
    whole: bool = False
    suffix = ""

    @property
    def allowed(self) -> str:
        return f"a {'whole ' if self.whole else ''}number from {self.low} to {self.high}"

    def parse(self, written: Scalar) -> float:
        form = r"[+-]?[0-9]{1,9}" if self.whole else r"[+-]?[0-9]{1,9}(\.[0-9]{1,9})?"
        if not re.fullmatch(form, written.text.strip()):
            raise RefusedError(f"{quote(written.text)} is not a {'whole ' * self.whole}number")
        if written.quoted:
            raise RefusedError(f'"{written.text}" in quotes is text', written.text.strip())
        value = Decimal(written.text)
        if not Decimal(self.low) <= value <= Decimal(self.high):
            raise RefusedError(f"{quote(written.text)} is out of range")
        return int(value) if self.whole else float(value)

    def show(self, value: float) -> str:
        return plain(Decimal(repr(value)))


@dataclass(frozen=True)
class Flag:
    """True or false."""

    allowed = "true or false"
    suffix = ""

    def parse(self, written: Scalar) -> bool:
        if written.tag != "bool":
            raise RefusedError(
                f"{quote(written.text)} is not true or false", nearest(written.text, _FLAGS)
            )
        return written.text.lower() in ("true", "yes", "on")

    def show(self, value: bool) -> str:
        return "true" if value else "false"


_FLAGS = ("true", "false")


@dataclass(frozen=True)
class Choice(Generic[T]):
    """One of a few words, each with the value that it stands for."""

    values: Mapping[str, T]
    suffix = ""

    @property
    def allowed(self) -> str:
        return either(self.values)

    def parse(self, written: Scalar) -> T:
        if written.text not in self.values:
            raise RefusedError(
                f"{quote(written.text)} is not known here", nearest(written.text, self.values)
            )
        return self.values[written.text]

    def show(self, value: T) -> str:
        return next(word for word, stands_for in self.values.items() if stands_for == value)


def words(*names: str) -> Choice[str]:
    """A choice of words that stand for themselves."""
    return Choice({name: name for name in names})


@dataclass(frozen=True)
class Text:
    """A word to compare with: a name or a shell glob. ``ending``: what it has to end in."""

    allowed: str
    ending: str = ""
    suffix = ""

    def parse(self, written: Scalar) -> str:
        text = written.text
        if written.tag in ("null", "bool") and not written.quoted:
            # YAML 1.1 reads no, on and ~ as something else than the words they look like.
            raise RefusedError(
                f"{quote(text)} is not text in YAML unless it is in quotes", f'"{text}"'
            )
        if not text or len(text) > 256 or not text.isprintable() or text != text.strip():
            raise RefusedError(f"{quote(text)} is empty, too long, or has odd characters in it")
        if not text.endswith(self.ending):
            raise RefusedError(f"{quote(text)} does not end in {self.ending}", text + self.ending)
        if self.ending and fnmatch.fnmatchcase("sshd" + self.ending, text):
            raise RefusedError(f"{quote(text)} would match sshd{self.ending} too")
        return text

    def show(self, value: str) -> str:
        return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class AddressKind:
    """Where to listen, as ``127.0.0.1:11470`` or ``[::1]:11470``."""

    allowed = "an IP address and a port, such as 127.0.0.1:11470 or [::1]:11470"
    suffix = ""

    def parse(self, written: Scalar) -> Address:
        matched = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+):([0-9]{1,5})", written.text)
        if not matched:
            raise RefusedError(f"{quote(written.text)} is not an address and a port")
        host, port = matched.group(1).strip("[]"), int(matched.group(2))
        try:
            ipaddress.ip_address(host)
        except ValueError:
            guess = f"127.0.0.1:{port}" if host == "localhost" else ""
            raise RefusedError(f"{quote(host)} is not an IP address", guess) from None
        if not 1 <= port <= 65535:
            raise RefusedError(f"the port {port} is not from 1 to 65535")
        return Address(host, port)

    def show(self, value: Address) -> str:
        host = f"[{value.host}]" if ":" in value.host else value.host
        return json.dumps(f"{host}:{value.port}")
