"""Context parallelism other than rings: what the ranks of a group exchange before and after attention."""

from __future__ import annotations

import math
from typing import NamedTuple, assert_never

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.kernels.products import BF16_BYTES
from hdpsim.cost_models.layer.sent import SentTimes
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import Collectives, GroupShape
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import InfeasibleError


class AttentionHeads(NamedTuple):
    """The heads of one GPU, after tensor parallelism."""

    heads: float
    kv_heads: float
    query_dim: float
    value_dim: float
    kv_width: float
    """Elements of a token's keys and values that travel."""

    @classmethod
    def of(cls, model: Model, layout: Layout) -> AttentionHeads:
        """Of a model cut by a layout's tensor parallelism."""
        heads, latent = model.heads / layout.parallel.tp, model.latent_attention
        kv_heads = heads if latent else max(1.0, model.kv_heads / layout.parallel.tp)
        kv_width = 2.0 * kv_heads * model.head_dim
        if latent:
            kv_width = float(latent.kv_lora_rank + latent.qk_rope_head_dim)
        elif layout.context.kind == "gathered-ring":
            kv_width = 2.0 * heads * model.head_dim  # keys and values are repeated for every head first
        return cls(heads, kv_heads, float(model.query_dim), float(model.value_dim), kv_width)

    @property
    def width(self) -> float:
        """Mean width of queries and values."""
        return self.heads * (self.query_dim + self.value_dim) / 2.0

    @property
    def output_width(self) -> float:
        """Width of what attention puts out."""
        return self.heads * self.value_dim


class ContextExchange:
    """What the ranks of a context-parallel group exchange for one layer; all of it exposed."""

    def __init__(self, layout: Layout, fabric: FabricModel, heads: AttentionHeads) -> None:
        self._layout, self._collectives, self._heads = layout, Collectives(fabric), heads

    @property
    def most_ranks(self) -> int | None:
        """Ranks of the largest group: as many as a GPU has heads (ulysses); None = any number."""
        return max(1, int(self._heads.heads)) if self._layout.context.kind == "ulysses" else None

    @priced("ring_wait")
    def seconds(self, tokens_per_rank: Floats, group_size: Floats, tier: Ints, *, backward: bool) -> Floats:
        """Collectives of one layer's forward or backward.

            all-gather  forward: all-gather of keys and values, 2 B x kv width x d tokens; backward: the same again, and
                        a reduce-scatter of their gradients
            gathered-ring  the gather, forward and backward
            ulysses     all-to-all of queries, keys, values and of the output, 2 B x (q + kv + o width) x tokens, from a
                        share of the tokens to a share of the heads and back; the backward the same
            disaggregated  all-to-all of queries, keys and values to the ranks that attend, and of outputs back,
                        once each; the backward as many gradients the other way

        Counted: key-value heads fewer than ranks are sent to several ranks (ulysses). Disaggregated, every token
        travels as if ranks were drawn at random: more than a planner that leaves what it can where it is would move.
        Ignored: overlap (but for gathered-ring and disaggregated none can start attention before it ends; see
        AttentionCost.ring); in a gathered ring, gradients of keys and values that go round in fp32 beside a step of the
        backward; disaggregated, keys and values that several ranks need, and the first half, which nothing hides.
        Source: Llama 3, arXiv 2407.21783, section 3.3.2; DeepSpeed-Ulysses, arXiv 2309.14509; DistCA
        (hao-ai-lab/distca, runtime/megatron_patch/transformer_layer.py: ping_pang_forward).
        """
        tokens, sizes, tiers = np.broadcast_arrays(tokens_per_rank, group_size, tier)
        out = np.zeros(sizes.shape)
        for size, level in {(int(d), int(t)) for d, t in zip(sizes.flat, tiers.flat, strict=True) if d > 1}:
            here = (sizes == size) & (tiers == level)
            out[here] = self._of_group(tokens[here], self._shape(size, level), backward=backward)
        return out

    def sent(
        self, tokens_per_rank: Floats, group_size: Floats, tier: Ints, hidden_s: Floats, *, backward: bool
    ) -> SentTimes:
        """What a GPU sends to other nodes in all collectives of one layer, and the time they take.

        all-gather  ring of nodes: (d - 1) / d of the gathered bytes over the NICs of a node's members
        ulysses, disaggregated  the share of a rank's bytes that other nodes get
        """
        far = (group_size > 1.0) & (tier > 0)
        seconds = np.where(far, self.seconds(tokens_per_rank, group_size, tier, backward=backward), 0.0)
        sent, rate = np.zeros_like(seconds), np.ones_like(seconds)
        for size, level in {(int(d), int(t)) for d, t in zip(group_size[far], tier[far], strict=True)}:
            here = far & (group_size == size) & (tier == level)
            group, tokens, heads = self._shape(size, level), tokens_per_rank[here], self._heads
            wires = self._collectives.wires(group)
            if self._layout.context.kind in ("ulysses", "disaggregated"):
                spread = self._layout.context.kind == "ulysses"
                copies = max(1.0, size / heads.kv_heads) if spread else 1.0
                width = heads.heads * heads.query_dim + copies * heads.kv_width + heads.output_width
                sent[here] = BF16_BYTES * width * tokens * (1.0 - group.ranks_per_node / size)
                rate[here] = min(network for _, network in wires.remote)
            else:
                passes = 2.0 if backward and self._layout.context.kind == "all-gather" else 1.0
                volume = passes * BF16_BYTES * heads.kv_width * tokens * (size - 1)
                sent[here] = volume / group.ranks_per_node
                rate[here] = wires.nic_bytes_per_s
        return SentTimes(
            times=far.astype(np.float64),
            hidden_s=hidden_s,
            fixed_s=np.maximum(0.0, seconds - sent / rate),
            sent_bytes=np.minimum(sent, seconds * rate),
            bytes_per_s=rate,
        )

    def _of_group(self, tokens: Floats, group: GroupShape, *, backward: bool) -> Floats:
        kind = self._layout.context.kind
        match kind:
            case "all-gather" | "gathered-ring":
                volume = BF16_BYTES * self._heads.kv_width * tokens * group.ranks
                gather = self._collectives.all_gather_s(volume, group)
                if kind == "gathered-ring" or not backward:
                    return gather
                return gather + self._collectives.reduce_scatter_s(volume, group)
            case "ulysses":
                return self._spread_heads(tokens, group)
            case "disaggregated":
                there = (
                    BF16_BYTES * (self._heads.heads * self._heads.query_dim + self._heads.kv_width) * tokens
                )
                back = BF16_BYTES * self._heads.output_width * tokens
                return self._collectives.all_to_all_s(there, group) + self._collectives.all_to_all_s(
                    back, group
                )
            case "ring":
                raise ValueError("a ring exchanges nothing before attention")
            case _:
                assert_never(kind)

    def _spread_heads(self, tokens: Floats, group: GroupShape) -> Floats:
        """All-to-alls that give every rank all tokens of some heads, and back (Ulysses)."""
        if self.most_ranks is not None and group.ranks > self.most_ranks:
            raise InfeasibleError(
                f"cp_kind ulysses spreads heads over the context-parallel group: {group.ranks} ranks are more than "
                f"the {self._heads.heads:g} heads of a GPU (tp = {self._layout.parallel.tp})"
            )
        heads = self._heads
        copies = max(1.0, group.ranks / heads.kv_heads)
        there = BF16_BYTES * (heads.heads * heads.query_dim + copies * heads.kv_width) * tokens
        back = BF16_BYTES * heads.output_width * tokens
        return self._collectives.all_to_all_s(there, group) + self._collectives.all_to_all_s(back, group)

    def _shape(self, ranks: int, tier: int) -> GroupShape:
        """GPUs of a group at one tensor-parallel index: on one node, or as packed as nodes allow."""
        if tier == 0:
            return GroupShape(ranks=ranks, ranks_per_node=ranks, nodes=1, tier=0)
        per_node = max(1, self._collectives.fabric.cluster.node.gpus // self._layout.parallel.rank_stride)
        per_node = min(per_node, math.ceil(ranks / 2))  # it does cross nodes
        return GroupShape(
            ranks=ranks,
            ranks_per_node=per_node,
            nodes=math.ceil(ranks / per_node),
            tier=tier,
            stride=self._layout.parallel.rank_stride,
        )
