"""Attention dealt to the ranks of a group, by hand and as properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.layer.attention.disaggregation import Disaggregated, Widths, disaggregated

WIDTHS = Widths(queries=4.0, keys_values=2.0, outputs=3.0)
PAIRS_PER_KEY = 3.0


def deal(documents: list[int], ranks: int, tolerance: float = 0.1) -> Disaggregated:
    offsets = np.array([0, len(documents)])
    return disaggregated(
        np.array(documents), offsets, np.array([float(ranks)]), WIDTHS, tolerance, PAIRS_PER_KEY
    )


def test_halves_that_are_balanced_as_they_lie() -> None:
    # 8 tokens on two ranks, rows from either end: 36 pairs in equal shares, 4 keys from the other rank; then a document
    # of 4 on each rank, 10 pairs, where nothing moves
    dealt = deal([8, 4, 4], 2)
    assert dealt.imbalance[0] == pytest.approx(1.0)
    assert dealt.first_share[0] == pytest.approx(18 / 28)
    assert dealt.second_tokens[0] == 0.5
    assert dealt.arriving[:, 0] == pytest.approx([4 * 2.0, 0.0])
    assert dealt.leaving[:, 0].tolist() == [0.0, 0.0]
    # a backward: two rows from either end meet 2 + 8 or 4 + 6 keys, 6 more than they are; 18 + 10 pairs
    assert dealt.backward_imbalance[0] == pytest.approx((28 + 6 * PAIRS_PER_KEY) / 28)


def test_what_a_rank_has_too_much_moves() -> None:
    # ranks hold 40 tokens: the first 20 rows from either end of the document of 60, the second the other 10 and two of
    # 10 tokens: 20 x 61 and 10 x 61 + 2 x 55 pairs. 250 pairs move, 250 / 61 rows from either end.
    rows = 250 / 61
    dealt = deal([60, 10, 10, 80], 2)
    assert dealt.imbalance[0] == pytest.approx(1.0)
    assert dealt.second_tokens[0] == 0.5
    # the second rank gets the keys of the first 20 rows for each of its four pieces, and for the last those of the rows
    # that moved from the tail
    assert dealt.arriving[0, 0] == pytest.approx(2 * rows * 4.0 + (4 * 20 + rows) * 2.0)
    assert dealt.leaving[0, 0] == pytest.approx(2 * rows * 3.0)


def test_a_rank_may_lack_a_tenth() -> None:
    near = [20, 19, 1, 40]  # 210 pairs on the first rank, 190 + 1 on the second, within a tenth of the mean
    dealt = deal(near, 2)
    assert dealt.imbalance[0] == pytest.approx((210 + 410) / (401 / 2 + 410))
    assert dealt.arriving[0, 0] == 0.0
    far = [20, 15, 5, 40]  # 210 and 135 pairs: 37.5 too many are more than a row of 21
    assert deal(far, 2, tolerance=0.2).imbalance[0] == pytest.approx(1.0)
    assert deal(far, 2, tolerance=0.3).imbalance[0] == pytest.approx((210 + 410) / (345 / 2 + 410))


def test_the_busiest_rank_is_that_of_both_halves() -> None:
    # 210 and 191 pairs in the first half, 191 and 210 in the second: nobody waits between them
    assert deal([20, 19, 1, 19, 1, 20], 2).imbalance[0] == pytest.approx(1.0)


def test_what_goes_through_buffers_is_copied() -> None:
    # First half: two pieces of two rows on each rank, four and four of queries and outputs at home and attended. Keys
    # that the pieces see are 2 + 4 + 6 + 8 in order, of the first and last on one rank, and sent are 8 + 6 + 4 + 2.
    # Second half: a document of 4 that stays is copied all the same.
    dealt = deal([8, 4, 4], 2)
    assert dealt.copied[0] == pytest.approx((8 * 7.0 + 20 * 2.0) + (8 * 7.0 + 8 * 2.0))
    # a gradient of the keys of four tokens for each of four pieces, and for one
    assert dealt.added[0] == pytest.approx(4 * 4 * 2.0 + 4 * 2.0)


def test_less_than_a_row_does_not_move() -> None:
    dealt = deal([6, 1, 1, 8], 2)  # 2 x 7 and 1 x 7 + 2 pairs; 2.5 are no row of 7
    assert dealt.imbalance[0] == pytest.approx((14 + 18) / (23 / 2 + 18))


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), st.integers(2, 16), st.floats(0.0, 1.0))
def test_ranks_are_balanced_as_far_as_rows_allow(documents: list[int], ranks: int, tolerance: float) -> None:
    dealt = deal(documents, ranks, tolerance)
    assert dealt.imbalance[0] >= 1.0 - 1e-12
    # Ranks above the mean give to those below until these lack a tenth at most: what is left above is no more than
    # that of all others, or a row of the longest document for each of them.
    pairs = sum(s * (s + 1) / 2 for s in documents) / ranks
    slack = (ranks - 1) * (tolerance + 2 * (max(documents) + 1) / pairs)
    assert dealt.imbalance[0] <= 1.0 + slack
    # in a backward a rank meets at most all keys, once for what it got from either end of a document on each rank
    assert (
        0.0
        <= dealt.backward_imbalance[0] - dealt.imbalance[0]
        <= PAIRS_PER_KEY * 2 * sum(documents) * ranks / pairs
    )
    assert 0.0 < dealt.first_share[0] <= 1.0
    assert 0.0 <= dealt.second_tokens[0] < 1.0
    assert (dealt.arriving >= 0.0).all()
    assert (dealt.leaving >= 0.0).all()
    # what a rank sends or receives it copies, and it copies all that lies there out and in
    assert (np.maximum(dealt.arriving, dealt.leaving) <= dealt.copied * (1.0 + 1e-9)).all()
    everything = 2.0 * sum(documents) * (WIDTHS.queries + WIDTHS.outputs + WIDTHS.keys_values)
    assert dealt.copied[0] >= everything / ranks * (1.0 - 1e-9)


@given(st.integers(1, 100_000), st.integers(2, 64))
def test_one_document_fetches_all_keys_but_its_own(length: int, ranks: int) -> None:
    dealt = deal([ranks * length], ranks)
    assert dealt.imbalance[0] == pytest.approx(1.0)
    assert dealt.arriving[0, 0] == pytest.approx(2.0 * (ranks - 1) * length)
    assert dealt.leaving[0, 0] == 0.0
