# SPDX-License-Identifier: Apache-2.0
"""The reader child and its client: real reads, and reads that hang."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from swift_governor.sense.reader import script_names_swift, swift_script
from swift_governor.sense.reader_client import (
    FIRST_PAUSE_S,
    MAX_STUCK,
    STARVED_DEADLINE_S,
    ReaderClient,
)
from swift_governor.sense.stat import read_stat

from tests.unit.sense.live import DEADLINE_S, PYTHON, until

KEYS = ("RANK", "WORLD_SIZE")

# A reader that answers with the PID and nothing else, hangs on PID 666 and works on PID 777 until
# the file named by its argument is there, ends on PID 13, and talks nonsense on PID 99.
STUB = """
import json, os, socket, sys, time
s = socket.socket(fileno=0)
def take(n):
    data = b""
    while len(data) < n:
        chunk = s.recv(n - len(data))
        if not chunk: sys.exit()
        data += chunk
    return data
while True:
    for pid in json.loads(take(int.from_bytes(take(4), "big")))["pids"]:
        while pid == 666 and not os.path.exists(sys.argv[1]): time.sleep(0.01)
        while pid == 777 and not os.path.exists(sys.argv[1]): pass
        if pid == 13: sys.exit()
        answer = json.dumps({"pid": pid, "start": 1}).encode() if pid != 99 else b"\\xff{"
        s.sendall(len(answer).to_bytes(4, "big") + answer)
"""


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Driver:
    """Drives a client over a stub; ``answers`` holds what came back, in order."""

    def __init__(self, tmp_path):
        stub = tmp_path / "stub.py"
        stub.write_text(STUB)
        self.release = tmp_path / "release"
        self.clock = Clock()
        command = [sys.executable, "-I", "-S", str(stub), str(self.release)]
        self.client = ReaderClient(KEYS, command, deadline_s=2.0, clock=self.clock)
        self.answers = []

    def ask(self, *pids):
        self.client.read(pids, self.answers.append)

    def turn(self):
        ready, _, _ = select.select([self.client], [], [], 0.01)
        if ready:
            self.client.on_readable()

    def until(self, condition):
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, self.answers
            self.turn()

    def pass_time(self, seconds):
        self.clock.now += seconds
        self.client.tick()

    def got(self):
        return [(answer.pid, answer.available) for answer in self.answers]


@pytest.fixture
def driver(tmp_path):
    driver = Driver(tmp_path)
    yield driver
    driver.release.touch()
    until(lambda: driver.client.tick() or driver.client.stuck == 0, "the end of stuck readers")
    driver.client.close()


@pytest.fixture
def client():
    client = ReaderClient(KEYS)
    yield client
    client.close()


def read_one(client, pid):
    answers = []
    client.read([pid], answers.append)
    end = time.monotonic() + DEADLINE_S
    while not answers:
        assert time.monotonic() < end
        select.select([client], [], [], 0.1)
        client.on_readable()
    return answers[0]


def test_a_process_is_read_as_it_is(client):
    environ = {b"RANK": b"\xff", b"WORLD_SIZE": b"x" * 5000, b"OTHER": b"1"}
    argv = [PYTHON.encode(), b"-c", b"import time; time.sleep(60)", b"", b"\xfe\n"]
    with subprocess.Popen(argv, env=environ) as process:
        until(lambda: read_stat("/proc", process.pid).comm.startswith("python"), "exec")
        reading = read_one(client, process.pid)
        process.kill()
    assert reading.available
    assert reading.argv == (PYTHON, "-c", "import time; time.sleep(60)", "", "\udcfe\n")
    assert reading.environ == {"RANK": "\udcff"}, "bounded values of the wanted keys only"
    assert reading.exe == os.path.realpath(PYTHON)
    assert reading.cgroup.startswith("/")
    assert reading.names_swift is None
    assert reading.start_ticks > 0


def test_a_process_that_has_gone_is_answered_without_a_start(client):
    with subprocess.Popen(["true"]) as process:
        pass
    assert read_one(client, process.pid).start_ticks is None


def test_a_kernel_thread_has_no_arguments_and_no_program(client):
    kthreadd = 2
    if read_stat("/proc", kthreadd) is None or read_stat("/proc", kthreadd).comm != "kthreadd":
        pytest.skip("no kernel threads to be seen here")
    reading = read_one(client, kthreadd)
    assert (reading.argv, reading.exe) == ((), None)


@pytest.mark.parametrize(
    ("head", "names"),
    [
        (b"from swift.cli.main import cli_main", True),
        (b"# EASY-INSTALL-ENTRY-SCRIPT: 'ms-swift','console_scripts','swift'", True),
        (b"from swiftclient.shell import main", False),
        (b"", False),
        (b"\x7fELF\x02", False),
        (b"#" * 5000 + b"swift.cli", False),
    ],
)
def test_a_scripts_head_tells_whose_it_is(tmp_path, head, names):
    (tmp_path / "swift").write_bytes(head)
    assert script_names_swift("/", str(tmp_path), b"./swift") is names
    assert script_names_swift("/", "/", bytes(tmp_path / "swift")) is names
    assert script_names_swift(str(tmp_path), "/", b"/swift") is names, "as seen inside a root"


def test_absolute_links_are_followed_inside_the_root_of_the_process(tmp_path):
    (tmp_path / "real").write_bytes(b"swift.cli")
    (tmp_path / "swift").symlink_to("/real")
    (tmp_path / "loop").symlink_to("/loop")
    assert script_names_swift(str(tmp_path), "/", b"/swift") is True
    assert script_names_swift(str(tmp_path), "/", b"/loop") is None


def test_what_is_no_regular_file_is_never_opened(tmp_path):
    os.mkfifo(tmp_path / "swift")  # opening it for reading would wait for a writer
    assert script_names_swift("/", str(tmp_path), b"./swift") is None
    assert script_names_swift("/", "/", b"/dev/tty") is None
    assert script_names_swift("/", "/", bytes(tmp_path)) is None
    assert script_names_swift("/", "/", b"/no/such/swift") is None
    assert script_names_swift("/", "/", b"/nul\0byte/swift") is None
    assert script_names_swift("/", "/", b"swift") is None, "a bare name says no place"


def test_the_script_is_looked_for_among_the_first_arguments_only():
    assert swift_script(["python3", "-u", "/x/bin/swift", "sft"]) == "/x/bin/swift"
    assert swift_script(["python3", *["-u"] * 100, "/x/bin/swift"]) is None
    assert swift_script([]) is None


def test_answers_come_in_order_and_from_the_loop_only(driver):
    driver.ask(1, 2, 3)
    assert driver.answers == []
    driver.until(lambda: len(driver.answers) == 3)
    assert driver.got() == [(1, True), (2, True), (3, True)]
    assert driver.client.idle


def test_more_than_a_batch_is_read_whole(driver):
    driver.ask(*range(1000, 1500))
    driver.until(lambda: len(driver.answers) == 500)
    assert [answer.pid for answer in driver.answers] == list(range(1000, 1500))


def test_a_read_that_hangs_costs_its_child_and_nobody_elses_answer(driver):
    driver.ask(1, 666, 2, 3)
    driver.until(lambda: len(driver.answers) == 1)
    driver.pass_time(1.0)
    assert len(driver.answers) == 1, "there is time left"
    driver.pass_time(1.5)
    assert driver.got() == [(1, True), (666, False)]
    assert "2 s" in driver.answers[1].reason
    driver.until(lambda: len(driver.answers) == 4)
    assert driver.got()[2:] == [(2, True), (3, True)]
    assert (driver.client.stuck, driver.client.timeouts) == (1, 1)


def test_a_child_that_is_short_of_cpu_is_slow_and_not_stuck(driver):
    driver.ask(777)
    until(lambda: driver.client._child.busy_s() > 1.0, "a second of running, or waiting to run")
    driver.pass_time(2.5)
    assert (driver.got(), driver.client.timeouts) == ([], 0)
    driver.pass_time(STARVED_DEADLINE_S)
    assert driver.got() == [(777, False)]


def test_the_stuck_child_ends_by_itself_when_its_read_returns(driver):
    driver.ask(666)
    driver.pass_time(2.5)
    assert driver.client.stuck == 1
    driver.release.touch()
    until(lambda: driver.client.tick() or driver.client.stuck == 0, "its end")


def hang_once(driver):
    driver.ask(666)
    driver.pass_time(2.5)


def test_a_process_that_hung_is_asked_again_only_after_growing_pauses(driver):
    hang_once(driver)
    driver.ask(666, 5)
    driver.until(lambda: (5, True) in driver.got())
    driver.pass_time(1.0)
    assert driver.got().count((666, False)) == 2
    assert driver.client.timeouts == 1, "the second was refused without asking"
    driver.clock.now += FIRST_PAUSE_S
    hang_once(driver)
    assert driver.client.timeouts == 2
    driver.clock.now += FIRST_PAUSE_S
    hang_once(driver)
    assert driver.client.timeouts == 2, "the pause has doubled"


def test_a_new_process_with_the_pid_of_one_that_hung_is_read_at_once(driver):
    hang_once(driver)
    driver.release.touch()
    driver.client.forget(666)
    driver.ask(666)
    driver.until(lambda: driver.got()[-1] == (666, True))


def test_with_too_many_readers_stuck_reads_are_refused_and_told_and_come_back(driver):
    for _ in range(MAX_STUCK):
        hang_once(driver)
        driver.client.forget(666)
    assert driver.client.stuck == MAX_STUCK
    driver.ask(7)
    driver.pass_time(0.1)
    assert driver.got()[-1] == (7, False)
    assert "666" in driver.client.trouble
    driver.release.touch()
    until(lambda: driver.client.tick() or driver.client.stuck == 0, "their end")
    driver.ask(8)
    driver.until(lambda: driver.got()[-1] == (8, True))
    assert driver.client.trouble == ""


@pytest.mark.parametrize("poison", [13, 99])
def test_a_child_that_ends_or_talks_nonsense_is_replaced(driver, poison):
    driver.ask(1, poison, 2)
    driver.until(lambda: len(driver.answers) == 3)
    assert driver.got() == [(1, True), (poison, False), (2, True)]


def test_a_reader_that_cannot_be_started_is_told_and_nothing_waits(tmp_path):
    client = ReaderClient(KEYS, [str(tmp_path / "missing")])
    answers = []
    client.read([1, 2], answers.append)
    client.tick()
    assert [answer.available for answer in answers] == [False, False]
    assert "could not be started" in client.trouble
    client.close()


def test_a_frame_beyond_all_bounds_ends_the_child(tmp_path):
    stub = tmp_path / "stub.py"
    stub.write_text("import os, time; os.write(0, b'\\xff' * 8); time.sleep(60)")
    client = ReaderClient(KEYS, [PYTHON, "-I", "-S", str(stub)])
    assert read_one(client, 1).available is False
    client.close()


def test_the_child_ends_when_the_daemon_does():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from swift_governor.sense.reader_client import ReaderClient\n"
        "import os, json\n"
        "c = ReaderClient(['RANK']); c.read([os.getpid()], print)\n"
        "print(json.dumps(c._child._process.pid)); sys.stdout.flush(); os._exit(0)"
    )
    daemon = str(Path(__file__).parents[3] / "daemon")
    ended = subprocess.run([PYTHON, "-c", code, daemon], capture_output=True, text=True, check=True)
    child = json.loads(ended.stdout)
    until(lambda: (s := read_stat("/proc", child)) is None or s.state == "Z", "the child's end")
