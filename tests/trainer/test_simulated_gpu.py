# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a GPU: what it tells the fake NVML library is what the trainer really did."""

from __future__ import annotations

import struct

import pytest

from tests.trainer.conftest import HERE, PLUGIN
from tests.trainer.governor import Governor

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1800)]


def test_busy_time_memory_and_waiting_are_those_of_the_run(sft, tmp_path):
    path, activity = tmp_path / "socket", tmp_path / "gpu0"
    with Governor(path) as governor:
        run = sft(
            *("--dataloader_num_workers", "1"),
            plugins=(PLUGIN, HERE / "simulated_gpu.py"),
            environment={
                "SWIFT_GOVERNOR_SOCKET": str(path),
                "FAKE_NVML_ACTIVITY": str(activity),
                "BURN_MS": "20",
                "GPU_MS_PER_ROW": "2",
                "GPU_MEMORY_MIB": "100",
                "GPU_MEMORY_KIB_PER_TOKEN": "1",
            },
        )
    words = struct.unpack_from("<8Q", activity.read_bytes())
    busy_s, memory, intervals = words[4] / 1e9, words[6], words[7]
    assert words[2] == governor.registrations[0]["pid"]
    assert intervals == len(run.record["passes"]) == 25
    assert 100 * 0.002 <= busy_s < run.record["seconds"]
    # The last micro-batch: 4 rows of at least 10 tokens each.
    assert 100 * 2**20 + 4 * 10 * 2**10 <= memory < 101 * 2**20
    # One worker has 2 s of CPU to burn for the rows; the rank waits for most of that.
    assert run.record["seconds"] >= 1.5
    assert sum(r["wait_s"] for r in governor.reports) >= 0.5
