# SPDX-License-Identifier: Apache-2.0
"""One ssh connection to the guest that all commands share (ControlMaster; ssh_config(5))."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.node.vm.failure import CommandError, Result, VmError
from tests.node.vm.host import ends_with_us, free_port, tools

CONNECT_TIMEOUT_S = 120


class Ssh:
    """A root login in the guest behind 127.0.0.1:`port`; each command is a channel of it."""

    def __init__(self, port: int, key: Path, directory: Path) -> None:
        self._tools = tools()
        # The guest's own host key is as fresh as the guest: there is nothing to compare it with.
        self._options = [
            *("-F", "none", "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
            *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
            *("-o", "LogLevel=ERROR", "-o", f"ControlPath={directory / 'ssh'}"),
        ]
        self._port = port
        log = directory / "ssh.log"
        with log.open("wb") as complaints:
            self._master = subprocess.Popen(
                ends_with_us(self._ssh("-M", "-N", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}")),
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
                start_new_session=True,
            )
        until = time.monotonic() + CONNECT_TIMEOUT_S
        while not (directory / "ssh").exists():
            if self._master.poll() is not None or time.monotonic() > until:
                said = log.read_text(errors="replace").strip()
                self.end()
                raise VmError(f"no ssh login to the guest within {CONNECT_TIMEOUT_S} s: {said}")
            time.sleep(0.1)

    def _ssh(self, *options: str) -> list[str]:
        login = ["-p", str(self._port), "root@127.0.0.1"]
        return [self._tools["ssh"], *self._options, *options, *login]

    def argv(self, argv: Sequence[str], *options: str) -> list[str]:
        """The local command that runs `argv` in the guest, each argument reaching it unchanged."""
        return [*self._ssh(*options), "--", shlex.join(argv)]

    def run(self, argv: Sequence[str], timeout_s: float, check: bool, stdin: str) -> Result:
        """Run `argv` in the guest. Raises CommandError if checked, VmError past the deadline."""
        step = f"`{shlex.join(argv)}` in the guest"
        result = self._local(step, self.argv(argv), timeout_s, stdin)
        if result.rc == 255 and self._master.poll() is not None:
            raise VmError(f"{step}: the ssh connection is gone: {result.stderr.strip()}")
        if check and result.rc != 0:
            raise CommandError(step, result)
        return result

    def popen(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        """Start `argv` in the guest: its outputs, joined, are the process's stdout, by line."""
        return subprocess.Popen(
            ends_with_us(self.argv(argv)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
            start_new_session=True,
        )

    def copy(self, source: str, target: str, timeout_s: float) -> None:
        """scp(1), recursively and with modes; the guest's side is written `guest:PATH`."""
        ends = [end.replace("guest:", "root@127.0.0.1:", 1) for end in (source, target)]
        command = [self._tools["scp"], "-rpq", "-P", str(self._port), *self._options, *ends]
        step = f"copying {source} to {target}"
        result = self._local(step, command, timeout_s, "")
        if result.rc != 0:
            raise CommandError(step, result)

    def forward(self, guest_port: int) -> int:
        """A port of this machine's 127.0.0.1 that leads to the guest's 127.0.0.1:`guest_port`."""
        port = free_port()
        pair = f"127.0.0.1:{port}:127.0.0.1:{guest_port}"
        step = f"forwarding port {port} to the guest's {guest_port}"
        result = self._local(step, self._ssh("-O", "forward", "-L", pair), 30, "")
        if result.rc != 0:
            raise CommandError(step, result)
        return port

    def end(self) -> None:
        """Drop the connection; what still runs over it ends with it."""
        self._master.kill()
        self._master.wait()

    @staticmethod
    def _local(step: str, command: list[str], timeout_s: float, stdin: str) -> Result:
        try:
            done = subprocess.run(
                command,
                input=stdin,  # never our own: ssh would eat what a person types ahead
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as late:
            so_far = (late.stdout or b"").decode(errors="replace")[-2000:]
            raise VmError(f"{step}: not done after {timeout_s:g} s; it said: {so_far}") from None
        return Result(done.returncode, done.stdout, done.stderr)
