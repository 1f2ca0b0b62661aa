"""What a record's software stack keeps in memory, and what of its activations is on the host."""

from __future__ import annotations

import re
from dataclasses import replace

from hdpsim.cost_models.memory.overheads import EAGER, MemoryOverheads
from hdpsim.experiments.software.run import RunConfig

_EAGER = ("nanotron",)
_SYNCHRONOUS_PIPELINE = re.compile(r"after_pp_fix=False")  # the host waits for every transfer
_EIGHT_BIT_WEIGHTS = ("NeMo", "Megatron-Bridge")  # their 8-bit recipes: fp8_params, fp8_param_gather = True
_FULL_LOSS = ("torchtitan", "fms-fsdp")  # torch.nn.functional.cross_entropy on fp32 logits
_FUSED_LOSS = ("LLM-Foundry",)  # flash-attn's cross-entropy: logits and their gradient in 16 bits

_REMAT = {  # MaxText's policies by what they keep beside the layer's input
    "save_qkv_proj": ("queries_keys_values",),
    "save_dot_except_mlp": ("queries_keys_values", "attention_output"),
    "save_dot_except_mlpwi": ("queries_keys_values", "attention_output", "linear_inputs"),
}
_REMAT_POLICY = re.compile(r"remat_policy: (\w+)")
_TILED_LOSS = re.compile(r"tiled logits")
_OFFLOAD = re.compile(r"activation-checkpoint offload|activation offload")
_FUSED_LOGIT_BYTES = 4.0
_LOGIT_BYTES = 14.0  # logits in 16 bits 2, in fp32 4, their log-softmax 4, its gradient 4


def stack_of(config: RunConfig) -> MemoryOverheads:
    """Buffers and copies of the record's framework generation."""
    eager = any(name in config.framework for name in _EAGER)
    stack = EAGER if eager else MemoryOverheads()
    if _SYNCHRONOUS_PIPELINE.search(config.notes) and (config.pp or 1) > 1:
        stack = replace(stack, host_run_ahead=False)

    def runs(names: tuple[str, ...]) -> bool:
        return any(name in config.framework for name in names)

    if runs(_EIGHT_BIT_WEIGHTS):
        stack = replace(stack, eight_bit_copy_bytes=0.0)
    if _TILED_LOSS.search(config.notes):
        stack = replace(stack, logit_bytes=0.0)
    elif runs(_FUSED_LOSS):
        stack = replace(stack, logit_bytes=_FUSED_LOGIT_BYTES)
    elif runs(_FULL_LOSS):
        stack = replace(stack, logit_bytes=_LOGIT_BYTES)

    remat = _REMAT_POLICY.search(config.notes)
    if remat and remat[1] in _REMAT:
        stack = replace(stack, selective_keeps=_REMAT[remat[1]])
    return stack


def activation_offload(config: RunConfig) -> float:
    """Share of the kept activations that is in host memory."""
    return 1.0 if _OFFLOAD.search(config.notes) else 0.0
