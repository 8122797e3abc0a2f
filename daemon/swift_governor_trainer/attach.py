# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401 - torch and transformers are Any here, since they are imported lazily.
"""Finds ms-swift's trainer from within its process, and says what can't be done with which trainer.

ms-swift imports the plugin file before it makes the trainer, so wrapping ``Trainer.__init__`` is
enough, in 3.x and 4.x and without a callback's name on the command line.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, Callable, Optional

from . import report
from .grid import Grid, collects_steps
from .link import Link, Mailbox, socket_path
from .report import Meter

MICRO_BATCH = "micro_batch"


def say(line: str) -> None:
    """One line to ms-swift's own log, which is where the person who trains looks."""
    logging.getLogger("swift").info("[swift-governor] %s", line)


def install() -> None:
    """Wraps transformers' ``Trainer.__init__``, once. $SWIFT_GOVERNOR_DISABLE=1 switches it off."""
    if os.environ.get("SWIFT_GOVERNOR_DISABLE") == "1":
        return
    if any("megatron" in word for word in sys.argv[:1]):
        say("a Megatron run is contained but not linked: it has no transformers Trainer")
        return
    from transformers import Trainer

    if hasattr(Trainer.__init__, "swift_governor"):
        return
    own_init = Trainer.__init__

    # wraps: ms-swift reads the parameters of Trainer.__init__ by inspect.signature.
    @functools.wraps(own_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        own_init(self, *args, **kwargs)
        if any(cls.__module__.partition(".")[0] == "swift" for cls in type(self).__mro__):
            _guarded(attach)(self)

    init.swift_governor = True  # type: ignore[attr-defined]
    Trainer.__init__ = init


def _guarded(action: Callable[..., None]) -> Callable[..., None]:
    """A fault of ours is said and ends our part; it never ends the training."""

    @functools.wraps(action)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            action(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            say(f"this run stays ungoverned: {type(error).__name__}: {error}")

    return guarded


def attach(trainer: Any) -> None:
    """Waits for the trainer to be complete (its subclasses' __init__ still run), then hooks in.

    The training loader is made before any callback is called, so its making is the moment.
    """
    own_loader = trainer.get_train_dataloader

    @functools.wraps(own_loader)
    def first_loader(*args: Any, **kwargs: Any) -> Any:
        trainer.get_train_dataloader = own_loader
        _guarded(_hook_in)(trainer)
        return trainer.get_train_dataloader(*args, **kwargs)

    trainer.get_train_dataloader = first_loader


def _hook_in(trainer: Any) -> None:
    cannot = cannot_change(trainer)
    base = int(trainer.args.per_device_train_batch_size)
    meter, mailbox = Meter(), Mailbox(base)
    Grid(trainer, mailbox, meter, say, cannot).install()
    registration = functools.partial(_registration, trainer, base, mailbox, cannot)
    trainer.add_callback(
        _callback(lambda: Link(socket_path(), registration, mailbox, meter, say), meter)
    )
    if cannot is not None:
        say(f"the micro-batch of this run can't be changed: {cannot}")


def _registration(
    trainer: Any, base: int, mailbox: Mailbox, cannot: Optional[str]
) -> Mapping[str, Any]:
    args = trainer.args
    accumulation = int(args.gradient_accumulation_steps)
    length = getattr(getattr(trainer, "template", None), "max_length", None)
    return {
        "rank": int(getattr(args, "process_index", 0)),
        "local_rank": int(getattr(args, "local_process_index", 0)),
        "world_size": int(getattr(args, "world_size", 1)),
        "local_world_size": _local_world_size(),
        "micro_batch": base,
        "accumulation": accumulation,
        "rows_per_step": base * accumulation,
        "framework": f"ms-swift {_version('swift')}, {type(trainer).__name__}",
        "cannot": {} if cannot is None else {MICRO_BATCH: cannot},
        "max_length": length if isinstance(length, int) else None,
    }


def _local_world_size() -> int:
    word = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(word) if word.isascii() and word.isdigit() and len(word) < 6 else 1


def _version(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__version__", "unknown"))


def _callback(new_link: Callable[[], Link], meter: Meter) -> Any:
    from transformers import TrainerCallback

    class Governed(TrainerCallback):  # type: ignore[misc]
        """Tells the meter where the training is. Callbacks end before the trainer evaluates and
        saves; its own default callback has set the flags for both by the time this one is asked.
        """

        link: Optional[Link] = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            _guarded(self.begin)()

        def begin(self) -> None:
            """A trainer may begin again: train() a second time, or with --auto_find_batch_size."""
            if self.link is None or not self.link.goes_on:
                self.link = new_link()
                self.link.start()

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            meter.began_without_rows()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            following = report.TRAIN
            if control.should_save:
                following = report.SAVE
            if control.should_evaluate:
                following = report.EVALUATE
            meter.finished_step(state.global_step, following)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            meter.phase(report.END)
            if self.link is not None:
                self.link.finish()

    return Governed()


# ------------------------------------------------------------------------- what can't be cut anew

# Trainers whose loss stays what it was when a step's rows are cut otherwise, and what the loss is a
# mean over. All others are refused: those in WRONG can't be, the rest is not proven.
CUTTABLE = {"Seq2SeqTrainer": "tokens", "Trainer": "rows"}

WRONG = {
    "GRPOTrainer": "GRPO buffers generated rows by its own grid",
    "GKDTrainer": "GKD buffers generated rows by its own grid",
    "PPOTrainer": "PPO buffers generated rows by its own grid",
    "EmbeddingTrainer": "an embedding loss compares the rows of one micro-batch",
    "RerankerTrainer": "a reranker loss compares the rows of one micro-batch",
}


def cannot_change(trainer: Any) -> Optional[str]:
    """Why another micro-batch would change this training; None where it would not."""
    for applies, reason in _REASONS:
        if applies(trainer):
            return reason
    return _kind_refusal(trainer)


def _kind_refusal(trainer: Any) -> Optional[str]:
    name = type(trainer).__name__
    if name in WRONG:
        return WRONG[name]
    if name not in CUTTABLE or not type(trainer).__module__.startswith("swift."):
        return f"{name} is not proven with another micro-batch"
    if CUTTABLE[name] == "tokens" and not getattr(trainer, "model_accepts_loss_kwargs", False):
        return "this model's loss is a mean over each micro-batch's own tokens"
    return None


def _set(name: str) -> Callable[[Any], bool]:
    return lambda trainer: bool(getattr(trainer.args, name, None))


def _template(name: str) -> Callable[[Any], Any]:
    return lambda trainer: getattr(getattr(trainer, "template", None), name, None)


_Applies = Callable[[Any], bool]
_REASONS: tuple[tuple[_Applies, str], ...] = (
    (lambda t: t.args.world_size > 1, "ranks must agree, which is not built yet"),
    (lambda t: t.args.n_gpu > 1, "DataParallel spreads one micro-batch over several GPUs"),
    (_set("deepspeed"), "DeepSpeed counts micro-batches itself"),
    (
        lambda t: bool(getattr(t, "is_fsdp_enabled", False)),
        "FSDP needs all ranks in step, which is not built yet",
    ),
    (
        lambda t: not collects_steps(t),
        "this transformers has no get_batch_samples (it came with 4.46)",
    ),
    (lambda t: (_template("sequence_parallel_size")(t) or 1) > 1, "sequence parallel: not proven"),
    (
        lambda t: bool(getattr(getattr(t, "model_meta", None), "is_multimodal", False)),
        "collating images would move to the rank's own thread",
    ),
    (lambda t: not hasattr(t.train_dataset, "__len__"), "a streamed dataset: not proven"),
    (_set("auto_find_batch_size"), "the trainer looks for its own batch size"),
    (
        lambda t: str(getattr(t.args, "optim", "")).lower().endswith(("lomo", "layerwise")),
        "this optimizer steps within the backward pass",
    ),
    (
        lambda t: (
            getattr(t.args, "include_num_input_tokens_seen", "no") not in ("no", "all", False)
        ),
        "include_num_input_tokens_seen counts padding by micro-batch",
    ),
    (
        lambda t: getattr(t, "compute_loss_func", None) is not None,
        "a loss function of its own (--loss_type) may depend on the micro-batch",
    ),
    (
        lambda t: getattr(t, "label_smoother", None) is not None,
        "label smoothing takes a mean over each micro-batch's own tokens",
    ),
    (
        lambda t: (
            bool(getattr(getattr(t, "model_info", None), "is_moe_model", False))
            and bool(getattr(t.args, "router_aux_loss_coef", 0))
        ),
        "the router's auxiliary loss depends on the micro-batch",
    ),
)
