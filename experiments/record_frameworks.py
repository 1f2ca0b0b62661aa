"""Which family of training stacks a record's framework belongs to."""

from __future__ import annotations

import re

from experiments.records import RunConfig

__all__ = [
    "SPLIT_SCHEDULE",
    "is_deepspeed",
    "is_internevo",
    "is_hugging_face",
    "is_megatron",
    "is_nemo",
    "is_pytorch",
    "states_compile",
]

SPLIT_SCHEDULE = re.compile(r"\b(ZB-?\w+|DualPipe\w*)\b")
"""Names of schedules with weight gradients of their own, as frameworks and notes have them."""


def is_nemo(config: RunConfig) -> bool:
    """NeMo on Megatron-Core; AutoModel, of the same name, is PyTorch's FSDP2 (Automodel, docs: PyTorch backend)."""
    return "NeMo" in config.framework and not re.search(r"(?i)automodel", config.framework)


def is_megatron(config: RunConfig) -> bool:
    """NeMo's pipelines are Megatron's."""
    return "Megatron" in config.framework or is_nemo(config)


def is_deepspeed(config: RunConfig) -> bool:
    """GPT-NeoX runs on DeepSpeed's engine."""
    return "DeepSpeed" in config.framework or "GPT-NeoX" in config.framework


def is_internevo(config: RunConfig) -> bool:
    """InternLM's first repository held the framework before it had a name of its own."""
    return re.search(r"InternEvo|InternLM", config.framework) is not None


_HUGGING_FACE = re.compile(
    r"\bHF\b|(?i:hugging ?face|transformers|accelerate\b|\bTRL\b|axolotl|llama-?factory|open-?instruct)"
)
_PYTORCH = re.compile(
    r"torchtitan|torchtune|fms-fsdp|nanotron|(?i:pytorch|\blit-?(?:gpt|llama)\b|lightning|\bolmo\b)"
)


def is_hugging_face(config: RunConfig) -> bool:
    """Trainers of Hugging Face's models: Axolotl, LLaMA-Factory and others wrap transformers."""
    return _HUGGING_FACE.search(config.framework) is not None


def states_compile(config: RunConfig) -> bool:
    """torch.compile is said to be on."""
    return re.search(r"(?<!no torch\.)(?<!no )\bcompile\b", f"{config.framework} {config.notes}") is not None


def is_pytorch(config: RunConfig) -> bool:
    """Stacks whose layers are PyTorch's operations: no Transformer Engine, no kernels of Megatron's or JAX."""
    own = is_megatron(config) or re.search(r"Composer|MaxText|Paxml|\bJAX\b", config.framework)
    return not own and (is_hugging_face(config) or _PYTORCH.search(config.framework) is not None)
