# SPDX-License-Identifier: Apache-2.0
"""The harness itself: it finds out what boots, leaves nothing behind, and says what it lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.node.vm import CommandError, ExtraDisk, Vm, VmError, accelerator, host, make_disk_image
from tests.node.vm.accelerator import KVM, TCG, Accelerator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of remembered answers, empty for this test."""
    monkeypatch.setattr(accelerator, "MEMORY", tmp_path / "accelerator.json")
    return tmp_path / "accelerator.json"


def test_an_accelerator_whose_guest_stays_silent_is_passed_over_and_the_next_is_remembered(
    vm: Vm,
    memory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One boot for all that only a second VM can show."""
    caplog.set_level("INFO")
    silent = Accelerator("silent", TCG.qemu, kernel_speaks_within_s=0, ssh_within_s=600)
    monkeypatch.setattr(accelerator, "candidates", lambda: [silent, TCG])
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_text("from the host\n")
    disk = ExtraDisk(make_disk_image(tree, tmp_path / "extra.img"), "/mnt/extra")
    vm.sh("echo dirt >/root/dirt; sync")

    with Vm.boot(vm.suite, disks=[disk]) as second:
        assert second.accelerator == "tcg"
        assert second.run(["cat", "/mnt/extra/deep/file"]).stdout == "from the host\n"
        with pytest.raises(CommandError, match="Read-only file system"):
            second.run(["touch", "/mnt/extra/new"])
        assert second.run(["test", "-e", "/root/dirt"], check=False).rc == 1

    assert "silent does not boot a guest here" in caplog.text
    assert "the guest's kernel printed nothing in 0 s" in caplog.text
    assert '"accelerator": "tcg"' in memory.read_text()
    vm.run(["rm", "/root/dirt"])


def test_kvm_is_tried_where_its_device_opens_until_a_boot_has_shown_what_works(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "DEVICE", "/dev/null")
    assert accelerator.candidates() == [KVM, TCG]
    accelerator.remember(TCG)
    assert accelerator.candidates() == [TCG]
    accelerator.remember(KVM)
    assert accelerator.candidates() == [KVM]
    memory.write_text("not what was written")
    assert accelerator.candidates() == [KVM, TCG]


def test_without_a_kvm_device_only_emulation_is_tried(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator.remember(KVM)
    monkeypatch.setattr(accelerator, "DEVICE", "/dev/no-such-device")
    assert accelerator.candidates() == [TCG]


def test_a_child_of_the_harness_ends_even_if_the_harness_is_killed() -> None:
    start = "\n".join(
        (
            "import subprocess, time",
            "from tests.node.vm.host import ends_with_us",
            "print(subprocess.Popen(ends_with_us(['sleep', '1000'])).pid, flush=True)",
            "time.sleep(1000)",
        )
    )
    harness = subprocess.Popen([sys.executable, "-c", start], cwd=ROOT, stdout=subprocess.PIPE)
    assert harness.stdout is not None
    child = int(harness.stdout.readline())
    until = time.monotonic() + 60
    while Path(f"/proc/{child}/comm").read_text() != "sleep\n" and time.monotonic() < until:
        time.sleep(0.05)  # still python or setpriv, on its way to exec
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    harness.stdout.close()
    while _runs(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(child)


def test_missing_tools_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "SEARCH_PATH", "/nowhere")
    with pytest.raises(VmError, match=r"apt-get install .*mmdebstrap.* qemu-system-x86"):
        host.tools()


def test_a_failed_step_on_the_host_tells_its_output_and_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(VmError, match=r"making soup: exit status 3") as caught:
        host.run("making soup", ["sh", "-c", "echo no pot; exit 3"], 60, log)
    assert "no pot" in str(caught.value)
    assert str(log) in str(caught.value)


def test_a_disk_image_is_made_again_only_when_its_tree_has_changed(tmp_path: Path) -> None:
    tree, image = tmp_path / "tree", tmp_path / "disk.img"
    tree.mkdir()
    (tree / "a").write_text("a")
    first = make_disk_image(tree, image).stat().st_ino
    assert make_disk_image(tree, image).stat().st_ino == first
    (tree / "a").write_text("b")
    os.utime(tree / "a", (1, 1))  # as an unpacked archive's file: only the change time is new
    assert make_disk_image(tree, image).stat().st_ino != first


def _runs(pid: int) -> bool:
    """Whether the process is there and is no zombie (nobody may reap it where we are)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
