# SPDX-License-Identifier: Apache-2.0
"""The exporter as a program: real sockets on both sides, and clients that mean no good."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import time

import pytest
from swift_governor.exporter import address
from swift_governor.exporter.server import MOST_CONNECTIONS, REQUEST_BYTES
from swift_governor.report import snapshot

from tests.unit.report.examples import node

GENEROUS_S = 60


def ask(where, path="/metrics", method="GET") -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(*where, timeout=GENEROUS_S)
    connection.request(method, path)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer, data


def raw(where, request: bytes) -> bytes:
    with socket.create_connection(where, timeout=GENEROUS_S) as link:
        try:
            link.sendall(request)
            return b"".join(iter(lambda: link.recv(65536), b""))
        except ConnectionError:
            return b""


def test_a_scrape_serves_the_governors_snapshot(governor, exporter):
    governor.snapshot = snapshot.make(*node())
    answer, data = ask(exporter)
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"swift_governor_up 1.0\n" in data
    assert b'swift_governor_job_micro_batch_size{msswift_job="sft4811x8k1"} 4.0\n' in data


def test_a_hung_governor_leaves_the_last_page_within_the_deadline(governor, exporter):
    governor.snapshot = snapshot.make(*node())
    _, good = ask(exporter)
    governor.hang = True
    time.sleep(0.3)  # longer than scrapes share one fetch
    began = time.monotonic()
    _, silent = ask(exporter)
    assert time.monotonic() - began < GENEROUS_S / 2
    assert b"swift_governor_up 0.0\n" in silent
    mark = b"# HELP swift_governor_build_info"
    assert silent[silent.index(mark) :] == good[good.index(mark) :]
    answer, _ = ask(exporter, "/healthz")
    assert answer.status == 503


def test_a_governor_that_is_gone_or_talks_nonsense_ends_nothing(governor, exporter):
    for nonsense in (
        b"",
        b"\0",
        b"[]\0",
        b'{"parameters": 3}\0',
        b"\xff\xfe\0",
        b"{" * 200_000 + b"\0",
    ):
        governor.raw = nonsense
        time.sleep(0.3)
        assert b"swift_governor_up 0.0\n" in ask(exporter)[1]
    governor.close()
    time.sleep(0.3)
    assert b"swift_governor_up 0.0\n" in ask(exporter)[1]


def test_pages_methods_and_headers(governor, exporter):
    governor.snapshot = snapshot.make(*node())
    answer, data = ask(exporter, "/")
    assert answer.status == 200
    assert b"/metrics" in data
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Server"] == "swift-governor"
    assert ask(exporter, "/healthz")[0].status == 200
    assert ask(exporter, "/../etc/passwd")[0].status == 404
    head, data = ask(exporter, "/metrics", "HEAD")
    assert (head.status, data) == (200, b"")
    assert int(head.headers["Content-Length"]) > 1000
    refused, _ = ask(exporter, "/metrics", "POST")
    assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")


def test_greedy_and_broken_requests_are_refused_and_the_next_is_served(governor, exporter):
    governor.snapshot = snapshot.make(*node())
    assert b"200" not in raw(exporter, b"GET /" + b"x" * 2 * REQUEST_BYTES + b" HTTP/1.0\r\n\r\n")
    many = b"".join(b"X-%d: %s\r\n" % (i, b"y" * 900) for i in range(60))
    assert b" 431 " in raw(exporter, b"GET /metrics HTTP/1.0\r\n" + many + b"\r\n")
    raw(exporter, b"\x16\x03\x01\x00\xff\xff\r\n\r\n")
    raw(exporter, b"GET\r\n\r\n")
    assert ask(exporter)[0].status == 200


def test_slow_clients_fill_their_places_for_a_while_only(governor, exporter):
    governor.snapshot = snapshot.make(*node())
    slow = [socket.create_connection(exporter, timeout=GENEROUS_S) for _ in range(MOST_CONNECTIONS)]
    for link in slow:
        link.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
    deadline = time.monotonic() + GENEROUS_S
    seen = set()
    while 200 not in seen or 503 not in seen:
        assert time.monotonic() < deadline, seen
        for link in slow:
            with contextlib.suppress(OSError):
                link.send(b"z")  # keeps each read of the server alive
        # Refused before the request was read: the connection may be reset.
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            seen.add(ask(exporter, "/")[0].status)
        time.sleep(0.2)
    for link in slow:
        link.close()


def test_a_taken_port_is_told_with_the_remedy(tmp_path, exporter):
    host, port = exporter
    done = subprocess.run(
        [sys.executable, "-m", "swift_governor.exporter", "--listen", f"{host}:{port}"],
        capture_output=True,
        text=True,
        timeout=GENEROUS_S,
        env={"PYTHONPATH": str(address.__file__).rpartition("/swift_governor/")[0]},
    )
    assert done.returncode == 1
    assert "exporter.listen" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_is_ip_and_port():
    assert address.parse("127.0.0.1:11470") == ("127.0.0.1", 11470)
    assert address.parse("[::1]:9") == ("::1", 9)
    for wrong in ("", "11470", "localhost:1", "127.0.0.1:", "127.0.0.1:70000", "1.2.3.4:-1", "::1"):
        with pytest.raises(ValueError):
            address.parse(wrong)


def test_the_configuration_says_where_and_a_bad_one_leaves_the_default(tmp_path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text('exporter:\n  listen: "127.0.0.1:12345"\n')
    bad.write_text("exporter: {listen: [}\n")
    assert address.configured(str(good)) == ("127.0.0.1", 12345)
    assert address.configured(str(bad)) == address.DEFAULT
    assert address.configured(str(tmp_path / "none.yaml")) == address.DEFAULT
