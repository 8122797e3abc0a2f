# SPDX-License-Identifier: Apache-2.0
"""Nothing in daemon/ ends a process, stops a unit or reloads systemd; D-Bus has one table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from swift_governor.act import dbus_table

DAEMON = Path(__file__).resolve().parents[3] / "daemon"
FILES = sorted(DAEMON.rglob("*.py"))
TABLE = DAEMON / "swift_governor" / "act" / "dbus_table.py"

# org.freedesktop.systemd1.Manager's other methods that change something.
FORBIDDEN_WORDS = (
    "StopUnit",
    "KillUnit",
    "QueueSignalUnit",
    "RestartUnit",
    "StartUnit",
    "ReloadUnit",
    "ReloadOrRestartUnit",
    "TryRestartUnit",
    "CleanUnit",
    "FreezeUnit",
    "ResetFailedUnit",
    "BindMountUnit",
    "MountImageUnit",
    "Reexecute",
    "PowerOff",
    "Reboot",
    "KExec",
    "EnableUnitFiles",
    "DisableUnitFiles",
    "MaskUnitFiles",
    "daemon-reload",
    "daemon-reexec",
)
KILLING = {"kill", "killpg", "pidfd_send_signal", "terminate", "send_signal", "pthread_kill"}
# subprocess.run and its relatives kill the child when their timeout is over.
KILLING_WHEN_LATE = {"run", "call", "check_call", "check_output"}
SYSTEMCTL_VERBS = {"show", "set-property", "thaw"}


def constants(tree: ast.AST) -> set[str]:
    """Strings that are data: docstrings are left out."""
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
    }


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def test_the_table_is_the_closed_list() -> None:
    methods = {m.name for m in vars(dbus_table).values() if isinstance(m, dbus_table.Method)}
    assert methods == {
        "StartTransientUnit",
        "AttachProcessesToUnit",
        "SetUnitProperties",
        "GetUnit",
        "Subscribe",
        "Get",
    }
    assert dbus_table.SIGNALS == ("JobRemoved", "Reloading")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(DAEMON)))
def test_nothing_is_killed_stopped_or_reloaded(path: Path) -> None:
    tree = parsed(path)
    called = {
        n.func.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    }
    assert not called & KILLING
    assert not constants(tree) & set(FORBIDDEN_WORDS)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "signal"):
            assert not {a.name for a in node.names} & KILLING
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            late = isinstance(owner, ast.Name) and owner.id == "subprocess"
            if late and node.func.attr in KILLING_WHEN_LATE:
                assert not any(k.arg == "timeout" for k in node.keywords)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(DAEMON)))
def test_d_bus_is_spoken_in_one_place_and_by_the_table_only(path: Path) -> None:
    tree = parsed(path)
    if path.name != "systemd.py":
        imported = {
            a.name.split(".")[0]
            for n in ast.walk(tree)
            if isinstance(n, ast.Import)
            for a in n.names
        } | {
            n.module.split(".")[0]
            for n in ast.walk(tree)
            if isinstance(n, ast.ImportFrom) and n.module
        }
        assert "pydbus" not in imported
        names = {
            a.name
            for n in ast.walk(tree)
            if isinstance(n, ast.ImportFrom) and n.module == "gi.repository"
            for a in n.names
        }
        assert "Gio" not in names
    if path != TABLE:
        assert not any(c.startswith("org.freedesktop.") for c in constants(tree))


def test_the_adapter_calls_nothing_but_methods_of_the_table() -> None:
    tree = parsed(DAEMON / "swift_governor" / "act" / "systemd.py")
    calls = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "_call"
    ]
    assert len(calls) >= 6
    for call in calls:
        method = call.args[0]
        assert isinstance(method, ast.Attribute)
        assert isinstance(method.value, ast.Name)
        assert method.value.id == "table"
        assert isinstance(getattr(dbus_table, method.attr), dbus_table.Method)
    raw = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("call", "call_sync", "get", "send_message", "call_with_unix_fd_list")
        and not (isinstance(n.func.value, ast.Name) and n.func.value.id.startswith("_"))
    ]
    assert len(raw) == 1


def test_release_runs_systemctl_with_three_verbs_only() -> None:
    tree = parsed(DAEMON / "swift_governor" / "act" / "release.py")
    lists = [n for n in ast.walk(tree) if isinstance(n, ast.List) and n.elts]
    firsts = {n.elts[0].value for n in lists if isinstance(n.elts[0], ast.Constant)}
    assert firsts == SYSTEMCTL_VERBS
    assert not any(
        k.arg == "shell" for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords
    )
