# SPDX-License-Identifier: Apache-2.0
"""The ms-swift environment, and how tests run a real ``swift sft`` in it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PLACE = Path(os.environ.get("SWIFT_GOVERNOR_MS_SWIFT") or ROOT / ".cache" / "ms-swift")
PLUGIN = ROOT / "daemon" / "swift_governor_trainer" / "swift_governor_plugin.py"

# Nothing from a hub, no GPU, one thread: ranks of a test machine share its cores with everything.
OFFLINE = {
    "USE_HF": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}

SFT = shlex.split("""
    --model_type qwen2 --template chatml --torch_dtype float32 --tuner_type lora
    --target_modules q_proj v_proj --gradient_checkpointing false --lora_rank 4 --lora_alpha 8
    --lora_dropout 0 --per_device_train_batch_size 4 --gradient_accumulation_steps 2
    --num_train_epochs 1 --learning_rate 1e-2 --split_dataset_ratio 0 --logging_steps 1
    --save_strategy no --report_to none --dataloader_num_workers 0 --dataset_num_proc 1
    --max_length 512 --attn_impl sdpa --check_model false --add_version false
    --callbacks recorder
""")


@dataclass
class Run:
    """What a finished run left: exit status, log, and the recorder's record."""

    status: int
    log: str
    record: dict[str, Any]

    def rows_of_steps(self) -> dict[int, list[int]]:
        steps: dict[int, list[int]] = {}
        for one in self.record["passes"]:
            steps.setdefault(one["step"], []).extend(one["rows"])
        return {step: sorted(rows) for step, rows in steps.items()}

    def sizes(self) -> dict[int, list[int]]:
        sizes: dict[int, list[int]] = {}
        for one in self.record["passes"]:
            sizes.setdefault(one["step"], []).append(len(one["rows"]))
        return sizes

    def lines(self) -> list[str]:
        """What the trainer's log says of the governor."""
        marked = [line for line in self.log.splitlines() if "[swift-governor]" in line]
        return [line[line.index("[swift-governor]") + 17 :] for line in marked]


@pytest.fixture(scope="session")
def ms_swift() -> Path:
    """The environment's bin folder; built by the first test that needs it."""
    subprocess.run([str(HERE / "environment.sh")], check=True, timeout=1800)
    return PLACE / "venv" / "bin"


@pytest.fixture(scope="session")
def sft(ms_swift: Path, tmp_path_factory: pytest.TempPathFactory):
    """sft(*options, plugins=…, **environment) runs ``swift sft`` on 100 rows, 8 a step."""

    def run(
        *options: str, plugins: tuple[Path, ...] = (), environment: Mapping[str, str] | None = None
    ) -> Run:
        out = tmp_path_factory.mktemp("sft")
        places = {"HF_HOME": out / "hf", "MODELSCOPE_CACHE": out / "ms", "RECORD": out / "record"}
        command = [ms_swift / "swift", "sft", "--model", PLACE / "tiny" / "model"]
        command += ["--dataset", PLACE / "tiny" / "rows-100.jsonl", "--output_dir", out / "out"]
        command += [*SFT, *options, "--external_plugins", HERE / "recorder.py", *plugins]
        done = subprocess.run(
            [str(word) for word in command],
            env={
                **os.environ,
                **OFFLINE,
                "SWIFT_GOVERNOR_SOCKET": str(out / "nobody.sock"),
                **{name: str(place) for name, place in places.items()},
                **(environment or {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=900,
            check=False,
        )
        log = done.stdout.decode("utf-8", "replace")
        if not places["RECORD"].exists():
            pytest.fail(f"swift sft left no record (exit {done.returncode}):\n{log[-4000:]}")
        return Run(done.returncode, log, json.loads(places["RECORD"].read_text()))

    return run
