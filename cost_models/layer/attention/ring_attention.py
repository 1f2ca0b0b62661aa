"""Attention of a micro-batch's segments on one GPU of a dynamic context-parallel group, ring traffic included."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Bools, Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.attention import KernelRate, empty_blocks_s, with_last_wave
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layer.attention.disaggregation import Disaggregated, Widths, disaggregated
from hdpsim.cost_models.layer.attention.nested_rings import (
    EULER_GAMMA,
    NestedRings,
    NestedTimes,
    RingStepWork,
    exposed_s,
)
from hdpsim.cost_models.layer.attention.pack_sharding import Cut, PackPieces
from hdpsim.cost_models.layer.attention.segments import SegmentAttention
from hdpsim.cost_models.layer.attention.ulysses_and_gather import AttentionHeads, ContextExchange
from hdpsim.cost_models.layer.host_launches import ring_step_host_s
from hdpsim.cost_models.layer.micro_batches import Groups, MicroBatches
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ContextParallelKind
from hdpsim.cost_models.network.fabric import TIERS, FabricModel
from hdpsim.cost_models.tracing import Latest, priced, remembered, unheard
from hdpsim.cost_models.transformer.model import Model

# Keys and values go round with their gradients: Liu et al., arXiv 2310.01889, section 3
RING_BACKWARD_VOLUME = 2.0
CHOICES_KEPT = 8
"""Sets of micro-batches of which is kept how they are cut: forward, backward and what is sent ask for the same."""

CUT_ALONG_TOKENS: tuple[ContextParallelKind, ...] = ("ring", "double-ring", "all-gather", "gathered-ring")
"""Kinds of context parallelism whose ranks attend with the tokens that they hold."""


Cuts = tuple[Cut, PackPieces | None]
Shared = tuple[Bools, Cuts]
"""Which micro-batches are cut as a whole, and how all are cut."""


class RingTimes(NamedTuple):
    """Seconds per layer, [n] each."""

    attention: Floats
    merge: Floats
    wait: Floats
    """Ring transfers, and launches, that the attention of a step does not hide."""

    @property
    def total(self) -> Floats:
        """Attention with all that the ring adds."""
        return self.attention + self.merge + self.wait


class AttentionCost:
    """Flash attention on one GPU (its share of the heads) and the ring of a group.

    One rank (d = 1), causal, width w = heads * head_dim / tp:
        t = sum over segments of 2 w s (s + s_half) / (peak * e)
    Ring of d ranks, zig-zag halves, local length l = s / d, d steps of which all but the first meet a peer's keys:
        step = sum of 2 w (max(l, tile)^2 + l b_half) / (peak * e)
        hop  = latency + (keys + values of all the rank's tokens) / link
        t    = d * step + (d - 1) * (merge + max(0, hop - kept * (step + merge)))

    Counted: quadratic work per segment (never across segments), kernel ramp, tiles that short pieces leave mostly
    empty, merging of partial outputs, transfers not hidden by the same step's work, slowest hop of the ring.
    Other kinds of context parallelism: d steps are 1/d of one rank's attention, the exchange stands for the ring. A
    gathered ring merges d - 1 partial outputs all the same (in the backward: partial gradients of queries, keys and
    values in fp32, as many bytes), and hides its gather behind the first step. Disaggregated attention takes what the
    busiest rank does of both halves of a micro-batch, copies what the halves exchange, and hides it (ContextExchange).
    Older flash kernels do matrix work at a calibrated rate (KernelRate). Unfused: see unfused_attention_s; a block of a
    ring is a square.
    Ignored: imbalance of zig-zag halves below one tile, overlap of a hop with later steps.
    Source: ring attention (arXiv 2310.01889), zig-zag split (zhuzilin/ring-flash-attention), FlashAttention-2.
    """

    def __init__(self, model: Model, layout: Layout, gpu: Gpu, cal: Calibration, fabric: FabricModel) -> None:
        self._gpu, self._cal, self._fabric = gpu, cal, fabric
        self._rank_stride = layout.parallel.rank_stride
        node = fabric.cluster.node
        of_nic = max(1.0, node.gpus / node.nics)  # GPUs that share one
        self._nic_shares = of_nic / min(self._rank_stride, of_nic)
        self._kernel, self._kind = layout.kernels.attention, layout.context.kind
        self._descending = KernelRate.of(self._kernel, cal).descending
        self._tolerance = layout.context.tolerance
        self._heads = AttentionHeads.of(model, layout)
        self._mamba_heads = model.mamba.heads // layout.parallel.tp if model.mamba else None
        self._gathered_ring = self._kind == "gathered-ring"
        shared = layout.context.sharding or "document"
        self._sharding = shared if self._kind in CUT_ALONG_TOKENS else "document"
        self._choices: Latest[tuple[bytes, ...], Bools] = Latest(CHOICES_KEPT)
        heads, exchanges = self._heads, self._kind not in ("ring", "double-ring")
        self._exchange = ContextExchange(layout, fabric, heads) if exchanges else None
        nests = self._kind in ("double-ring", "hybrid")
        self._nested_rings = NestedRings(layout, fabric, cal, heads, self._exchange) if nests else None
        segments = partial(SegmentAttention, model, layout, gpu, cal, heads, blocks=not exchanges)
        self.segments = segments(cut_as_pack=self._sharding != "document")
        self.kv_bytes_per_token = BF16_BYTES * self._heads.kv_width
        self._step_host_s = [ring_step_host_s(layout, cal, backward=side) for side in (False, True)]

    @property
    def most_ranks(self) -> int | None:
        """Ranks over which one sequence can be spread: a head stays whole (ulysses, Mamba-2); None = any number."""
        most = (None if self._exchange is None else self._exchange.most_ranks, self._mamba_heads)
        return min((max(1, ranks) for ranks in most if ranks is not None), default=None)

    @priced("ring_merge")
    def merge_s(self, tokens_per_rank: ArrayLike) -> Floats:
        """Adding one ring step's partial output to the running one."""
        elements = np.asarray(tokens_per_rank, dtype=np.float64) * self._heads.output_width
        return memory_bound_s(elements * self._cal.merge_bytes_per_element, self._gpu, self._cal)

    @priced("ring_wait")
    def hop_s(self, groups: Groups, *, backward: bool) -> Floats:
        """One hop of the ring: every GPU passes its share of keys and values to the next rank.

            t = latency + delay * (ln d + 0.577) [across nodes] + bytes / link

        A ring moves at the pace of its slowest neighbour: with exponential delays of mean *delay* at each of d
        hops the slowest takes delay * H_d, H_d = 1 + 1/2 + ... + 1/d. The link is that of the slowest hop, where only
        the hops that cross a block or pod share its up-links.
        """
        tier = np.asarray(groups.tier)
        slowest = np.where(tier > 0, np.log(groups.size) + EULER_GAMMA, 0.0) * self._cal.ring_delay_s
        wire_s = self._hop_bytes(groups, backward) / self._link_bytes_per_s(groups)
        return np.asarray(self._fabric.latency_s(tier) + slowest + wire_s)

    def _hop_bytes(self, groups: Groups, backward: bool) -> Floats:
        volume = np.asarray(groups.tokens, dtype=np.float64) * self.kv_bytes_per_token
        return volume * RING_BACKWARD_VOLUME if backward else volume

    def _link_bytes_per_s(self, groups: Groups) -> Floats:
        """What a GPU gets of the slowest hop of its ring.

        A ring of neighbours leaves a node from one rank: where GPUs share a NIC, those of that rank alone do.
        """
        tier, crossing = np.asarray(groups.tier, dtype=np.int64), groups.crossing
        if not self._fabric.has_shared_uplinks:
            tiers = np.arange(TIERS)
            by_tier = self._fabric.bytes_per_s(tiers) * np.where(tiers > 0, self._nic_shares, 1.0)
            return np.asarray(by_tier[tier])
        if crossing is None:
            crossing = self._fabric.neighbour_crossing(groups.size, tier, self._rank_stride)
        return self._fabric.slowest_bytes_per_s(np.broadcast_to(tier, crossing.shape[:-1]), crossing)

    def ring(self, step_s: Floats, groups: Groups, *, backward: bool) -> RingTimes:
        """Compose a ring (or what replaces it) from the summed step time of its segments.

        Disaggregated: no exchange, which depends on what else is in the micro-batch (times).
        """
        attention, none = groups.size * step_s, np.zeros(np.broadcast(step_s, groups.size).shape)
        if self._kind == "disaggregated":
            return RingTimes(attention, none, none)
        if self._nested_rings is not None:
            nested = self._nested(self._nested_rings, step_s, groups, backward=backward)
            return RingTimes(attention, nested.merges * self.merge_s(groups.tokens), nested.wait)
        if self._exchange is not None:
            wait = self._exchange.seconds(groups, backward=backward)
            merges = np.zeros_like(wait)
            if self._gathered_ring:
                merges = np.where(groups.size > 1.0, groups.size - 1.0, 0.0) * self.merge_s(groups.tokens)
                wait = np.maximum(0.0, wait - step_s)
            return RingTimes(attention * self._exchange.unevenness(groups.size), merges, wait)
        merge, hops = self.merge_s(groups.tokens), groups.size - 1.0
        kept, launch_s = self._cal.ring_overlap, self._step_host_s[backward]
        wait = hops * exposed_s(self.hop_s(groups, backward=backward), step_s + merge, kept, launch_s)
        return RingTimes(attention, hops * merge, wait)

    def _nested(self, rings: NestedRings, step_s: Floats, groups: Groups, *, backward: bool) -> NestedTimes:
        step_work = RingStepWork(step_s, self.merge_s(groups.tokens), self._step_host_s[backward])
        return rings.times(step_work, groups, passes=RING_BACKWARD_VOLUME if backward else 1.0)

    def times(
        self,
        batches: MicroBatches,
        *,
        backward: bool,
        linear_s: Floats | None = None,
        shared: Shared | None = None,
    ) -> RingTimes:
        """Seconds of attention, merging and waiting of one layer.

        *linear_s* (default: none) is the work between attention and attention, see ContextExchange.halves.
        *shared*: how the micro-batches are shared, for who asks for both directions.
        """
        groups = batches.groups
        step = self._step_s(batches, *(shared or self.shared(batches)), backward=backward)
        if not (groups.size > 1.0).any():  # nothing goes round
            none = np.zeros(batches.count)
            return RingTimes(step, none, none)
        if self._exchange is not None and self._kind == "disaggregated":
            dealt, attention = self._disaggregated(batches), groups.size * step
            halves = self._exchange.halves(dealt, attention, linear_s, groups)
            copies_s = self._exchange.copies_s(dealt, self._gpu, self._cal, backward=backward)
            return RingTimes(attention, copies_s, halves.exposed_s)
        return self.ring(step, groups, backward=backward)

    def by_pack(self, batches: MicroBatches) -> Bools:
        """[n]: whether ranks share the pack cut as a whole, and not each of its documents.

        adaptive: where forward and backward of a layer's attention take less that way, transfers included.
        Counted where it makes a difference: several documents on several ranks. Nobody listens to what is not done.
        Ignored: what a backward repeats of the forward.
        Source: WLB-LLM, arXiv 2503.17924, section 5 (adaptive sharding).
        """
        matters = (batches.group_size > 1) & (np.diff(batches.segment_offsets) > 1)
        if self._sharding != "adaptive" or not matters.any():
            return matters & (self._sharding == "pack")
        relevant = batches.only(matters)
        columns = (relevant.segment_tokens, relevant.segment_offsets, *relevant.groups)
        key = tuple(column.tobytes() for column in columns if column is not None)

        def total_s(by_pack: Bools) -> Floats:
            cuts = self._cuts(relevant, by_pack)
            steps = [self._step_s(relevant, by_pack, cuts, backward=side) for side in (False, True)]
            forward, backward = (
                self.ring(steps[side], relevant.groups, backward=side) for side in (False, True)
            )
            return forward.total + backward.total

        def chosen(_: tuple[bytes, ...]) -> Bools:
            all_by_pack = np.ones(relevant.count, dtype=bool)
            return total_s(all_by_pack) < total_s(~all_by_pack)

        by_pack = matters.copy()
        by_pack[matters] = unheard(lambda: remembered(self._choices, key, chosen))
        return by_pack

    def shared(self, batches: MicroBatches) -> Shared:
        """How ranks share each micro-batch, forward and backward alike."""
        by_pack = self.by_pack(batches)
        return by_pack, self._cuts(batches, by_pack)

    @staticmethod
    def _cuts(batches: MicroBatches, by_pack: Bools) -> Cuts:
        """How every document is cut, and the pieces of packs where some are cut as a whole."""
        tokens, offsets = batches.segment_tokens, batches.segment_offsets
        cut = Cut.by_document(tokens, offsets, batches.group_size.astype(np.float64))
        if not by_pack.any():
            return cut, None
        pieces = PackPieces.of(tokens, offsets, batches.group_size)
        return cut.where(np.repeat(by_pack, np.diff(offsets)), pieces.cut), pieces

    def _step_s(self, batches: MicroBatches, by_pack: Bools, cuts: Cuts, *, backward: bool) -> Floats:
        """[n]: the attention of all segments of a micro-batch, on its one rank or in one step of its ring."""
        segment_tokens, segment_offsets = batches.segment_tokens, batches.segment_offsets
        group_size = batches.group_size.astype(np.float64)
        if not len(segment_tokens):
            return np.zeros(len(group_size))
        cut, pieces = cuts
        per_segment = self.segments.seconds(cut, backward=backward)
        of_rank = per_segment * cut.share**2  # on average, over all ranks and over all steps of their ring
        step = np.add.reduceat(of_rank, segment_offsets[:-1])
        if pieces is not None:
            busiest = pieces.busiest(of_rank, self.segments.growth(cut, backward=backward))
            step = np.where(by_pack, busiest, step)
        if self._kernel != "unfused":
            rows = self.segments.longest_row_s(per_segment, cut, backward=backward) * cut.share
            longest = np.maximum.reduceat(rows, segment_offsets[:-1])
            causal = np.asarray(group_size == 1.0) | (self._exchange is not None)
            keys = self._descending * np.maximum.reduceat(cut.tokens, segment_offsets[:-1])
            step = with_last_wave(step, longest, keys, self._gpu, self._cal, backward=backward, causal=causal)
        if self._kind == "disaggregated":
            dealt = self._disaggregated(batches)
            step = step * (dealt.backward_imbalance if backward else dealt.imbalance)
        if len(segment_tokens) > len(group_size) and self._kernel != "unfused":
            step = step + self._empty_s(cut, segment_offsets, group_size, backward=backward)
        return np.asarray(step)

    def _disaggregated(self, batches: MicroBatches) -> Disaggregated:
        """The attention of micro-batches as their planner deals it."""
        heads = self._heads
        widths = Widths(heads.heads * heads.query_dim, heads.kv_width, heads.output_width)
        sizes = batches.group_size.astype(np.float64)
        per_key = self.segments.pairs_per_key
        return disaggregated(
            batches.segment_tokens, batches.segment_offsets, sizes, widths, self._tolerance, per_key
        )

    def _empty_s(self, cut: Cut, offsets: Ints, group_size: Floats, *, backward: bool) -> Floats:
        """[n]: empty blocks of a step: of each of a ring's kernels, or of the one kernel there is instead of a ring."""
        cuts_heads = self._kind == "ulysses"  # some heads of whole sequences, not all heads of their pieces
        heads = self._heads.heads / (group_size if cuts_heads else 1.0)
        rows = cut.tokens if cuts_heads else cut.tokens / cut.ranks
        empty_s = empty_blocks_s(
            rows, offsets, heads, self._gpu, self._cal, share=cut.share, backward=backward
        )
        return empty_s if self._exchange is None or self._gathered_ring else empty_s / group_size

    def sent(self, batches: MicroBatches, *, backward: bool, linear_s: Floats | None = None) -> SentTimes:
        """What goes round between nodes for the attention of one layer; see times for the arguments."""
        groups = batches.groups
        step_s = self._step_s(batches, *self.shared(batches), backward=backward)
        if self._nested_rings is not None:
            return self._nested(self._nested_rings, step_s, groups, backward=backward).sent
        if self._exchange is not None:
            if self._kind == "disaggregated":
                dealt = self._disaggregated(batches)
                return self._exchange.halves(dealt, groups.size * step_s, linear_s, groups).sent
            hidden_s = step_s if self._gathered_ring else np.zeros_like(step_s)
            return self._exchange.sent(groups, hidden_s, backward=backward)
        return SentTimes.of_hops(
            np.where(groups.far, groups.size - 1.0, 0.0),
            self.hop_s(groups, backward=backward),
            step_s + self.merge_s(groups.tokens),
            self._hop_bytes(groups, backward),
            self._link_bytes_per_s(groups),
            kept=self._cal.ring_overlap,
            launch_s=self._step_host_s[backward],
        )
