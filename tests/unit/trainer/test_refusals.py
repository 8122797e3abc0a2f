# SPDX-License-Identifier: Apache-2.0
"""Which trainers' micro-batch can be changed, judged by what attach looks at; no torch needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swift_governor_trainer import attach
from swift_governor_trainer.grid import near_equal
from swift_governor_trainer.link import Link, Mailbox
from swift_governor_trainer.report import Meter

PLUGIN = Path(attach.__file__).with_name("swift_governor_plugin.py")


def trainer(name: str = "Seq2SeqTrainer", module: str = "swift.trainers.x", **changes: Any) -> Any:
    """What a supervised ms-swift run on one GPU looks like, but for ``changes`` (args__x, or x)."""
    made = type(name, (), {"__module__": module})()
    made.args = SimpleNamespace(world_size=1, n_gpu=1, deepspeed=None, optim="adamw_torch")
    made.template = SimpleNamespace(sequence_parallel_size=1, max_length=512)
    made.model_meta = SimpleNamespace(is_multimodal=False)
    made.model_info = SimpleNamespace(is_moe_model=False)
    made.train_dataset = [1, 2]
    made.model_accepts_loss_kwargs = True
    made.get_batch_samples = lambda epoch_iterator, num_batches, device: ([], None)
    for path, value in changes.items():
        *owners, last = path.split("__")
        owner = made
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, last, value)
    return made


def test_a_supervised_run_on_one_gpu_can_be_changed():
    assert attach.cannot_change(trainer()) is None
    assert attach.cannot_change(trainer("Trainer", model_accepts_loss_kwargs=False)) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"args__world_size": 2}, "ranks must agree"),
        ({"args__n_gpu": 2}, "DataParallel"),
        ({"args__deepspeed": {"zero_optimization": {"stage": 2}}}, "DeepSpeed"),
        ({"is_fsdp_enabled": True}, "FSDP"),
        ({"get_batch_samples": None}, "get_batch_samples"),
        ({"get_batch_samples": lambda model, batch: ("", "")}, "get_batch_samples"),
        ({"template__sequence_parallel_size": 2}, "sequence parallel"),
        ({"model_meta__is_multimodal": True}, "images"),
        ({"train_dataset": iter([])}, "streamed"),
        ({"args__auto_find_batch_size": True}, "looks for its own"),
        ({"args__optim": "adalomo"}, "backward"),
        ({"args__optim": "galore_adamw_layerwise"}, "backward"),
        ({"args__include_num_input_tokens_seen": "non_padding"}, "padding"),
        ({"compute_loss_func": print}, "loss"),
        ({"label_smoother": object()}, "label smoothing"),
        ({"model_accepts_loss_kwargs": False}, "mean over each micro-batch"),
        ({"model_info__is_moe_model": True, "args__router_aux_loss_coef": 0.1}, "auxiliary"),
    ],
)
def test_what_would_change_the_training_is_refused_with_a_reason(changes, says):
    assert says in attach.cannot_change(trainer(**changes))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("GRPOTrainer", "buffers"),
        ("GKDTrainer", "buffers"),
        ("PPOTrainer", "buffers"),
        ("EmbeddingTrainer", "compares"),
        ("RerankerTrainer", "compares"),
        ("DPOTrainer", "not proven"),
        ("SomebodysTrainer", "not proven"),
    ],
)
def test_trainers_whose_loss_is_not_known_to_allow_it_are_refused(name, says):
    assert says in attach.cannot_change(trainer(name))


def test_a_trainer_of_somebody_elses_with_a_known_name_is_refused():
    assert "not proven" in attach.cannot_change(trainer(module="theirs.swift"))


@given(rows=st.integers(1, 600), micro_batch=st.integers(1, 700))
def test_a_step_is_cut_into_the_fewest_micro_batches_that_differ_by_one_row_at_most(
    rows, micro_batch
):
    sizes = near_equal(rows, micro_batch)
    assert sum(sizes) == rows
    assert max(sizes) <= micro_batch
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-rows // micro_batch)


def imported(plugin: Path, before: str = "") -> str:
    """What importing the plugin, as ms-swift does, says; fails if it raises."""
    code = f"""
import importlib.util, logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
{before}
spec = importlib.util.spec_from_file_location("_swift_external_1", {str(plugin)!r})
spec.loader.exec_module(importlib.util.module_from_spec(spec))
print("training goes on")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "training goes on\n"
    return done.stderr


class CountedLink:
    """Stands in for a Link: it can be started once, as any thread."""

    started = 0

    def __init__(self, can_start: bool = True) -> None:
        self.can_start, self.goes_on = can_start, False

    def start(self) -> None:
        if not self.can_start:
            raise RuntimeError("can't start new thread")
        assert not self.goes_on
        CountedLink.started += 1
        self.goes_on = True

    def finish(self) -> None:
        self.goes_on = False


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=object))


@pytest.mark.usefixtures("transformers")
def test_a_training_that_begins_again_goes_on_with_its_link_or_a_new_one():
    """--auto_find_batch_size begins anew without an end; train() can be called twice."""
    CountedLink.started = 0
    callback = attach._callback(CountedLink, Meter())
    for _ in range(2):
        callback.on_train_begin(None, None, None)
    assert CountedLink.started == 1
    callback.on_train_end(None, None, None)
    callback.on_train_begin(None, None, None)
    assert CountedLink.started == 2


@pytest.mark.usefixtures("transformers")
def test_a_process_that_may_have_no_more_threads_trains_all_the_same():
    callback = attach._callback(lambda: CountedLink(can_start=False), Meter())
    callback.on_train_begin(None, None, None)
    callback.on_train_end(None, None, None)


def test_a_real_link_goes_on_from_its_start_until_it_is_told_of_the_end(tmp_path):
    link = Link(str(tmp_path / "none"), dict, Mailbox(4), Meter(), lambda _: None)
    assert not link.goes_on
    link.start()
    assert link.goes_on
    link.finish()
    assert not link.goes_on
    link.join(20)


def test_a_plugin_without_transformers_says_so_and_the_run_goes_on():
    assert "ungoverned: ModuleNotFoundError" in imported(
        PLUGIN, "sys.modules['transformers'] = None"
    )


def test_a_plugin_without_its_package_says_so_and_the_run_goes_on(tmp_path):
    alone = tmp_path / PLUGIN.name
    alone.write_bytes(PLUGIN.read_bytes())
    hidden = "sys.modules['swift_governor_trainer.attach'] = None"
    assert "this run stays ungoverned" in imported(alone, hidden)


def test_a_switched_off_plugin_says_and_does_nothing():
    off = (
        "import os; os.environ['SWIFT_GOVERNOR_DISABLE'] = '1'; sys.modules['transformers'] = None"
    )
    assert imported(PLUGIN, off) == ""


def test_a_megatron_run_is_told_that_it_is_not_linked():
    argv = "sys.argv = ['/venv/lib/swift/cli/_megatron/sft.py']; sys.modules['transformers'] = None"
    assert "Megatron" in imported(PLUGIN, argv)
