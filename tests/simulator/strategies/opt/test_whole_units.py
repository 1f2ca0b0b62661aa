from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from simulator_setups import FLOOR, problem_of, small_cluster, small_setup

from hdpsim import validate_plan
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.simulator.strategies.opt.hdp_opt import balanced_draft
from hdpsim.simulator.strategies.opt.long_sequences import LongSequences, ideal_step_s
from hdpsim.simulator.strategies.opt.whole_units import LongPlaces, whole_unit_places
from hdpsim.simulator.strategies.problem import PlanningProblem

UNIT_S = 0.026  # 4 layers of a stage x 3 x 2 ms, and 2 ms of host work


def problem(lengths: list[int]) -> PlanningProblem:
    """16 ranks of two stages with 4 GPUs each: two a node, four a block."""
    cal = replace(FLOOR, micro_batch_fixed_s=2e-3)
    setup = small_setup(
        cluster=small_cluster(16, nodes_per_block=2),
        layout=Layout(tp=4, pp=2),
        context=64 * 1024,
        cal=cal,
    )
    return problem_of(setup, lengths)


def places(one: PlanningProblem, packs: int) -> LongPlaces:
    return next(whole_unit_places(one, LongSequences(one), packs, UNIT_S, 0.0))


def test_all_short_ones_find_a_place_by_the_end_of_the_step():
    one = problem([8192] * 6 + [3000] * 8)
    assert one.floor_s + one.fixed_s == pytest.approx(UNIT_S)
    found = places(one, 30)
    left = (found.step_s - found.loads.free_s) / UNIT_S
    assert left.min() >= -1e-6
    assert np.floor(left + 1e-6).sum() >= 30


def test_gangs_that_cost_the_same_share_ranks():
    # A bubble of u on every rank. 16 long ones of one or two ranks that take u, and 16 short ones: two micro-batches a
    # rank (three, if long ones take two ranks) and the bubble.
    one = problem([1100] * 16)
    found = places(one, 16)
    assert found.time_s == pytest.approx(UNIT_S, rel=1e-3)
    used = int(found.size.sum())
    assert found.step_s == pytest.approx((-(-(used + 16) // 16) + 1) * UNIT_S, rel=0.01)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([1100, 2048, 3000, 5000, 9000, 20_000, 60_000]), min_size=1, max_size=40),
    st.integers(0, 60),
)
def test_gangs_never_meet_and_keep_to_the_step(lengths: list[int], packs: int):
    one = problem(lengths)
    found = next(whole_unit_places(one, LongSequences(one), packs, UNIT_S, 0.0), None)
    assume(
        found is not None
    )  # group sizes that no step lets find neighbours: balanced_draft then sets limits
    assert found is not None
    taken: set[tuple[int, int]] = set()
    free_s = np.zeros(one.ranks)
    for gang in np.argsort(found.slot, kind="stable"):
        ranks = found.gang_ranks[gang]
        assert len(set(ranks.tolist())) == found.size[gang] == len(ranks)
        if len(ranks) <= 4:
            assert ranks[0] // 4 == ranks[-1] // 4  # neighbours of one block
        seats = {(int(rank), int(found.slot[gang])) for rank in ranks}
        assert not seats & taken
        taken |= seats
        free_s[ranks] = free_s[ranks].max() + found.time_s[gang]
    longest_s = found.loads.longest_s
    assert found.loads.free_s == pytest.approx(free_s + one.bubble_weight * longest_s)
    assert found.loads.free_s.max() <= found.step_s * (1 + 1e-6)
    assert np.floor((found.step_s - found.loads.free_s) / UNIT_S + 1e-6).sum() >= packs


def test_the_ideal_step_of_short_sequences_is_their_work_and_a_bubble():
    one = problem([512] * 10)
    step_s, sizes = ideal_step_s(one, LongSequences(one), UNIT_S, 20 * UNIT_S, 0.01)
    assert len(sizes) == 0
    assert step_s == pytest.approx((20 / one.ranks + one.bubble_weight) * UNIT_S, rel=2e-4)


def test_the_ideal_step_takes_the_best_group_sizes():
    one = problem([30_000] * 3 + [5000] * 20)
    long, short_s = LongSequences(one), 8 * UNIT_S
    step_s, sizes = ideal_step_s(one, long, UNIT_S, short_s, 0.01)
    # By hand: for this step, of every group size that memory allows the one that takes fewest ranks.
    every = np.arange(1, one.ranks + 1)
    needed = short_s / (step_s - one.bubble_weight * UNIT_S)
    for length, least, size in zip(long.tokens, long.least, sizes, strict=True):
        times_s = one.sequence_s(np.full_like(every, length), every)
        left_s = step_s - one.bubble_weight * times_s
        cost = np.where((every >= least) & (left_s >= times_s), every * times_s / left_s, np.inf)
        assert cost[size - 1] == pytest.approx(cost.min())
        needed += cost.min()
    assert needed == pytest.approx(one.ranks, rel=2e-3)


def test_a_plan_of_whole_micro_batches_is_near_the_ideal_step():
    # Half of the work long: 60 to 64 micro-batches of the least time on 16 ranks.
    lengths = np.array([20_000] * 4 + [3000] * 30 + [1000] * 80)
    one = problem(lengths.tolist())
    plan = balanced_draft(one).plan()
    validate_plan(plan, lengths, 2)
    assert plan.ideal_s <= plan.makespan_s <= plan.ideal_s + 2 * UNIT_S
