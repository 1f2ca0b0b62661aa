import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator_setups import FLOOR, problem_of, small_setup

from hdpsim import validate_plan
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.strategies.hdp.naive import naive_micro_batches, plan_naive
from hdpsim.simulator.strategies.plan_ideal import plan_ideal_s
from hdpsim.simulator.strategies.problem import PlanningProblem


def problem(lengths: list[int], **changes: object) -> PlanningProblem:
    changes = {"context": 16384, "selective_offloading": False, "name": "hdp-naive"} | changes
    return problem_of(small_setup(**changes), lengths)  # type: ignore[arg-type]


def test_short_sequences_are_packed_and_long_ones_are_alone():
    # Best fit of the short ones into 1024 tokens: {600, 400}, {900}; 3000 tokens need 3 ranks. In order of arrival.
    one = problem([600, 3000, 900, 400])
    pieces, group, ratio, time_s = naive_micro_batches(one, plan_ideal_s(one))
    assert pieces.micro_batch.tolist() == [0, 1, 2, 0]
    assert group.tolist() == [1, 3, 1]
    assert ratio.tolist() == [0.0, 0.0, 0.0]
    assert time_s.shape == (3,)


def test_waves_by_hand():
    # 16 ranks. Groups 10, 8, 5, 1, 4: wave 0 takes 10, then 5 and 1 (16); wave 1 takes 8 and 4.
    lengths = [10 * 1024, 8 * 1024, 5 * 1024, 1024, 4 * 1024]
    plan = plan_naive(problem(lengths))
    first = plan.member_ranks[plan.member_offsets[:-1]]
    assert first.tolist() == [0, 0, 10, 15, 8]
    assert plan.order[plan.order_offsets[8] : plan.order_offsets[9]].tolist() == [0, 4]
    assert plan.order[plan.order_offsets[15] : plan.order_offsets[16]].tolist() == [3]
    validate_plan(plan, np.array(lengths), 1)


def test_a_later_small_group_fills_an_earlier_wave():
    # 9 and 9 do not share a wave; 7 fits behind the first, the next 7 behind the second.
    plan = plan_naive(problem([9 * 1024, 9 * 1024, 7 * 1024, 7 * 1024]))
    first = plan.member_ranks[plan.member_offsets[:-1]].tolist()
    slots = [
        int(np.flatnonzero(plan.order[plan.order_offsets[rank] : plan.order_offsets[rank + 1]] == m)[0])
        for m, rank in enumerate(first)
    ]
    assert first == [0, 0, 9, 9]
    assert slots == [0, 1, 0, 1]


def test_groups_stay_in_the_blocks_of_the_mesh():
    # Context 6K on ranks of 1K: 16 ranks are blocks of 6, 6 and 4. Two groups of 5 open two blocks, 4 take the last;
    # the third 5 fits none of them any more, and a single rank stands behind the first.
    lengths = [5 * 1024, 5 * 1024, 4 * 1024, 5 * 1024, 1024]
    plan = plan_naive(problem(lengths, context=6 * 1024))
    first = plan.member_ranks[plan.member_offsets[:-1]]
    assert first.tolist() == [0, 6, 12, 0, 5]
    assert plan.order[plan.order_offsets[0] : plan.order_offsets[1]].tolist() == [0, 3]


@given(
    st.integers(1, 16).flatmap(
        lambda block: st.tuples(
            st.just(block), st.lists(st.integers(1, block * 1024), min_size=1, max_size=40)
        )
    )
)
def test_no_group_leaves_its_block(drawn: tuple[int, list[int]]):
    block, lengths = drawn
    plan = plan_naive(problem(lengths, context=block * 1024))
    first, last = plan.member_ranks[plan.member_offsets[:-1]], plan.member_ranks[plan.member_offsets[1:] - 1]
    assert (last - first + 1 == plan.group_size).all()
    assert (first // block == last // block).all()


def test_many_groups_that_leave_ranks_over_are_all_placed():
    lengths = np.full(20_000, 9 * 1024)  # 9 of 16 ranks each: no wave ever fills
    plan = plan_naive(problem(lengths.tolist()))
    assert plan.micro_batches == 20_000


def test_the_estimate_knows_the_least_time_of_a_micro_batch():
    plan = plan_naive(problem([10], cal=FLOOR))
    assert plan.makespan_s == pytest.approx(8 * 3 * 2e-3 + 2e-3)


def test_sequences_that_fit_nowhere_are_infeasible():
    with pytest.raises(InfeasibleError, match="17000 tokens does not fit on 16 ranks of 1024 tokens"):
        plan_naive(problem([100, 17_000], context=20_000))


def test_offloading_makes_groups_smaller():
    plain = plan_naive(problem([16384, 100], nodes=2))
    offloaded = plan_naive(problem([16384, 100], nodes=2, selective_offloading=True))
    assert offloaded.group_size.max() <= plain.group_size.max() == 16
    assert offloaded.offload_ratio.max() >= plain.offload_ratio.max() == 0.0
