"""How many kernels the host launches for a layer: what bounds small micro-batches in eager frameworks."""

from __future__ import annotations

from cost_models.layout import Layout
from cost_models.model import Model

__all__ = ["BACKWARD_LAUNCHES", "forward_launches"]

BACKWARD_LAUNCHES = 2.0  # two gradients of every product, an operation and its accumulation elsewhere
# A collective of PyTorch: the buffer, the NCCL call, events between its stream and the compute stream.
LAUNCHES_OF_A_COLLECTIVE = 3.0


def forward_launches(model: Model, layout: Layout, *, moe: bool) -> float:
    """Operations that the host issues for a layer's forward; CUDA graphs issue none.

        fused     2 norms + products + 2 copies + attention + rotary 1 + 2 adds + activation
        separate  6 per norm, rotary 8, activation 2 (+ 1 per bias and dropout), unfused softmax 5
        experts   router 8, permutation and its inverse 8, counting and sorting 4 (fused dispatch: router only)
        + 3 per collective: 4 with tensor parallelism (2 in a parallel block), 2 all-to-alls, 2 of cut experts

    Counted: operations with a kernel of their own.  Ignored: hooks of sharded parameters, Python between operations
    (both are part of the calibrated time per launch).
    Source: the operations of Megatron-Core's and nanotron's transformer layers.
    """
    if layout.cuda_graphs:
        return 0.0
    norms = 1 if model.parallel_block else 2
    latent = model.latent_attention
    products = 4 if latent is None else (7 if latent.q_lora_rank else 6)
    if model.parallel_block and layout.fused_kernels and not moe:
        products -= 2
    rotary = 0 if model.learned_positions else (1 if layout.fused_kernels else 8)
    attention = {"unfused": 4 if layout.fused_kernels else 8}.get(layout.attention_kernel, 1)
    if layout.fused_kernels:
        count = norms + norms + 1
    else:
        extras = norms * (int(model.biases) + int(model.dropout))
        count = 6 * norms + norms + extras + 2 + int(model.biases)
    count += products + 2 + attention + rotary
    collectives = 0
    if layout.tp > 1:
        per_pair = 2 if layout.sequence_parallel else 1
        spread = moe and (layout.ep > 1 or layout.etp is not None)
        collectives += per_pair * (1 if model.parallel_block or spread else 2)
    if moe:
        count += 8 + (0 if layout.expert_dispatch == "fused" else 12) + (2 if model.shared_expert_ffn else 0)
        collectives += (2 if layout.ep > 1 else 0) + (2 if (layout.etp or 1) > 1 else 0)
    return count + LAUNCHES_OF_A_COLLECTIVE * collectives
