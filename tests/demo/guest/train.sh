#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A real `swift sft` as its user would start it. Every row costs its loader BURN_MS of CPU time, as
# decoding an image would; the simulated GPU is busy exactly while this rank computes.
set -eu
export PYTHONPATH=/opt/ms-swift/lib/python3.11/site-packages PYTHONUNBUFFERED=1
export USE_HF=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1
export CUDA_VISIBLE_DEVICES='' OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default
export HOME=/demo/home
cd /demo/home
exec /usr/bin/python3 /opt/ms-swift/bin/swift sft \
  --external_plugins /usr/share/swift-governor/swift_governor_plugin.py /demo/simulated_gpu.py \
  --model /demo/tiny/model --model_type qwen2 --template chatml --torch_dtype float32 \
  --dataset /demo/tiny/rows-4000.jsonl --split_dataset_ratio 0 --dataset_num_proc 1 \
  --tuner_type lora --target_modules q_proj --lora_rank 4 --lora_alpha 8 --lora_dropout 0 \
  --gradient_checkpointing false --attn_impl sdpa --check_model false --max_length 512 \
  --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_train_epochs 50 \
  --learning_rate 1e-4 --logging_steps 1 --save_strategy no --report_to none --lazy_tokenize true \
  --dataloader_num_workers 2 --output_dir /demo/out --add_version false
