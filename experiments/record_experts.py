"""What a record says of mixture-of-experts layers: how experts are cut, launched, and balanced."""

from __future__ import annotations

import re

from experiments.record_graphs import graph_scope, padding_dispatch, tokens_dropped
from experiments.records import RunConfig

__all__ = [
    "balanced_experts",
    "expert_kernels",
    "expert_padding",
    "expert_tensor_parallel",
]

EXPERT_DEGREE_YEAR = 2025  # Megatron-Core 0.10 (December 2024): expert_tensor_parallel_size
_TOKEN_DROP = re.compile(
    r"(?i)force-balanced|balanced gat|(?:perfectly|fake|forced) balanced|capacity factor 1\b|token.drop(?!less)"
)


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
    stage = (config.n_gpus or 0) // (config.pp or 1)
    if stage % ((config.ep or 1) * (config.tp or 1)):
        return None  # so many GPUs there are not
    if _before_expert_degrees(config) and (config.tp or 1) > 1:
        return config.tp, "experts cut by tensor parallelism (the framework's default)"
    return None


def _before_expert_degrees(config: RunConfig) -> bool:
    """Megatron-Core before 0.10, and NeMo's launcher, which prints a degree of the experts where it has one."""
    if re.search(r"expert tensor parallel \d+ printed|\bETP\b", config.notes):
        return False
    old = config.year is not None and config.year < EXPERT_DEGREE_YEAR and "Megatron-Core" in config.framework
    return old or config.framework.startswith("NeMo (")


def expert_padding(config: RunConfig) -> tuple[object, str] | None:
    """Dropless experts of Megatron-Core pad their rows for narrow products in a copy, unless HybridEP pads as it sends.

    Source: Megatron-LM, transformer/moe/experts.py (TEGroupedMLP: fp8_padding, since 0.10) and
    token_dispatcher.py (_HybridEPManager: pad_multiple).
    """
    megatron = re.search(r"Megatron-Core|Megatron-Bridge|NeMo", config.framework)
    if not config.n_experts or not megatron or config.precision in (None, "bf16", "fp16"):
        return None
    if padding_dispatch(config) or tokens_dropped(config):
        return None
    return True, "rows of experts padded in a copy (the framework's default)"


def expert_kernels(config: RunConfig) -> tuple[object, str] | None:
    """Megatron-Core's experts are Transformer Engine's GroupedLinear: a product per expert on several streams.

    Before 2025 one expert per GPU was a module of its own: grouped products are recommended for several. A graph of the
    iteration holds dropless experts only with Transformer Engine's fused grouped MLP (MXFP8, Blackwell), whose buffers
    have fixed sizes; where a source says that its kernels regressed, separate ones are nearer.
    Source: Megatron-Bridge, scripts/performance/utils/overrides.py (cutedsl_fused_grouped_mlp sets
    use_transformer_engine_op_fuser, which moe_expert_rank_capacity_factor needs), pull requests 3983 and 4226, release
    notes of v0.5.1 (cudnn-frontend issue 256); Megatron-LM, megatron/core/transformer/moe/README.md of 2024 ("Enable
    GroupedGEMM when num_local_experts>1"); NeMo's recipes of those years (dgxc-benchmarking, grok1:
    moe_grouped_gemm: false).
    """
    if not config.n_experts or not re.search(r"Megatron-Core|Megatron-Bridge|NeMo", config.framework):
        return None
    if _before_expert_degrees(config) and config.n_experts == (config.ep or 1):
        return "modules", "one expert per GPU, a module (the framework's advice of those years)"
    if _in_one_graph(config):
        return (
            "fused",
            "experts' products with fused epilogues (dropless experts in a graph of the iteration)",
        )
    return "separate", "a product per expert (the framework's default)"


def _in_one_graph(config: RunConfig) -> bool:
    """Dropless experts in MXFP8 are part of a graph of the iteration, and their kernels are not said to be slow."""
    whole = graph_scope(config) is not None and config.precision == "mxfp8"
    return whole and not tokens_dropped(config) and "performance regression" not in config.notes


def balanced_experts(config: RunConfig) -> bool:
    """Whether routing was forced to balance, or tokens beyond the experts' capacity were dropped.

    NeMo AutoModel's published benchmarks all run with its fake balanced gate (its performance summary).
    """
    automodel = re.search(r"(?i)automodel", config.framework)
    return bool(config.n_experts and (automodel or _TOKEN_DROP.search(config.notes)))
