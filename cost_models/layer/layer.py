"""Forward and backward of one transformer layer on one GPU, apart from attention: GEMMs, small kernels, TP, experts.

Everything is a vector over micro-batches; *tokens* are a rank's tokens (its TP group holds them together).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.kernels.casts import LinearOp
from hdpsim.cost_models.layer.adapters import adapted_matrices, adapter_ops, adapter_s
from hdpsim.cost_models.layer.experts import ExpertParallel
from hdpsim.cost_models.layer.gemms import LayerGemms
from hdpsim.cost_models.layer.host_launches import behind_counts_s
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.layer.small_kernels import SmallKernels
from hdpsim.cost_models.layer.tensor_parallel import TensorParallel
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import parts_of_text
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.layers import Block, layer_shards
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES


class LayerTimes(NamedTuple):
    """Seconds per layer by term, [n] each."""

    gemm: Floats
    small_kernels: Floats
    tp_communication: Floats
    expert_all_to_all: Floats

    @property
    def total(self) -> Floats:
        """Seconds of all terms together."""
        return self.gemm + self.small_kernels + self.tp_communication + self.expert_all_to_all


class _Block(NamedTuple):
    """Products between an all-gather and a reduce-scatter of the TP group."""

    entering: tuple[LinearOp, ...]
    leaving: tuple[LinearOp, ...]


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
        self._model, self._layout = model, layout
        self._moe = moe
        self._experts = ExpertParallel(model, layout, cal, collectives) if moe else None
        self._tensor_parallel = TensorParallel(model, layout, cluster, cal, collectives)
        self._small = SmallKernels(model, layout, cluster.gpu, cal, moe=moe)
        ops = self._products_of_blocks()
        blocks, rest = self._arranged(ops)
        self._gpu, self._cal = cluster.gpu, cal
        products = partial(LayerGemms, layout=layout, gpu=cluster.gpu, cal=cal, full_width=model.hidden)
        products = partial(products, precision=layout.precision.products)
        self._adapted = adapted_matrices(model, layout, moe=moe)
        self._adapters = products(adapter_ops(model, layout, moe=moe)) if self._adapted else None
        products = partial(products, frozen=model.frozen)
        self._gemms = products((*(op for block in blocks for side in block for op in side), *rest))
        self._expert_gemms = products(ops["experts"]) if moe else None
        self._behind_counts_s = behind_counts_s(model, layout, cal) if moe else 0.0
        self._around = [(products(entering), products(leaving)) for entering, leaving in blocks]

    def _arranged(self, of: dict[Block, tuple[LinearOp, ...]]) -> tuple[list[_Block], tuple[LinearOp, ...]]:
        """The blocks that TP collectives surround, in order, and the products that none surrounds."""
        cut_like_dense = not self._moe or self._layout.parallel.experts_cut_like_dense
        # A shared expert is cut as dense layers are; beside experts that are, its collectives are theirs.
        mixers = ("attention", "mamba")
        joined = (*mixers, "mlp", "experts") if cut_like_dense else (*mixers, "shared")
        blocks = [_Block(ops[:-1], ops[-1:]) for block, ops in of.items() if block in joined]
        rest = tuple(op for block, ops in of.items() if block not in joined for op in ops)
        if self._model.parallel_block and cut_like_dense:
            blocks = [_side_by_side(*blocks, joined=self._layout.kernels.joined_block and not self._moe)]
        return blocks, rest

    def _products_of_blocks(self) -> dict[Block, tuple[LinearOp, ...]]:
        by_block: dict[Block, tuple[LinearOp, ...]] = {}
        wide = {"router", *parts_of_text(self._layout.precision.bf16_parts)}
        for shard in layer_shards(self._model, self._layout, moe=self._moe):
            block = shard.matrix.block
            rows_share = 1.0
            if block in ("router", "latent"):
                rows_share = 1 / self._layout.parallel.tp
            elif block == "experts" and self._experts is not None:
                rows_share = self._experts.rows_share
            op = LinearOp(
                name=shard.matrix.name,
                columns=shard.outputs,
                inner=shard.inputs,
                groups=shard.experts,
                rows_share=rows_share,
                matrices=len(shard.matrix.parts),
                always_bf16=block in wide,
            )
            by_block[block] = (*by_block.get(block, ()), op)
        return by_block

    def gemm_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """All matrix products: forward; backward = input gradient + weight gradient (twice the FLOP).

        Adapters are included; frozen weights have input gradients only.
        """
        return self._gemm_sides_s(tokens, (backward,))[0]

    def routed_s(self, routed_tokens: Floats, tokens: Floats, *, backward: bool) -> Floats:
        """What the experts' products take longer, or less, where others that share them have other numbers of tokens.

            t = products(rows of routed_tokens) - products(rows of tokens)

        Counted: all ranks' tokens go to all experts alike.
        Ignored: permutation and activation of the rows; schedules that run weight gradients apart keep their own rows.
        """
        if self._expert_gemms is None or self._layout.pipeline.schedule in SPLIT_SCHEDULES:
            return np.zeros_like(tokens)
        seconds = partial(self._expert_gemms.seconds, backward=backward)
        return seconds(routed_tokens) - seconds(tokens)

    def weight_gradient_s(self, tokens: Floats) -> Floats:
        """The weight gradients in gemm_s of the backward; each distinct number of tokens is priced once."""
        distinct, place = np.unique(tokens, return_inverse=True)
        return np.asarray((self._adapters or self._gemms).weight_gradient_s(distinct)[place])

    def small_kernels_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """Norms, residual adds, rotary embedding, activation function, routing (see small_kernels), casts to 8 bit."""
        casts_s = self._gemms.cast_s(tokens, backward=backward)
        seconds = self._small.seconds(tokens, backward=backward) + casts_s
        if not self._adapted:
            return seconds
        beside_s = adapter_s(
            self._adapted,
            tokens,
            self._gpu,
            self._cal,
            kernels=self._layout.kernels.adapters,
            dropout=self._model.adapter_dropout,
            backward=backward,
        )
        return np.asarray(seconds + beside_s)

    def tp_communication_s(self, tokens: Floats) -> tuple[Floats, Floats]:
        """Exposed tensor-parallel collectives of forward and backward: the same ones, differently often."""
        forward, backward = self._around_s(tokens)
        if self._experts is None:
            return forward, backward
        cut = self._experts.cut_experts_s(tokens)
        return forward + cut, backward + cut

    def expert_all_to_all_s(self, tokens: Floats) -> Floats:
        """Seconds in which routed tokens are sent to their experts and come back (see experts)."""
        return np.zeros_like(tokens) if self._experts is None else self._experts.all_to_all_s(tokens)

    def tensor_parallel_sent(self, tokens: Floats) -> tuple[SentTimes, SentTimes] | None:
        """What tensor parallelism sends to other nodes, forward and backward; None: nothing."""
        # What is cut besides (experts) sends on its own, and is not followed.
        return self._tensor_parallel.sent(tokens, len(self._around), self._around_s(tokens))

    def _around_s(self, tokens: Floats) -> tuple[Floats, Floats]:
        """Forward and backward of what surrounds the blocks.

        Nothing runs beside collectives of experts that are cut as dense layers are: the dispatcher's, not a product's.
        Source: Megatron-Core, moe/token_dispatcher.py; extensions/transformer_engine.py (explicit_expert_comm).
        """
        parallel, collectives = self._tensor_parallel, self._around
        if not parallel.overlaps:
            return parallel.sides_s(tokens, len(collectives))
        dispatched = int(self._moe and self._layout.parallel.experts_cut_like_dense)
        overlapped = parallel.overlapped_s(tokens, collectives[: len(collectives) - dispatched])
        alone = parallel.sides_s(tokens, dispatched)
        return overlapped[0] + alone[0], overlapped[1] + alone[1]

    def expert_sent(self, tokens: Floats, exposed_s: Floats) -> SentTimes | None:
        """What experts send to other nodes in either direction; None: nothing."""
        return None if self._experts is None else self._experts.sent(tokens, exposed_s)

    @priced("host")
    def counts_wait_s(self, tokens: Floats) -> Floats:
        """Launches of the experts' forward that outlast their kernels: nothing is queued before counts are known.

            max( 0, launches behind the counts x host time of one - products and casts of the experts )

        Ignored: the copy of the counts itself.  Source: Megatron-Core, TEGroupedMLP (tokens_per_expert.tolist()).
        """
        if self._expert_gemms is None or not self._behind_counts_s:
            return np.zeros_like(tokens)
        distinct, place = np.unique(tokens, return_inverse=True)
        busy_s = self._expert_gemms.seconds(distinct, backward=False)
        busy_s = busy_s + self._expert_gemms.cast_s(distinct, backward=False)
        return np.maximum(0.0, self._behind_counts_s - busy_s)[place]

    def times(self, tokens: Floats, *sides: bool) -> list[LayerTimes]:
        """All linear terms of the layer's forward (False) and backward (True).

        Each distinct number of tokens is priced once: full micro-batches hold the same number.
        """
        if len(tokens) == 1:
            return self._times(tokens, sides)
        distinct, place = np.unique(tokens, return_inverse=True)
        return [LayerTimes(*(term[place] for term in once)) for once in self._times(distinct, sides)]

    def _times(self, tokens: Floats, sides: tuple[bool, ...]) -> list[LayerTimes]:
        communication, all_to_all = self.tp_communication_s(tokens), self.expert_all_to_all_s(tokens)
        return [
            LayerTimes(gemm_s, self.small_kernels_s(tokens, backward=side), communication[side], all_to_all)
            for side, gemm_s in zip(sides, self._gemm_sides_s(tokens, sides), strict=True)
        ]

    def _gemm_sides_s(self, tokens: Floats, sides: tuple[bool, ...]) -> list[Floats]:
        """gemm_s of one side or of forward and backward, which are cheaper together."""
        sides_s = [
            list(gemms.both_s(tokens)) if len(sides) == 2 else [gemms.seconds(tokens, backward=sides[0])]
            for gemms in (self._gemms, self._adapters)
            if gemms is not None
        ]
        return [sum(more, start=one) for one, *more in zip(*sides_s, strict=True)]


def _side_by_side(attention: _Block, mlp: _Block, *, joined: bool) -> _Block:
    """A parallel block: attention and MLP read one input, their outputs are summed.

    Joined: QKV and the first MLP matrix are one product with as many columns, output projection and last MLP matrix
    one with as long a contraction (PaLM, arXiv 2204.02311, section 2). Latent attention has no such matrix.
    """
    entering, leaving = attention.entering + mlp.entering, attention.leaving + mlp.leaving
    if joined and len(attention.entering) == 1:
        names = ["+".join(op.name for op in ops) for ops in (entering, leaving)]
        entering = (replace(entering[0], name=names[0], columns=sum(op.columns for op in entering)),)
        leaving = (replace(leaving[0], name=names[1], inner=sum(op.inner for op in leaving)),)
    return _Block(entering, leaving)
