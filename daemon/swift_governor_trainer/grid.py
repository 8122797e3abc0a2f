# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401 - torch and transformers are Any here, since they are imported lazily.
"""Another micro-batch in a running trainer, with every optimizer step left as it was.

Hugging Face's trainer keeps its own grid for all book-keeping: B0 rows a batch, A0 batches a step,
hence its steps, epochs, schedule, saving and resuming. Only the rows of one optimizer step are cut
anew, into micro-batches of the running size:

- the loader's collate function is an identity, so raw rows come through (in an opaque object:
  ms-swift and accelerate walk every list and dict that they meet);
- ``get_batch_samples`` joins the step's rows, cuts and collates them, lets the trainer's own method
  count what it counts, and returns A0 - 1 placeholders and one object that holds the whole step;
- ``training_step`` answers a placeholder with zero and runs the whole step for that object.

Changing the trainer's own batch size and accumulation instead loses rows and optimizer steps: it
keeps them as locals for a whole epoch, and batches are on their way through the loader's workers.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

from . import memory
from .link import Mailbox
from .report import Meter
from .wire import Wish


class RawRows:
    """A loader's batch as the dataset gave it. Neither a list nor a dict, on purpose."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows


def keep_rows(rows: list[Any]) -> RawRows:
    """The loader's collate function; at module level, since a spawned worker unpickles it."""
    return RawRows(rows)


class Placeholder(dict[str, Any]):
    """A batch of the trainer's grid whose rows run with the step's last one."""


class WholeStep(dict[str, Any]):
    """All rows of one optimizer step. As a dict it shows what the trainer counts tokens by."""

    chunks: list[memory.Chunk]


def near_equal(rows: int, micro_batch: int) -> list[int]:
    """Sizes of the fewest micro-batches of at most ``micro_batch`` rows; they differ by one."""
    count = math.ceil(rows / micro_batch)
    least, larger = divmod(rows, count)
    return [least + 1] * larger + [least] * (count - larger)


def collects_steps(trainer: Any) -> bool:
    """Whether ``get_batch_samples`` is the one that fetches a step's batches (transformers 4.46).

    Older trl trainers have a method of that name which generates text: (model, batch).
    """
    method = getattr(trainer, "get_batch_samples", None)
    if method is None:
        return False
    return next(iter(inspect.signature(method).parameters), "") in ("epoch_iterator", "args")


class Grid:
    """The cutting for one trainer. ``install()`` before its training loader is made.

    ``cannot`` is the reason why this trainer's micro-batch can't be changed; then nothing is
    wrapped but what measures, and every wish is refused with it.
    """

    def __init__(
        self,
        trainer: Any,
        mailbox: Mailbox,
        meter: Meter,
        say: Callable[[str], None],
        cannot: Optional[str] = None,
    ) -> None:
        self._trainer = trainer
        self._mailbox = mailbox
        self._meter = meter
        self._say = say
        self._cannot = cannot
        self._base = int(trainer.args.per_device_train_batch_size)
        self._running = self._base
        self._rows_per_step = self._base * int(trainer.args.gradient_accumulation_steps)
        self._own_collect: Any = trainer.get_batch_samples if collects_steps(trainer) else None
        self._own_step: Any = trainer.training_step

    def install(self) -> None:
        """Wraps this one trainer's methods; its class is left alone."""
        trainer = self._trainer
        if self._own_collect is not None:
            trainer.get_batch_samples = self._collect
        trainer.training_step = self._training_step
        if self._cannot is not None:
            return
        own_loader = trainer.get_train_dataloader

        def raw_loader(*args: Any, **kwargs: Any) -> Any:
            collator, trainer.data_collator = trainer.data_collator, keep_rows
            try:
                return own_loader(*args, **kwargs)
            finally:
                trainer.data_collator = collator

        trainer.get_train_dataloader = raw_loader

    # -------------------------------------------------------------------------- the rows of a step

    def _collect(self, batches: Iterator[Any], count: int, *rest: Any) -> tuple[list[Any], Any]:
        """Stands in for Trainer.get_batch_samples(epoch_iterator, num_batches[, device])."""
        began = time.monotonic()
        taken: list[Any] = []
        for _ in range(count):
            try:
                taken.append(next(batches))
            except StopIteration:
                break
        waited = time.monotonic() - began
        self._obey()
        if not taken or not all(isinstance(batch, RawRows) for batch in taken):
            # Not from our loader: nothing to cut, the trainer goes on as it would.
            self._meter.fetched(began, waited, self._base * len(taken))
            collected: tuple[list[Any], Any] = self._own_collect(iter(taken), len(taken), *rest)
            return collected
        self._meter.fetched(began, waited, sum(len(batch.rows) for batch in taken))
        chunks = [
            memory.Chunk(rows, share, self._collate(rows)) for rows, share in self._cut(taken)
        ]
        inputs, items = self._own_collect(iter([c.inputs for c in chunks]), len(chunks), *rest)
        for chunk, counted in zip(chunks, inputs):
            chunk.inputs = counted
        return self._as_grid(chunks, len(taken)), items

    def _cut(self, taken: Sequence[RawRows]) -> list[tuple[list[Any], float]]:
        """The micro-batches of a step, each with its share of a loss that is a mean over rows.

        With its own size the trainer's own cut is kept: an ungoverned run and one without a wish
        are the same to the last bit. A short batch that ends an epoch isn't joined with others
        either: in a mean of means its rows weigh more, and shall go on to.
        """
        unequal = len({len(batch.rows) for batch in taken}) > 1
        if unequal or self._running == self._base:
            groups = [batch.rows for batch in taken]
        else:
            groups = [[row for batch in taken for row in batch.rows]]
        cut = []
        for rows in groups:
            start = 0
            for size in near_equal(len(rows), self._running):
                cut.append((rows[start : start + size], size / len(rows) / len(groups)))
                start += size
        return cut

    def _collate(self, rows: Sequence[Any]) -> Any:
        # Collators pop keys from the rows, and after an out-of-memory error they are needed again.
        copies = [[dict(r) for r in row] if isinstance(row, list) else dict(row) for row in rows]
        return self._trainer.data_collator(copies)

    def _as_grid(self, chunks: list[memory.Chunk], batches: int) -> list[dict[str, Any]]:
        import torch

        # The trainer counts tokens and operations by this tensor's size; meta needs no memory.
        name = getattr(self._trainer.model, "main_input_name", "input_ids")
        tokens = sum(c.inputs[name].numel() for c in chunks if name in c.inputs)
        whole = WholeStep({name: torch.empty(tokens, device="meta")})
        whole.chunks = chunks
        empty = {name: torch.empty(0, device="meta")}
        return [*(Placeholder(empty) for _ in range(batches - 1)), whole]

    # ---------------------------------------------------------------------------------- the wishes

    def _obey(self) -> None:
        """Takes an unanswered wish; called between optimizer steps, by the training thread."""
        wish = self._mailbox.unanswered()
        if wish is None or wish.micro_batch is None:
            return
        refusal = self._refusal(wish.micro_batch)
        if refusal is not None:
            self._mailbox.answer(wish, self._running, refusal)
            self._say(f"micro-batch {wish.micro_batch} refused: {refusal}")
            return
        self._apply(wish, wish.micro_batch)

    def _refusal(self, micro_batch: int) -> Optional[str]:
        if self._cannot is not None:
            return self._cannot
        if micro_batch < 1:
            return "a micro-batch has at least one row"
        if micro_batch > self._rows_per_step:
            return f"an optimizer step has {self._rows_per_step} rows"
        return None

    def _apply(self, wish: Wish, micro_batch: int) -> None:
        before, self._running = self._running, micro_batch
        self._mailbox.answer(wish, micro_batch)
        if before != micro_batch:
            self._say(
                f"micro-batch {before} -> {micro_batch} at optimizer step "
                f"{self._trainer.state.global_step} (accumulation {self._accumulation(before)} -> "
                f"{self._accumulation(micro_batch)}; {self._rows_per_step} rows a step kept)"
            )

    def _accumulation(self, micro_batch: int) -> int:
        return math.ceil(self._rows_per_step / micro_batch)

    # ------------------------------------------------------------------------------- the computing

    def _training_step(self, model: Any, inputs: Any, *rest: Any, **kwargs: Any) -> Any:
        """Stands in for Trainer.training_step(model, inputs, num_items_in_batch)."""
        if isinstance(inputs, Placeholder):
            import torch

            return torch.zeros((), device=self._trainer.args.device)
        with self._fatal_one_counted():
            if not isinstance(inputs, WholeStep):
                return self._own_step(model, inputs, *rest, **kwargs)
            return memory.run_step(
                self._trainer,
                model,
                inputs.chunks,
                step=lambda batch: self._own_step(model, batch, *rest, **kwargs),
                collate=self._collate,
                smaller=self._smaller,
            )

    @contextlib.contextmanager
    def _fatal_one_counted(self) -> Iterator[None]:
        """The out-of-memory error that ends the run is the one the governor should know of."""
        import torch

        try:
            yield
        except torch.cuda.OutOfMemoryError:
            self._meter.out_of_memory(self._running)
            self._mailbox.runs(self._running)
            raise

    def _smaller(self, failed: int, phase: str, micro_batch: int) -> None:
        """Out of memory: from now on with ``micro_batch`` rows, until another wish."""
        self._meter.out_of_memory(failed)
        self._running = min(self._running, micro_batch)
        self._mailbox.runs(self._running)
        self._say(
            f"out of memory in the {phase} pass with micro-batch {failed} at optimizer step "
            f"{self._trainer.state.global_step}: going on with {self._running}"
        )
