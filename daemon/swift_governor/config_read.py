# SPDX-License-Identifier: Apache-2.0
"""From a tree of what was written to a ``Config``, by the table, collecting every problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config_kinds import RefusedError, nearest, quote
from .config_model import Config, Problem
from .config_schema import Key, Section, children
from .config_yaml import Items, Leaf, Place, Table, Tree, parse_tree


class Reading:
    """One reading of a tree: ``problems`` and the places of what is set, as a side of building."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.places: dict[str, Place] = {}

    def config(self, tree: Table, files: tuple[str, ...]) -> Config:
        """The configuration; where something is wrong, the default stands in for it."""
        fields = self._fields(children(""), tree, "", "")
        sources = {path: f"{place.file}:{place.line}" for path, place in self.places.items()}
        return Config(**fields, sources=sources, files=files)

    def _fields(
        self, known: Mapping[str, Key | Section], tree: Table, path: str, shown: str
    ) -> dict[str, Any]:
        for name, (place, _) in tree.entries.items():
            if name not in known:
                where = f" in {shown}" if shown else ""
                self._refuse(
                    place,
                    f"unknown key {quote(name)}{where}",
                    ", ".join(known),
                    nearest(name, known),
                )
        fields: dict[str, Any] = {}
        for name, what in known.items():
            place, written = tree.entries.get(name, (tree.place, None))
            here = f"{shown}.{name}" if shown else name
            if isinstance(what, Key):
                fields[what.field] = self._key(what, written, place, here)
            elif what.path.endswith("[]"):
                fields[name] = self._list(what, written, place, here)
            elif what.names is not None:
                fields[name] = self._named(what, written, here)
            else:
                fields[name] = self._section(what, written, here)
        return fields

    def _section(self, section: Section, written: Tree | None, shown: str) -> object:
        table = self._table(written, shown)
        return section.make(**self._fields(children(section.path), table, section.path, shown))

    def _list(
        self, section: Section, written: Tree | None, place: Place, shown: str
    ) -> tuple[object, ...]:
        if written is None:
            return ()
        if not isinstance(written, Items):
            self._refuse(written.place, f"{shown} is not a list", "a list, or [] for none")
            return ()
        self.places[shown] = place
        made = []
        for index, item in enumerate(written.items):
            entry = f"{shown}[{index}]"
            self.places[entry] = item.place
            made.append(self._section(section, item, entry))
        return tuple(made)

    def _named(self, section: Section, written: Tree | None, shown: str) -> dict[str, object]:
        assert section.names is not None
        made: dict[str, object] = {}
        for name, (place, tree) in self._table(written, shown).entries.items():
            if not section.names.fullmatch(name):
                self._refuse(
                    place, f"{quote(name)} can't be a name in {shown}", section.names_allowed
                )
                continue
            self.places[f"{shown}.{name}"] = place
            made[name] = self._section(section, tree, f"{shown}.{name}")
        return made

    def _table(self, written: Tree | None, shown: str) -> Table:
        if isinstance(written, Table):
            return written
        empty = Table(written.place if written else Place(""))
        # "poll:" with every line under it commented out is null, and means what it looks like.
        if written is not None and not (isinstance(written, Leaf) and written.scalar.tag == "null"):
            self._refuse(written.place, f"{shown} is not a mapping", "lines of `key: value`")
        return empty

    def _key(self, key: Key, written: Tree | None, place: Place, shown: str) -> object:
        if written is None:
            return default_of(key)
        self.places[shown] = place
        try:
            return self._many(key, written, shown) if key.many else self._one(key, written, shown)
        except RefusedError:
            return default_of(key)

    def _many(self, key: Key, written: Tree, shown: str) -> tuple[object, ...]:
        if not isinstance(written, Items):
            what = f"{shown} is not a list"
            self._refuse(written.place, what, f"a list, or [] for none, of {key.kind.allowed}")
            raise RefusedError(what)
        values: list[object] = []
        refused = False
        for item in written.items:
            try:
                value = self._one(key, item, shown)
            except RefusedError:
                refused = True
                continue
            if value in values:
                self._refuse(item.place, f"{shown}: {quote(str(value))} is there twice")
            values.append(value)
        if refused:
            raise RefusedError(shown)
        return tuple(values)

    def _one(self, key: Key, written: Tree, shown: str) -> object:
        try:
            if not isinstance(written, Leaf):
                form = "mapping" if isinstance(written, Table) else "list"
                raise RefusedError(f"a {form} is no value")
            if written.scalar.tag == "null" and not written.scalar.text:
                raise RefusedError("has no value")
            return key.kind.parse(written.scalar)
        except RefusedError as error:
            what = f"{shown}: {error.what}"
            self._refuse(written.place, what, key.kind.allowed, error.nearest)
            raise

    def _refuse(self, place: Place, what: str, allowed: str = "", near: str = "") -> None:
        self.problems.append(place.problem(what, allowed, near))


def default_of(key: Key) -> object:
    """The value that the table gives a key, read as a file is. ValueError: the table is wrong."""
    if key.default is None:
        return None
    if key.path not in _defaults:
        problems: list[Problem] = []
        tree = parse_tree(f"{key.name}: {key.default}", f"<default of {key.path}>", problems)
        reading = Reading(problems)
        read = reading._many if key.many else reading._one
        try:
            _defaults[key.path] = read(key, tree.entries[key.name][1], key.path)
        except (RefusedError, KeyError):
            raise ValueError("; ".join(map(str, problems))) from None
    return _defaults[key.path]


_defaults: dict[str, object] = {}
