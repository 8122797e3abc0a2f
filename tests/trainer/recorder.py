# SPDX-License-Identifier: Apache-2.0
"""An ms-swift plugin that writes down what a run really did, knowing nothing of the governor.

--callbacks recorder. A hook on the model notes which rows each forward pass saw (each row's text
begins with its number), the callback notes loss and learning rate of each optimizer step, and the
trained weights' sum of squares. All goes to $RECORD as JSON when training ends. $RECORD_PAUSE_S
makes each step last longer, so that a governor has the time to say something between two of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import torch
from swift.callbacks import callbacks_map
from swift.callbacks.base import TrainerCallback


def sockets_of(pid: int) -> list[str]:
    """The sockets that a process holds, as /proc names them."""
    found = []
    for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(OSError):  # listing opens a file that is gone by now
            found.append(os.readlink(entry))  # noqa: PTH115
    return [link for link in found if link.startswith("socket:")]


class Recorder(TrainerCallback):
    def __init__(self, args: Any, trainer: Any) -> None:
        super().__init__(args, trainer)
        self.passes: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.accumulations: set[float] = set()
        self.shared_sockets: list[str] = []
        self.workers = 0
        self.pause_s = float(os.environ.get("RECORD_PAUSE_S", "0"))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        decode = self.trainer.template.tokenizer.decode

        def saw(module: Any, positional: Any, named: dict[str, Any]) -> None:
            ids = named.get("input_ids", positional[0] if positional else None)
            if not torch.is_grad_enabled() or ids is None:
                return
            texts = [decode(row) for row in ids]
            rows = [int(number) for text in texts for number in re.findall(r"id(\d+) ", text)]
            self.passes.append({"step": state.global_step, "rows": rows})
            self.accumulations.add(self.trainer.current_gradient_accumulation_steps)

        # The transformer itself: peft calls the model around it past its hooks.
        model.get_base_model().model.register_forward_pre_hook(saw, with_kwargs=True)
        self.began = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.look_at_workers()
        time.sleep(self.pause_s)

    def look_at_workers(self) -> None:
        own = set(sockets_of(os.getpid()))
        for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == "pt_data_worker\n":
                self.workers += 1
                self.shared_sockets += sorted(own & set(sockets_of(int(child))))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            step = {"loss": float(logs["loss"]), "lr": float(logs["learning_rate"])}
            self.steps.append({"step": state.global_step, "epoch": state.epoch, **step})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        weights = [p.detach().double().square().sum().item() for p in model.parameters()]
        record = {
            "passes": self.passes,
            "steps": self.steps,
            "optimizer_steps": state.global_step,
            "accumulations": sorted(self.accumulations),
            "accumulation_after": args.gradient_accumulation_steps,
            "weights": sum(weights),
            "flos": state.total_flos,
            "seconds": time.monotonic() - self.began,
            "workers": self.workers,
            "shared_sockets": self.shared_sockets,
        }
        Path(os.environ["RECORD"]).write_text(json.dumps(record))


callbacks_map["recorder"] = Recorder
