# SPDX-License-Identifier: Apache-2.0
"""An ms-swift plugin that stands in for a GPU and for rows that are dear to prepare.

Give it beside the governor's own: ``--external_plugins swift_governor_plugin.py simulated_gpu.py``.

Loader workers burn CPU: $BURN_MS milliseconds of thread CPU time for each row they fetch (so a
quota makes them slower, as it would with image decoding). The "GPU" is told to the fake NVML
library by tests/fake_nvml/activity.py, busy from the beginning to the end of each training_step.

    BURN_MS                        CPU milliseconds a row, in the loader's workers (0)
    GPU_MS_PER_MICRO_BATCH         more busy time for each micro-batch (0), and
    GPU_MS_PER_ROW                 for each of its rows (0); slept, since a GPU needs no CPU for it
    GPU_MEMORY_MIB                 memory held without a batch (1024)
    GPU_MEMORY_KIB_PER_TOKEN       and for each token of a micro-batch, padding included (64)
    FAKE_NVML_ACTIVITY             the activity file; without it nothing is told
    FAKE_NVML_WRITER               activity.py, if it is not at ../fake_nvml/activity.py

Memory is rows x longest row of the micro-batch that runs: it falls when micro-batches get smaller,
as a caching allocator's would after empty_cache.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

from torch.utils.data._utils import fetch
from transformers import Trainer


def number(name: str, default: float = 0.0) -> float:
    return float(os.environ.get(name) or default)


BURN_S = number("BURN_MS") / 1000
PER_MICRO_BATCH_S = number("GPU_MS_PER_MICRO_BATCH") / 1000
PER_ROW_S = number("GPU_MS_PER_ROW") / 1000
MEMORY = int(number("GPU_MEMORY_MIB", 1024) * 2**20)
MEMORY_PER_TOKEN = int(number("GPU_MEMORY_KIB_PER_TOKEN", 64) * 2**10)


def burn(seconds: float) -> None:
    """Uses that much CPU time of this thread, however long it takes under a quota."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def burning(fetcher: type[Any]) -> None:
    """Every batch of this kind of loader costs its rows' CPU time where it is fetched."""
    own_fetch = fetcher.fetch

    @functools.wraps(own_fetch)
    def fetch_and_burn(self: Any, possibly_batched_index: Any) -> Any:
        batched = isinstance(possibly_batched_index, (list, tuple))
        burn(BURN_S * (len(possibly_batched_index) if batched else 1))
        return own_fetch(self, possibly_batched_index)

    fetcher.fetch = fetch_and_burn


def activity() -> Any:
    """The fake library's writer for this process, or None where nobody wants to know."""
    path = os.environ.get("FAKE_NVML_ACTIVITY")
    if not path:
        return None
    beside = Path(__file__).resolve().parent.parent / "fake_nvml" / "activity.py"
    writer = os.environ.get("FAKE_NVML_WRITER") or str(beside)
    spec = importlib.util.spec_from_file_location("fake_nvml_activity", writer)
    if spec is None or spec.loader is None:
        raise ImportError(f"no activity writer at {writer}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Activity(path, os.getpid())


def computing() -> None:
    """training_step of every trainer is what runs on the simulated GPU, one micro-batch a call."""
    own_step = Trainer.training_step
    told: list[Any] = []  # made at the first step: this file is loaded by loader workers too

    @functools.wraps(own_step)
    def step(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not told:
            told.append(activity())
        gpu, (rows, longest) = told[0], tuple(inputs["input_ids"].shape)
        if gpu is not None:
            gpu.set_memory(MEMORY + MEMORY_PER_TOKEN * rows * longest)
            gpu.begin()
        try:
            time.sleep(PER_MICRO_BATCH_S + PER_ROW_S * rows)
            return own_step(self, model, inputs, *args, **kwargs)
        finally:
            if gpu is not None:
                gpu.end()

    Trainer.training_step = step


# transformers is imported again in no worker that is forked; a spawned one replays this file.
if BURN_S and not hasattr(fetch._MapDatasetFetcher.fetch, "__wrapped__"):
    burning(fetch._MapDatasetFetcher)
if not hasattr(Trainer.training_step, "__wrapped__"):
    computing()
