"""How many kernels the host launches for a layer: what bounds small micro-batches in eager frameworks."""

from __future__ import annotations

from cost_models.layout import Layout
from cost_models.model import Model

__all__ = ["backward_launches", "forward_launches", "launches_behind_counts", "tensor_collectives"]

BACKWARD_LAUNCHES = 2.0  # two gradients of every product, an operation and its accumulation elsewhere
# A collective of PyTorch: the buffer, the NCCL call, events between its stream and the compute stream.
LAUNCHES_OF_A_COLLECTIVE = 3.0
ROUTER_LAUNCHES = 8.0
PERMUTATION_LAUNCHES = 12.0  # permutation and its inverse 8, counting and sorting 4
EXPERT_MATRICES = 2
# Of an expert's input or gradient: the cast, and the tensors of its two copies and their scales.
NARROW_CASTS = 2.0
# All-to-alls beside another micro-batch: a layer is cut into five pieces (attention, dispatch, experts, combine, what
# follows), each with a stream to switch to, two events, detached inputs and a backward of its own. Fitted with the
# time of a launch: layers of H100 and B300 that take as long whatever their all-to-all (Megatron-Bridge 25.11-26.04).
OVERLAP_LAUNCHES = 5 * 10.0
EXPERT_BIAS_LAUNCHES = 2.0  # of an expert: times the routing weights, added
CLAMP_LAUNCHES = 3.0


def forward_launches(model: Model, layout: Layout, *, moe: bool) -> float:
    """Operations that the host issues for a layer's forward; CUDA graphs issue none.

        fused     2 norms + products + 2 copies + attention + rotary 1 + 2 adds + activation
        separate  6 per norm, rotary 8, activation 2 (+ 1 per bias and dropout), unfused softmax 5
        experts   router 8, permutation and its inverse 8, counting and sorting 4 (fused dispatch: router only)
                  separate kernels: for every expert of a GPU a product each of 2 matrices, with 8 and 4 bits 2 more
                  for the cast of what it reads
        overlap   50 with all-to-alls beside another micro-batch
        + 3 per collective: 4 with tensor parallelism (2 in a parallel block), 2 all-to-alls, 2 of cut experts

    Graphs without the experts (cuda_graph_experts off) hold everything up to the router.
    Counted: operations with a kernel of their own.  Ignored: hooks of sharded parameters, Python between operations
    (both are part of the calibrated time per launch).
    Source: the operations of Megatron-Core's and nanotron's transformer layers; Transformer Engine's GroupedLinear
    (multi-stream cuBLAS, NVIDIA/TransformerEngine pull request 853, issue 1499).
    """
    experts = _expert_launches(model, layout) if moe else 0.0
    if layout.cuda_graphs:
        return 0.0 if layout.cuda_graph_experts else experts
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
    products -= EXPERT_MATRICES if moe else 0
    count += products + 2 + attention + rotary + (2 if model.qk_norm else 0)
    collectives = tensor_collectives(model, layout, moe=moe)
    router = ROUTER_LAUNCHES + (2 if model.shared_expert_ffn else 0) if moe else 0.0
    return count + router + LAUNCHES_OF_A_COLLECTIVE * collectives + experts


def backward_launches(model: Model, layout: Layout, *, moe: bool) -> float:
    """The same for its backward: twice as many, but an expert's gradient is cast once for its two products."""
    twice = BACKWARD_LAUNCHES * forward_launches(model, layout, moe=moe)
    if not moe or (layout.cuda_graphs and layout.cuda_graph_experts):
        return twice
    experts, per_expert = _separate_experts(model, layout)
    return twice - EXPERT_MATRICES * experts * (per_expert - 1.0)


def launches_behind_counts(model: Model, layout: Layout) -> float:
    """Launches of a forward for which the host must know how many tokens each expert got.

    It reads the counts when dispatch is done, and nothing is queued behind: experts start one launch after the
    other. Overlapped all-to-alls leave another micro-batch's kernels in the queue.
    """
    if layout.expert_kernels == "grouped" or _overlapped(layout):
        return 0.0
    if layout.cuda_graphs and layout.cuda_graph_experts:
        return 0.0
    experts, per_expert = _separate_experts(model, layout)
    return EXPERT_MATRICES * per_expert * experts


def _overlapped(layout: Layout) -> bool:
    """Whether there are all-to-alls that run beside another micro-batch: experts on one GPU have none."""
    return layout.ep_overlap and layout.ep > 1


def _separate_experts(model: Model, layout: Layout) -> tuple[float, float]:
    """Experts of a GPU that are launched one by one, and launches of one of their products; grouped: one of one."""
    if layout.expert_kernels == "grouped":
        return 1.0, 1.0
    casts = 0.0 if layout.precision == "bf16" else NARROW_CASTS
    return float(max(1, model.experts // layout.ep)), 1.0 + casts


def _expert_launches(model: Model, layout: Layout) -> float:
    """Everything behind the router: the way to the routed experts, their products, the way back."""
    count = 0.0 if layout.expert_dispatch == "fused" else PERMUTATION_LAUNCHES
    experts, per_expert = _separate_experts(model, layout)
    count += EXPERT_MATRICES * per_expert * experts
    count += EXPERT_BIAS_LAUNCHES * experts if model.expert_biases else 0.0
    count += CLAMP_LAUNCHES if model.clamped_activation else 0.0
    count += OVERLAP_LAUNCHES if _overlapped(layout) else 0.0
    collectives = (2 if layout.ep > 1 else 0) + (2 if (layout.etp or 1) > 1 else 0)
    return count + LAUNCHES_OF_A_COLLECTIVE * collectives


def tensor_collectives(model: Model, layout: Layout, *, moe: bool) -> int:
    """Collectives of the tensor-parallel group in a layer's forward."""
    if layout.tp == 1:
        return 0
    per_pair = 2 if layout.sequence_parallel else 1
    spread = moe and (layout.ep > 1 or layout.etp is not None)
    return per_pair * (1 if model.parallel_block or spread else 2)
