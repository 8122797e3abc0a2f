# SPDX-License-Identifier: Apache-2.0
"""Names of users and groups, and leaders of login sessions, from files that never hang.

getpwuid(3) may ask LDAP and block for minutes; the daemon's main loop can't afford it. So names
come from /etc/passwd and /etc/group alone: an account that only a directory service knows is
shown by its number, and policies may name it by that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_LARGEST_FILE = 4 * 1024 * 1024
_SESSION = re.compile(r"/session-([A-Za-z0-9]{1,32})\.scope(?:/|$)")


class Accounts:
    """Reads the files again when they change. ``etc`` and ``run`` are roots for tests."""

    def __init__(self, etc: str = "/etc", run: str = "/run") -> None:
        self._passwd = Path(etc) / "passwd"
        self._group = Path(etc) / "group"
        self._sessions = Path(run) / "systemd" / "sessions"
        self._stamp: tuple[int, int] | None = None
        self._users: dict[int, str] = {}
        self._groups: dict[int, tuple[str, ...]] = {}
        self._gids: dict[str, int] = {}

    def refresh(self) -> None:
        """One stat(2) of each file, and nothing more while they stay the same."""
        stamp = (_changed(self._passwd), _changed(self._group))
        if stamp != self._stamp:
            self._stamp = stamp
            self._read()

    def users(self) -> Mapping[int, str]:
        """uid → login name."""
        return self._users

    def groups(self) -> Mapping[int, tuple[str, ...]]:
        """uid → names of its groups, the primary one among them."""
        return self._groups

    def uid_of(self, name: str) -> int | None:
        """The number of a login name."""
        return next((uid for uid, known in self._users.items() if known == name), None)

    def gid_of(self, name: str) -> int | None:
        """The number of a group."""
        return self._gids.get(name)

    def session_leaders(self, cgroups: Iterable[str]) -> frozenset[int]:
        """PIDs that logind calls Leader, of the sessions that these cgroups are in."""
        names = {found.group(1) for path in cgroups if (found := _SESSION.search(path))}
        leaders = set()
        for name in names:
            for line in _lines(self._sessions / name):
                key, _, value = line.partition("=")
                if key == "LEADER" and value.isascii() and value.isdigit():
                    leaders.add(int(value))
        return frozenset(leaders)

    def _read(self) -> None:
        self._users = {}
        primary: dict[int, int] = {}
        for line in _lines(self._passwd):
            parts = line.split(":")
            if len(parts) >= 4 and parts[2].isdigit() and parts[3].isdigit():
                self._users.setdefault(int(parts[2]), parts[0])
                primary.setdefault(int(parts[2]), int(parts[3]))
        self._gids = {}
        members: dict[str, list[str]] = {}
        for line in _lines(self._group):
            parts = line.split(":")
            if len(parts) >= 4 and parts[2].isdigit():
                self._gids.setdefault(parts[0], int(parts[2]))
                for login in parts[3].split(","):
                    members.setdefault(login, []).append(parts[0])
        names = {gid: name for name, gid in self._gids.items()}
        self._groups = {
            uid: tuple(
                sorted({*members.get(login, ()), names.get(primary[uid], str(primary[uid]))})
            )
            for uid, login in self._users.items()
        }


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE).decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
