"""Everything of a layer that is neither a matrix product nor attention: norms, biases, activation, routing.

Such kernels do little work per byte: they take the time of their HBM traffic. How much that is depends on how many
operations one kernel does, so this module counts passes: one element read or written, in units of 16 bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration import Calibration
from cost_models.experts import parts_of_a_token
from cost_models.hardware import Gpu
from cost_models.kernels import BF16_BYTES, memory_bound_s
from cost_models.layout import Layout
from cost_models.model import Model
from cost_models.tracing import note, priced

__all__ = ["SmallKernels"]

Floats = NDArray[np.float64]

MASK = 0.5  # a dropout mask is one byte per element
BACKWARD_TRAFFIC = 2  # the backward of a kernel reads its inputs again beside the gradients

# Passes per element of one norm of separate kernels: to fp32 (1 + 2), square (2 + 2), mean (2), scale by it (2 + 2), to
# 16 bits (2 + 1), weight (1 + 1): LlamaRMSNorm of Hugging Face transformers. LayerNorm under autocast: to fp32 (1 + 2),
# one kernel (2 + 2), back (2 + 1).
SEPARATE_NORM = {"rms": 16.0, "layer": 10.0}
# Rotary embedding of separate kernels: rotate half (2), times cosine (2), times sine (2), sum (3).
SEPARATE_ROTARY = 9.0
# Passes per element of the width: both halves clamped (2 + 2), put together again (2 + 2).
CLAMPS = 8.0
# Passes per element of an expert's output, see SmallKernels.
EXPERT_BIAS = 14.0


class SmallKernels:
    """Passes over memory of one layer kind ('dense' or 'moe') on one GPU of a layout.

    Per token of a rank, t = tp, S = t with sequence parallelism, else 1 (h hidden, f MLP width, w = heads x dim):
        fused     passes x [ norms 2 x 2 h / S + adds 2 x (3 + mask) h / S + rotary 2 (a + g) d / t
                             + activation 3 f / t (2 f without gate) + norms of queries and keys 2 (a + g) d / t ]
        separate  norms 2 x n h / S + outputs 2 x (3 + bias 2 + dropout 2 + mask) h / S + rotary 9 (a + g) d / t
                  + activation (5 with a gate, 2 without, + bias 2) f / t + norms of queries and keys n (a + g) d / t
        experts   clamp 8 k f / t + biases 14 k h / t; routing 4 k h / t + 4 k h / t with several experts on a GPU
                  of an expert-parallel group; fused dispatch 2 (k + u) h / t, u the GPUs that a token visits

    One norm in a parallel block, whose sum of three needs one kernel. With recompute_small_kernels the backward runs
    norms, activation and clamps of the forward again.
    Counted: every kernel reads and writes its tensors once, the mask of a dropout, twice as much in the backward
    (as much for routing: the way back of a copy is a copy). Routing: tokens are gathered for their experts, sorted by
    expert where they arrive and back where they leave, outputs summed by weight; fused dispatch copies what arrives,
    once per GPU, for each expert and sums on the way back.
    Ignored: statistics of norms, tables of the rotary embedding, random numbers, scores of the router.
    Source: derivation; *passes* (casts, a separate rotary embedding) calibrated. Clamps are operations of PyTorch
    before the fused activation (Megatron-Core, fusions/fused_bias_geglu.py: two clamps, one concatenation); the last
    bias times the routing weight is added in fp32 (transformer/moe/experts.py, _apply_bias: product 2, sum 5,
    concatenation 4, cast 3).
    """

    def __init__(self, model: Model, layout: Layout, gpu: Gpu, cal: Calibration, *, moe: bool) -> None:
        self._gpu, self._cal = gpu, cal
        share = cal.small_kernel_passes if layout.fused_kernels else 1.0
        again, once = (_fused_passes if layout.fused_kernels else _separate_passes)(model, layout, moe)
        clamps, biases = _expert_passes(model, layout) if moe else (0.0, 0.0)
        self.passes = share * (again + once) + (clamps + biases)
        self.routing_passes = _routing(model, layout) if moe else 0.0
        repeats = layout.recompute == "selective" and layout.recompute_small_kernels
        self.repeated_passes = share * again + clamps if repeats else 0.0

    @priced("small_kernels")
    def seconds(self, tokens: Floats, *, backward: bool) -> Floats:
        """Forward or backward of all of them, for a rank's *tokens*."""
        note(passes=self.passes, routing_passes=self.routing_passes)
        passes = self.passes + self.routing_passes
        if backward:
            passes = BACKWARD_TRAFFIC * self.passes + self.routing_passes + self.repeated_passes
        traffic_bytes = BF16_BYTES * passes
        return memory_bound_s(traffic_bytes * tokens, self._gpu, self._cal)


def _fused_passes(model: Model, layout: Layout, moe: bool) -> tuple[float, float]:
    """Passes of norms and activation, and of the rest."""
    blocks = 1 if model.parallel_block else 2
    mask = MASK if model.dropout else 0.0
    width = model.hidden / _residual_shards(layout)
    activation = (3 if model.gated_mlp else 2) * _width(model, moe) / layout.tp
    rest = blocks * (3 + mask) * width + 2 * _rotated(model, layout)
    return blocks * 2 * width + activation + 2 * _normalised(model, layout), rest


def _separate_passes(model: Model, layout: Layout, moe: bool) -> tuple[float, float]:
    """The same of one kernel per operation."""
    blocks = 1 if model.parallel_block else 2
    output = 3 + (2 if model.biases else 0) + (2 + MASK if model.dropout else 0)
    width = model.hidden / _residual_shards(layout)
    norms = blocks * SEPARATE_NORM[model.norm] * width + SEPARATE_NORM[model.norm] * _normalised(
        model, layout
    )
    activation = ((5 if model.gated_mlp else 2) + (2 if model.biases else 0)) * _width(model, moe) / layout.tp
    # a parallel block adds attention, MLP and residual: two additions, each with its bias
    return norms + activation, 2 * output * width + SEPARATE_ROTARY * _rotated(model, layout)


def _rotated(model: Model, layout: Layout) -> float:
    """Elements of queries and keys that the rotary embedding turns."""
    return 0.0 if model.learned_positions else _queries_and_keys(model, layout)


def _normalised(model: Model, layout: Layout) -> float:
    """Elements of queries and keys that norms of their own scale."""
    return _queries_and_keys(model, layout) if model.qk_norm else 0.0


def _queries_and_keys(model: Model, layout: Layout) -> float:
    return (model.heads + model.kv_heads) * model.head_dim / layout.tp


def _width(model: Model, moe: bool) -> int:
    """Inner elements of the MLP (or of the experts) that a token passes."""
    if moe:
        return model.ffn_hidden * model.top_k + model.shared_expert_ffn
    return model.dense_ffn_hidden if model.experts else model.ffn_hidden


def _expert_passes(model: Model, layout: Layout) -> tuple[float, float]:
    """What the routed experts of some models add: clamps before the activation, biases after the last matrix."""
    clamps = CLAMPS * model.ffn_hidden if model.clamped_activation else 0.0
    biases = EXPERT_BIAS * model.hidden if model.expert_biases else 0.0
    return model.top_k * clamps / layout.tp, model.top_k * biases / layout.tp


def _routing(model: Model, layout: Layout) -> float:
    """One direction of a token's way to its experts and back."""
    copies = float(model.top_k)
    if layout.expert_dispatch == "fused" and layout.ep > 1:
        passes = 2.0 * (copies + parts_of_a_token(model.experts, model.top_k, layout.ep))
    else:
        passes = (8.0 if 1 < layout.ep < model.experts else 4.0) * copies
    return passes * model.hidden / layout.tp


def _residual_shards(layout: Layout) -> int:
    return layout.tp if layout.sequence_parallel else 1
