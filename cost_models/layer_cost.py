"""Forward and backward of one transformer layer on one GPU, apart from attention: GEMMs, small kernels, TP, experts.

Everything is a vector over micro-batches; *tokens* are a rank's tokens (its TP group holds them together).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration import Calibration
from cost_models.collectives import Collectives
from cost_models.hardware import Cluster
from cost_models.kernels import BF16_BYTES, memory_bound_s
from cost_models.layer_gemms import LayerGemms, LinearOp
from cost_models.layout import Layout
from cost_models.model import Model
from cost_models.tracing import priced

__all__ = ["LayerCost", "LayerTimes"]

Floats = NDArray[np.float64]

# Kernels of an unfused layer forward (2 norms, 4-5 GEMMs, rope, attention, adds, casts): counted in torch profiles
# of Megatron layers.
LAUNCHES_PER_LAYER = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Seconds per layer by term, [n] each."""

    gemm: Floats
    small_kernels: Floats
    tp_communication: Floats
    expert_all_to_all: Floats


class LayerCost:
    """The linear-in-tokens parts of one layer kind ('dense' or 'moe') under a layout on a cluster."""

    def __init__(
        self,
        model: Model,
        layout: Layout,
        cluster: Cluster,
        cal: Calibration,
        collectives: Collectives,
        *,
        moe: bool,
    ) -> None:
        self._model, self._layout, self._gpu, self._cal = model, layout, cluster.gpu, cal
        self._collectives, self._moe = collectives, moe
        self._tp_group = collectives.group(layout.tp)
        self._ep_group = collectives.group(layout.ep)
        ops = (*self._attention_ops(), *(self._expert_ops() if moe else self._mlp_ops()))
        self._gemms = LayerGemms(ops, cluster.gpu, cal)

    def _attention_ops(self) -> tuple[LinearOp, ...]:
        model, tp = self._model, self._layout.tp
        latent = model.latent_attention
        if latent is None:
            qkv = (model.heads + 2 * model.kv_heads) * model.head_dim // tp
            out = model.heads * model.head_dim // tp
            return (
                LinearOp(name="qkv", columns=qkv, inner=model.hidden),
                LinearOp(name="attention_out", columns=model.hidden, inner=out),
            )
        heads = model.heads // tp
        query_dim = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
        queries = (
            (
                LinearOp(name="query_down", columns=latent.q_lora_rank, inner=model.hidden),
                LinearOp(name="query_up", columns=query_dim, inner=latent.q_lora_rank),
            )
            if latent.q_lora_rank
            else (LinearOp(name="query", columns=query_dim, inner=model.hidden),)
        )
        return (
            *queries,
            LinearOp(
                name="kv_down", columns=latent.kv_lora_rank + latent.qk_rope_head_dim, inner=model.hidden
            ),
            LinearOp(
                name="kv_up",
                columns=heads * (latent.qk_nope_head_dim + latent.v_head_dim),
                inner=latent.kv_lora_rank,
            ),
            LinearOp(name="attention_out", columns=model.hidden, inner=heads * latent.v_head_dim),
        )

    def _mlp_ops(self) -> tuple[LinearOp, ...]:
        model, tp = self._model, self._layout.tp
        width = (model.dense_ffn_hidden if model.experts else model.ffn_hidden) // tp
        return _mlp(model, width)

    def _expert_ops(self) -> tuple[LinearOp, ...]:
        model, layout = self._model, self._layout
        expert_tp = max(1, layout.tp // layout.ep)
        groups = max(1, model.experts // layout.ep)
        rows = model.top_k / min(layout.ep, layout.tp) * self._cal.expert_imbalance
        if layout.ep > layout.tp:  # experts across ranks: every rank receives as many tokens as it sends
            rows = model.top_k / layout.tp * self._cal.expert_imbalance
        routed = tuple(
            replace(op, name=f"expert_{op.name}", rows_share=rows, groups=groups)
            for op in _mlp(model, model.ffn_hidden // expert_tp)
        )
        shared = _mlp(model, model.shared_expert_ffn // layout.tp) if model.shared_expert_ffn else ()
        return (
            *routed,
            *shared,
            LinearOp(name="router", columns=model.experts, inner=model.hidden, rows_share=1 / layout.tp),
        )

    def gemm_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """All matrix products: forward; backward = input gradient + weight gradient (twice the FLOP)."""
        return self._gemms.seconds(tokens, backward=backward)

    @priced("small_kernels")
    def small_kernels_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """Norms, residual adds, rotary embedding, activation function, router: memory-bound traffic.

            bytes per token = 2 B * [ (norms 2 x (read + write) + adds 2 x (2 reads + write)) * h / sp
                                      + rope 2 (q + k) / tp + activation 3 f (2 f without gate) / tp ]

        Counted: each tensor read and written once per kernel; the backward moves twice as much.
        Ignored: statistics of the norms, dropout (not used).  Source: derivation; passes factor calibrated.
        """
        model, layout = self._model, self._layout
        residual_shards = layout.tp if layout.sequence_parallel else 1
        norms = 1 if model.parallel_block else 2
        residual = (norms * 2 + norms * 3) * model.hidden / residual_shards
        rope = (
            0.0
            if model.learned_positions
            else 2 * (model.heads + model.kv_heads) * model.head_dim / layout.tp
        )
        if self._moe:
            width = model.ffn_hidden * model.top_k + model.shared_expert_ffn
            permute = 4 * model.top_k * model.hidden / layout.tp  # gather to experts and weighted sum back
        else:
            width = model.dense_ffn_hidden if model.experts else model.ffn_hidden
            permute = 0.0
        activation = (3 if model.gated_mlp else 2) * width / layout.tp
        elements = residual + rope + activation + permute
        traffic = BF16_BYTES * elements * self._cal.small_kernel_passes * (2 if backward else 1)
        return memory_bound_s(traffic * tokens, self._gpu, self._cal)

    def tp_communication_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """Tensor-parallel collectives of a layer, exposed.

        With sequence parallelism: all-gather + reduce-scatter around attention and around the MLP (one pair with a
        parallel block); the backward gathers its inputs once more. Without: one all-reduce each.
        Source: Korthikanti et al., arXiv 2205.05198, section 4.2.
        """
        return self._tp_sides_s(tokens)[backward]

    @priced("tp_communication")
    def _tp_sides_s(self, tokens: Floats) -> tuple[Floats, Floats]:
        """Tensor-parallel collectives of a layer's forward and of its backward, exposed.

            forward  = pairs x (all-gather + reduce-scatter)            sequence parallel
            backward = pairs x (2 all-gathers + reduce-scatter)
            both     = pairs x all-reduce                               without sequence parallelism
            bytes    = 2 B x hidden x tokens

        Counted: a pair around attention and one around the MLP (one in all with a parallel block).
        Source: Korthikanti et al., arXiv 2205.05198, section 4.2.
        """
        layout = self._layout
        if layout.tp == 1:
            return np.zeros_like(tokens), np.zeros_like(tokens)
        pairs = 1 if self._model.parallel_block or (self._moe and layout.ep > 1) else 2
        tensor_bytes = BF16_BYTES * self._model.hidden * tokens
        if layout.sequence_parallel:
            gather = self._collectives.all_gather_s(tensor_bytes, self._tp_group)
            scatter = self._collectives.reduce_scatter_s(tensor_bytes, self._tp_group)
            return np.asarray(pairs * (gather + scatter)), np.asarray(pairs * (gather * 2 + scatter))
        reduce = np.asarray(pairs * self._collectives.all_reduce_s(tensor_bytes, self._tp_group))
        return reduce, reduce

    @priced("expert_all_to_all")
    def expert_all_to_all_s(self, tokens: Floats) -> Floats:
        """Dispatch and combine of the routed tokens (the same volume forward and backward).

            bytes per GPU and direction = tokens / tp * top_k * h * 2 B * imbalance

        Counted: both all-to-alls, BF16.  Ignored: node-limited routing, overlap with shared experts.
        """
        layout, model = self._layout, self._model
        if not self._moe or layout.ep == 1:
            return np.zeros_like(tokens)
        per_gpu = BF16_BYTES * model.hidden * model.top_k * self._cal.expert_imbalance * tokens / layout.tp
        return np.asarray(2 * self._collectives.all_to_all_s(per_gpu, self._ep_group))

    def times(self, tokens: Floats, *, backward: bool) -> LayerTimes:
        """All linear terms of the layer's forward or backward."""
        return self._expanded(tokens, (backward,))[0]

    def both_times(self, tokens: Floats) -> tuple[LayerTimes, LayerTimes]:
        """Forward and backward."""
        forward, backward = self._expanded(tokens, (False, True))
        return forward, backward

    def _expanded(self, tokens: Floats, sides: tuple[bool, ...]) -> list[LayerTimes]:
        """Each distinct number of tokens is priced once: full micro-batches hold the same number."""
        if len(tokens) == 1:
            return self._times(tokens, sides)
        distinct, place = np.unique(tokens, return_inverse=True)
        return [
            LayerTimes(
                gemm=once.gemm[place],
                small_kernels=once.small_kernels[place],
                tp_communication=once.tp_communication[place],
                expert_all_to_all=once.expert_all_to_all[place],
            )
            for once in self._times(distinct, sides)
        ]

    def _times(self, tokens: Floats, sides: tuple[bool, ...]) -> list[LayerTimes]:
        communication, all_to_all = self._tp_sides_s(tokens), self.expert_all_to_all_s(tokens)
        return [
            LayerTimes(
                gemm=self.gemm_s(tokens, backward=side),
                small_kernels=self.small_kernels_s(tokens, backward=side),
                tp_communication=communication[side],
                expert_all_to_all=all_to_all,
            )
            for side in sides
        ]


def _mlp(model: Model, width: int) -> tuple[LinearOp, ...]:
    """Up (and gate) and down projection of an MLP shard of *width*."""
    up = 2 if model.gated_mlp else 1
    return (
        LinearOp(name="mlp_up", columns=up * width, inner=model.hidden),
        LinearOp(name="mlp_down", columns=model.hidden, inner=width),
    )
