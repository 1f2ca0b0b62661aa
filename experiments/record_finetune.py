"""What a record of fine-tuning says: adapters beside frozen weights, packed documents."""

from __future__ import annotations

import re

from experiments.records import RunConfig

__all__ = ["adapter_rank", "adapter_targets", "packed_documents", "separate_loss"]

SQUAD_TOKENS = 180
"""Of an example of SQuAD: context 120 words, question 10, answer 3, at 1.3 tokens a word, and the prompt's words."""
_RECIPES = re.compile(r"NeMo|Megatron-Bridge")


Finding = tuple[object, str] | None
_STATED_RANK = re.compile(r"(?i)\b(?:LoRA )?rank ([1-9]\d*)\b")
ADAPTER_RANK = 16
SEPARATE_LOSS_YEAR = 2025  # NeMo 2.0's recipes, from its release 24.09 on


def adapter_rank(config: RunConfig) -> Finding:
    """Rank of the adapters of a LoRA run: as stated, else 16.

    Source: MLPerf Training, llama2_70b_lora (16); Megatron-Bridge, recipes/llama (16, 8 for 8 billion parameters).
    """
    if config.task != "lora":
        return None
    stated = _STATED_RANK.search(config.notes)
    return (int(stated[1]), "") if stated else (ADAPTER_RANK, f"adapters of rank {ADAPTER_RANK}")


def adapter_targets(config: RunConfig) -> Finding:
    """Which matrices have adapters: as stated, that of queries, keys and values in NVIDIA's recipes, else attention's.

    Source: NeMo-Framework-Launcher, conf/peft (default: attention_qkv); performance recipes of NeMo and Megatron-Bridge
    (target_modules = ["linear_qkv"]); MLPerf Training, llama2_70b_lora (QKV and output projection).
    """
    if config.task != "lora":
        return None
    if re.search(r"(?i)\ball[- ](?:linear|modules|projections|layers adapted)", config.notes):
        return "all", ""
    if _recipe(config):
        return "qkv", "adapters of queries, keys and values (the framework's recipes)"
    return "attention", "adapters of attention's matrices"


def separate_loss(config: RunConfig) -> bool:
    """Whether LoRA keeps the fused cross-entropy off.

    Source: NeMo, collections/llm/recipes/llama3_8b.py ("some settings currently do not function correctly with LoRA":
    cross_entropy_loss_fusion = False); Megatron-Bridge, recipes/llama/llama3.py (llama3_8b_peft_config).
    """
    late = config.year is not None and config.year >= SEPARATE_LOSS_YEAR
    return config.task == "lora" and late and _recipe(config)


def _recipe(config: RunConfig) -> bool:
    return bool(_RECIPES.search(config.framework)) and "MLPerf" not in config.framework


def packed_documents(config: RunConfig) -> tuple[int, str]:
    """Documents in a sequence of a record, and the words of an assumption.

    NVIDIA's fine-tuning recipes pack SQuAD, whose examples are short; attention never leaves an example (cu_seqlens).
    The benchmark (MLPerf) has whole documents of its own.
    Source: NeMo, collections/llm/recipes (performance_mode: SquadDataModule, packs of 4096); Megatron-Bridge,
    recipes (default_squad_config); lengths: arXiv 1606.05250. The FLOP that NeMo 24.07 prints for its packs imply a
    mean square over mean of 90 to 180 tokens.
    """
    packed = (
        config.task != "pretrain" and _RECIPES.search(config.framework) and "MLPerf" not in config.framework
    )
    if not packed or not config.seq_len:
        return 1, "every sequence packed to its full length" if config.task == "sft" else ""
    documents = max(1, round(config.seq_len / SQUAD_TOKENS))
    return documents, f"packs of {documents} short documents (SQuAD, the framework's recipes)"
