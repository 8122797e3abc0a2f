# SPDX-License-Identifier: Apache-2.0
"""How much work clients of the socket may cause in one second. Pure: the caller has the clock.

A user is bounded as well as a connection, or opening more connections would buy more of the
daemon's time; and a large answer counts for more than one call, since making it is the work.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CALLS_OF_CONNECTION = 200
CALLS_OF_USER = 1000
CALLS_KEPT = 16
"""So many a connection has whatever its user's others did: a report and a question get through."""

BYTES_A_CALL = 4096
"""So many bytes, received or answered, weigh as much as one call."""


@dataclass
class Budget:
    """One connection's, with what all connections of its user share (``user``)."""

    user: Budget | None = None
    left: int = CALLS_OF_CONNECTION

    def spend_call(self) -> None:
        """One message was answered, whatever came of it."""
        self._spend(1)

    def spend_bytes(self, count: int) -> None:
        """So many bytes were read or made into an answer."""
        self._spend(count // BYTES_A_CALL)

    @property
    def spent(self) -> bool:
        """Whether nothing more is to be done for this connection in this second."""
        if self.left <= 0 or self.user is None:
            return self.left <= 0
        return self.user.spent and self.left <= CALLS_OF_CONNECTION - CALLS_KEPT

    def _spend(self, calls: int) -> None:
        self.left -= calls
        if self.user is not None:
            self.user.left -= calls


@dataclass
class Budgets:
    """By user, for users who did anything in this second."""

    users: dict[int, Budget] = field(default_factory=dict)

    def renew(self, connections: list[tuple[int, Budget]]) -> None:
        """A new second: ``connections`` are those that are open, each with its user."""
        self.users.clear()
        for uid, budget in connections:
            budget.user, budget.left = self._of_user(uid), CALLS_OF_CONNECTION

    def of_connection(self, uid: int) -> Budget:
        """The budget of a connection that ``uid`` opens now."""
        return Budget(self._of_user(uid))

    def _of_user(self, uid: int) -> Budget:
        return self.users.setdefault(uid, Budget(left=CALLS_OF_USER))
