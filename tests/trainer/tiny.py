# SPDX-License-Identifier: Apache-2.0
"""Makes all that a real ``swift sft`` needs without a hub: tiny.py FOLDER [LAYERS HIDDEN].

FOLDER/model is a random Qwen2 (one layer, hidden 16 unless told) with a byte-level BPE tokenizer
trained on its own rows, FOLDER/rows-N.jsonl are N chat rows each. Every row's first word is its
number (``id17``), so that a recorder can tell from the tokens which rows a forward pass saw.
Seeded: two calls write the same bytes. Run it with the interpreter of the ms-swift environment.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

WORDS = (  # noqa: SIM905
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma "
    "tau upsilon phi chi psi omega red green blue cat dog tree river stone"
).split()
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# 100 rows and 8 a step leave a remainder of 4: the last step of an epoch is a short one.
COUNTS = (64, 100, 4000)


def chat_rows(count: int) -> list[dict[str, Any]]:
    """``count`` rows of about ten short words, of unequal length (padding matters)."""
    chance = random.Random(count)

    def words(least: int, most: int) -> str:
        return " ".join(chance.choice(WORDS) for _ in range(chance.randint(least, most)))

    return [
        {
            "messages": [
                {"role": "user", "content": f"id{number} {words(2, 8)}"},
                {"role": "assistant", "content": words(2, 10)},
            ]
        }
        for number in range(count)
    ]


def make(folder: Path, layers: int, hidden: int) -> None:
    """Writes model, tokenizer and rows below ``folder``."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    for count in COUNTS:
        lines = (json.dumps(row) + "\n" for row in chat_rows(count))
        (folder / f"rows-{count}.jsonl").write_text("".join(lines), encoding="utf-8")

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    texts = [message["content"] for row in chat_rows(400) for message in row["messages"]]
    texts += ["system user assistant You are a helpful assistant.\n"] * 20
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL,
    )
    tokenizer.chat_template = CHAT_TEMPLATE

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=640,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config.architectures = ["Qwen2ForCausalLM"]
    model = Qwen2ForCausalLM(config).to(torch.float32)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    print(f"{folder}: {sum(p.numel() for p in model.parameters())} parameters, rows {COUNTS}")


if __name__ == "__main__":
    size = [int(word) for word in sys.argv[2:4]] or [1, 16]
    make(Path(sys.argv[1]), *size)
