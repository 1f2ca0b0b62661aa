"""Attention of a micro-batch's segments on one GPU of a dynamic context-parallel group, ring traffic included."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.empty_blocks import empty_blocks_s
from hdpsim.cost_models.kernels.formats import power_slowdown
from hdpsim.cost_models.kernels.last_wave import with_last_wave
from hdpsim.cost_models.kernels.products import (
    ATTENTION_BACKWARD_FLOP_RATIO,
    BF16_BYTES,
    KernelRate,
    attention_rate_flop_per_s,
    memory_bound_s,
)
from hdpsim.cost_models.kernels.unfused_attention import unfused_attention_s
from hdpsim.cost_models.layer.context_exchange import AttentionHeads, ContextExchange
from hdpsim.cost_models.layer.disaggregation import Disaggregated, Widths, disaggregated
from hdpsim.cost_models.layer.host import ring_step_host_s
from hdpsim.cost_models.layer.nested_rings import EULER_GAMMA, NestedRings, NestedTimes, exposed_s
from hdpsim.cost_models.layer.pack_sharding import pack_imbalance
from hdpsim.cost_models.layer.sent import SentTimes
from hdpsim.cost_models.layout.groups import ContextParallelKind
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.tracing import note, priced, remembered
from hdpsim.cost_models.transformer.flop import attention_pairs
from hdpsim.cost_models.transformer.model import Model

# Keys and values go round with their gradients: Liu et al., arXiv 2310.01889, section 3
RING_BACKWARD_VOLUME = 2.0


CUT_ALONG_TOKENS: tuple[ContextParallelKind, ...] = ("ring", "double-ring", "all-gather", "gathered-ring")
"""Kinds of context parallelism whose ranks attend with the tokens that they hold."""


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
        t    = d * step + (d - 1) * (merge + max(0, hop - step - merge))

    Counted: quadratic work per segment (never across segments), kernel ramp, tiles that short pieces leave mostly
    empty, merging of partial outputs, transfers not hidden by the same step's work, slowest hop of the ring.
    Other kinds of context parallelism: d steps are 1/d of one rank's attention, the exchange stands for the ring. A
    gathered ring merges d - 1 partial outputs all the same (in the backward: partial gradients of queries, keys and
    values in fp32, as many bytes), and hides its gather behind the first step. Disaggregated attention takes what the
    busiest rank does of either half of a micro-batch, and hides what the halves exchange (ContextExchange.halves).
    Older flash kernels do matrix work at a calibrated rate (KernelRate). Unfused: see unfused_attention; a block of a
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
        self._kernel, self._fused_softmax = layout.kernels.attention, layout.kernels.fused
        self._kernel_rate = KernelRate.of(self._kernel, cal)
        self._dropout = model.dropout
        self._heads = AttentionHeads.of(model, layout)
        self._width = self._heads.width
        self._window, self._chunked = model.sliding_window, model.chunked_attention
        self._full_share = 1.0 / model.full_attention_every if model.full_attention_every else 0.0
        self._kind = layout.context.kind
        self._gathered_ring = self._kind == "gathered-ring"
        self._by_pack = layout.context.sharding == "pack" and self._kind in CUT_ALONG_TOKENS
        self._exchange = (
            None
            if layout.context.kind in ("ring", "double-ring")
            else ContextExchange(layout, fabric, self._heads)
        )
        self._nested_rings = (
            NestedRings(layout, fabric, cal, self._heads, self._exchange)
            if self._kind in ("double-ring", "hybrid")
            else None
        )
        self.kv_bytes_per_token = BF16_BYTES * self._heads.kv_width
        self._known_rates: dict[bool, float] = {}
        self._step_host_s = [ring_step_host_s(layout, cal, backward=side) for side in (False, True)]

    @property
    def most_ranks(self) -> int | None:
        """Ranks over which one sequence can be spread: a head stays whole (ulysses); None = any number."""
        return None if self._exchange is None else self._exchange.most_ranks

    def _rate(self, backward: bool) -> float:
        """FLOP/s on long sequences, in units of *forward* FLOP."""
        return remembered(self._known_rates, backward, self._long_rate)

    def _long_rate(self, backward: bool) -> float:
        rate = attention_rate_flop_per_s(
            np.inf,
            self._gpu,
            self._cal,
            backward=backward,
            head_dim=(self._heads.query_dim + self._heads.value_dim) / 2.0,
            kernel=self._kernel_rate,
        )
        return float(rate) / (ATTENTION_BACKWARD_FLOP_RATIO if backward else 1.0)

    def _ramp(self, backward: bool) -> float:
        return self._kernel_rate.ramp * (self._cal.attention_backward_ramp if backward else 1.0)

    def _busy_s(self, work_flop: Floats, ramp_flop: Floats, *, backward: bool) -> Floats:
        """Seconds of *work_flop* forward FLOP and the ramp's, clocks under the power limit.

        An older kernel keeps the SMs as busy as the best one and does less: its FLOP take more energy by as much as it
        is slower. Assumed; it shows on boards whose limit the best kernel would exceed.
        """
        rate = self._rate(backward)
        share = ATTENTION_BACKWARD_FLOP_RATIO if backward else 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            reached = share * rate * work_flop / (work_flop + ramp_flop)
        joule_per_flop = self._cal.bf16_joule_per_flop / self._kernel_rate.rate
        slowdown = power_slowdown(reached, joule_per_flop, self._gpu, self._cal)
        return np.asarray((work_flop + ramp_flop) / rate * slowdown)

    @priced("attention")
    def alone_s(self, tokens: ArrayLike, *, backward: bool) -> Floats:
        """Per segment: whole sequence on one rank."""
        length = np.asarray(tokens, dtype=np.float64)
        if self._kernel == "unfused":
            return self._square_s(length, backward=backward)
        note(width=self._width)
        ramp = self._cal.attention_half_tokens * self._ramp(backward)
        unit = 2.0 * self._width * length
        return self._over_layers(
            length, lambda reach: self._busy_s(unit * reach, unit * ramp, backward=backward)
        )

    def _over_layers(self, length: Floats, seconds: Callable[[Floats], Floats]) -> Floats:
        """Mean over the layers of what *seconds* says for the keys that a query reaches, times two (causal)."""
        if self._window is None:
            return seconds(length)
        pairs = attention_pairs(length, window=self._window, chunked=self._chunked)
        near = seconds(2.0 * pairs / length)
        if not self._full_share:
            return near
        return near + self._full_share * (seconds(length) - near)

    @priced("attention")
    def ring_step_s(self, tokens: ArrayLike, group_size: ArrayLike, *, backward: bool) -> Floats:
        """Per segment: one of the d steps of its ring."""
        length = np.asarray(tokens, dtype=np.float64)
        local = length / np.asarray(group_size, dtype=np.float64)
        if self._exchange is not None:  # d such steps are a rank's share of the whole sequence
            sizes = np.asarray(group_size, dtype=np.float64)
            return self.alone_s(length, backward=backward) / sizes**2
        if self._kernel == "unfused":
            return self._square_s(local, backward=backward)
        tiled = np.maximum(local, self._cal.attention_tile_tokens)
        half = self._cal.attention_block_half_tokens * self._ramp(backward)
        note(width=self._width)

        def seconds(reach: Floats) -> Floats:
            unit = 2.0 * self._width * (reach / length)
            return self._busy_s(unit * tiled**2, unit * local * half, backward=backward)

        return self._over_layers(length, seconds)

    def _square_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """Per segment: *tokens* queries against as many keys, their scores kept in memory."""
        return unfused_attention_s(
            tokens,
            tokens,
            self._heads.heads,
            self._heads.query_dim,
            self._heads.value_dim,
            self._gpu,
            self._cal,
            backward=backward,
            fused_softmax=self._fused_softmax,
            dropout=self._dropout,
        )

    @priced("ring_merge")
    def merge_s(self, tokens_per_rank: ArrayLike) -> Floats:
        """Adding one ring step's partial output to the running one."""
        elements = np.asarray(tokens_per_rank, dtype=np.float64) * self._heads.output_width
        return memory_bound_s(elements * self._cal.merge_bytes_per_element, self._gpu, self._cal)

    @priced("ring_wait")
    def hop_s(
        self,
        tokens_per_rank: ArrayLike,
        group_size: ArrayLike,
        tier: ArrayLike,
        *,
        backward: bool,
        crossing: Floats | None = None,
    ) -> Floats:
        """One hop of the ring: every GPU passes its share of keys and values to the next rank.

            t = latency + delay * (ln d + 0.577) [across nodes] + bytes / link

        A ring moves at the pace of its slowest neighbour: with exponential delays of mean *delay* at each of d
        hops the slowest takes delay * H_d, H_d = 1 + 1/2 + ... + 1/d. The link is that of the slowest hop, where only
        the hops that cross a block or pod share its up-links (*crossing*; None: as rings of neighbours cross).
        """
        sizes = np.asarray(group_size, dtype=np.float64)
        slowest = np.where(np.asarray(tier) > 0, np.log(sizes) + EULER_GAMMA, 0.0) * self._cal.ring_delay_s
        volume = np.asarray(tokens_per_rank, dtype=np.float64) * self.kv_bytes_per_token
        if backward:
            volume = volume * RING_BACKWARD_VOLUME
        rate = self._link_bytes_per_s(sizes, tier, crossing)
        return np.asarray(self._fabric.latency_s(tier) + slowest + volume / rate)

    def _link_bytes_per_s(self, group_size: Floats, tier: ArrayLike, crossing: Floats | None) -> Floats:
        """What a GPU gets of the slowest hop of its ring.

        A ring of neighbours leaves a node from one rank: where GPUs share a NIC, those of that rank alone do.
        """
        if not self._fabric.has_shared_uplinks:
            return self._fabric.bytes_per_s(tier) * np.where(np.asarray(tier) > 0, self._nic_shares, 1.0)
        if crossing is None:
            crossing = self._fabric.neighbour_crossing(group_size, tier, self._rank_stride)
        tiers = np.broadcast_to(np.asarray(tier, dtype=np.int64), crossing.shape[:-1])
        return self._fabric.slowest_bytes_per_s(tiers, crossing)

    def ring(
        self,
        step_s: Floats,
        tokens_per_rank: Floats,
        group_size: Floats,
        tier: Ints,
        *,
        backward: bool,
        crossing: Floats | None = None,
    ) -> RingTimes:
        """Compose a ring (or what replaces it) from the summed step time of its segments.

        Disaggregated: no exchange, which depends on what else is in the micro-batch (times).
        """
        if self._kind == "disaggregated":
            nothing = np.zeros(np.broadcast(step_s, group_size).shape)
            return RingTimes(attention=group_size * step_s, merge=nothing, wait=nothing)
        if self._nested_rings is not None:
            nested = self._nested(step_s, tokens_per_rank, group_size, tier, backward=backward)
            merge = nested.merges * self.merge_s(tokens_per_rank)
            return RingTimes(attention=group_size * step_s, merge=merge, wait=nested.wait)
        if self._exchange is not None:
            wait = self._exchange.seconds(tokens_per_rank, group_size, tier, backward=backward)
            merges = np.zeros_like(wait)
            if self._gathered_ring:
                merges = np.where(group_size > 1.0, group_size - 1.0, 0.0) * self.merge_s(tokens_per_rank)
                wait = np.maximum(0.0, wait - step_s)
            return RingTimes(attention=group_size * step_s, merge=merges, wait=wait)
        merge = self.merge_s(tokens_per_rank)
        hop = self.hop_s(tokens_per_rank, group_size, tier, backward=backward, crossing=crossing)
        hops = group_size - 1.0
        hop = np.maximum(hop, self._step_host_s[backward])
        work = step_s + merge
        return RingTimes(
            attention=group_size * step_s,
            merge=hops * merge,
            wait=hops * exposed_s(hop, work, self._cal.ring_overlap),
        )

    def _nested(
        self, step_s: Floats, tokens_per_rank: Floats, group_size: Floats, tier: Ints, *, backward: bool
    ) -> NestedTimes:
        """What nested groups wait for; see nested_rings."""
        assert self._nested_rings is not None
        return self._nested_rings.times(
            step_s,
            self.merge_s(tokens_per_rank),
            self._step_host_s[backward],
            tokens_per_rank,
            group_size,
            tier,
            RING_BACKWARD_VOLUME if backward else 1.0,
        )

    def times(
        self,
        segment_tokens: Ints,
        segment_offsets: Ints,
        group_size: Ints,
        tier: Ints,
        *,
        backward: bool,
        tokens_per_rank: Floats | None = None,
        crossing: Floats | None = None,
        linear_s: Floats | None = None,
    ) -> RingTimes:
        """Micro-batches in CSR form: seconds of attention, merging and waiting of one layer.

        *tokens_per_rank* (default: what the segments hold) is what each rank merges and sends on, padding included.
        *crossing*: see hop_s. *linear_s* (default: none) is the work between attention and attention, see halves.
        """
        sizes = group_size.astype(np.float64)
        step = self._step_s(segment_tokens, segment_offsets, sizes, backward=backward)
        if tokens_per_rank is None:
            tokens_per_rank = (
                np.add.reduceat(segment_tokens.astype(np.float64), segment_offsets[:-1]) / sizes
                if len(segment_tokens)
                else 0.0 * sizes
            )
        if not (sizes > 1.0).any():  # nothing goes round
            return RingTimes(attention=step, merge=np.zeros(len(sizes)), wait=np.zeros(len(sizes)))
        if self._exchange is not None and self._kind == "disaggregated":
            dealt, none = self._disaggregated(segment_tokens, segment_offsets, sizes), np.zeros(len(sizes))
            halves = self._exchange.halves(
                dealt, sizes * step, none if linear_s is None else linear_s, sizes, tier
            )
            return RingTimes(attention=sizes * step, merge=none, wait=halves.exposed_s)
        return self.ring(step, tokens_per_rank, sizes, tier, backward=backward, crossing=crossing)

    def _step_s(
        self, segment_tokens: Ints, segment_offsets: Ints, group_size: Floats, *, backward: bool
    ) -> Floats:
        """[n]: the attention of all segments of a micro-batch, on its one rank or in one step of its ring."""
        of_segment = np.repeat(group_size, segment_offsets[1:] - segment_offsets[:-1])
        tokens = segment_tokens.astype(np.float64)
        if not len(tokens):
            return np.zeros(len(group_size))
        per_segment = self._segment_s(tokens, of_segment, backward=backward)
        step = np.add.reduceat(per_segment, segment_offsets[:-1])
        if self._kernel != "unfused":
            rows = self._longest_row_s(per_segment, tokens, of_segment)
            longest = np.maximum.reduceat(rows, segment_offsets[:-1])
            causal = np.asarray(group_size == 1.0) | (self._exchange is not None)
            step = with_last_wave(step, longest, self._gpu, self._cal, backward=backward, causal=causal)
        if self._by_pack and len(tokens) > len(group_size):
            step = step * pack_imbalance(tokens, segment_offsets, group_size)
        if self._kind == "disaggregated":
            step = step * self._disaggregated(segment_tokens, segment_offsets, group_size).imbalance
        if len(tokens) > len(group_size) and self._kernel != "unfused":
            step = step + self._empty_s(tokens, of_segment, segment_offsets, group_size, backward=backward)
        return np.asarray(step)

    def _disaggregated(self, tokens: Ints, offsets: Ints, group_size: Floats) -> Disaggregated:
        """The attention of micro-batches as their planner deals it."""
        heads = self._heads
        widths = Widths(heads.heads * heads.query_dim, heads.kv_width, heads.output_width)
        return disaggregated(tokens, offsets, group_size, widths)

    def _empty_s(
        self, tokens: Floats, of_segment: Floats, offsets: Ints, group_size: Floats, *, backward: bool
    ) -> Floats:
        """[n]: empty blocks of a step: of each of a ring's kernels, or of the one kernel there is instead of a ring."""
        whole = self._kind == "ulysses"  # some heads of whole sequences, not all heads of their pieces
        heads = self._heads.heads / (group_size if whole else 1.0)
        rows = tokens if whole else tokens / of_segment
        empty_s = empty_blocks_s(rows, offsets, heads, self._gpu, self._cal, backward=backward)
        return empty_s if self._exchange is None or self._gathered_ring else empty_s / group_size

    def _longest_row_s(self, seconds: Floats, tokens: Floats, group_size: Floats) -> Floats:
        """Per segment that takes so many *seconds*: its query that meets most keys, in one head (see with_last_wave).

            seconds / heads / pairs x keys      causal: s^2 / 2 pairs, s keys; block of a ring: l^2 pairs, l keys

        A window leaves fewer of both. Exchanges other than rings: a rank has 1/d of the heads, or of the rows.
        """
        heads = np.full_like(tokens, self._heads.heads)
        if self._exchange is None:
            alone, tile = group_size == 1.0, self._cal.attention_tile_tokens
            length = np.maximum(tokens / group_size, np.where(alone, 1.0, tile))
            pairs = np.where(alone, 0.5, 1.0) * length**2
        else:
            heads, length = heads / group_size, np.maximum(tokens, 1.0)
            pairs = 0.5 * length**2
        keys = length
        if self._window is not None:
            whole, total = self._full_share, np.maximum(tokens, 1.0)
            near = attention_pairs(total, window=self._window, chunked=self._chunked) / (0.5 * total**2)
            pairs = pairs * (near + whole * (1.0 - near))
            keys = np.minimum(length, self._window + whole * (length - self._window))
        return np.asarray(seconds / (heads * pairs) * keys)

    def sent(
        self,
        segment_tokens: Ints,
        segment_offsets: Ints,
        group_size: Ints,
        tier: Ints,
        tokens_per_rank: Floats,
        *,
        backward: bool,
        crossing: Floats | None = None,
        linear_s: Floats | None = None,
    ) -> SentTimes:
        """What goes round between nodes for the attention of one layer; see times for the arguments."""
        sizes = group_size.astype(np.float64)
        step_s = self._step_s(segment_tokens, segment_offsets, sizes, backward=backward)
        far = (sizes > 1.0) & (tier > 0)
        if self._nested_rings is not None:
            return self._nested(step_s, tokens_per_rank, sizes, tier, backward=backward).sent
        if self._exchange is not None:
            if self._kind == "disaggregated":
                dealt = self._disaggregated(segment_tokens, segment_offsets, sizes)
                beside_s = np.zeros(len(sizes)) if linear_s is None else linear_s
                return self._exchange.halves(dealt, sizes * step_s, beside_s, sizes, tier).sent
            hidden_s = step_s if self._gathered_ring else np.zeros_like(sizes)
            return self._exchange.sent(tokens_per_rank, sizes, tier, hidden_s, backward=backward)
        rate = np.broadcast_to(self._link_bytes_per_s(sizes, tier, crossing), sizes.shape)
        volume = tokens_per_rank * self.kv_bytes_per_token * (RING_BACKWARD_VOLUME if backward else 1.0)
        hop_s = self.hop_s(tokens_per_rank, sizes, tier, backward=backward, crossing=crossing)
        return SentTimes(
            times=np.where(far, sizes - 1.0, 0.0),
            hidden_s=np.maximum(step_s + self.merge_s(tokens_per_rank), self._step_host_s[backward]),
            fixed_s=hop_s - volume / rate,
            sent_bytes=volume,
            bytes_per_s=rate,
        )

    def _segment_s(self, tokens: Floats, group_size: Floats, *, backward: bool) -> Floats:
        """Per segment: all of it on one rank, or one step of its ring; only what occurs is worked out."""
        alone = group_size == 1.0
        if alone.all():
            return self.alone_s(tokens, backward=backward)
        ring_s = self.ring_step_s(tokens, group_size, backward=backward)
        return np.where(alone, self.alone_s(tokens, backward=backward), ring_s) if alone.any() else ring_s
