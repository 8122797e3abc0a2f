# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server that a slow, greedy or broken client can't hold.

GET and HEAD; one request a connection; a bounded number of connections, bytes of request and
seconds for each. Requests are not logged: the journal belongs to what happens on the node.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from swift_governor.exporter.page import CONTENT_TYPE, Page

# socketserver types these by what a subclass makes of them.
Connection = Any
Peer = Any
Stream = Any

MOST_CONNECTIONS = 16
REQUEST_BYTES = 16 * 1024
# A connection ends after this long, however slowly its client sends or reads.
CONNECTION_S = 15.0

SECURITY_HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)

LANDING = b"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>swift-governor</title></head>
<body><h1>swift-governor</h1>
<p>Keeps ms-swift jobs on this node in their place, and its GPUs busy.</p>
<ul><li><a href="/metrics">/metrics</a>: for Prometheus</li>
<li><a href="/healthz">/healthz</a>: whether the governor answers</li></ul>
<p>On the node: <code>swift-governor status</code></p></body></html>
"""

_TEXT = "text/plain; charset=utf-8"
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n"


class _BoundedLines:
    """Lines of a request, up to REQUEST_BYTES in all (http.server alone would take 6 MiB)."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._left = stream, REQUEST_BYTES

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._stream.readline(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(line)
        if self._left <= 0:
            raise http.client.LineTooLong("request")
        return line

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what the stream has
        return getattr(self._stream, name)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request and hangs up (HTTP/1.0, as the base class's default)."""

    server: Server
    timeout = 5.0

    def setup(self) -> None:
        super().setup()
        self.rfile = _BoundedLines(self.rfile)  # type: ignore[assignment]

    def handle(self) -> None:
        # A request line that is too long ends here; too long headers are a 431 of the base class.
        with contextlib.suppress(http.client.HTTPException, OSError):
            super().handle()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        page = self.server.page
        if path == "/metrics":
            self._answer(HTTPStatus.OK, CONTENT_TYPE, page.content())
        elif path == "/healthz":
            page.content()
            status = HTTPStatus.OK if page.up else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, _TEXT, b"ok\n" if page.up else b"no answer\n")
        elif path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", LANDING)
        else:
            self._answer(HTTPStatus.NOT_FOUND, _TEXT, b"see /metrics\n")

    do_HEAD = do_GET  # noqa: N815 - the base class's names

    def do_POST(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"GET only\n")

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST  # noqa: N815

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        for name, value in SECURITY_HEADERS:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "swift-governor"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nothing: see the module's docstring."""


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """``each_turn`` is called about twice a second by the thread that accepts (for a watchdog)."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, host: str, port: int, page: Page, each_turn: Callable[[], object]) -> None:
        self.page = page
        self._each_turn = each_turn
        self._open: dict[socket.socket, float] = {}
        self._guard = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        # HTTPServer's would look up the host's name, which can hang on a broken resolver.
        socketserver.TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)

    def process_request(self, request: Connection, client_address: Peer) -> None:
        with self._guard:
            full = len(self._open) >= MOST_CONNECTIONS
            if not full:
                self._open[request] = time.monotonic()
        if not full:
            super().process_request(request, client_address)
            return
        request.setblocking(False)
        with contextlib.suppress(OSError):
            request.send(_BUSY)
        self.shutdown_request(request)

    def shutdown_request(self, request: Connection) -> None:
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self._each_turn()
        long_ago = time.monotonic() - CONNECTION_S
        with self._guard:
            for connection, since in self._open.items():
                if since < long_ago:
                    # The thread that serves it sees the end of its stream and closes it.
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Connection, client_address: Peer) -> None:
        """A client that went away is no news; the thread ends and the next is served."""
