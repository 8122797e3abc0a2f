# SPDX-License-Identifier: Apache-2.0
"""Who is on the other end of a Unix socket, as the kernel says: unix(7), SO_PEERCRED and
SO_PEERGROUPS.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

SO_PEERGROUPS = 59  # asm-generic/socket.h; not in Python's socket module
_MOST_GROUPS = 65536  # NGROUPS_MAX


@dataclass(frozen=True)
class Peer:
    """Credentials at the time of connect(2). ``pid`` is 0 for a peer that our PID namespace can't
    see.
    """

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]

    def may_change(self, group: int | None) -> bool:
        """Root, or a member of ``group`` (swift-governor's gid; None: there is none)."""
        return self.uid == 0 or (group is not None and (self.gid == group or group in self.groups))


def peer_of(connection: socket.socket) -> Peer:
    """Raises OSError when the peer has no credentials."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", raw)
    return Peer(pid, uid & 0xFFFFFFFF, gid & 0xFFFFFFFF, _groups(connection))


def _groups(connection: socket.socket) -> frozenset[int]:
    size = 4 * 256
    while size <= 4 * _MOST_GROUPS:
        try:
            raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, size)
        except OSError:
            size *= 16  # ERANGE: more groups than we made room for
            continue
        return frozenset(g for (g,) in struct.iter_unpack("=I", raw[: len(raw) // 4 * 4]))
    return frozenset()
