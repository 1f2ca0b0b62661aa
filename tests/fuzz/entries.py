"""What a scenario names: entries of the catalog, configurations of Hugging Face, calibrations."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from fuzz_mutate import other_value, spoiled_bytes, spoiled_document
from fuzz_tables import KERNEL_COLUMNS, KERNELS
from fuzz_written import ROOT, SMALL, Arguments, write_document, write_table

from hdpsim.cost_models.calibration.calibration import calibration_names


def catalogs(dice: random.Random, folder: Path) -> Arguments:
    """Files of GPUs, nodes, clusters and models, in a scenario or drawn."""
    document = json.loads(json.dumps(SMALL))
    kind = dice.choice(("gpus", "nodes", "clusters", "models"))
    source = dice.choice(sorted((ROOT / kind).glob("*.yaml")))
    entry = spoiled_document(dice, yaml.safe_load(source.read_text()))
    if kind == "models":
        document["model"] = (
            entry if dice.random() < 0.5 else write_document(folder, "model.yaml", entry, dice)
        )
    elif kind == "clusters":
        path = write_document(folder, "cluster.yaml", entry, dice)
        if dice.random() < 0.5:
            return ["fabric", path, "--json"]
        document["cluster"] = path
        document["gpus"] = 64
    else:
        node = entry if kind == "nodes" else {"like": "hgx-h100-80gb", "gpu": entry}
        document["cluster"] = {"node": node, "gpus": 8}
    return [
        "simulate",
        write_document(folder, "scenario.yaml", document, random.Random(3)),
        "--batches",
        "1",
        "--json",
    ]


def hugging_face(dice: random.Random, folder: Path) -> Arguments:
    document = dice.choice(CONFIGS)
    entry = spoiled_document(dice, document)
    if dice.random() < 0.5:  # a key that somebody writes
        key = dice.choice(CONFIG_KEYS)
        if isinstance(entry, dict):
            entry = {**entry, key: other_value(dice, 1)}
    path = folder / "config.json"
    content = json.dumps(entry, default=str).encode("utf-8", "surrogatepass")
    path.write_bytes(spoiled_bytes(dice, content) if dice.random() < 0.1 else content)
    small = {**SMALL, "model": str(path)}
    return [
        "simulate",
        write_document(folder, "scenario.yaml", small, random.Random(3)),
        "--batches",
        "1",
        "--json",
    ]


_LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16,
    "num_hidden_layers": 8, "num_key_value_heads": 4, "vocab_size": 32000, "tie_word_embeddings": False,
    "max_position_embeddings": 4096, "attention_bias": False, "sliding_window": None, "head_dim": 128,
}  # fmt: skip

CONFIGS: tuple[dict[str, Any], ...] = (
    _LLAMA,
    {**_LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 4096},
    {**_LLAMA, "model_type": "deepseek_v3", "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1,
     "moe_intermediate_size": 512, "first_k_dense_replace": 1, "kv_lora_rank": 256, "q_lora_rank": 512,
     "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "num_nextn_predict_layers": 1},
    {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
    {"text_config": {**_LLAMA, "layer_types": ["full_attention", "sliding_attention"] * 4, "sliding_window": 512}},
)  # fmt: skip

CONFIG_KEYS = (
    "mlp_only_layers", "moe_layer_freq", "decoder_sparse_step", "layer_types", "multi_query", "text_config", "head_dim",
    "num_key_value_heads", "use_sliding_window", "attention_chunk_size", "parallel_attn", "name", "model_type",
    "num_experts", "num_experts_per_tok", "shared_expert_intermediate_size", "vocab_size", "kv_lora_rank",
)  # fmt: skip


@cache
def _constants(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "calibration" / f"{name}.yaml").read_text())
    return document


def calibrations(dice: random.Random, folder: Path) -> Arguments:
    document = json.loads(json.dumps(_constants(dice.choice(calibration_names()))))
    if dice.random() < 0.85:
        section = dice.choice(("constants", "constants", "constants", "network"))
        for _ in range(dice.choice((1, 1, 2, 5))):
            entries = document.get(section) or document["constants"]
            key = dice.choice(sorted(entries))
            entries[key]["value"] = other_value(dice, entries[key]["value"])
    else:
        document = spoiled_document(dice, document)
    path = write_document(folder, "own.yaml", document, dice)
    if dice.random() < 0.2:
        table = write_table(random.Random(1), KERNELS, KERNEL_COLUMNS, folder / "kernels.csv")
        return ["validate", "--kernels", table, "--calibration", path, "--json"]
    small = {**SMALL, "calibration": path}
    return [
        "simulate",
        write_document(folder, "scenario.yaml", small, random.Random(3)),
        "--batches",
        "1",
        "--json",
    ]
