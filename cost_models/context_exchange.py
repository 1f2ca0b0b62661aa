"""Context parallelism without a ring: one collective before attention (and after), then each GPU computes alone."""

from __future__ import annotations

import math
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from cost_models.collectives import Collectives, GroupShape
from cost_models.fabric import FabricModel
from cost_models.kernels import BF16_BYTES
from cost_models.layout import Layout
from cost_models.tracing import priced
from hdpsim.errors import InfeasibleError

__all__ = ["ContextExchange"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ContextExchange:
    """What the ranks of a context-parallel group exchange for one layer; all of it exposed.

    *heads*, *query_width*, *kv_width*, *output_width*: of one GPU, after tensor parallelism, keys and values together.
    """

    def __init__(
        self,
        layout: Layout,
        fabric: FabricModel,
        *,
        heads: float,
        kv_heads: float,
        query_width: float,
        kv_width: float,
        output_width: float,
    ) -> None:
        self._layout, self._collectives = layout, Collectives(fabric)
        self._heads, self._kv_heads = heads, kv_heads
        self._query_width, self._kv_width, self._output_width = query_width, kv_width, output_width

    @property
    def most_ranks(self) -> int | None:
        """Ranks of the largest group: as many as a GPU has heads (ulysses); None = any number."""
        return max(1, int(self._heads)) if self._layout.cp_kind == "ulysses" else None

    @priced("ring_wait")
    def seconds(self, tokens_per_rank: Floats, group_size: Floats, tier: Ints, *, backward: bool) -> Floats:
        """Collectives of one layer's forward or backward.

            all-gather  forward: all-gather of keys and values, 2 B x kv width x d tokens; backward: the same again, and
                        a reduce-scatter of their gradients
            gathered-ring  the gather, forward and backward
            ulysses     all-to-all of queries, keys, values and of the output, 2 B x (q + kv + o width) x tokens, from a
                        share of the tokens to a share of the heads and back; the backward the same

        Counted: key-value heads fewer than ranks are sent to several ranks (ulysses).
        Ignored: overlap (but for gathered-ring none can start attention before it ends; see AttentionCost.ring); in
        a gathered ring, gradients of keys and values that go round in fp32 beside a step of the backward.
        Source: Llama 3, arXiv 2407.21783, section 3.3.2; DeepSpeed-Ulysses, arXiv 2309.14509.
        """
        tokens, sizes, tiers = np.broadcast_arrays(tokens_per_rank, group_size, tier)
        out = np.zeros(sizes.shape)
        for size, level in {(int(d), int(t)) for d, t in zip(sizes.flat, tiers.flat, strict=True) if d > 1}:
            here = (sizes == size) & (tiers == level)
            out[here] = self._of_group(tokens[here], self._shape(size, level), backward=backward)
        return out

    def _of_group(self, tokens: Floats, group: GroupShape, *, backward: bool) -> Floats:
        kind = self._layout.cp_kind
        match kind:
            case "all-gather" | "gathered-ring":
                volume = BF16_BYTES * self._kv_width * tokens * group.ranks
                gather = self._collectives.all_gather_s(volume, group)
                if kind == "gathered-ring" or not backward:
                    return gather
                return gather + self._collectives.reduce_scatter_s(volume, group)
            case "ulysses":
                return self._spread_heads(tokens, group)
            case "ring":
                raise ValueError("a ring exchanges nothing before attention")
            case _:
                assert_never(kind)

    def _spread_heads(self, tokens: Floats, group: GroupShape) -> Floats:
        """All-to-alls that give every rank all tokens of some heads, and back (Ulysses)."""
        if self.most_ranks is not None and group.ranks > self.most_ranks:
            raise InfeasibleError(
                f"cp_kind ulysses spreads heads over the context-parallel group: {group.ranks} ranks are more than "
                f"the {self._heads:g} heads of a GPU (tp = {self._layout.tp})"
            )
        copies = max(1.0, group.ranks / self._kv_heads)
        there = BF16_BYTES * (self._query_width + copies * self._kv_width) * tokens
        back = BF16_BYTES * self._output_width * tokens
        return self._collectives.all_to_all_s(there, group) + self._collectives.all_to_all_s(back, group)

    def _shape(self, ranks: int, tier: int) -> GroupShape:
        """GPUs of a group at one tensor-parallel index: on one node, or as packed as nodes allow."""
        if tier == 0:
            return GroupShape(ranks=ranks, ranks_per_node=ranks, nodes=1, tier=0)
        per_node = max(1, self._collectives.fabric.cluster.node.gpus // self._layout.rank_stride)
        per_node = min(per_node, math.ceil(ranks / 2))  # it does cross nodes
        return GroupShape(
            ranks=ranks,
            ranks_per_node=per_node,
            nodes=math.ceil(ranks / per_node),
            tier=tier,
            stride=self._layout.rank_stride,
        )
