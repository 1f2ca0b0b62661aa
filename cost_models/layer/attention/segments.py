"""Attention of single segments on one GPU of a context-parallel group: kernels, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.attention import (
    ATTENTION_BACKWARD_FLOP_RATIO,
    KernelRate,
    attention_rate_flop_per_s,
    unfused_attention_s,
)
from hdpsim.cost_models.kernels.number_formats import power_slowdown
from hdpsim.cost_models.layer.attention.pack_sharding import Cut
from hdpsim.cost_models.layer.attention.ulysses_and_gather import AttentionHeads
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.tracing import note, priced, remembered
from hdpsim.cost_models.transformer.flop import attention_pairs
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import InfeasibleError


class SegmentAttention:
    """What attention of a segment takes on one GPU, whole or in its group; formulas are AttentionCost's."""

    def __init__(
        self,
        model: Model,
        layout: Layout,
        gpu: Gpu,
        cal: Calibration,
        heads: AttentionHeads,
        *,
        blocks: bool,
        cut_as_pack: bool,
    ) -> None:
        """*blocks*: keys come in blocks (a ring), not all at once; *cut_as_pack*: packs may be cut as a whole."""
        self._gpu, self._cal, self._heads = gpu, cal, heads
        self._kernel, self._fused_softmax = layout.kernels.attention, layout.kernels.fused
        self._head_dim = (heads.query_dim + heads.value_dim) / 2.0
        self._kernel_rate = KernelRate.of(self._kernel, cal, self._head_dim)
        self._dropout = model.dropout
        self._width = heads.width
        if self._kernel == "mxfp8" and gpu.fp4_flop_per_s is None:
            lacks = f"{gpu.name} has no tensor cores for it"
            raise InfeasibleError(f"layout.attention_kernel = mxfp8: {lacks}; use flash")
        self._window, self._chunked = model.sliding_window, model.chunked_attention
        self._full_share = 1.0 / model.full_attention_every if model.full_attention_every else 0.0
        self._blocks, self._cut_as_pack = blocks, cut_as_pack
        self._tiles_slices = layout.context.kind == "all-gather" and self._kernel != "unfused"
        self._known_rates: dict[bool, float] = {}

    def _rate(self, backward: bool) -> float:
        """FLOP/s on long sequences, in units of *forward* FLOP."""
        return remembered(self._known_rates, backward, self._long_rate)

    def _long_rate(self, backward: bool) -> float:
        rate = attention_rate_flop_per_s(
            np.inf, self._gpu, self._cal, backward=backward, head_dim=self._head_dim, kernel=self._kernel_rate
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
        joule_per_flop = self._cal.bf16_joule_per_flop / self._kernel_rate.rate_of(backward=backward)
        slowdown = power_slowdown(reached, joule_per_flop, self._gpu, self._cal)
        return np.asarray((work_flop + ramp_flop) / rate * slowdown)

    @property
    def pairs_per_key(self) -> float:
        """What a key costs a backward however many rows meet it, in pairs of a query and a key.

        Blocks of a backward are keys: each loads its own, visits the rows that meet them and writes two gradients. An
        unmasked block, which has as many keys as rows, says what that costs: its ramp.
        Source: Dao-AILab/flash-attention, csrc/flash_attn/src/flash_bwd_kernel.h (n_block).
        """
        return self._cal.attention_block_half_tokens * self._ramp(True)

    @priced("attention")
    def alone_s(self, tokens: ArrayLike, *, backward: bool, slices: ArrayLike = 1.0) -> Floats:
        """Per segment: whole sequence on one rank, its rows in *slices*, each of which meets all keys before it.

        Counted: in a backward keys are met by several slices, (slices - 1) / 2 times on average (pairs_per_key).
        """
        length = np.asarray(tokens, dtype=np.float64)
        if self._kernel == "unfused":
            return self._square_s(length, backward=backward)
        note(width=self._width)
        ramp = self._cal.attention_half_tokens * self._ramp(backward)
        unit = 2.0 * self._width * length
        pairs_of_slices = backward * self.pairs_per_key * (np.asarray(slices) - 1.0) / np.maximum(length, 1.0)
        seconds = partial(self._busy_s, backward=backward)
        return self._over_layers(
            length, lambda reach: seconds(unit * reach, unit * (ramp + pairs_of_slices * reach)), backward
        )

    def _window_in(self, backward: bool) -> int | None:
        """The window that a kernel of that direction knows."""
        return self._window if self._kernel_rate.windowed_backward or not backward or self._chunked else None

    def _over_layers(self, length: Floats, seconds: Callable[[Floats], Floats], backward: bool) -> Floats:
        """Mean over the layers of what *seconds* says for the keys that a query reaches, times two (causal)."""
        window = self._window_in(backward)
        if window is None:
            return seconds(length)
        near = seconds(2.0 * attention_pairs(length, window=window, chunked=self._chunked) / length)
        if not self._full_share:
            return near
        return near + self._full_share * (seconds(length) - near)

    @priced("attention")
    def ring_step_s(
        self, tokens: ArrayLike, group_size: ArrayLike, *, backward: bool, slices: Floats | None = None
    ) -> Floats:
        """Per segment: one of the d steps of its ring. *slices*: what it is cut into, two of a rank if not told."""
        length = np.asarray(tokens, dtype=np.float64)
        local = length / np.asarray(group_size, dtype=np.float64)
        if not self._blocks:  # d such steps are a rank's share of the whole sequence
            sizes = np.asarray(group_size, dtype=np.float64)
            cut = slices if slices is not None else np.where(sizes > 1.0, 2.0 * sizes, 1.0)
            of_one = self.alone_s(length, backward=backward, slices=cut if self._tiles_slices else 1.0)
            return of_one / sizes**2 * self._tiled(length, cut)
        if self._kernel == "unfused":
            return self._square_s(local, backward=backward)
        tiled = np.maximum(local, self._cal.attention_tile_tokens)
        half = self._cal.attention_block_half_tokens * self._ramp(backward)
        note(width=self._width)

        def seconds(reach: Floats) -> Floats:
            unit = 2.0 * self._width * (reach / length)
            return self._busy_s(unit * tiled**2, unit * local * half, backward=backward)

        return self._over_layers(length, seconds, backward)

    def least_step_s(self, tokens: ArrayLike, group_sizes: Floats, *, backward: bool) -> Floats:
        """The least of a step's attention on ascending sizes of groups, whatever else is in the pack.

        In a pack that is cut as a whole a sequence lies on p of the group's d ranks, maybe one slice on each. The
        busiest takes at least what they take on average: d steps >= the least of p ring_step_s(p) over all p <= d.
        """
        if not self._cut_as_pack:
            return self.ring_step_s(tokens, group_sizes, backward=backward)
        shared_s = group_sizes * self.ring_step_s(tokens, group_sizes, backward=backward, slices=group_sizes)
        of_rank = np.where(group_sizes > 1.0, shared_s, self.alone_s(tokens, backward=backward))
        return np.asarray(np.minimum.accumulate(of_rank) / group_sizes)

    def _tiled(self, tokens: Floats, slices: Floats) -> Floats:
        """Per segment, cut into so many *slices*: rows of their tiles over rows of the whole segment's.

            max(s / n, min(s, tile)) / (s / n)        n slices of s / n tokens, none in less than a tile

        A segment shorter than a tile is priced as one as it is (alone_s), so n slices of it are n.
        Counted: kinds whose ranks attend to all keys at once (all-gather); a ring has tiles of its own.
        """
        if not self._tiles_slices:
            return np.ones_like(tokens)
        rows = tokens / slices
        return np.asarray(np.maximum(rows, np.minimum(tokens, self._cal.attention_tile_tokens)) / rows)

    def _square_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """Per segment: *tokens* queries against as many keys, their scores kept in memory."""
        heads, _, query_dim, value_dim, _ = self._heads
        square_s = partial(unfused_attention_s, tokens, tokens, heads, query_dim, value_dim)
        square_s = partial(square_s, self._gpu, self._cal, backward=backward, dropout=self._dropout)
        return square_s(fused_softmax=self._fused_softmax)

    def seconds(self, cut: Cut, *, backward: bool) -> Floats:
        """Per segment: all of it on one rank, or one step of its ring; only what occurs is worked out."""
        alone = cut.ranks == 1.0
        if alone.all():
            return self.alone_s(cut.tokens, backward=backward)
        ring_s = self.ring_step_s(cut.tokens, cut.ranks, backward=backward, slices=cut.slices)
        return np.where(alone, self.alone_s(cut.tokens, backward=backward), ring_s) if alone.any() else ring_s

    def longest_row_s(self, seconds: Floats, cut: Cut, *, backward: bool) -> Floats:
        """Per segment that takes so many *seconds*: its query that meets most keys, in one head (see with_last_wave).

            seconds / heads / pairs x keys      causal: s^2 / 2 pairs, s keys; block of a ring: l^2 pairs, l keys

        A window leaves fewer of both. Exchanges other than rings: a rank has 1/d of the heads, or of the rows.
        """
        tokens, ranks = cut.tokens, cut.ranks
        heads = np.full_like(tokens, self._heads.heads)
        if self._blocks:
            alone, tile = ranks == 1.0, self._cal.attention_tile_tokens
            length = np.maximum(tokens / ranks, np.where(alone, 1.0, tile))
            pairs = np.where(alone, 0.5, 1.0) * length**2
        else:
            heads, length = heads / ranks, np.maximum(tokens, 1.0)
            pairs = 0.5 * length**2 * self._tiled(length, cut.slices)
        keys = length
        window = self._window_in(backward)
        if window is not None:
            full_share, total = self._full_share, np.maximum(tokens, 1.0)
            near = attention_pairs(total, window=window, chunked=self._chunked) / (0.5 * total**2)
            pairs = pairs * (near + full_share * (1.0 - near))
            keys = np.minimum(length, window + full_share * (length - window))
        return np.asarray(seconds / (heads * pairs) * keys)

    def growth(self, cut: Cut, *, backward: bool) -> Callable[[Floats, Ints], Floats]:
        """How attention grows along a segment: keys that its first tokens meet, and the ramp of their rows."""
        block = (cut.ranks > 1.0) & self._blocks
        of_blocks = cut.ranks * self._cal.attention_block_half_tokens
        ramp = np.where(block, of_blocks, self._cal.attention_half_tokens) * self._ramp(backward)
        window = self._window_in(backward)

        def until(tokens: Floats, segment: Ints) -> Floats:
            pairs = attention_pairs(tokens, window=window, chunked=self._chunked)
            if self._full_share:
                pairs = pairs + self._full_share * (attention_pairs(tokens) - pairs)
            return np.asarray(2.0 * pairs + tokens * ramp[segment])

        return until
