# SPDX-License-Identifier: Apache-2.0
"""All GPUs of the node, round by round: NVML's life cycle, quarantine and back-off."""

from __future__ import annotations

from types import ModuleType

from .board import Board, BoardFaultError
from .errors import MustRestartError, Reaction, Status, rule_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_GPU_LIMIT = 64
_PROCESSES_IN_ALL = 2048  # keeps a message far below the link's 256 KiB
_DETAIL_LIMIT = 1000
_BACK_OFF_S = (1.0, 30.0)
_DEVICES = "/proc/devices"


class Reader:
    """Reads through ``nvml`` (the module pynvml). round() may block in the driver, only there."""

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml
        self._boards: list[Board] | None = None  # None: NVML isn't initialised
        self._driver = ""
        self._back_off_s = _BACK_OFF_S[0]
        self._next_try = 0.0
        self._waiting: tuple[str, str] = (Status.FAILING, "starting")
        self._broke_nvml: set[str] = set()  # GPUs (by UUID) for which NVML was started anew
        self._device_names = nvidia_devices()

    def round(self, now: float) -> dict[str, Any]:
        """One Sample (the parameters of the link's method). Raises MustRestartError."""
        if self._boards is None and now >= self._next_try:
            self._start(now)
        if self._boards is None:
            status, detail = self._waiting
            return self._sample(now, status, detail, [])
        if self._count() > len(self._boards):
            self._stop_and_wait(now, Status.FAILING, "more GPUs than before: looking again")
            return self._sample(now, *self._waiting, [])
        return self._read_all(now, self._boards)

    def close(self) -> None:
        """nvmlShutdown: a GPU has been seen to freeze after its reader died (dcgm-exporter#84)."""
        if self._boards is None:
            return
        self._boards = None
        self._ask(self._nvml.nvmlShutdown)  # what has failed can't be shut down any better

    # ------------------------------------------------------------------------------- life cycle

    def _start(self, now: float) -> None:
        if not nvidia_devices() <= self._device_names:
            # systemd looked up the numbers of DeviceAllow=char-nvidia* before the driver came.
            raise MustRestartError("the NVIDIA driver was loaded after this program was started")
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            rule = rule_for(error.value)
            if rule.reaction is Reaction.RESTART:
                raise MustRestartError(rule.text) from error
            self._wait(now, rule.at_init, f"{rule.text} (NVML error {error.value}, init)")
            return
        self._boards = []
        self._driver = str(self._ask(self._nvml.nvmlSystemGetDriverVersion) or "")[:80]
        count = min(self._count(), _GPU_LIMIT)
        if count == 0:
            # Without GPUs nothing is held open: the driver can be unloaded.
            self._stop_and_wait(now, Status.NO_GPU, "the driver is loaded and has no GPU")
            return
        self._boards = [Board(self._nvml, index) for index in range(count)]

    def _stop_and_wait(self, now: float, status: str, detail: str) -> None:
        self.close()
        self._wait(now, status, detail)

    def _wait(self, now: float, status: str, detail: str) -> None:
        self._waiting = (status, detail)
        self._next_try = now + self._back_off_s
        self._back_off_s = min(self._back_off_s * 2, _BACK_OFF_S[1])

    def _count(self) -> int:
        count = self._ask(self._nvml.nvmlDeviceGetCount)
        return count if isinstance(count, int) else 0

    def _ask(self, call: Callable[[], object]) -> object:
        """What ``call`` returns, or None: the readings that follow meet an error, and react."""
        try:
            return call()
        except (self._nvml.NVMLError, ValueError):
            return None

    # ---------------------------------------------------------------------------------- reading

    def _read_all(self, now: float, boards: list[Board]) -> dict[str, Any]:
        gpus: dict[str, dict[str, Any]] = {}
        troubles: list[str] = []
        process_limit = _PROCESSES_IN_ALL // len(boards)
        for board in boards:
            try:
                sample = board.read(now, process_limit)
            except BoardFaultError as error:
                if error.rule.reaction is Reaction.RESTART:
                    raise MustRestartError(error.rule.text) from error
                if self._needs_new_start(board, error):
                    self._broke_nvml.add(board.uuid)
                    detail = f"GPU {board.index}: {error}"
                    self._stop_and_wait(now, error.rule.at_init, detail)
                    return self._sample(now, *self._waiting, [])
                board.quarantine(error, now)
                sample = board.silent(now)
            if sample["uuid"] in gpus:
                troubles.append(f"GPU {board.index} has the UUID of another: left out")
                continue
            gpus[sample["uuid"]] = sample
            if board.fault:
                troubles.append(f"GPU {board.index}: {board.trouble}")
            else:
                self._broke_nvml.discard(board.uuid)
            troubles += (f"GPU {board.index}: {what}: {why}" for what, why in board.off.items())
        return self._finish(now, boards, list(gpus.values()), troubles)

    def _needs_new_start(self, board: Board, error: BoardFaultError) -> bool:
        """A new start of NVML helps once. The GPU that breaks it again is the one at fault."""
        return (
            error.rule.reaction is Reaction.REINIT
            and not board.fault
            and board.uuid not in self._broke_nvml
        )

    def _finish(
        self, now: float, boards: list[Board], gpus: list[dict[str, Any]], troubles: list[str]
    ) -> dict[str, Any]:
        detail = "; ".join(troubles)
        if not all(board.fault for board in boards):
            self._back_off_s = _BACK_OFF_S[0]
            return self._sample(now, Status.OK, detail, gpus)
        if any(board.fault == "failing" for board in boards):
            # Not one GPU answers: it is NVML or the driver after all.
            self._broke_nvml.clear()
            self._stop_and_wait(now, Status.FAILING, detail)
        return self._sample(now, Status.FAILING, detail, gpus)

    def _sample(
        self, now: float, status: str, detail: str, gpus: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "status": status,
            "detail": detail[:_DETAIL_LIMIT],
            "at": now,
            "driver": self._driver,
            "gpus": gpus,
        }


def nvidia_devices() -> set[str]:
    """The NVIDIA driver's character devices that the kernel knows, proc_devices(5)."""
    try:
        with open(_DEVICES) as devices:
            words = devices.read().split()
    except OSError:
        return set()
    return {word for word in words if word.startswith("nvidia")}
