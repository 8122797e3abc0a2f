# SPDX-License-Identifier: Apache-2.0
"""One GPU: what it can tell, what it tells now, and whether it is in quarantine."""

from __future__ import annotations

from types import ModuleType

from .errors import Reaction, Rule, rule_for
from .readings import WAYS, celsius, memory_bytes, process_list, ratio, watts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .readings import Way

_LARGER_ATTEMPTS = 3
# Many boards can't tell their power or have no MIG, and nobody needs to hear of it.
_MISSED_BY_THE_LOOP = ("utilization", "memory", "processes")
_RELOOK_S = 300.0  # what was off is tried again: MIG can be switched, a driver can be late
_RETRY_S = (5.0, 30.0)  # a quarantined GPU is looked at after the first, at most the second


class BoardFaultError(Exception):
    """An error that concerns more than one value of one GPU."""

    def __init__(self, rule: Rule, code: int, call: str) -> None:
        super().__init__(f"{rule.text} (NVML error {code}, {call})")
        self.rule = rule
        self.code = code


class Board:
    """A GPU as NVML's index ``index`` names it. Known by its UUID once attach() has succeeded."""

    def __init__(self, nvml: ModuleType, index: int) -> None:
        self.index = index
        self.uuid = f"unknown-{index}"
        self.name = ""
        self.fault = ""
        self.trouble = ""  # the fault in words, with what to do
        self.off: dict[str, str] = {}  # value that somebody may miss -> why it isn't read
        self._nvml = nvml
        self._handle: Any = None
        self._ways: dict[str, tuple[Way, ...]] = {}
        self._relook_at = 0.0
        self._retry_at = 0.0
        self._retry_s = _RETRY_S[0]

    def attach(self, now: float) -> None:
        """Gets handle, UUID and name. Raises BoardFaultError."""
        nvml = self._nvml
        handle = self._identify("handle", lambda: nvml.nvmlDeviceGetHandleByIndex(self.index))
        if not handle:  # a NULL handle is a segmentation fault in whatever call takes it
            raise BoardFaultError(rule_for(28), 0, "handle is NULL")
        uuid = self._identify("UUID", lambda: nvml.nvmlDeviceGetUUID(handle))
        name = self._identify("name", lambda: nvml.nvmlDeviceGetName(handle))
        self.uuid = _plain(uuid) or self.uuid
        self.name = _plain(name)
        self._handle = handle
        self._look_at_everything(now)

    def quarantine(self, error: BoardFaultError, now: float) -> None:
        """No call for this GPU until the back-off has passed."""
        self.fault = error.rule.fault or "failing"
        self.trouble = str(error)
        self._handle = None
        self.off = {}
        self._retry_at = now + self._retry_s
        self._retry_s = min(self._retry_s * 2, _RETRY_S[1])

    def read(self, now: float, process_limit: int) -> dict[str, Any]:
        """A sample with the fields of ``model.GpuSample``.

        Raises BoardFaultError where quarantine, or a new start of NVML or of the process, is due.
        """
        if self.fault and now < self._retry_at:
            return self.silent(now)
        if self._handle is None:
            self.attach(now)
        elif now >= self._relook_at:
            self._look_at_everything(now)
        sample = self._values(now, process_limit)
        self.fault = self.trouble = ""
        self._retry_s = _RETRY_S[0]
        return sample

    def silent(self, now: float) -> dict[str, Any]:
        """The sample of a GPU that tells nothing."""
        return {
            "uuid": self.uuid,
            "index": self.index,
            "name": self.name,
            "at": now,
            "utilization": None,
            "memory_used_bytes": None,
            "memory_total_bytes": None,
            "temperature_c": None,
            "power_w": None,
            "power_limit_w": None,
            "processes": [],
            "mig": False,
            "fault": self.fault,
        }

    def _look_at_everything(self, now: float) -> None:
        self._ways = dict(WAYS)
        self.off = {}
        self._relook_at = now + _RELOOK_S

    def _values(self, now: float, process_limit: int) -> dict[str, Any]:
        sample = self.silent(now)
        used, total = memory_bytes(self._value("memory"))
        sample.update(
            utilization=ratio(self._value("utilization")),
            memory_used_bytes=used,
            memory_total_bytes=total,
            temperature_c=celsius(self._value("temperature")),
            power_w=watts(self._value("power")),
            power_limit_w=watts(self._value("power_limit")),
            processes=process_list(self._value("processes"), total, process_limit),
            mig=self._value("mig") == 1,
            fault="",
        )
        if sample["mig"] and "utilization" in self.off:
            self.off["utilization"] = "NVML has none for a GPU in MIG mode"
        return sample

    def _value(self, what: str) -> object:
        """One raw value by the newest way that works here; None where there is none."""
        while self._ways[what]:
            try:
                return self._read_with_room(self._ways[what][0])
            except self._nvml.NVMLError as error:
                code = error.value
            except AttributeError:  # bindings older than the function
                code = 13
            except ValueError:  # a string that isn't UTF-8
                return None
            rule = rule_for(code)
            if rule.reaction in (Reaction.QUARANTINE, Reaction.REINIT, Reaction.RESTART):
                raise BoardFaultError(rule, code, what)
            if rule.reaction is Reaction.OFF:
                self._ways[what] = self._ways[what][1:]
            elif rule.reaction is Reaction.DENIED:
                self._ways[what] = ()
            else:
                return None
            if not self._ways[what] and (
                rule.reaction is Reaction.DENIED or what in _MISSED_BY_THE_LOOP
            ):
                self.off[what] = rule.text
        return None

    def _read_with_room(self, way: Way) -> object:
        """pynvml asks for the size and then for the list, which may have outgrown it: again."""
        for _ in range(_LARGER_ATTEMPTS):
            try:
                return way(self._nvml, self._handle)
            except self._nvml.NVMLError as error:
                if rule_for(error.value).reaction is not Reaction.LARGER:
                    raise
        return None

    def _identify(self, what: str, call: Callable[[], object]) -> object:
        """Without its identity a GPU can't be told from another: whatever fails is a fault."""
        try:
            return call()
        except self._nvml.NVMLError as error:
            raise BoardFaultError(rule_for(error.value), error.value, what) from error
        except ValueError:
            return ""


def _plain(text: object) -> str:
    """At most 96 printable characters of what the driver calls a name."""
    return "".join(c for c in str(text)[:96] if c.isprintable())
