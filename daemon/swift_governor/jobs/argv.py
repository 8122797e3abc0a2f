# SPDX-License-Identifier: Apache-2.0
"""What a command line makes Python run: a script, a module, a string of code, or nothing.

The kernel has already resolved ``#!`` lines, so a console script arrives as ``[interpreter, (one
option,) script, arguments…]``. The options are those of python(1); what follows the script or
module belongs to the program and is never read as an option of the interpreter.
"""

from __future__ import annotations

import enum
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

INTERPRETER = re.compile(r"\.?(?:python|pypy)\d*(?:\.\d+)*[a-z]?(?:[-.][\w.]+)?\Z")

# Options that take the next argument when nothing is glued to them. --jit is PyPy's.
SHORT_WITH_VALUE = "XW"
LONG_WITH_VALUE = frozenset({"--check-hash-based-pycs", "--jit"})


class Kind(enum.Enum):
    """What the interpreter was told to run."""

    SCRIPT = "script"
    MODULE = "module"
    CODE = "code"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Invocation:
    """``target`` is a script's path as typed or a module's dotted name; "" for the others."""

    kind: Kind
    target: str = ""
    arguments: Sequence[str] = ()


@dataclass(frozen=True)
class NotPython:
    """No Python interpreter; ``program`` is what it is, by exe or else by argv[0]."""

    program: str


def base_name(path: str) -> str:
    """The last component; the kernel marks the exe of a replaced file with " (deleted)"."""
    if path.endswith(" (deleted)"):
        path = path[: -len(" (deleted)")]
    return path.rsplit("/", 1)[-1]


def is_interpreter(path: str) -> bool:
    """Whether a path's name is that of CPython or PyPy (``python3.12``, ``pypy3``,
    ``python3-dbg``).
    """
    return INTERPRETER.match(base_name(path)) is not None


def read_command(
    argv: Sequence[str], exe: str | None, script_names: frozenset[str]
) -> Invocation | NotPython:
    """Reads argv as the interpreter would.

    ``exe`` decides where it is known. Where it is not, argv[0] is believed: an interpreter, or
    one of ``script_names`` called directly. A known Python may carry any argv[0] (``exec -a``).
    """
    if not argv:
        return NotPython(base_name(exe) if exe else "")
    first = argv[0]
    if exe is not None and not is_interpreter(exe):
        return NotPython(base_name(exe))
    if base_name(first) in script_names:
        return Invocation(Kind.SCRIPT, first, argv[1:])
    if exe is None and not is_interpreter(first):
        return NotPython(base_name(first))
    return _read_interpreter_arguments(argv)


def _read_interpreter_arguments(argv: Sequence[str]) -> Invocation:
    position = 1
    while position < len(argv):
        argument = argv[position]
        position += 1
        if argument == "--":
            break
        if not argument.startswith("-"):
            return Invocation(Kind.SCRIPT, argument, argv[position:])
        if argument == "-":
            return Invocation(Kind.NOTHING)
        if argument.startswith("--"):
            position += argument in LONG_WITH_VALUE
            continue
        found = _read_short_options(argument, argv, position)
        if isinstance(found, Invocation):
            return found
        position = found
    if position < len(argv) and argv[position] != "-":
        return Invocation(Kind.SCRIPT, argv[position], argv[position + 1 :])
    return Invocation(Kind.NOTHING)


def _read_short_options(argument: str, argv: Sequence[str], position: int) -> Invocation | int:
    """One bundle such as ``-uB`` or ``-Xdev``: what it ends in, or where reading goes on."""
    for index, letter in enumerate(argument[1:], start=2):
        glued = argument[index:]
        if letter == "c":
            return Invocation(Kind.CODE)
        if letter == "m":
            if glued:
                return Invocation(Kind.MODULE, glued, argv[position:])
            if position < len(argv):
                return Invocation(Kind.MODULE, argv[position], argv[position + 1 :])
            return Invocation(Kind.NOTHING)
        if letter in SHORT_WITH_VALUE:
            return position if glued else position + 1
    return position


def path_parts(path: str) -> list[str]:
    """A path's components, without ``.``, ``..`` and empty ones where they can be resolved."""
    return posixpath.normpath(path).split("/")


def is_file_of(path: str, module: str) -> bool:
    """Whether a script path ends in the file of a dotted module: ``…/torch/distributed/run.py``."""
    if not path.endswith(".py"):
        return False
    wanted = (module.replace(".", "/") + ".py").split("/")
    return path_parts(path)[-len(wanted) :] == wanted
