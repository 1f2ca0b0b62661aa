"""Packs cut as a whole and document by document: who attends to what, and what short slices cost, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import HIDDEN, IDEAL, MODEL, PEAK, ideal_cluster, micro_batches

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration, calibration
from hdpsim.cost_models.layer.attention.pack_sharding import PackPieces
from hdpsim.cost_models.layer.attention.ring_attention import AttentionCost, RingTimes
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ContextParallelKind, ContextSharding
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.tracing import tracing
from hdpsim.cost_models.transformer.model import Model

TILES = replace(IDEAL, attention_tile_tokens=128.0)
SHIPPED = [calibration(name) for name in ("ampere", "hopper", "blackwell")]
KINDS: tuple[ContextParallelKind, ...] = ("ring", "double-ring", "all-gather", "gathered-ring")

packs = st.lists(st.integers(1, 100_000), min_size=1, max_size=12)


def pieces(lengths: list[int], ranks: int) -> PackPieces:
    return PackPieces.of(np.array(lengths), np.array([0, len(lengths)]), np.array([ranks]))


def squares(tokens: Floats, document: Ints) -> Floats:
    return tokens**2


def imbalance(lengths: list[int], ranks: int) -> float:
    """Pairs of the busiest rank over the mean."""
    cost = np.array(lengths, dtype=float) ** 2
    (busiest,) = pieces(lengths, ranks).busiest(cost, squares)
    return float(busiest / cost.sum())


def times(
    sharding: ContextSharding,
    lengths: list[int],
    ranks: int,
    *,
    kind: ContextParallelKind = "all-gather",
    cal: Calibration = IDEAL,
    model: Model = MODEL,
    backward: bool = False,
    sms: int = 1,
) -> RingTimes:
    """On few SMs: no tile is waited for."""
    where = ideal_cluster()
    layout = Layout(cp_kind=kind, cp_sharding=sharding)
    gpu = replace(where.gpu, sm_count=sms)
    cost = AttentionCost(model, layout, gpu, cal, FabricModel(where, cal.network))
    return cost.times(micro_batches([lengths], group_size=[ranks]), backward=backward)


class TestPieces:
    def test_by_hand(self) -> None:
        """Documents of 3 and 1 on two ranks: chunks of one token with 0.5, 1.5, 2.5 and 0.5 pairs.

        Rank 0 has the first and the last, 1; rank 1 the two between, 4; the mean is 2.5.
        """
        found = pieces([3, 1], 2)
        assert found.rank.tolist() == [0, 1, 1, 0]
        assert found.document.tolist() == [0, 0, 0, 1]
        assert list(zip(found.begin, found.end, strict=True)) == [(0, 1), (1, 2), (2, 3), (0, 1)]
        assert found.cut.ranks.tolist() == [2, 1]
        assert found.cut.slices.tolist() == [3, 1]
        assert imbalance([3, 1], 2) == pytest.approx(4 / 2.5)

    def test_a_document_between_two_cuts_is_on_both_sides(self) -> None:
        # 2 ranks, slices of 4 of 16 tokens, ranks 0 1 1 0: 5 tokens on both ranks; 6 on rank 1 alone, in two slices;
        # 2 on both again, 3 on rank 0
        found = pieces([5, 6, 2, 3], 2)
        assert found.cut.ranks.tolist() == [2, 1, 2, 1]
        assert found.cut.slices.tolist() == [2, 1, 2, 1]  # what is on one rank is not cut there

    def test_packs_do_not_mix(self) -> None:
        lengths, offsets = np.array([3, 1, 5000, 64, 64, 64, 64]), np.array([0, 2, 3, 7])
        found = PackPieces.of(lengths, offsets, np.array([2, 8, 1]))
        assert found.first_rank.tolist() == [0, 2, 10, 11]
        assert found.cut.ranks.tolist() == [2, 1, 8, 1, 1, 1, 1]
        assert found.cut.slices.tolist() == [3, 1, 16, 1, 1, 1, 1]
        cost = lengths.astype(float) ** 2
        mean = np.add.reduceat(cost, offsets[:-1])
        assert (found.busiest(cost, squares) / mean).tolist() == pytest.approx([1.6, 1.0, 1.0])

    @given(packs, st.integers(1, 16))
    def test_pieces_make_up_their_documents(self, lengths: list[int], ranks: int) -> None:
        found = pieces(lengths, ranks)
        held = np.bincount(found.document, weights=found.end - found.begin)
        assert held.tolist() == pytest.approx(lengths)
        of_rank = np.bincount(found.rank, weights=found.end - found.begin, minlength=ranks)
        assert of_rank.tolist() == pytest.approx([sum(lengths) / ranks] * ranks)
        # as many cuts as there are, at most one of them in two documents' way
        assert found.cut.slices.sum() <= len(lengths) + 2 * ranks - 1
        assert (found.cut.ranks <= np.minimum(found.cut.slices, ranks)).all()
        assert (
            found.cut.ranks >= np.minimum(np.ceil(found.tokens * ranks / sum(lengths) - 1e-9), ranks)
        ).all()

    @given(packs, st.integers(2, 16))
    def test_between_even_and_all_on_one_rank(self, lengths: list[int], ranks: int) -> None:
        assert 1.0 - 1e-9 <= imbalance(lengths, ranks) <= ranks + 1e-9


class TestLimits:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("backward", [False, True])
    @pytest.mark.parametrize("window", [None, 1024])
    def test_one_document_is_cut_alike(
        self, kind: ContextParallelKind, backward: bool, window: int | None
    ) -> None:
        model = replace(MODEL, sliding_window=window)
        for cal in (TILES, *SHIPPED):
            of = {"kind": kind, "cal": cal, "model": model, "backward": backward}
            assert times("pack", [20_000], 8, **of).total == times("document", [20_000], 8, **of).total

    def test_documents_of_a_slice_stay_whole(self) -> None:
        """8 documents of 64 tokens on 4 ranks: two each, 64 rows of a tile of 128; cut by document, 8 slices of 8."""
        whole_s = 2 * 2 * HIDDEN * 64**2 / PEAK
        assert times("pack", [64] * 8, 4, cal=TILES).attention[0] == pytest.approx(whole_s)
        assert times("document", [64] * 8, 4, cal=TILES).attention[0] == pytest.approx(8 * whole_s)
        # a ring tiles its blocks: 4 steps of 8 documents of 128 x 128, twice the causal half
        assert times("pack", [64] * 8, 4, kind="ring", cal=TILES).attention[0] == pytest.approx(whole_s)
        blocks_s = 4 * 8 * 2 * HIDDEN * 128**2 / PEAK
        assert times("document", [64] * 8, 4, kind="ring", cal=TILES).attention[0] == pytest.approx(blocks_s)

    def test_slices_shorter_than_a_tile_pay_one(self) -> None:
        # 2048 tokens on 16 ranks: 32 slices of 64 rows, half a tile each
        whole_s = 2 * HIDDEN * 2048**2 / PEAK
        assert times("document", [2048], 16, cal=TILES).attention[0] == pytest.approx(2 * whole_s / 16)
        assert times("document", [2048], 8, cal=TILES).attention[0] == pytest.approx(whole_s / 8)

    def test_the_longest_row_is_as_long_in_half_a_tile(self) -> None:
        """One head of few rows on 64 SMs ends with its longest tile: 128 rows of 2048 keys, whatever is in the tile."""
        lone = replace(MODEL, hidden=128, heads=1, kv_heads=1, head_dim=128)
        one_tile = 64 * 128 * (4 * 128 * 2048 / PEAK)  # seconds of the whole GPU
        for ranks in (8, 16, 64):
            found = times("document", [2048], ranks, cal=TILES, model=lone, sms=64)
            assert found.attention[0] == pytest.approx(one_tile)

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_busiest_rank_is_waited_for(self, kind: ContextParallelKind) -> None:
        lengths, of = [600_000, 40_000], {"kind": kind, "cal": TILES, "sms": 64}
        by_pack, by_document = (times(how, lengths, 4, **of).attention[0] for how in ("pack", "document"))
        assert by_pack / by_document == pytest.approx(imbalance(lengths, 4), rel=5e-3)  # and empty blocks
        assert imbalance(lengths, 4) > 1.1

    @pytest.mark.parametrize("kind", ["ulysses", "hybrid", "disaggregated"])
    def test_kinds_whose_ranks_attend_alike_are_cut_alike(self, kind: ContextParallelKind) -> None:
        both = [times(how, [60_000, 4_000], 4, kind=kind).total[0] for how in ("document", "pack")]
        assert both[0] == both[1]

    @given(
        packs,
        st.sampled_from([2, 3, 4, 8, 16]),
        st.sampled_from(KINDS),
        st.sampled_from([TILES, *SHIPPED]),
        st.booleans(),
    )
    def test_no_rank_does_less_than_the_documents_alone(
        self,
        lengths: list[int],
        ranks: int,
        kind: ContextParallelKind,
        cal: Calibration,
        backward: bool,
    ) -> None:
        """Tiles, ramps of blocks and imbalance only add, but for a block's shorter ramp: see least_attention_s."""
        where = ideal_cluster()
        layout = Layout(cp_kind=kind)
        segments = AttentionCost(MODEL, layout, where.gpu, cal, FabricModel(where, cal.network)).segments
        tokens = np.array(lengths, dtype=float)
        pair_s = 4.0 * segments.ring_step_s(tokens, 2.0, backward=backward)
        least_s = np.minimum(segments.alone_s(tokens, backward=backward), pair_s).sum() / ranks
        for sharding in ("document", "pack"):
            found = times(sharding, lengths, ranks, kind=kind, cal=cal, backward=backward)
            assert found.attention[0] >= least_s * (1 - 1e-9)


several = st.lists(st.tuples(st.sampled_from([1, 2, 3, 8]), packs), min_size=1, max_size=4)


def on_ranks(of: list[tuple[int, list[int]]]) -> MicroBatches:
    """Packs on so many ranks."""
    return micro_batches([pack for _, pack in of], group_size=[ranks for ranks, _ in of])


def cost(sharding: ContextSharding, kind: ContextParallelKind, cal: Calibration) -> AttentionCost:
    where = ideal_cluster()
    layout = Layout(cp_kind=kind, cp_sharding=sharding)
    return AttentionCost(MODEL, layout, where.gpu, cal, FabricModel(where, cal.network))


def both_ways_s(of: AttentionCost, batches: MicroBatches) -> Floats:
    return np.sum([of.times(batches, backward=side).total for side in (False, True)], axis=0)


class TestAdaptive:
    short, long = [64] * 8, [600_000, 40_000]

    def test_each_pack_has_its_own(self) -> None:
        batches = on_ranks([(4, self.short), (4, self.long), (1, self.short), (4, [600_000])])
        adaptive = cost("adaptive", "all-gather", TILES)
        assert adaptive.by_pack(batches).tolist() == [True, False, False, False]
        found, by_pack, by_document = (
            both_ways_s(cost(how, "all-gather", TILES), batches) for how in ("adaptive", "pack", "document")
        )
        assert found.tolist() == [by_pack[0], *by_document[1:].tolist()]
        assert by_pack[0] < by_document[0]
        assert by_pack[1] > by_document[1]

    @given(several, st.sampled_from(KINDS), st.sampled_from([TILES, *SHIPPED]))
    def test_never_slower_than_either(
        self, of: list[tuple[int, list[int]]], kind: ContextParallelKind, cal: Calibration
    ) -> None:
        batches = on_ranks(of)
        found, *fixed = (
            both_ways_s(cost(how, kind, cal), batches) for how in ("adaptive", "pack", "document")
        )
        assert found.tolist() == pytest.approx(np.minimum(*fixed).tolist(), rel=1e-12)

    @pytest.mark.parametrize("lengths", [short, long])
    def test_what_is_sent_is_of_the_same_cut(self, lengths: list[int]) -> None:
        batches = on_ranks([(4, lengths)])
        chosen: ContextSharding = "pack" if lengths is self.short else "document"
        for backward in (False, True):
            hidden = [
                cost(how, "ring", TILES).sent(batches, backward=backward).hidden_s[0]
                for how in ("adaptive", chosen)
            ]
            assert hidden[0] == hidden[1]

    def test_nobody_hears_of_the_other(self) -> None:
        heard = []
        for how in ("adaptive", "pack"):
            of = cost(how, "all-gather", TILES)
            with tracing() as calls:
                of.times(on_ranks([(4, self.short)]), backward=False)
            heard.append([(call.function.__name__, call.result.tolist()) for call in calls])
        assert heard[0] == heard[1]
        assert len(heard[0]) > 1
