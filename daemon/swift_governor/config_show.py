# SPDX-License-Identifier: Apache-2.0
"""A configuration as a file that gives it again: every key, with where its value comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .config_model import Config
from .config_schema import Key, children

_LONGEST_LIST = 52
_COMMENT_COLUMN = 40


def effective(config: Config) -> str:
    """YAML that ``load`` reads as an equal Config; each line ends in its source, or "default"."""
    return "\n".join(_section("", config, "", 0, config)) + "\n"


def _section(path: str, value: object, shown: str, depth: int, config: Config) -> Iterator[str]:
    indent = "  " * depth
    for name, what in children(path).items():
        here = f"{shown}.{name}" if shown else name
        field = what.field if isinstance(what, Key) else name
        inner = value[field] if isinstance(value, dict) else getattr(value, field)
        if isinstance(what, Key):
            if inner is not None or what.default is not None:
                yield from _key(what, inner, here, indent, config)
        elif what.path.endswith("[]"):
            yield _with_source(f"{indent}{name}:{'' if inner else ' []'}", here, config)
            for index, item in enumerate(inner):
                lines = list(_section(what.path, item, f"{here}[{index}]", depth + 2, config))
                yield f"{indent}  - " + lines[0].lstrip()
                yield from lines[1:]
        elif what.names is not None:
            yield f"{indent}{name}:{'' if inner else ' {}'}"
            for own, item in inner.items():
                yield f"{indent}  {json.dumps(own)}:"
                yield from _section(what.path, item, f"{here}.{own}", depth + 2, config)
        else:
            yield f"{indent}{name}:"
            yield from _section(what.path, inner, here, depth + 1, config)


def _key(key: Key, value: object, shown: str, indent: str, config: Config) -> Iterator[str]:
    if not key.many:
        yield _with_source(f"{indent}{key.name}: {key.kind.show(value)}", shown, config)
        return
    assert isinstance(value, tuple)
    items = [key.kind.show(item) for item in value]
    flow = f"[{', '.join(items)}]"
    if len(flow) <= _LONGEST_LIST:
        yield _with_source(f"{indent}{key.name}: {flow}", shown, config)
        return
    yield _with_source(f"{indent}{key.name}:", shown, config)
    yield from (f"{indent}  - {item}" for item in items)


def _with_source(line: str, shown: str, config: Config) -> str:
    return f"{line:<{_COMMENT_COLUMN}}  # {config.sources.get(shown, 'default')}"
