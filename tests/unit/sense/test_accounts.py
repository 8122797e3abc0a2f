# SPDX-License-Identifier: Apache-2.0
"""Names from files, with whatever such files hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swift_governor.sense.accounts import Accounts

PASSWD = "root:x:0:0:root:/root:/bin/sh\nana:x:1000:1000:A:/home/ana:/bin/sh\n"
GROUP = "root:x:0:\nana:x:1000:\nml:x:2000:ana,bob\nswift-governor:x:997:ana\n"


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "passwd").write_text(PASSWD)
    (tmp_path / "group").write_text(GROUP)
    return tmp_path


def read(etc: Path) -> Accounts:
    accounts = Accounts(str(etc), str(etc / "run"))
    accounts.refresh()
    return accounts


def test_users_and_their_groups_are_found_the_primary_one_among_them(etc: Path) -> None:
    accounts = read(etc)
    assert accounts.users() == {0: "root", 1000: "ana"}
    assert accounts.groups()[1000] == ("ana", "ml", "swift-governor")
    assert accounts.gid_of("swift-governor") == 997
    assert accounts.uid_of("nobody-here") is None


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(etc: Path) -> None:
    accounts = read(etc)
    users = accounts.users()
    accounts.refresh()
    assert accounts.users() is users
    (etc / "passwd").write_text(PASSWD + "eva:x:1001:2000::/:/bin/sh\n")
    accounts.refresh()
    assert accounts.users()[1001] == "eva"
    assert accounts.groups()[1001] == ("ml",)


def test_without_the_files_there_are_no_names_and_no_error(tmp_path: Path) -> None:
    assert read(tmp_path).users() == {}


def test_the_leader_of_a_session_is_found_and_nothing_else_is_believed(etc: Path) -> None:
    sessions = etc / "run" / "systemd" / "sessions"
    sessions.mkdir(parents=True)
    (sessions / "3").write_text("UID=1000\nLEADER=4711\nTTY=pts/0\n")
    (sessions / "4").write_text("LEADER=banana\n")
    (etc / "run" / "secret").write_text("LEADER=1\n")
    accounts = read(etc)
    inside = "/user.slice/user-1000.slice/session-{}.scope"
    assert accounts.session_leaders([inside.format(3), inside.format(4)]) == {4711}
    assert accounts.session_leaders([inside.format("../../secret"), inside.format(9)]) == set()


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_bytes_in_the_files_are_survived(passwd: bytes, group: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as where:
        (Path(where) / "passwd").write_bytes(passwd)
        (Path(where) / "group").write_bytes(group)
        accounts = read(Path(where))
        assert set(accounts.groups()) == set(accounts.users())
