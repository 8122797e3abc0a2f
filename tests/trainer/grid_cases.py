# SPDX-License-Identifier: Apache-2.0
"""Trains a tiny model in this one process, cut in many ways: grid_cases.py prints JSON, measured.

Run with the interpreter of the ms-swift environment (the tests' own has no torch). A plain
transformers Trainer, so that gradients and errors can be looked at without a launcher in between.
Every case is a run of 5 optimizer steps of 8 rows (the last one of 5) from equal weights.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "daemon"))

from swift_governor_trainer.grid import Grid  # noqa: E402
from swift_governor_trainer.link import Mailbox  # noqa: E402
from swift_governor_trainer.report import Meter  # noqa: E402
from swift_governor_trainer.wire import Wish  # noqa: E402

ROWS = 37
BASE = 4


class Scored(torch.nn.Module):
    """A loss that is a mean over rows, whatever is in them."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 8)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, input_ids: Any, labels: Any) -> Any:
        score = self.head(self.embedding(input_ids).mean(1)).squeeze(-1)
        return {"loss": ((score - labels) ** 2).mean(), "logits": score}


def causal() -> Any:
    """A Qwen2: its loss is a sum over tokens, divided by the step's tokens."""
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
        )
    )


def tokens_of(number: int, mean_over_rows: bool) -> list[int]:
    # Rows of one length where padding would be part of the mean.
    length = 6 if mean_over_rows else 3 + number * 7 % 9
    return [3 + (number * 11 + place * 5) % 60 for place in range(length)]


def collate_rows(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pads; pops what it takes, as ms-swift's collators do."""
    numbers = [row.pop("input_ids") for row in rows]
    longest = max(len(n) for n in numbers)
    ids = torch.tensor([n + [0] * (longest - len(n)) for n in numbers])
    scores = [row.pop("labels") for row in rows]
    if isinstance(scores[0], float):
        return {"input_ids": ids, "labels": torch.tensor(scores)}
    return {"input_ids": ids, "labels": ids.masked_fill(ids == 0, -100)}


class Watch(transformers.TrainerCallback):
    """Gives a step's wish before it, keeps its gradients and what the trainer showed."""

    def __init__(self, wishes: dict[int, int], mailbox: Mailbox) -> None:
        self.wishes, self.mailbox = wishes, mailbox
        self.gradients: list[torch.Tensor] = []
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.after: set[float] = set()

    def wish(self, step: int) -> None:
        if step in self.wishes:
            self.mailbox.wish = Wish(step + 1, self.wishes[step])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.wish(0)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        grads = [p.grad.flatten().double() for p in kwargs["model"].parameters()]
        self.gradients.append(torch.cat(grads).clone())
        self.after.add(args.gradient_accumulation_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.wish(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))
            self.rates.append(float(logs["learning_rate"]))


class Fault:
    """Raises out of memory by hand: at one optimizer step, for micro-batches above ``most`` rows.

    ``where`` is "forward", or "backward": within the backward pass, when a part of the gradients is
    in already; or "other": an error that is none of memory.
    """

    def __init__(self, where: str, step: int, most: int) -> None:
        self.where, self.step, self.most = where, step, most

    def hook(self, trainer: Any) -> None:
        model = trainer.model
        parameters = [p for p in model.parameters() if p.requires_grad]
        due = [False]

        def begins(module: Any, positional: Any, named: dict[str, Any]) -> None:
            due[0] = trainer.state.global_step == self.step and len(named["input_ids"]) > self.most
            if due[0] and self.where == "forward":
                raise torch.OutOfMemoryError("CUDA out of memory (by hand)")
            if due[0] and self.where == "other":
                raise ValueError("an error of the model's own")

        def half_way(gradient: Any) -> None:
            if due[0] and self.where == "backward":
                raise torch.OutOfMemoryError("CUDA out of memory (by hand)")

        model.register_forward_pre_hook(begins, with_kwargs=True)
        parameters[0].register_hook(half_way)


def train(
    model_of: Any,
    wishes: dict[int, int] | None = None,
    fault: Fault | None = None,
    governed: bool = True,
    cannot: str | None = None,
) -> dict[str, Any]:
    """One run; what it did, and the error that ended it, if one did."""
    transformers.set_seed(7)
    model = model_of()
    by_rows = isinstance(model, Scored)
    dataset = [
        {"input_ids": tokens_of(n, by_rows), "labels": float(n % 5) if by_rows else n}
        for n in range(ROWS)
    ]
    args = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=BASE,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=7,
    )
    trainer = transformers.Trainer(
        model=model, args=args, train_dataset=dataset, data_collator=collate_rows
    )
    mailbox, meter, said = Mailbox(BASE), Meter(), []
    watch = Watch(wishes or {}, mailbox)
    trainer.add_callback(watch)
    if governed:
        Grid(trainer, mailbox, meter, said.append, cannot).install()
    if fault is not None:
        fault.hook(trainer)
    sizes: list[tuple[int, int]] = []
    model.register_forward_pre_hook(
        lambda m, p, named: sizes.append((trainer.state.global_step, len(named["input_ids"]))),
        with_kwargs=True,
    )
    error = ""
    try:
        trainer.train()
    except (RuntimeError, ValueError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {
        "gradients": watch.gradients,
        "losses": watch.losses,
        "rates": watch.rates,
        "sizes": [[size for at, size in sizes if at == step] for step in range(5)],
        "steps": trainer.state.global_step,
        "accumulation_seen": sorted(watch.after),
        "accumulation_after": args.gradient_accumulation_steps,
        "backward_is_its_own": "backward" not in vars(trainer.accelerator),
        "error": error,
        "said": said,
        "reported": meter.take(),
        "standing": mailbox.standing.running_micro_batch,
    }


def relative(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest relative difference of a step's gradients."""
    pairs = zip(one["gradients"], other["gradients"])
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def against(other: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """``one``, with how far it is from ``other``, ready for JSON."""
    losses = [abs(a - b) for a, b in zip(one["losses"], other["losses"])]
    rest = {key: value for key, value in one.items() if key != "gradients"}
    return {
        **rest,
        "gradient_difference": relative(one, other) if one["gradients"] else None,
        "loss_difference": max(losses) if losses else None,
        "same_rates": one["rates"] == other["rates"],
    }


def main() -> None:
    tokens = train(causal, governed=False)
    rows = train(Scored, governed=False)
    cases = {
        "tokens, its own size": against(tokens, train(causal)),
        "tokens, changing": against(tokens, train(causal, {0: 2, 1: 1, 2: 8, 3: 3})),
        "rows, its own size": against(rows, train(Scored)),
        "rows, equal": against(rows, train(Scored, {0: 2, 1: 1, 2: 8})),
        "rows, unequal": against(rows, train(Scored, {0: 3, 1: 5, 2: 7, 3: 3})),
        "absurd": against(tokens, train(causal, {0: 0, 1: -3, 2: 9, 3: 10**12})),
        "forward": against(tokens, train(causal, fault=Fault("forward", 1, 2))),
        "backward": against(tokens, train(causal, fault=Fault("backward", 1, 2))),
        "forward, rows": against(rows, train(Scored, fault=Fault("forward", 1, 1))),
        "backward, rows": against(rows, train(Scored, {1: 3}, Fault("backward", 1, 1))),
        "one row forward": against(tokens, train(causal, fault=Fault("forward", 1, 0))),
        "one row backward": against(tokens, train(causal, fault=Fault("backward", 1, 0))),
        "refused, out of memory": against(
            tokens, train(causal, {0: 2}, Fault("forward", 1, 0), cannot="not proven")
        ),
        "another error": against(tokens, train(causal, {1: 1}, Fault("other", 1, 0))),
    }
    print(json.dumps(cases))


main()
