"""What a record says of mixture-of-experts layers: how experts are cut, launched, captured in graphs, and balanced."""

from __future__ import annotations

import re

from experiments.records import RunConfig

__all__ = ["balanced_experts", "expert_kernels", "expert_tensor_parallel", "graphed_experts"]

EXPERT_DEGREE_YEAR = 2025  # Megatron-Core 0.10 (December 2024): expert_tensor_parallel_size
_TOKEN_DROP = re.compile(r"force-balanced|capacity factor 1\b|token.drop(?!less)")


def expert_tensor_parallel(config: RunConfig) -> tuple[object, str] | None:
    """GPUs over which each expert is cut: as stated, or as the other layers are.

    Megatron-Core cuts experts as it cuts the other layers unless told otherwise, and could do nothing else before its
    version 0.10. NeMo's launcher leaves it at that; recipes of Megatron-Bridge set a degree of their own.
    """
    if not config.n_experts:
        return None
    printed = re.search(r"expert tensor parallel (\d+) printed|\bETP (\d+)\b", config.notes)
    if printed:
        return int(printed[1] or printed[2]), ""
    if re.search(r"\bETP = TP\b", config.notes):
        return config.tp or 1, ""
    old = config.year is not None and config.year < EXPERT_DEGREE_YEAR and "Megatron-Core" in config.framework
    if (old or config.framework.startswith("NeMo (")) and (config.tp or 1) > 1:
        return config.tp, "experts cut by tensor parallelism (the framework's default)"
    return None


def expert_kernels(config: RunConfig) -> tuple[object, str] | None:
    """Megatron-Core's experts are Transformer Engine's GroupedLinear: a product per expert on several streams."""
    if not config.n_experts or not re.search(r"Megatron-Core|Megatron-Bridge|NeMo", config.framework):
        return None
    return "separate", "a product per expert (the framework's default)"


def graphed_experts(config: RunConfig) -> tuple[object, str] | None:
    """Graphs of Transformer Engine hold layers of fixed shapes: no experts that take whatever is routed to them."""
    partial_graphs = re.search(r"cuda_graph=transformer_engine", config.notes)
    padded = re.search(r"capacity factor|token.drop(?!less)", config.notes)
    return (False, "") if config.n_experts and partial_graphs and not padded else None


def balanced_experts(config: RunConfig) -> bool:
    """Whether routing was forced to balance, or tokens beyond the experts' capacity were dropped."""
    return bool(config.n_experts and _TOKEN_DROP.search(config.notes))
