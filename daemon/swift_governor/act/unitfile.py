# SPDX-License-Identifier: Apache-2.0
"""What an admin set in /etc for a unit of ours, and is therefore the admin's: systemd.unit(5).

systemd names the files (FragmentPath, DropInPaths, which include ``slice.d/`` and
``msswift-.slice.d/``); here only their keys are read. A runtime property over a persistent drop-in
would be lost at the next daemon-reload anyway (systemd#16592).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from swift_governor.act.processes import read_small

ADMIN_PLACES = ("/etc/", "/usr/local/")
_SECTIONS = ("Slice", "Scope")
_LIMIT = 1 << 20

# D-Bus property → the keys by which unit files set it, systemd.resource-control(5).
KEYS = {
    "CPUWeight": frozenset({"CPUWeight", "CPUShares"}),
    "CPUQuotaPerSecUSec": frozenset({"CPUQuota"}),
}


def assignments(text: str) -> Iterator[tuple[str, str, str]]:
    """(section, key, value) in order; comments, continuation lines and white space as systemd
    reads."""
    section, pending = "", ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue  # a comment within a continued line doesn't end it
        line = pending + line
        if line.endswith("\\"):
            pending = line[:-1] + " "
            continue
        pending = ""
        if line[0] == "[" and line[-1] == "]":
            section = line[1:-1]
        elif "=" in line:
            key, value = line.split("=", 1)
            yield section, key.strip(), value.strip()


def set_by_admin(fragment: str, drop_ins: Iterable[str]) -> dict[str, str]:
    """D-Bus property → the file below /etc that sets it last. An empty assignment unsets, as in
    systemd."""
    found: dict[str, str] = {}
    for path in (fragment, *drop_ins):
        if not path.startswith(ADMIN_PLACES):
            continue
        text = (read_small(path, _LIMIT) or b"").decode("utf-8", "replace")
        for section, key, value in assignments(text):
            if section not in _SECTIONS:
                continue
            for name, keys in KEYS.items():
                if key in keys and value:
                    found[name] = path
                elif key in keys:
                    found.pop(name, None)
    return found
