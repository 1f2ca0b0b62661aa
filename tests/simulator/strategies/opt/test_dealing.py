from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator_setups import FLOOR, HOPPER, problem_of, small_setup

from hdpsim.simulator.strategies.opt import dealing
from hdpsim.simulator.strategies.opt.dealing import (
    Packs,
    deal_packs,
    deal_sequences,
    deal_singles,
    even_bins,
    exchange,
    fill_packs,
    first_free,
)
from hdpsim.simulator.strategies.problem import PlanningProblem


def problem(lengths: list[int], cal: object = HOPPER) -> PlanningProblem:
    return problem_of(small_setup(nodes=1, context=8192, cal=cal), lengths)  # type: ignore[arg-type]


def equal_packs(count: int, seconds: float) -> Packs:
    """Packs of one sequence each that all take the same time."""
    return Packs(
        sequence=np.arange(count),
        tokens=np.full(count, 1024),
        work_s=np.full(count, seconds),
        pack=np.arange(count),
        seconds=np.full(count, seconds),
    )


def test_packs_hold_what_fits_one_rank_and_nothing_else():
    packs = fill_packs(problem([600, 5000, 400, 1024, 1025]))
    assert packs.sequence.tolist() == [3, 0, 2]
    assert packs.tokens.tolist() == [1024, 600, 400]
    assert packs.pack.tolist() == [0, 1, 1]


def test_a_pack_takes_what_a_micro_batch_takes():
    one = problem([1024, 500, 500], cal=replace(HOPPER, launch_s=0.0))  # launches would hide the work
    packs = fill_packs(one)
    assert packs.seconds[0] == pytest.approx(float(one.sequence_s([1024], [1])[0]))
    # Two of 500 tokens: linear work of 1000, attention of two short ones: less than one of 1024.
    assert float(one.sequence_s([500], [1])[0]) < packs.seconds[1] < packs.seconds[0]
    floor = fill_packs(problem([10, 1024], cal=FLOOR))
    assert floor.seconds.tolist() == pytest.approx([0.05, 0.05])


def test_packs_go_to_the_rank_that_is_free_first():
    packs = equal_packs(5, 2.0)
    free_s = np.array([0.0, 5.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0])
    where, rank, seconds = deal_packs(problem([1024] * 5), free_s, packs)
    # 0 -> 2, 1 -> 3 on rank 2, 2 -> 4 on rank 0, 3 -> 5 on rank 2, 4 -> 6 on rank 0
    assert rank.tolist() == [0, 2, 0, 2, 0]
    assert where.tolist() == [0, 1, 2, 3, 4]
    assert seconds.tolist() == [2.0] * 5


def test_sequences_are_dealt_one_by_one_and_packed_evenly():
    lengths = [500] * 16
    one = problem(lengths)
    where, rank, seconds = deal_sequences(one, np.zeros(8), fill_packs(one))
    assert np.bincount(rank, minlength=8).tolist() == [1] * 8  # 2 x 500 tokens in one micro-batch each
    assert np.bincount(where).tolist() == [2] * 8
    assert np.ptp(seconds) == pytest.approx(0.0)


def test_packs_of_a_rank_never_exceed_the_capacity():
    lengths = np.random.default_rng(0).integers(1, 1025, 200).tolist()
    one = problem(lengths)
    packs = fill_packs(one)
    where, rank, seconds = deal_sequences(one, np.zeros(8), packs)
    assert np.bincount(where, weights=packs.tokens).max() <= 1024
    assert len(rank) == len(seconds) == where.max() + 1


def test_singles_leave_room_for_whole_packs():
    # Packs of 1 s on two ranks; sequences of 2.5, 1.5 and 2.4 s. To the rank free first: 2.5 | 2.4, 2.4 + 1.5 = 3.9,
    # and four packs end at 5.9. Better: 2.5 + 1.5 = 4 and 2.4: the packs end at 5 and 5.4.
    times = np.array([2.5, 2.4, 1.5])
    packs = equal_packs(4, 1.0)
    rank = deal_singles(np.zeros(2), times, packs)
    assert rank[0] == rank[2] != rank[1]


def test_singles_keep_within_what_the_gangs_take():
    # Rank 0 is busy until 8 s, with which nothing can be done. 4.5 and 3.5 s share a rank; 7 packs and 2.5 s the other.
    times = np.array([4.5, 3.5, 2.5])
    rank = deal_singles(np.array([8.0, 0.0, 0.0]), times, equal_packs(5, 1.0))
    assert rank[0] == rank[1] != rank[2]
    assert 0 not in rank


def test_singles_end_later_if_packs_find_no_place():
    # By 4 s there is room for 4 packs, on rank 1 alone; seven need 3 more whole seconds on either.
    rank = deal_singles(np.array([4.0, 0.0]), np.array([1.5]), equal_packs(7, 1.0))
    assert rank.tolist() in ([0], [1])
    load = np.array([4.0, 0.0]) + np.bincount(rank, weights=[1.5], minlength=2)
    assert np.floor(6.5 - load).sum() >= 7


def test_singles_of_uneven_packs_go_to_the_rank_free_first():
    packs = Packs(np.arange(2), np.full(2, 9), np.ones(2), np.arange(2), np.array([1.0, 0.5]))
    assert deal_singles(np.zeros(2), np.array([2.5, 2.4, 1.5]), packs).tolist() == [0, 1, 1]
    nothing = Packs(*(np.zeros(0, dtype=np.int64) for _ in range(4)), np.zeros(0))
    assert deal_singles(np.zeros(2), np.array([2.5, 2.4, 1.5]), nothing).tolist() == [0, 1, 1]


loads = st.floats(0.0, 10.0, allow_subnormal=False)


@given(st.lists(loads, min_size=1, max_size=6), st.lists(loads, max_size=30), st.integers(0, 20))
def test_singles_all_get_a_rank(free: list[float], times: list[float], count: int):
    times_s = np.sort(np.array(times))[::-1]
    rank = deal_singles(np.array(free), times_s, equal_packs(count, 1.0))
    assert len(rank) == len(times)
    assert np.all((rank >= 0) & (rank < len(free)))


def test_exchange_by_hand():
    # Loads 3 + 2 = 5 and 1: giving 2 leaves 3 and 3.
    rank = exchange(np.array([0, 0, 1]), np.array([3.0, 2.0, 1.0]), np.zeros(2), np.full(2, np.inf))
    loads = np.bincount(rank, weights=[3.0, 2.0, 1.0])
    assert loads.tolist() == [3.0, 3.0]


def test_one_for_two_short_ones():
    # 5 + 5 against 3 + 3: the exchange of 5 for both 3s gives 11 and 5, one 5 for one 3 gives 8 and 8.
    seconds = np.array([5.0, 5.0, 3.0, 3.0])
    rank = exchange(np.array([0, 0, 1, 1]), seconds, np.zeros(2), np.full(2, np.inf))
    assert np.bincount(rank, weights=seconds).tolist() == [8.0, 8.0]
    # 7 and 4 x 1: 7 against two of the ones? 2 + 7 and 2: no. Nothing is better than 7.
    seconds = np.array([7.0, 1.0, 1.0, 1.0, 1.0])
    rank = exchange(np.array([0, 1, 1, 1, 1]), seconds, np.zeros(2), np.full(2, np.inf))
    assert np.bincount(rank, weights=seconds).max() == 7.0


def test_nothing_longer_than_a_rank_may_have():
    seconds = np.array([3.0, 2.0, 1.0])
    rank = exchange(np.array([0, 0, 1]), seconds, np.zeros(2), np.array([np.inf, 1.5]))
    assert rank.tolist() == [0, 0, 1]


@given(
    st.lists(loads, min_size=1, max_size=8), st.lists(st.floats(0.01, 5.0), max_size=60), st.integers(0, 99)
)
def test_exchanges_never_raise_the_busiest_rank(base: list[float], items: list[float], seed: int):
    seconds, base_s = np.array(items), np.array(base)
    rank = np.random.default_rng(seed).integers(0, len(base), len(items))
    after = exchange(rank, seconds, base_s, np.full(len(base), np.inf))
    before_s, after_s = (base_s + np.bincount(r, weights=seconds, minlength=len(base)) for r in (rank, after))
    assert after_s.max() <= before_s.max() * (1 + 1e-12)
    assert after_s.sum() == pytest.approx(before_s.sum())


@given(
    st.lists(st.lists(st.integers(1, 40), max_size=12), min_size=1, max_size=9),
    st.integers(40, 100),
)
def test_bins_of_many_ranks_are_those_of_each(ranks: list[list[int]], capacity: int):
    tokens = np.array([length for some in ranks for length in sorted(some, reverse=True)], dtype=np.int64)
    counts = np.array([len(some) for some in ranks])
    with pytest.MonkeyPatch.context() as patch:  # as many ranks are, and as few are
        patch.setattr(dealing, "FEW_RANKS", 0)
        bins, opened = even_bins(tokens, counts, capacity)
    few = even_bins(tokens, counts, capacity)
    assert (few[0].tolist(), few[1].tolist()) == (bins.tolist(), opened.tolist())
    each = [even_bins(np.array(sorted(some, reverse=True), dtype=np.int64), np.array([len(some)]), capacity)
            for some in ranks]  # fmt: skip
    assert opened.tolist() == [int(own[0]) for _, own in each]
    first = np.cumsum(opened) - opened
    assert bins.tolist() == [
        number + before for (own, _), before in zip(each, first, strict=True) for number in own
    ]
    assert np.bincount(bins, weights=tokens, minlength=opened.sum()).max(initial=0) <= capacity
    assert (opened >= [-(-sum(some) // capacity) for some in ranks]).all()


@given(
    st.integers(1, 9), st.sampled_from([1, 2, 100]), st.integers(0, 60), st.integers(0, 2**16), st.booleans()
)
def test_every_item_goes_to_the_first_rank_that_is_free_first(
    ranks: int, short: int, count: int, seed: int, whole: bool
):
    random = np.random.default_rng(seed)
    free_s, seconds = random.uniform(0.0, 8.0, ranks), random.lognormal(0.0, 1.0, count)
    if whole:  # many ranks are free at the same time
        free_s, seconds = np.round(free_s), np.ceil(seconds)
    loads, wanted = free_s.copy(), []
    for time_s in seconds.tolist():
        wanted.append(int(loads.argmin()))
        loads[wanted[-1]] += time_s
    before_s = free_s.copy()
    with pytest.MonkeyPatch.context() as patch:  # by rounds, with and without heaps between them
        patch.setattr(dealing, "MANY_RANKS", 1)
        patch.setattr(dealing, "SHORT_ROUND", short)
        assert first_free(free_s, seconds).tolist() == wanted
        patch.setattr(dealing, "MANY_RANKS", 10)
        assert first_free(free_s, seconds).tolist() == wanted
    np.testing.assert_array_equal(free_s, before_s)
