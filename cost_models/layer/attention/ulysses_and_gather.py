"""Context parallelism other than rings: what the ranks of a group exchange before and after attention."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layer.attention.disaggregation import Disaggregated
from hdpsim.cost_models.layer.micro_batches import Groups
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
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
        """The heads of a model that is cut by a layout's tensor parallelism."""
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


class HalfTimes(NamedTuple):
    """What the two halves of micro-batches exchange for one layer, [n] each."""

    exposed_s: Floats
    """Seconds that nothing hides."""
    sent: SentTimes
    """What a GPU sends to other nodes."""


class ContextExchange:
    """What the ranks of a context-parallel group exchange for one layer; all of it exposed but for halves."""

    def __init__(self, layout: Layout, fabric: FabricModel, heads: AttentionHeads) -> None:
        self._layout, self._collectives, self._heads = layout, Collectives(fabric), heads

    @property
    def most_ranks(self) -> int | None:
        """Ranks of the largest group: as many as a GPU has heads (ulysses); None = any number."""
        return max(1, int(self._heads.heads)) if self._layout.context.kind == "ulysses" else None

    def unevenness(self, size: ArrayLike) -> Floats:
        """Heads of the rank that has most over the mean: ulysses cuts none, so 28 heads are 4 for some of 8 ranks.

            ceil(heads / ranks) * ranks / heads

        Ignored: that ranks with fewer heads of keys and values than others send less.
        Source: DeepSpeed, deepspeed/sequence/layer.py (uneven_heads_all2all); Transformer Engine refuses such ranks
        (context_parallel.py).
        """
        ranks, heads = np.asarray(size, dtype=np.float64), self._heads.heads
        if self._layout.context.kind != "ulysses":
            return np.ones_like(ranks)
        return np.asarray(np.ceil(heads / ranks) * ranks / heads)

    @priced("ring_wait")
    def seconds(self, groups: Groups, *, backward: bool) -> Floats:
        """Collectives of one layer's forward or backward.

            all-gather  forward: all-gather of keys and values, 2 B x kv width x d tokens; backward: the same again, and
                        a reduce-scatter of their gradients; the latter alone where they are kept (keep_gathered)
            gathered-ring  the gather, forward and backward
            ulysses     all-to-all of queries, keys, values and of the output, 2 B x (q + kv + o width) x tokens, from a
                        share of the tokens to a share of the heads and back; the backward the same

        Counted: key-value heads fewer than ranks are sent to several ranks, and the rank with most heads gets most
        (ulysses).
        Ignored: overlap (but for gathered-ring none can start attention before it ends; see AttentionCost.ring); in a
        gathered ring, gradients of keys and values that go round in fp32 beside a step of the backward.
        Source: Llama 3, arXiv 2407.21783, section 3.3.2; DeepSpeed-Ulysses, arXiv 2309.14509.
        """
        tokens, *_ = np.broadcast_arrays(*groups[:3])
        out = np.zeros(tokens.shape)
        for of_kind, size, tier in groups.kinds():
            of_kind = np.broadcast_to(of_kind, tokens.shape)
            out[of_kind] = self._of_group(tokens[of_kind], self._shape(size, tier), backward=backward)
        return out

    @priced("ring_merge")
    def copies_s(self, dealt: Disaggregated, gpu: Gpu, cal: Calibration, *, backward: bool) -> Floats:
        """Copies of one layer's forward or backward to and from the buffers that the halves send, [n].

            forward   queries, keys, values and outputs, into a buffer and out of another
            backward  their gradients; those of a token's keys and values for each of its document's pieces, filled with
                      zeros before and added up after

        Nothing hides them: they are on the stream of the computation. Every element is read and written.
        Ignored: copies from buffer to buffer within a rank, which go beside the transfers; that short ones are slower.
        Source: hao-ai-lab/distca, d2/runtime/fast_dispatch_fn.py, csrc/core/memcpy.cu.
        """
        elements = dealt.copied + (dealt.added if backward else 0.0)
        return memory_bound_s(2.0 * BF16_BYTES * elements, gpu, cal)

    def spread_s(self, tokens_per_rank: Floats, inner: Floats) -> Floats:
        """All-to-alls of heads and tokens of *inner* ranks of a node, as ulysses has them."""
        tokens, sizes = np.broadcast_arrays(tokens_per_rank, inner)
        out = np.zeros(sizes.shape)
        for size in {int(one) for one in sizes.flat if one > 1}:
            of_size = sizes == size
            out[of_size] = self._spread_heads(tokens[of_size], self._shape(size, 0))
        return out

    def halves(
        self, dealt: Disaggregated, attention_s: Floats, linear_s: Floats | None, groups: Groups
    ) -> HalfTimes:
        """Disaggregated attention of one layer's forward or backward: what one half sends goes while the other works.

            sent                                         behind
            queries, keys, values of the first half      linear work of the second, of this layer and the one before
            queries, keys, values of the second half     attention of the first
            outputs of the first half                    attention of the second
            outputs of the second half                   linear work of the first, of this layer and the next

        The backward sends as many gradients the other way, behind the same work. A transfer takes as long as on the
        rank that moves most, to and from all other ranks alike.
        Args: *attention_s* of the busiest rank, both halves; *linear_s* of the whole micro-batch, collectives of
        tensor parallelism included (None: nothing).
        Counted: keys and values go to every rank that attends with them, once for each of its pieces.
        Ignored: that the first layer has none before it and the last none behind it; copies, see copies_s.
        Source: hao-ai-lab/distca, d2/runtime/megatron_patch/transformer_layer.py (forward_layers).
        """
        sent_bytes = BF16_BYTES * np.array([dealt.arriving, dealt.leaving])  # [before or after, half, n]
        seconds, far_bytes = np.zeros_like(sent_bytes), np.zeros_like(sent_bytes)
        rate, linear = np.ones_like(groups.size), 0.0 if linear_s is None else linear_s
        for of_kind, size, tier in groups.kinds():
            group = self._shape(size, tier)
            spread = sent_bytes[..., of_kind] * size / (size - 1)  # with what a rank would keep itself
            seconds[..., of_kind] = self._collectives.all_to_all_s(spread, group)
            if tier:
                far_bytes[..., of_kind] = spread * (1.0 - group.ranks_per_node / size)
                rate[of_kind] = min(network for _, network in self._collectives.wires(group).remote)
        first_s, second_s = dealt.first_share * attention_s, (1.0 - dealt.first_share) * attention_s
        before_s, after_s = dealt.second_tokens * linear, (1.0 - dealt.second_tokens) * linear
        behind_s = np.array([[before_s, first_s], [second_s, after_s]])
        exposed_s = np.maximum(0.0, seconds - behind_s).sum(axis=(0, 1))
        total_s, total_bytes = seconds.sum(axis=(0, 1)), far_bytes.sum(axis=(0, 1))
        of = partial(SentTimes.of_collective, counted=groups.far)
        return HalfTimes(exposed_s, of(total_s, total_bytes, rate, exposed_s=exposed_s))

    def sent(self, groups: Groups, hidden_s: Floats, *, backward: bool) -> SentTimes:
        """What a GPU sends to other nodes in all collectives of one layer, and the time they take.

        all-gather  ring of nodes: (d - 1) / d of the gathered bytes over the NICs of a node's members
        ulysses     the share of a rank's bytes that other nodes get
        """
        seconds = np.where(groups.far, self.seconds(groups, backward=backward), 0.0)
        sent, rate = np.zeros_like(seconds), np.ones_like(seconds)
        context, heads = self._layout.context, self._heads
        for of_kind, size, tier in groups.kinds():
            if not tier:
                continue
            group, tokens = self._shape(size, tier), groups.tokens[of_kind]
            wires = self._collectives.wires(group)
            if context.kind == "ulysses":
                copies = max(1.0, size / heads.kv_heads)
                width = heads.heads * heads.query_dim + copies * heads.kv_width + heads.output_width
                sent[of_kind] = BF16_BYTES * width * tokens * (1.0 - group.ranks_per_node / size)
                rate[of_kind] = min(network for _, network in wires.remote)
            else:
                twice = backward and context.kind == "all-gather" and not context.keep_gathered
                volume = (2.0 if twice else 1.0) * BF16_BYTES * heads.kv_width * tokens * (size - 1)
                sent[of_kind] = volume / group.ranks_per_node
                rate[of_kind] = wires.nic_bytes_per_s
        return SentTimes.of_collective(seconds, sent, rate, hidden_s=hidden_s, counted=groups.far)

    def _of_group(self, tokens: Floats, group: GroupShape, *, backward: bool) -> Floats:
        kind = self._layout.context.kind
        match kind:
            case "all-gather" | "gathered-ring":
                volume = BF16_BYTES * self._heads.kv_width * tokens * group.ranks
                if backward and kind == "all-gather" and self._layout.context.keep_gathered:
                    return self._collectives.reduce_scatter_s(volume, group)
                gather = self._collectives.all_gather_s(volume, group)
                if kind == "gathered-ring" or not backward:
                    return gather
                return gather + self._collectives.reduce_scatter_s(volume, group)
            case "ulysses":
                return self._spread_heads(tokens, group)
            case "ring" | "double-ring" | "hybrid" | "disaggregated":
                raise ValueError(f"{kind}: no exchange that is the same for all documents")
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
        most = BF16_BYTES * float(self.unevenness(group.ranks)) * tokens
        outward_bytes = most * (heads.heads * heads.query_dim + copies * heads.kv_width)
        returned_bytes = most * heads.output_width
        return self._collectives.all_to_all_s(outward_bytes, group) + self._collectives.all_to_all_s(
            returned_bytes, group
        )

    def _shape(self, ranks: int, tier: int) -> GroupShape:
        return group_shape(self._layout, self._collectives.fabric, ranks, tier)


def group_shape(layout: Layout, fabric: FabricModel, ranks: int, tier: int) -> GroupShape:
    """GPUs of a context-parallel group at one tensor-parallel index: on one node, or as packed as nodes allow."""
    if tier == 0:
        return GroupShape(ranks=ranks, ranks_per_node=ranks, nodes=1, tier=0)
    per_node = max(1, fabric.cluster.node.gpus // layout.parallel.rank_stride)
    per_node = min(per_node, math.ceil(ranks / 2))  # it does cross nodes
    return GroupShape(
        ranks=ranks,
        ranks_per_node=per_node,
        nodes=math.ceil(ranks / per_node),
        tier=tier,
        stride=layout.parallel.rank_stride,
    )
