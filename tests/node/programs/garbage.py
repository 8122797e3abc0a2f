# SPDX-License-Identifier: Apache-2.0
"""Runs in the VM, as anybody: all that a program can do wrong on the governor's socket, at once.

Ends when each connection was answered, closed by the daemon, or left idle; prints how many were
closed or answered with an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket

SOCKET = "/run/swift-governor/governor.sock"
NAME = "org.swiftgovernor.Governor"


def message(method: str, **parameters: object) -> bytes:
    return json.dumps({"method": f"{NAME}.{method}", "parameters": parameters}).encode() + b"\0"


BAD = [
    os.urandom(5000).replace(b"\0", b"\1") + b"\0",
    b"\0" * 2000,
    b"not json\0",
    b"\xff\xfe{}\0",
    b"[" * 50_000 + b"\0",
    b'{"method": 7}\0',
    b'{"method": "' + b"m" * 100_000 + b'"}\0',
    b"[]\0null\0" + b'"x"\0',
    b"x" * 400_000,
    message("Register", protocol="one", rank=-5),
    message("Register", protocol=1, rank=1 << 80, local_rank=0, world_size=0),
    message("Report", session="nobody's", optimizer_step=float("nan")),
    message("Sample", status="ok", gpus=[]),
    message("SetLoop", gpu=0, enabled=False),
    message("SetMicroBatch", job="../../etc", micro_batch=-1),
    message("NoSuchMethod"),
]
wrong = 0
for bad in BAD:
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.settimeout(60)
        client.connect(SOCKET)
        try:
            client.sendall(bad)
            reply = client.recv(1 << 16)
        except (BrokenPipeError, ConnectionResetError):
            reply = b""
        wrong += reply == b"" or b'"error"' in reply
held = []
with contextlib.suppress(OSError):
    for _ in range(300):
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        client.connect(SOCKET)
        client.send(b'{"method": "org.swift')  # and never the rest
        held.append(client)
print(json.dumps({"sent": len(BAD), "refused": wrong, "held": len(held)}))
