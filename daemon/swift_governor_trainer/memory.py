# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401 - torch and transformers are Any here, since they are imported lazily.
"""Runs one optimizer step's micro-batches, and goes on with smaller ones when memory runs out.

In the forward pass nothing of the failed micro-batch is in the gradients yet: it is split. In the
backward pass a part is: all gradients of the step are dropped and the whole step is done again in
halves (doing only that micro-batch again counts a part of it twice). One row alone raises as ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

FORWARD, BACKWARD = "forward", "backward"


class Chunk:
    """One micro-batch: its rows, its share of a mean over the step's rows, its collated inputs."""

    __slots__ = ("inputs", "rows", "share")

    def __init__(self, rows: Sequence[Any], share: float, inputs: Any = None) -> None:
        self.rows = rows
        self.share = share
        self.inputs = inputs

    def halves(self) -> list[Chunk]:
        """The same rows in two, collated again when their turn comes."""
        middle = (len(self.rows) + 1) // 2
        parts = (self.rows[:middle], self.rows[middle:])
        return [Chunk(part, self.share * len(part) / len(self.rows)) for part in parts]


def run_step(
    trainer: Any,
    model: Any,
    chunks: list[Chunk],
    step: Callable[[Any], Any],
    collate: Callable[[Sequence[Any]], Any],
    smaller: Callable[[int, str, int], None],
) -> Any:
    """The sum of the micro-batches' losses, each one's backward pass done; a detached tensor.

    ``step`` runs one collated micro-batch forward and backward and returns its loss. ``smaller`` is
    told of each out-of-memory error: failed size, FORWARD or BACKWARD, size from now on. Whatever
    passes through, the trainer gets its own accumulation back.
    """
    import torch

    todo = list(chunks)
    total = torch.zeros((), device=trainer.args.device)
    with _restored(trainer):
        while todo:
            chunk = todo[0]
            inputs = collate(chunk.rows) if chunk.inputs is None else chunk.inputs
            chunk.inputs = None  # used up: the trainer changes it, and it holds memory
            with _micro_batch(trainer, model, chunk.share, last=len(todo) == 1) as progress:
                loss, failed_in = _attempt(step, inputs, progress, alone=len(chunk.rows) == 1)
            if failed_in is None:
                total += loss
                todo.pop(0)
                continue
            # Outside of the except block, whose traceback would hold the failed pass's memory.
            del inputs, loss
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            failed = len(chunk.rows)
            half = (failed + 1) // 2
            smaller(failed, failed_in, half)
            if failed_in == BACKWARD:
                model.zero_grad()
                total.zero_()
                todo = chunks
            todo = _at_most(half, todo)
    return total


def _at_most(most: int, chunks: Sequence[Chunk]) -> list[Chunk]:
    """The same rows, no micro-batch with more than ``most`` of them, to be collated again."""
    again = [Chunk(chunk.rows, chunk.share) for chunk in chunks]
    while any(len(chunk.rows) > most for chunk in again):
        again = [
            part
            for chunk in again
            for part in (chunk.halves() if len(chunk.rows) > most else [chunk])
        ]
    return again


def _attempt(
    step: Callable[[Any], Any], inputs: Any, progress: _Progress, alone: bool
) -> tuple[Any, Optional[str]]:
    import torch

    try:
        return step(inputs), None
    except torch.cuda.OutOfMemoryError:
        if alone:
            raise
        return None, BACKWARD if progress.backward_began else FORWARD


class _Progress:
    backward_began = False


@contextlib.contextmanager
def _restored(trainer: Any) -> Iterator[None]:
    accumulation = trainer.args.gradient_accumulation_steps
    current = getattr(trainer, "current_gradient_accumulation_steps", accumulation)
    try:
        yield
    finally:
        trainer.args.gradient_accumulation_steps = accumulation
        trainer.current_gradient_accumulation_steps = current
        trainer.accelerator.gradient_state._set_sync_gradients(True)


@contextlib.contextmanager
def _micro_batch(trainer: Any, model: Any, share: float, last: bool) -> Iterator[_Progress]:
    """Gives the trainer the accumulation of this micro-batch, and marks where backward begins.

    A loss that is a mean over rows is divided by the accumulation that the trainer shows. A
    micro-batch of three rows in eight has to count 3/8, so it is shown 8/3, and equal ones show
    their count. Losses over ``num_items_in_batch`` divide by tokens and don't read it.
    """
    steps = 1 / share
    if abs(steps - round(steps)) < 1e-9:
        steps = round(steps)
    trainer.args.gradient_accumulation_steps = steps
    trainer.current_gradient_accumulation_steps = steps

    accelerator, progress = trainer.accelerator, _Progress()
    accelerator.gradient_state._set_sync_gradients(last)
    own_backward = accelerator.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        progress.backward_began = True
        return own_backward(*args, **kwargs)

    accelerator.backward = backward
    try:
        with contextlib.nullcontext() if last else accelerator.no_sync(model):
            yield progress
    finally:
        del accelerator.backward
