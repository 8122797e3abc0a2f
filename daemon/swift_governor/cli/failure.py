# SPDX-License-Identifier: Apache-2.0
"""What a command says when the governor's socket brought no result: what to do, and the cause."""

from __future__ import annotations

from swift_governor.link import client

_REMEDIES = {
    client.ABSENT: "The governor isn't running. Start it: systemctl start swift-governor",
    client.DENIED: "You may not open the governor's socket. Look at its mode: ls -l {socket}",
    client.TIMEOUT: "The governor doesn't answer. Look why: journalctl -u swift-governor -n 50",
    client.BROKEN: "What answers isn't this version's governor."
    " Restart it: systemctl restart swift-governor",
    client.ERROR: "The governor refused. Look why: journalctl -u swift-governor -n 50",
}


def failure(error: client.LinkError, socket: str) -> str:
    """One line for standard error."""
    return f"swift-governor: {_REMEDIES[error.reason].format(socket=socket)} ({error})"
