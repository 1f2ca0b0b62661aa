"""What a record says of kernels: attention and its windows, dropout, fused or separate small kernels."""

from __future__ import annotations

import re

from cost_models import catalog
from cost_models.model import Model
from experiments.record_finetune import separate_loss
from experiments.record_frameworks import is_hugging_face, is_pytorch, states_compile
from experiments.records import RunConfig
from hdpsim.errors import CatalogError

__all__ = [
    "architecture_rule",
    "attention_kernel",
    "blocking_maxima",
    "dropout",
    "fp8_scaling",
    "fused_kernels",
    "fused_loss",
    "known_model",
    "prediction_layers",
    "scale_updates",
    "scaled_rotary",
    "window_rule",
]

FUSED_GATES_YEAR = 2024  # Megatron-Core 0.5: bias_swiglu_fusion, apply_rope_fusion
LATENT_ROTARY_YEAR = 2025  # Megatron-Core 0.13 (July): fused_mla_yarn_rope_apply
FUSED_LOSS_YEAR = 2024  # Megatron-Core 0.5: cross_entropy_loss_fusion
SCALE_UPDATE_YEAR = (
    2024  # Transformer Engine 1.4: one kernel updates the scales of a module, later those of all
)
FLASH_ATTENTION_YEAR = 2023  # FlashAttention: arXiv 2205.14135; in training frameworks from the year after
BEFORE_CUDNN = (2024, 5)
"""Containers of NeMo before this one: Transformer Engine 1.5 or older takes the flash-attn package (2.x) where it can,
and has no other kernel for rings; later ones prefer cuDNN on Hopper. The release is inferred."""
_CONTAINER = re.compile(r"\bNeMo ?(\d\d)\.(\d\d)")
BEFORE_MID_2023 = re.compile(r"MLPerf v[0-3]\.0\b")
"""Benchmark rounds before July 2023, when FlashAttention-2 came out (arXiv 2307.08691)."""
FIRST_FLASH_FRAMEWORK = re.compile(r"InternEvo|InternLM")
FIRST_FLASH_UNTIL = 2024
CUDNN_FIRST_YEAR = 2026


def attention_kernel(config: RunConfig) -> tuple[object, str] | None:
    """The kernel a record names; where nothing is said, its year and framework decide.

    Before 2023 scores were written to memory; Megatron-LM of 2023 and its forks still do unless told otherwise
    (--use-flash-attn), Megatron-DeepSpeed in any year. Other frameworks of 2023 have FlashAttention of 2022, NeMo
    FlashAttention-2 once there is one (flash-attn 2.0.8: Dockerfile of its submission to MLPerf Training v3.1).
    PyTorch's own kernel is FlashAttention-2, but cuDNN's where that comes first; FlexAttention compiles the same
    algorithm, memory-efficient attention is of FlashAttention's first generation. InternEvo builds flash-attention
    1.0.5 (its installation guide).
    """
    named = config.attention
    if named:
        if re.search(r"(?i)flash.?attention.?1|triton flash", named):
            return "flash1", ""
        if re.search(r"(?i)flash.?attention.?3|cudnn(?! backend not stated)", named):
            return "flash", ""
        if re.search(r"(?i)flash.?attention.?2", named):
            return "flash2", ""
        if FIRST_FLASH_FRAMEWORK.search(config.framework) and re.search(r"(?i)flash", named):
            return _first_flash(config)
        if re.search(r"(?i)\bSDPA|scaled.dot.product", named) and not re.search(
            r"(?i)flash(?!/cudnn)", named
        ):
            return _own_kernel(config), ""
        if re.search(r"(?i)flash|SDPA|flex", named):
            return "flash2", ""
        if re.search(r"(?i)xformers|memory.?efficient", named):
            return "flash1", ""
        if re.search(r"(?i)unfused|eager|standard|naive|math|softmax|none|no flash|torch\b", named):
            return "unfused", ""
    if _scores_run_again(config):
        return "unfused", "attention whose scores are recomputed: no fused kernel for latent heads yet"
    first = _first_flash(config) if FIRST_FLASH_FRAMEWORK.search(config.framework) else None
    if first:
        return first
    if config.framework.startswith("Megatron-DeepSpeed"):
        return "unfused", "attention without flash kernels (the framework's default)"
    container = _CONTAINER.search(f"{config.framework} {config.notes}")
    if container and (2000 + int(container[1]), int(container[2])) < BEFORE_CUDNN:
        return "flash2", "FlashAttention-2"
    if config.year is None or config.year > FLASH_ATTENTION_YEAR:
        if is_pytorch(config):
            return _own_kernel(config), "attention by PyTorch's own kernels"
        return "flash", "flash attention"
    if config.year < FLASH_ATTENTION_YEAR:
        return "unfused", ""
    if config.framework.startswith("Megatron-LM"):
        return "unfused", "attention without flash kernels (the framework's default of that year)"
    if "NeMo" in config.framework and not BEFORE_MID_2023.search(config.framework):
        return "flash2", "FlashAttention-2"
    return "flash1", "FlashAttention of 2022"


def _own_kernel(config: RunConfig) -> str:
    """What scaled_dot_product_attention calls: FlashAttention-2, or cuDNN where it comes first.

    That is on Blackwell, and on Hopper since the releases of 2026 (2.10 with cuDNN 9.15; 2.8 and 2.9 for those who
    brought a newer cuDNN). Source: PyTorch, native/transformers/cuda/sdp_utils.cpp (check_prefer_cudnn_attention);
    torchtitan, models/attention.py (_init_backend: cuDNN first on B200, later wherever there is one).
    """
    generation = catalog.gpu(config.gpu).calibration
    late = config.year is not None and config.year >= CUDNN_FIRST_YEAR
    return "flash" if generation == "blackwell" or (generation == "hopper" and late) else "flash2"


def _scores_run_again(config: RunConfig) -> bool:
    """Latent attention on Blackwell of a stack that recomputes core attention: flash kernels have nothing to repeat.

    cuDNN's backward takes heads of 192 and 128 on Blackwell from 9.11 (June 2025); NeMo's recipes of before repeat
    core_attn there, later ones and those of Hopper do not.
    Source: Transformer Engine, common/fused_attn/fused_attn.cpp (nvte_get_fused_attn_backend); NVIDIA
    dgxc-benchmarking, deepseek_v3/pretrain (README and launch.sh, 25.05 to 25.08).
    """
    latent = config.kv_heads is None and re.search(r"\bMLA\b", config.notes)
    again = re.search(r"recompute_modules[^;]*\bcore_attn\b", config.notes)
    return bool(latent and again and re.match(r"G?B[23]00", config.gpu))


def _first_flash(config: RunConfig) -> tuple[object, str] | None:
    if config.year is not None and config.year > FIRST_FLASH_UNTIL:
        return None
    return "flash1", "FlashAttention of 2022 (the framework's installation)"


def dropout(config: RunConfig) -> tuple[object, str] | None:
    """Megatron-LM trains GPT with dropout unless told otherwise; gated models and those without biases without."""
    known = known_model(config)
    plain = known is not None and not known.biases
    gpt = config.gated_mlp is False and config.framework.startswith("Megatron-") and not plain
    return (True, "dropout (the framework's default)") if gpt else None


def fused_kernels(config: RunConfig) -> tuple[object, str] | None:
    """PyTorch frameworks run one kernel per operation, the loss included, unless they compile.

    Hugging Face transformers and what wraps it, unless kernels of others replace its own (Liger, Unsloth); nanotron;
    torchtitan, fms-fsdp, torchtune and plain FSDP or DDP where torch.compile is not stated; GPT-NeoX but for GELU
    (megatron/model/transformer.py, positional_embeddings.py: rotary embedding of a slice of each head, queries, keys
    and values copied for flash attention, a residual summed in steps). Megatron-LM and its forks fused what GPT needs;
    gates, RMS norms and rotary embeddings were separate operations before 2024.
    """
    text = f"{config.framework} {config.notes}"
    replaced = re.search(r"(?i)\bfused (?:kernels|layer ?norm|rms|swiglu|ops)|liger kernels|unsloth", text)
    if re.search(r"nanotron|GPT-NeoX", config.framework) or (is_hugging_face(config) and not replaced):
        return False, "separate small kernels"
    early = config.year is not None and config.year < FUSED_GATES_YEAR
    if early and config.gated_mlp and config.framework.startswith("Megatron-L"):
        return False, "separate small kernels of gated models (frameworks before 2024)"
    stated = replaced or states_compile(config)
    if re.search(r"torchtitan|fms-fsdp|torchtune|PyTorch", config.framework) and not stated:
        return False, "separate small kernels (no torch.compile stated)"
    return None


def fp8_scaling(config: RunConfig) -> tuple[object, str] | None:
    """Where the scales of 8-bit tensors come from: torchao takes them from the tensors, by default one for each.

    So does current scaling of Transformer Engine, where the kernel that wrote a tensor may have found its scale on the
    way (norms, activations): not of what was routed to experts.
    Source: pytorch/ao, float8/config.py (dynamic scaling; recipes tensorwise and rowwise); Transformer Engine,
    pytorch/csrc/quantizer.cpp (Float8CurrentScalingQuantizer: compute_amax, then the cast).
    """
    if config.precision == "fp8" and config.n_experts and re.search(r"current scaling", config.notes):
        return "tensor", ""
    if config.precision != "fp8" or not re.search(
        r"torchtitan|torchao", f"{config.framework} {config.notes}"
    ):
        return None
    return ("row" if re.search(r"(?i)float8 rowwise|rowwise (?:float8|scal)", config.notes) else "tensor"), ""


def scale_updates(config: RunConfig) -> tuple[object, str] | None:
    """8-bit training before 2024 is Transformer Engine's with delayed scales, updated by operations of PyTorch.

    Source: NVIDIA/TransformerEngine, pull request 593 (January 2024, version 1.4).
    """
    early = config.year is not None and config.year < SCALE_UPDATE_YEAR
    if config.precision != "fp8" or not early or fp8_scaling(config) is not None:
        return None
    return True, "8-bit scales updated module by module (Transformer Engine before 1.4)"


def blocking_maxima(config: RunConfig) -> tuple[object, str] | None:
    """Maxima of delayed scales were agreed on after every pass, before recipes of NVIDIA's switched that off.

    Source: Transformer Engine before 1.4 (defaults of NVTE_DP_AMAX_REDUCE_INTERVAL and NVTE_ASYNC_AMAX_REDUCTION: every
    pass, waiting); config_common.sh of the submissions to MLPerf Training (GPT-3): neither variable in v3.0, "AMAX AR
    overlap and disable DP" since v3.1.
    """
    if scale_updates(config) is None or not re.search(r"NeMo|Megatron", config.framework):
        return None
    if re.search(r"MLPerf", config.framework) and not BEFORE_MID_2023.search(config.framework):
        return None
    return True, "maxima of 8-bit tensors reduced after every pass (Transformer Engine before 1.4)"


def fused_loss(config: RunConfig) -> tuple[object, str] | None:
    """Megatron's cross-entropy over a cut vocabulary, which GPT-NeoX has too, was separate operations before 2024."""
    if separate_loss(config):
        return False, "cross-entropy of separate kernels (the framework's recipes of LoRA)"
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


def known_model(config: RunConfig) -> Model | None:
    """The catalog's model of that name and width."""
    try:
        known = catalog.model(config.model_name)
    except CatalogError:
        return None
    return known if known.hidden == config.hidden else None


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


def scaled_rotary(config: RunConfig) -> tuple[object, str] | None:
    """Models whose rotary embedding scales attention; latent attention of NeMo, and of Megatron-Core before 2025.

    Megatron-Core has fused kernels for latent attention since 0.13 (mid-2025), which NeMo never asked for.
    Source: NeMo, collections/llm/gpt/model/deepseek.py (apply_rope_fusion: False); Megatron-LM issue 1411, release
    notes of core 0.13.0.
    """
    model = known_model(config)
    nemo = re.search(r"^NeMo(?:/Megatron-Core| \(|$)", config.framework)
    old = "Megatron" in config.framework and config.year is not None and config.year < LATENT_ROTARY_YEAR
    if model and model.latent_attention and (nemo or old):
        return True, "rotary embedding of latent attention in separate kernels (the framework's default)"
    return architecture_rule(config, "scaled_rotary")


def prediction_layers(config: RunConfig) -> tuple[object, str] | None:
    """Layers of multi-token prediction, from the catalog's model of that name and all its layers."""
    found = architecture_rule(config, "mtp_layers")
    whole = found and catalog.model(config.model_name).layers == config.layers
    return found if whole and not re.search(r"(?i)\b(?:no MTP|MTP off)\b", config.notes) else None
