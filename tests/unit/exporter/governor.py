# SPDX-License-Identifier: Apache-2.0
"""A governor's socket that answers Snapshot, hangs or talks nonsense, as a test sets it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path


class Governor:
    """Answers with ``snapshot``, or with the bytes in ``raw`` where they are set."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.snapshot: dict = {}
        self.raw: bytes | None = None
        self.hang = False
        self.calls = 0
        self._kept: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            request = b""
            while not request.endswith(b"\0"):
                chunk = link.recv(65536)
                if not chunk:
                    break
                request += chunk
            self.calls += 1
            if self.hang:
                self._kept.append(link)
                continue
            asked = json.loads(request.rstrip(b"\0"))
            assert asked == {"method": "org.swiftgovernor.Governor.Snapshot", "parameters": {}}
            reply = json.dumps({"parameters": {"snapshot": self.snapshot}}).encode() + b"\0"
            with contextlib.suppress(OSError):
                link.sendall(reply if self.raw is None else self.raw)
            link.close()

    def close(self) -> None:
        # shutdown, for close alone does not wake an accept in another thread
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._kept:
            link.close()
        self.path.unlink()
