# SPDX-License-Identifier: Apache-2.0
"""From the bytes of YAML files to one tree in which every key and value knows its place.

Nothing is constructed (no tag makes an object) and nothing grows: aliases are refused, depth and
number of nodes are bounded, a file has at most 1 MiB. Drop-ins are laid over the tree key by key; a
list or a value in a later file replaces the earlier one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

import yaml

from .config_kinds import Scalar, quote
from .config_model import Problem

MAX_BYTES = 1 << 20
MAX_NODES = 5_000
MAX_DEPTH = 16
_TAG_PREFIX = "tag:yaml.org,2002:"
_SCALAR_TAGS = ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")


@dataclass(frozen=True)
class Place:
    """Where something is written; lines and columns count from 1."""

    file: str
    line: int = 1
    column: int = 1

    def problem(self, what: str, allowed: str = "", nearest: str = "") -> Problem:
        return Problem(self.file, self.line, self.column, what, allowed, nearest)


@dataclass(frozen=True)
class Leaf:
    """One value."""

    place: Place
    scalar: Scalar


@dataclass(frozen=True)
class Items:
    """A list."""

    place: Place
    items: tuple[Tree, ...]


@dataclass(frozen=True)
class Table:
    """A mapping: the key's place and its value, by key."""

    place: Place
    entries: dict[str, tuple[Place, Tree]] = field(default_factory=dict)


Tree = Union[Leaf, Items, Table]


class _Bounded(yaml.SafeLoader):
    """Composes nodes only, and only so many."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            self._refuse("aliases (`*name`) are not used here: write the value again")
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._refuse(f"more than {MAX_NODES} keys and values: this is no configuration of ours")
        if self.depth >= MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} deep")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def _refuse(self, why: str) -> None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        raise yaml.MarkedYAMLError(problem=why, problem_mark=mark)


def read_tree(path: str, problems: list[Problem]) -> Table:
    """The tree of one file, empty if nothing is usable; what is wrong goes to ``problems``."""
    place = Place(path)
    text = _read_text(path, problems)
    return parse_tree(text, path, problems) if text is not None else Table(place)


def parse_tree(text: str, file: str, problems: list[Problem]) -> Table:
    """The tree of a text; ``file`` is the name used in its places."""
    start = Place(file)
    node = _compose(text, file, problems)
    if node is None:
        return Table(start)
    tree = _tree(node, file, problems)
    if isinstance(tree, Table):
        return tree
    if not (isinstance(tree, Leaf) and tree.scalar.tag == "null"):
        problems.append(tree.place.problem("the file is not a mapping", "lines of `key: value`"))
    return Table(start)


def laid_over(below: Table, above: Table) -> Table:
    """``above`` wins: mappings key by key, lists and values whole."""
    entries = dict(below.entries)
    for key, (place, tree) in above.entries.items():
        old = entries.get(key)
        if old is not None and isinstance(old[1], Table) and isinstance(tree, Table):
            tree = laid_over(old[1], tree)
        entries[key] = (place, tree)
    return Table(above.place, entries)


def drop_ins(path: str, problems: list[Problem]) -> tuple[str, ...]:
    """The drop-ins of a file: ``config.d/*.yaml`` beside it, by name. A drop-in has none itself."""
    parent = Path(path).absolute().parent
    if parent.name == "config.d":
        return ()
    folder = Path(path).parent / "config.d"
    try:
        found = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        problems.append(Place(str(folder)).problem(f"can't be read: {_reason(error)}"))
        return ()
    for drop_in in found:
        if drop_in.suffix == ".yml":
            here = Place(str(drop_in))
            better = drop_in.with_suffix(".yaml").name
            problems.append(here.problem("would not be read", "names that end in .yaml", better))
    return tuple(str(p) for p in found if p.suffix == ".yaml")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _read_text(path: str, problems: list[Problem]) -> str | None:
    place = Place(path)
    try:
        with open(path, "rb", opener=_open_at_once) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                problems.append(place.problem("is not a regular file"))
                return None
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        problems.append(place.problem(f"can't be read: {_reason(error)}"))
        return None
    if len(data) > MAX_BYTES:
        problems.append(place.problem("is too large", f"at most {MAX_BYTES >> 20} MiB"))
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        where = _place_after(path, before)
        problems.append(where.problem(f"byte 0x{data[error.start]:02x} is not UTF-8", "UTF-8 text"))
        return None


def _open_at_once(path: str, flags: int) -> int:
    # Without O_NONBLOCK a FIFO with this name would hold the daemon for ever.
    return os.open(path, flags | os.O_NONBLOCK)


def _place_after(file: str, before: str) -> Place:
    return Place(file, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


def _compose(text: str, file: str, problems: list[Problem]) -> yaml.Node | None:
    loader = None
    try:
        loader = _Bounded(text)
        return loader.get_single_node()
    except yaml.reader.ReaderError as error:
        where = _place_after(file, text[: error.position])
        problems.append(where.problem(f"character {error.character:#06x} has no place in a text"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
        what = " ".join(part for part in (error.context, error.problem) if part)
        problems.append(where.problem(f"not YAML: {what}" if error.context else what))
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML lets chr() and int() speak for themselves: "\UFFFFFFFF", %YAML with 5000 digits.
        where = Place(file, loader.line + 1, loader.column + 1) if loader else Place(file)
        problems.append(where.problem(f"not YAML: {error}"))
    finally:
        if loader is not None:
            loader.dispose()
    return None


def _tree(node: yaml.Node, file: str, problems: list[Problem]) -> Tree:
    place = Place(file, node.start_mark.line + 1, node.start_mark.column + 1)
    tag = node.tag[len(_TAG_PREFIX) :] if node.tag.startswith(_TAG_PREFIX) else node.tag
    due: Iterable[str] = _SCALAR_TAGS
    if isinstance(node, yaml.MappingNode):
        due = ("map",)
    elif isinstance(node, yaml.SequenceNode):
        due = ("seq",)
    if tag not in due:
        problems.append(place.problem(f"the tag {quote(tag)} is not used here", "no tags"))
        tag = "str"
    if isinstance(node, yaml.MappingNode):
        return _table(node, place, problems)
    if isinstance(node, yaml.SequenceNode):
        return Items(place, tuple(_tree(item, file, problems) for item in node.value))
    quoted = isinstance(node, yaml.ScalarNode) and node.style is not None
    return Leaf(place, Scalar(node.value, quoted, tag))


def _table(node: yaml.MappingNode, place: Place, problems: list[Problem]) -> Table:
    entries: dict[str, tuple[Place, Tree]] = {}
    for key, value in node.value:
        where = Place(place.file, key.start_mark.line + 1, key.start_mark.column + 1)
        tree = _tree(value, place.file, problems)
        if not isinstance(key, yaml.ScalarNode):
            problems.append(where.problem("a key has to be one word"))
        elif key.value in entries:
            first = entries[key.value][0]
            problems.append(
                where.problem(
                    f"the key {quote(key.value)} is there twice: first in line {first.line}"
                )
            )
        else:
            entries[key.value] = (where, tree)
    return Table(place, entries)
