# SPDX-License-Identifier: Apache-2.0
"""The page is rendered once a snapshot, and a silent governor leaves its last one for a while."""

from __future__ import annotations

import time

from swift_governor.exporter import page as page_module
from swift_governor.exporter.page import Page
from swift_governor.link.client import LinkError
from swift_governor.report import snapshot

from tests.unit.report.examples import job_name, node


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Source:
    """Gives a snapshot, or raises what it is told to."""

    def __init__(self, **example) -> None:
        self.give = snapshot.make(*node(**example))
        self.error: Exception | None = None

    def __call__(self):
        if self.error is not None:
            raise self.error
        return self.give


def body(text: bytes) -> bytes:
    return text[text.index(b"# HELP swift_governor_build_info") :]


def test_the_same_snapshot_is_rendered_once_and_its_bytes_served_again(monkeypatch):
    rendered = []
    real = page_module.render
    monkeypatch.setattr(
        page_module, "render", lambda table, data: rendered.append(table) or real(table, data)
    )
    source = Source()
    page = Page(source, Clock())
    first, second = page.content(), page.content()
    assert first == second
    assert rendered.count(page_module.GOVERNOR_TABLE) == 1
    source.give = snapshot.make(*node(sequence=78, jobs=2))
    assert page.content() != first
    assert rendered.count(page_module.GOVERNOR_TABLE) == 2


def test_a_restarted_daemon_with_the_same_sequence_is_another_snapshot():
    source = Source()
    page = Page(source, Clock())
    assert job_name(2).encode() in page.content()
    source.give = snapshot.make(*node(jobs=1))
    source.give["self"]["started_s"] += 1000
    assert job_name(2).encode() not in page.content()


def test_a_silent_governor_leaves_the_last_page_with_up_0_and_then_nothing_old():
    source, clock = Source(), Clock()
    page = Page(source, clock)
    good = page.content()
    assert b"swift_governor_up 1.0\n" in good
    source.error = LinkError("absent", "gone")
    silent = page.content()
    assert b"swift_governor_up 0.0\n" in silent
    assert b"swift_governor_snapshot_failures_total 1.0\n" in silent
    assert body(silent) == body(good)
    clock.now += page_module.LAST_PAGE_S
    assert b"swift_governor_build_info" not in page.content()
    source.error = None
    assert body(page.content()) == body(good)


def test_what_is_not_a_snapshot_counts_as_no_answer():
    source = Source()
    page = Page(source, Clock())
    good = page.content()
    for nonsense in (
        {},
        {"schema": 2},
        {**source.give, "jobs": [7]},
        {**source.give, "self": None},
    ):
        if isinstance(nonsense.get("self"), dict):
            nonsense["sequence"] = 99
        source.give = nonsense
        told = page.content()
        assert b"swift_governor_up 0.0\n" in told
        assert body(told) == body(good)


def test_a_page_before_any_answer_says_so():
    source = Source()
    source.error = LinkError("absent", "not there")
    page = Page(source, time.monotonic)
    assert b"swift_governor_up 0.0\n" in page.content()
    assert page.problem == "not there"
