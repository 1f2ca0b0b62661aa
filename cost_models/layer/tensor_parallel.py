"""Tensor-parallel collectives of a layer: how long they take, and how much of that GEMMs beside them leave exposed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.kernels.number_formats import OPERAND_BYTES, block_scaled
from hdpsim.cost_models.layer.gemms import FORWARD, INPUT_GRADIENT, LayerGemms
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.model import Model

# Of a GEMM cut into four, the first (or last) piece of the transfer has nothing beside it; the collective keeps 16 SMs:
# Megatron-Bridge performance guide, communication overlap (Transformer Engine's userbuffers: num_splits, num_sm).
OVERLAP_CHUNKS = 4
COMMUNICATION_SMS = 16
# Exchanges between neighbours: copy engines and one SM that starts them; what runs whole beside them keeps 4.
# Transformer Engine, module/base.py (ring_exchange: num_sm 1, use_ce); MLPerf Training v3.1 and v4.0, NVIDIA,
# conf/tp_overlap/h100tp4*.yaml (bulk: num_sm 2 to 8, mostly 4).
EXCHANGE_SMS = 1
EXCHANGE_WHOLE_SMS = 4


class ChunkedGemm(NamedTuple):
    """Seconds of a product that a collective runs beside, [n] each.

    *added_s*: what it takes beyond that in chunks.
    """

    whole_s: Floats
    added_s: Floats


class BlockGemms(NamedTuple):
    """The products around the collectives of a block (attention, MLP, or both at once).

    *entering*: they read the gathered input (QKV, first MLP matrix); *leaving*: their output is summed over the group.
    A gradient is the input's or the weights': each half of the backward's FLOP (of frozen weights, which have no
    gradient, all of it). Chunks: those of the input's.
    """

    entering_forward: ChunkedGemm
    leaving_forward: ChunkedGemm
    entering_gradient: ChunkedGemm
    leaving_gradient: ChunkedGemm

    @classmethod
    def of(
        cls, entering: LayerGemms, leaving: LayerGemms, tokens: Floats, layout: Layout, tail_s: float
    ) -> BlockGemms:
        """Seconds of the products of a block, and what their n chunks take beyond them.

            (n - 1) x tail on several streams, n x product of tokens / n - product in sequence

        Ignored: waves of chunks on several streams that stay partly empty.
        """
        gradients = 1.0 if entering.frozen else 2.0
        (into, into_backward), (out, out_backward) = (gemms.both_s(tokens) for gemms in (entering, leaving))

        def chunked(gemms: LayerGemms, side: slice, whole_s: Floats) -> ChunkedGemm:
            if layout.tensor.chunks == "streams":
                return ChunkedGemm(whole_s, np.full_like(whole_s, (OVERLAP_CHUNKS - 1) * tail_s))
            (once,), (chunk,) = (gemms.products_s(rows, side) for rows in (tokens, tokens / OVERLAP_CHUNKS))
            return ChunkedGemm(whole_s, OVERLAP_CHUNKS * chunk - once)

        return cls(
            chunked(entering, FORWARD, into),
            chunked(leaving, FORWARD, out),
            chunked(entering, INPUT_GRADIENT, into_backward / gradients),
            chunked(leaving, INPUT_GRADIENT, out_backward / gradients),
        )


def beside_s(collective_s: ArrayLike, gemm_s: ArrayLike, sm_share: float) -> Floats:
    """Time that a collective and a GEMM side by side take beyond the GEMM alone.

        max( sm_share x collective, collective - GEMM )

    The collective keeps a share of the SMs while it runs: the GEMM advances by (1 - share) of that time.
    Ignored: HBM and L2 bandwidth that the transfer takes from the GEMM, clocks.  Source: derivation.
    """
    transfer = np.asarray(collective_s, dtype=np.float64)
    return np.maximum(sm_share * transfer, transfer - np.asarray(gemm_s, dtype=np.float64))


def pipelined_s(collective_s: ArrayLike, gemm_s: ArrayLike, sm_share: float, added_s: ArrayLike) -> Floats:
    """The same time for a collective that feeds the GEMM, or is fed by it, chunk by chunk.

        c / n + (n - 1) / n x beside(c, GEMM) + added,  at most c (a stack that gains nothing does not chunk); n = 4

    Counted: one chunk of the collective without a GEMM beside it; what the chunks' GEMMs take beyond the whole one's
    (*added_s*: see BlockGemms).
    Ignored: start-up of the further chunks of the collective (peers write into each other's buffers).
    Source: Transformer Engine (userbuffers); MegaScale, arXiv 2402.15627, section 3.2.
    """
    transfer, chunks = np.asarray(collective_s, dtype=np.float64), OVERLAP_CHUNKS
    rest = (chunks - 1) / chunks * beside_s(transfer, gemm_s, sm_share) + np.asarray(added_s)
    return np.asarray(np.minimum(transfer, transfer / chunks + rest))


def exchanged_s(
    collective_s: ArrayLike, gemm_s: ArrayLike, sm_share: float, tail_s: float, ranks: int
) -> Floats:
    """The same time for chunks that neighbours copy to each other; in a gather each GPU starts with its own.

        max( sm_share x c, c - (t - 1) / t x GEMM ) + (t - 1) x tail,  at most c                t ranks

    The k-th of t - 1 foreign chunks arrives after k / (t - 1) of the gather and is needed after k / t of the GEMM: with
    transfers shorter than the chunks' products nothing waits; with longer ones the last chunk's product follows the
    last arrival. A reduction is the same backwards: foreign chunks are computed and sent first, the own one last.
    Ignored: what pipelined_s ignores; adding up the chunks that arrive.
    Source: Transformer Engine, userbuffers (ring_exchange: CommOverlapP2P, split_overlap_ag and _rs).
    """
    transfer = np.asarray(collective_s, dtype=np.float64)
    own = (ranks - 1) / ranks * np.asarray(gemm_s, dtype=np.float64)
    return np.minimum(transfer, np.maximum(sm_share * transfer, transfer - own) + (ranks - 1) * tail_s)


class TensorParallel:
    """Collectives around attention and MLP, exposed.

    With sequence parallelism a block all-gathers its input and reduce-scatters its output; the backward all-gathers
    the gradient, reduce-scatters its own result and gathers the input once more. Without: one all-reduce each way.
    A parallel block has one pair instead of two. Experts have one where they are cut as dense layers are, otherwise
    only a shared expert has (experts.py joins what is cut besides).
    Source: Korthikanti et al., arXiv 2205.05198, section 4.2.

    Overlapped (`tp_overlap`): what feeds a GEMM or is fed by it is pipelined with it in chunks; in the backward the
    second gather runs beside the input-gradient GEMM, the reduction beside the weight-gradient GEMM, whole. With
    `tp_exchange` gathers that feed GEMMs (mlp: and the MLP's reduction) have no chunk without a GEMM beside it, and
    fewer SMs move data. With `tp_chunks: sequence` a product's chunks are kernels one after the other, each with waves
    and a start of its own, and the reduction is pipelined with the input gradient as the forward's is with its product
    (MegaScale, arXiv 2402.15627, section 3.2: products are broken into chunks, and the same in the backward).
    Frozen weights need no second gather, and have no weight gradient to run beside the reduction: overlapped, it is
    pipelined with the input gradient (Transformer Engine, ub_overlap_rs_dgrad), otherwise alone. QKV's adapter reads
    the gathered input as well, so nothing of QKV's is overlapped (NeMo, scripts/performance/llm/finetune_llama3_70b.py:
    tp_comm_overlap_disable_qkv).
    Blocks of scales lie along what a product sums over, so the weight gradient needs a gradient cast along columns,
    gathered as well: overlapped beside the input gradient (Transformer Engine, pull requests 1581, 1711 and 1982;
    module/linear.py: "overlapping the AG operation with the dgrad GEMM").
    """

    def __init__(
        self, model: Model, layout: Layout, cluster: Cluster, cal: Calibration, collectives: Collectives
    ) -> None:
        self._hidden, self._layout, self._cal, self._collectives = model.hidden, layout, cal, collectives
        self._frozen = model.frozen
        self._two_gradients = block_scaled(layout.precision) and not model.frozen
        self._gpu = cluster.gpu
        self._group = collectives.group(layout.parallel.tp)
        self._sm_share = COMMUNICATION_SMS / cluster.gpu.sm_count
        self._exchange_share = EXCHANGE_SMS / cluster.gpu.sm_count
        sms = EXCHANGE_WHOLE_SMS if layout.tensor.exchange != "none" else COMMUNICATION_SMS
        self._whole_share = sms / cluster.gpu.sm_count

    @property
    def overlaps(self) -> bool:
        """Whether GEMMs run beside the collectives."""
        tensor = self._layout.tensor
        return (tensor.overlap or tensor.asynchronous) and self._layout.parallel.tp > 1

    @priced("tp_communication")
    def sides_s(self, tokens: Floats, pairs: int) -> tuple[Floats, Floats]:
        """Forward and backward of *pairs* blocks with nothing beside the collectives.

            forward  = pairs x (all-gather + reduce-scatter)            sequence parallel
            backward = pairs x (2 all-gathers + reduce-scatter)     3 all-gathers with scales of blocks
            both     = pairs x all-reduce                               without sequence parallelism
            bytes    = 2 B x hidden x tokens                            gathered in the products' precision
            batch first: forward and backward pairs x (all-gather + reduce-scatter + copies)

        Counted: a pair around attention and one around the MLP (one in all with a parallel block).
        Source: Korthikanti et al., arXiv 2205.05198, section 4.2.
        """
        if self._layout.parallel.tp == 1:
            return np.zeros_like(tokens), np.zeros_like(tokens)
        if self._layout.tensor.sequence_parallel:
            gather, scatter = self._gather_and_scatter(tokens)
            if self._layout.tensor.batch_first:
                once = np.asarray(pairs * (gather + scatter + sum(self._copies_s(tokens))))
                return once, once
            gathers = 1 if self._frozen else 2 + self._two_gradients
            return np.asarray(pairs * (gather + scatter)), np.asarray(pairs * (gather * gathers + scatter))
        reduce = np.asarray(pairs * self._collectives.all_reduce_s(self._tensor_bytes(tokens), self._group))
        return reduce, reduce

    @priced("tp_communication")
    def overlapped_s(
        self, tokens: Floats, products: list[tuple[LayerGemms, LayerGemms]]
    ) -> tuple[Floats, Floats]:
        """Forward and backward with the products of *blocks* beside the collectives.

            forward  = per block: all-gather pipelined with what it feeds, reduce-scatter with what feeds it
            backward = all-gather pipelined with the input gradient of the leaving products; all-gather beside the
                       input gradient and reduce-scatter beside the weight gradient of the entering ones
        without sequence parallelism: all-reduce pipelined with what feeds it; beside the weight gradient

        Asynchronous calls around whole products (tp_asynchronous):
            forward  = per block: all-gather beside the rank's own 1/t of what it feeds, reduce-scatter alone
            backward = all-gather beside 1/t of the leaving products' input gradient; the rest as above
            without sequence parallelism: all-reduce alone; all-reduce beside the weight gradient

        Counted: see pipelined_s and beside_s; *products* of every block: entering, leaving.
        Source: Transformer Engine; Megatron-Core, tp_comm_overlap; nanotron, tensor_parallel/functional.py
        (_ColumnLinearAsyncCommunication, _RowLinearAsyncCommunication); Megatron-LM,
        LinearWithGradAccumulationAndAsyncCommunication.
        """
        layout = self._layout
        tail_s = self._cal.kernel_tail_s
        blocks = [BlockGemms.of(entering, leaving, tokens, layout, tail_s) for entering, leaving in products]
        if layout.tensor.overlap and layout.tensor.batch_first and layout.tensor.sequence_parallel:
            return self._decomposed_s(tokens, blocks)
        forward, backward = [np.zeros_like(tokens)], [np.zeros_like(tokens)]
        if not layout.tensor.sequence_parallel:
            reduce = self._collectives.all_reduce_s(self._tensor_bytes(tokens), self._group)
            for block in blocks:
                overlaps = layout.tensor.overlap
                forward.append(self._pipelined(reduce, block.leaving_forward) if overlaps else reduce)
                backward.append(
                    reduce if self._frozen else self._beside_product(reduce, block.entering_gradient)
                )
            return np.asarray(sum(forward)), np.asarray(sum(backward))
        gather, scatter = self._gather_and_scatter(tokens)
        for number, block in enumerate(blocks):
            # The adapter of QKV reads the gathered input as well; the last block is the MLP.
            alone = self._frozen and number == 0
            if layout.tensor.overlap:
                exchanged = layout.tensor.exchange != "none"
                sent = layout.tensor.exchange == "mlp" and number == len(blocks) - 1
                entering = self._pipelined(gather, block.entering_forward, exchanged)
                forward.append(gather if alone else entering)
                forward.append(self._pipelined(scatter, block.leaving_forward, sent))
                backward.append(self._pipelined(gather, block.leaving_gradient, exchanged))
                if self._two_gradients:
                    backward.append(self._beside_product(gather, block.leaving_gradient))
            else:
                own = 1.0 / layout.parallel.tp
                forward += [self._beside_product(gather, block.entering_forward, own), scatter]
                backward.append(self._beside_product(gather, block.leaving_gradient, own))
            if not self._frozen:
                backward.append(self._beside_product(gather, block.entering_gradient))
            if layout.tensor.overlap and not alone and (self._frozen or layout.tensor.chunks == "sequence"):
                backward.append(self._pipelined(scatter, block.entering_gradient))
            else:
                backward.append(
                    scatter if self._frozen else self._beside_product(scatter, block.entering_gradient)
                )
        return np.asarray(sum(forward)), np.asarray(sum(backward))

    def sent(
        self, tokens: Floats, pairs: int, exposed_s: tuple[Floats, Floats]
    ) -> tuple[SentTimes, SentTimes] | None:
        """What a GPU sends to other nodes, forward and backward; None: the group sits on one node.

        *exposed_s*: what the collectives add to both. See sides_s for the formulas.
        """
        group, layout = self._group, self._layout
        if group.nodes == 1:
            return None
        share = (group.ranks - 1) / group.ranks / group.ranks_per_node
        volume = self._tensor_bytes(tokens)
        rate = self._collectives.wires(group).nic_bytes_per_s
        sides = []
        for backward, seconds in enumerate(self.sides_s(tokens, pairs)):
            passes: float = 2.0
            if layout.tensor.sequence_parallel:
                gathers_again = backward and not (layout.tensor.batch_first or self._frozen)
                passes = 1.0 + self._operand_share * (2 + self._two_gradients if gathers_again else 1)
            sent = pairs * passes * share * volume
            sides.append(SentTimes.of_collective(seconds, sent, rate, exposed_s=exposed_s[backward]))
        return sides[0], sides[1]

    def _decomposed_s(self, tokens: Floats, blocks: list[BlockGemms]) -> tuple[Floats, Floats]:
        """The same of a compiler that breaks a gather and the product it feeds, or a product and its reduction, apart.

            forward  = per block: gather exchanged with what it feeds; reduction exchanged with what feeds it, and a
                       pass that adds up what arrived (2 B x hidden x tokens / HBM)
            backward = per block: gather and reduction whole, with their copies

        Chunks are written where they belong: no copies. Scales of rows and columns: gathers stay whole, with copies.
        In the backward a gathered gradient feeds the weight gradient as well, and what is reduced is the sum of several
        products' gradients: measured, forwards of Llama 7B and 70B gain 29 and 20 %, whole steps 8 and 8 %, which the
        forwards alone (a third to a half of a step, with recomputation) account for.
        Source: PyTorch, "Introducing Async Tensor Parallelism" (discuss.pytorch.org/t/209487);
        _inductor/fx_passes/micro_pipeline_tp.py (patterns), distributed/_symmetric_memory
        (_pipelined_all_gather_and_consume, _pipelined_produce_and_all2all); pytorch/pytorch, issue 149990.
        """
        gather, scatter = self._gather_and_scatter(tokens)
        put_together, taken_apart = self._copies_s(tokens)
        added_up = memory_bound_s(self._tensor_bytes(tokens), self._gpu, self._cal)
        forward = np.zeros_like(tokens)
        narrow_rows = self._layout.precision.products == "fp8" and self._layout.precision.fp8_scaling == "row"
        for block in blocks:
            fed = gather + put_together if narrow_rows else self._exchanged(gather, block.entering_forward)
            forward = forward + fed + self._exchanged(scatter, block.leaving_forward) + added_up
        return forward, np.asarray(len(blocks) * (gather + put_together + scatter + taken_apart))

    def _copies_s(self, tokens: Floats) -> tuple[Floats, Floats]:
        """Putting a gathered tensor together along its second dimension, and taking one apart before its reduction.

        Each reads and writes the whole tensor. Source: PyTorch, distributed/_functional_collectives.py
        (all_gather_tensor, reduce_scatter_tensor: chunk and cat where the dimension is not the first).
        """
        volume = self._tensor_bytes(tokens)
        return (
            memory_bound_s(2.0 * self._operand_share * volume, self._gpu, self._cal),
            memory_bound_s(2.0 * volume, self._gpu, self._cal),
        )

    @property
    def _operand_share(self) -> float:
        """Bytes of a gathered element over those of 16 bits."""
        if self._layout.precision.products == "fp8" and self._layout.precision.fp8_scaling == "row":
            return 1.0
        return OPERAND_BYTES[self._layout.precision.products] / BF16_BYTES

    def _exchanged(self, collective_s: Floats, gemm: ChunkedGemm) -> Floats:
        share, tail_s = self._exchange_share, self._cal.kernel_tail_s
        return exchanged_s(collective_s, gemm.whole_s, share, tail_s, self._layout.parallel.tp)

    def _tensor_bytes(self, tokens: Floats) -> Floats:
        return BF16_BYTES * self._hidden * tokens

    def _gather_and_scatter(self, tokens: Floats) -> tuple[Floats, Floats]:
        """What is gathered are operands: narrow where the products take narrow ones (Transformer Engine)."""
        volume = self._tensor_bytes(tokens)
        operands = self._operand_share * volume
        return (
            self._collectives.all_gather_s(operands, self._group),
            self._collectives.reduce_scatter_s(volume, self._group),
        )

    def _pipelined(self, collective_s: Floats, gemm: ChunkedGemm, exchanged: bool = False) -> Floats:
        """Seconds in chunks of the collective, or exchanged where that is faster: many ranks make small products."""
        chunks_s = pipelined_s(collective_s, gemm.whole_s, self._sm_share, gemm.added_s)
        return np.minimum(chunks_s, self._exchanged(collective_s, gemm)) if exchanged else chunks_s

    def _beside_product(self, collective_s: Floats, gemm: ChunkedGemm, share: float = 1.0) -> Floats:
        return beside_s(collective_s, share * gemm.whole_s, self._whole_share)
