"""Configurations of other tools, spoiled."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml
from fuzz_mutate import TEXTS, spoiled_bytes, spoiled_document, spoiled_text
from fuzz_written import Arguments

from hdpsim.experiments.other_tools.table import tool

SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=${TP:-2}
SEQ=$((2 * 1024))
ARGS=(--nproc_per_node 8 --nnodes 1)   # a server
MODEL="--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --swiglu --bf16 \\
  --seq-length $SEQ --vocab-size 1024"
if [ -n "$1" ]; then TP=4; fi
torchrun ${ARGS[@]} pretrain.py $MODEL --tensor-model-parallel-size "2" --num-experts 4 \\
  --moe-layer-freq '([0]*1+[1]*3)' --micro-batch-size 1 --data-path "$(date)/x" 2>&1 | tee log
"""
BRIDGE: dict[str, Any] = {
    "model": {
        "num_layers": 4, "hidden_size": 1024, "num_attention_heads": 8, "ffn_hidden_size": 4096, "vocab_size": 1024,
        "tensor_model_parallel_size": 2, "seq_length": 2048, "moe_layer_freq": [0, 1, 1, 1], "kv_channels": None,
    },
    "train": {"micro_batch_size": 1, "global_batch_size": 8},
    "ddp": {"use_distributed_optimizer": True},
}  # fmt: skip
NEMO: dict[str, Any] = {
    "trainer": {"num_nodes": 1, "devices": 8, "precision": "bf16"},
    "model": {
        **BRIDGE["model"],
        "encoder_seq_length": 2048,
        "micro_batch_size": 1,
        "optim": {"name": "fused_adam"},
    },
}
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 2048
[parallelism]
tensor_parallel_degree = 2
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "full"
"""
VALUES = (
    "",
    "0",
    "-1",
    "1e9",
    "2",
    "[0]*3+[1]*9",
    "9" * 30,
    "full",
    "true",
    "$X",
    "${X:-2}",
    "`x`",
    "(1,",
    "'a",
)


def imports(dice: random.Random, folder: Path) -> Arguments:
    """Scripts, recipes and configurations, with words, keys and bytes changed."""
    form = dice.choice(("run.sh", "run.sh", "bridge.yaml", "nemo.yaml", "train.toml"))
    text = {"run.sh": SCRIPT, "train.toml": TITAN}.get(form, "")
    if not text:
        document = BRIDGE if form == "bridge.yaml" else NEMO
        text = yaml.safe_dump(spoiled_document(dice, document), allow_unicode=True)
    elif form == "run.sh":
        for _ in range(dice.choice((0, 1, 2))):
            name = dice.choice(sorted(tool("megatron-core").names))
            text = text.rstrip("\n") + f" --{name} {dice.choice((*VALUES, *TEXTS))}\n"
        text = spoiled_text(dice, text) if dice.random() < 0.4 else text
    else:
        text = text.replace("2", dice.choice(VALUES)) if dice.random() < 0.5 else spoiled_text(dice, text)
    content = text.encode("utf-8", "surrogatepass")
    path = folder / form
    path.write_bytes(spoiled_bytes(dice, content) if dice.random() < 0.2 else content)
    more = dice.choice((["--cluster", "h100", "--gpus", "8"], ["--gpus", "8"], [], ["--release", "0.13"]))
    return ["import", str(path), *more, "--json"]
