"""What a record says of kernels: attention and its windows, dropout, fused or separate small kernels."""

from __future__ import annotations

import re

from cost_models import catalog
from experiments.records import RunConfig
from hdpsim.errors import CatalogError

__all__ = [
    "architecture_rule",
    "attention_kernel",
    "dropout",
    "fused_kernels",
    "fused_loss",
    "prediction_layers",
    "window_rule",
]

FUSED_GATES_YEAR = 2024  # Megatron-Core 0.5: bias_swiglu_fusion, apply_rope_fusion
FUSED_LOSS_YEAR = 2024  # Megatron-Core 0.5: cross_entropy_loss_fusion
FLASH_ATTENTION_YEAR = 2023  # FlashAttention: arXiv 2205.14135; in training frameworks from the year after
BEFORE_FLASH_2 = re.compile(r"MLPerf v[0-3]\.0\b")
"""Benchmark rounds before July 2023, when FlashAttention-2 came out (arXiv 2307.08691)."""


def attention_kernel(config: RunConfig) -> tuple[object, str] | None:
    """The kernel a record names; where nothing is said, its year and framework decide.

    Before 2023 scores were written to memory; Megatron-LM of 2023 and its forks still do unless told otherwise
    (--use-flash-attn), Megatron-DeepSpeed in any year. Other frameworks of 2023 have FlashAttention of 2022, NeMo
    FlashAttention-2 once there is one (flash-attn 2.0.8: Dockerfile of its submission to MLPerf Training v3.1).
    PyTorch's own kernel is FlashAttention-2 on every GPU.
    """
    named = config.attention
    if named:
        if re.search(r"(?i)flash.?attention.?1|triton flash", named):
            return "flash1", ""
        if re.search(r"(?i)flash.?attention.?3|cudnn(?! backend not stated)", named):
            return "flash", ""
        return ("flash2" if re.search(r"(?i)flash|SDPA", named) else "unfused"), ""
    if config.framework.startswith("Megatron-DeepSpeed"):
        return "unfused", "attention without flash kernels (the framework's default)"
    if config.year is None or config.year > FLASH_ATTENTION_YEAR:
        return "flash", "flash attention"
    if config.year < FLASH_ATTENTION_YEAR:
        return "unfused", ""
    if config.framework.startswith("Megatron-LM"):
        return "unfused", "attention without flash kernels (the framework's default of that year)"
    if "NeMo" in config.framework and not BEFORE_FLASH_2.search(config.framework):
        return "flash2", "FlashAttention-2"
    return "flash1", "FlashAttention of 2022"


def dropout(config: RunConfig) -> tuple[object, str] | None:
    """Megatron-LM trains GPT with dropout unless told otherwise; gated models are trained without."""
    gpt = config.gated_mlp is False and config.framework.startswith("Megatron-")
    return (True, "dropout (the framework's default)") if gpt else None


def fused_kernels(config: RunConfig) -> tuple[object, str] | None:
    """PyTorch frameworks run one kernel per operation, the loss included, unless they compile.

    Hugging Face transformers, nanotron; torchtitan and fms-fsdp where torch.compile is not stated. Megatron-LM and its
    forks fused what GPT needs; gates, RMS norms and rotary embeddings were separate operations before 2024.
    """
    if re.search(r"\bHF\b|nanotron", config.framework):
        return False, "separate small kernels"
    early = config.year is not None and config.year < FUSED_GATES_YEAR
    if early and config.gated_mlp and config.framework.startswith("Megatron-L"):
        return False, "separate small kernels of gated models (frameworks before 2024)"
    stated = re.search(r"(?<!no torch\.)(?<!no )\bcompile\b", f"{config.framework} {config.notes}")
    if re.search(r"torchtitan|fms-fsdp", config.framework) and not stated:
        return False, "separate small kernels (no torch.compile stated)"
    return None


def fused_loss(config: RunConfig) -> tuple[object, str] | None:
    """Megatron's cross-entropy over a cut vocabulary, which GPT-NeoX has too, was separate operations before 2024."""
    deepspeed = re.search(r"Megatron-DeepSpeed|GPT-NeoX", config.framework)
    early = config.year is not None and config.year < FUSED_LOSS_YEAR
    if deepspeed or (early and config.framework.startswith("Megatron-")):
        return False, "cross-entropy of separate kernels (frameworks before 2024)"
    return None


def window_rule(config: RunConfig, field: str) -> tuple[object, str] | None:
    """A window field of Model and the words of an assumption; None: no windows.

    A stated chunk counts as it is. Where a record only speaks of windows, the catalog's model of that name and width
    says how wide they are and which layers have them.
    """
    chunk = re.search(r"(?i)chunked attention (\d+)", config.notes)
    if chunk:
        stated: dict[str, object] = {"sliding_window": int(chunk[1]), "chunked_attention": True}
        return (stated[field], "") if field in stated else None
    if not re.search(r"sliding|window", f"{config.notes} {config.attention}"):
        return None
    try:
        known = catalog.model(config.model_name)
    except CatalogError:
        return None
    if known.sliding_window is None or known.hidden != config.hidden:
        return None
    words = f"attention windows of {known.name}" if field == "sliding_window" else ""
    return getattr(known, field), words


def architecture_rule(config: RunConfig, field: str) -> tuple[object, str] | None:
    """A field of Model that records have no column for, from the catalog's model of that name and width."""
    try:
        known = catalog.model(config.model_name)
    except CatalogError:
        return None
    value = getattr(known, field)
    if known.hidden != config.hidden or not value:
        return None
    return value, f"{field.replace('_', ' ')} of {known.name}"


def prediction_layers(config: RunConfig) -> tuple[object, str] | None:
    """Layers of multi-token prediction, from the catalog's model of that name and all its layers."""
    found = architecture_rule(config, "mtp_layers")
    whole = found and catalog.model(config.model_name).layers == config.layers
    return found if whole and not re.search(r"(?i)\b(?:no MTP|MTP off)\b", config.notes) else None
