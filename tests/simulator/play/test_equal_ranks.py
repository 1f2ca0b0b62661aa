"""One rank played for all: the same step and accounts as playing every rank, and refusals where ranks may wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.step.step_costs import Epilogue, MeetsAfter, StepCosts
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.execution import Noise
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.play.shortcuts.equal_ranks import find_lockstep, find_teams


def mesh(groups: list[int], degree: int) -> Plan:
    """Group g of *degree* ranks runs groups[g] micro-batches, all shared by its members."""
    ranks, count = len(groups) * degree, sum(groups)
    group_of = np.repeat(np.arange(len(groups)), groups)
    first = np.concatenate([[0], np.cumsum(groups)])
    numbers = np.arange(count + 1, dtype=np.int64)
    orders = [np.arange(first[g], first[g + 1]) for g in range(len(groups)) for _ in range(degree)]
    return Plan(
        strategy="static",
        ranks=ranks,
        capacity_tokens=100,
        segment_tokens=np.full(count, 100 * degree, dtype=np.int64),
        segment_sequence=numbers[:-1],
        segment_start=np.zeros(count, dtype=np.int64),
        segment_offsets=numbers,
        member_ranks=(group_of[:, None] * degree + np.arange(degree)).ravel().astype(np.int64),
        member_offsets=numbers * degree,
        offload_ratio=np.zeros(count),
        order=np.concatenate(orders).astype(np.int64),
        order_offsets=np.concatenate([[0], np.cumsum([len(order) for order in orders])]).astype(np.int64),
    )


def costs(count: int, stages: int, chunks: int, alike: bool = True) -> StepCosts:
    """Forward 1 s + 0.5 s and backward twice that on every virtual stage, a longer head on the last."""
    kinds = np.zeros((stages, chunks), dtype=np.int64)
    kinds[-1, -1] = 1
    column = np.array([[1.0, 1.25], [0.5, 0.5]])[:, :, None]  # [terms, kinds, 1]
    return StepCosts(
        stages=stages,
        chunks=chunks,
        terms=("gemm", "attention"),
        forward_terms_s=np.broadcast_to(column, (2, 2, count)),
        backward_terms_s=np.broadcast_to(2.0 * column, (2, 2, count)),
        kind=kinds,
        transfer_s=np.broadcast_to(0.125, count),
        epilogue=Epilogue(
            data_s=0.25,
            parameter_gather_s=np.full(stages, 0.5),
            gradient_sync_s=np.arange(stages) + 1.0,
            optimizer_s=np.full(stages, 0.75),
        ),
        alike=alike,
    )


def test_one_stage_by_hand() -> None:
    # Two groups of two ranks with 3 and 2 micro-batches of 1.75 + 3.5 = 5.25 s each (the only stage has the head).
    result = run_replay(mesh([3, 2], 2), costs(5, 1, 1))
    # 0.25 data + 0.5 gather + 3 x 5.25 + 1 sync + 0.75 optimizer
    assert result.step_s == pytest.approx(0.75 + 15.75 + 1.75)
    waits = result.account_s[result.accounts.index("wait_gradients"), :, 0]
    np.testing.assert_allclose(waits, [0.0, 0.0, 5.25, 5.25])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(any),
    st.integers(1, 3),
    st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 2), (3, 2)]),
)
def test_the_same_as_playing_every_rank(groups: list[int], degree: int, shape: tuple[int, int]) -> None:
    plan, count = mesh(groups, degree), sum(groups)
    fast_costs, slow_costs = costs(count, *shape), costs(count, *shape, alike=False)
    assert find_lockstep(plan, fast_costs, None) is not None
    assert find_lockstep(plan, slow_costs, None) is None
    fast, slow = run_replay(plan, fast_costs), run_replay(plan, slow_costs)
    assert fast.step_s == pytest.approx(slow.step_s, rel=1e-12)
    assert fast.accounts == slow.accounts
    np.testing.assert_allclose(fast.account_s, slow.account_s, atol=1e-12 * slow.step_s)
    assert fast.step_s == pytest.approx(run_engine(plan, fast_costs).step_s, rel=1e-9)


def test_ranks_that_may_wait_are_all_played() -> None:
    plan = mesh([2, 2], 2)
    assert find_lockstep(plan, costs(4, 2, 1), Noise(rank_stage=np.ones((4, 2)))) is None

    # rank 1 runs the two micro-batches it shares with rank 0 the other way round, hence at other slots
    other_way = mesh([2, 2], 2)
    other_way.order[2:4] = other_way.order[2:4][::-1]
    assert find_lockstep(other_way, costs(4, 1, 1), None) is None

    with_hole = mesh([2, 2], 2)
    with_hole.order[0] = HOLE
    assert find_lockstep(with_hole, costs(4, 2, 1), None) is None


@pytest.mark.parametrize("after", ["loss", "pass"])
def test_ranks_with_fewer_micro_batches_wait_for_others_where_all_meet(after: MeetsAfter) -> None:
    # Interleaved: of three micro-batches the last goes on to the next chunk at once, of four together with its next.
    plan, priced = mesh([3, 4], 1), replace(costs(7, 2, 2), schedule="interleaved", meets_after=after)
    played, engine = run_replay(plan, priced), run_engine(plan, priced)
    np.testing.assert_allclose(played.account_s, engine.account_s, atol=1e-9)
    assert played.account_s[played.accounts.index("wait_group"), 0].sum() > 1.0


def test_members_with_different_numbers_of_slots_may_wait() -> None:
    # Ranks 0 and 1 share micro-batch 0; rank 1 also runs micro-batch 1 alone.
    plan = Plan(
        strategy="hdp-opt",
        ranks=2,
        capacity_tokens=100,
        segment_tokens=np.full(2, 100, dtype=np.int64),
        segment_sequence=np.arange(2, dtype=np.int64),
        segment_start=np.zeros(2, dtype=np.int64),
        segment_offsets=np.arange(3, dtype=np.int64),
        member_ranks=np.array([0, 1, 1], dtype=np.int64),
        member_offsets=np.array([0, 2, 3], dtype=np.int64),
        offload_ratio=np.zeros(2),
        order=np.array([0, 0, 1], dtype=np.int64),
        order_offsets=np.array([0, 1, 3], dtype=np.int64),
    )
    assert find_lockstep(plan, costs(2, 2, 1), None) is None


def mixed_costs(count: int, stages: int, chunks: int) -> StepCosts:
    """Every micro-batch takes as much longer as its number says."""
    equal = costs(count, stages, chunks, alike=False)
    factor = 1.0 + 0.1 * np.arange(count)
    return replace(
        equal,
        forward_terms_s=equal.forward_terms_s * factor,
        backward_terms_s=equal.backward_terms_s * factor,
    )


def with_holes(plan: Plan) -> Plan:
    """The plan with its slots from behind: ranks with fewer micro-batches begin with holes."""
    slots = np.diff(plan.order_offsets)
    last = int(slots.max())
    order = np.full((plan.ranks, last), HOLE, dtype=np.int64)
    for rank in range(plan.ranks):
        own = plan.order[plan.order_offsets[rank] : plan.order_offsets[rank + 1]]
        order[rank, last - len(own) :] = own[::-1]
    return replace(plan, order=order.ravel(), order_offsets=np.arange(plan.ranks + 1) * last)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any),
    st.integers(2, 3),
    st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 2)]),
    st.booleans(),
)
def test_one_rank_of_a_team_says_what_all_do(
    groups: list[int], degree: int, shape: tuple[int, int], backwards: bool
) -> None:
    plan, priced = mesh(groups, degree), mixed_costs(sum(groups), *shape)
    if backwards and shape[0] > 1:
        plan = with_holes(plan)
    teams = find_teams(plan, None)
    assert teams is not None
    assert len(teams[0].order_offsets) - 1 == len(groups) + (degree - 1) * groups.count(0)
    played, engine = run_replay(plan, priced), run_engine(plan, priced)
    assert played.step_s == pytest.approx(engine.step_s, rel=1e-12)
    np.testing.assert_allclose(played.account_s, engine.account_s, rtol=1e-9, atol=1e-9)


def test_ranks_that_share_with_different_others_are_no_team() -> None:
    plan = mesh([2, 2], 2)  # ranks 0, 1 and ranks 2, 3; now rank 1 runs the last one instead of rank 3
    members = plan.member_ranks.copy()
    members[-2:] = [1, 2]
    order = np.array([0, 1, 0, 1, 3, 2, 3, 2])
    other = replace(plan, member_ranks=members, order=order, order_offsets=np.array([0, 2, 5, 7, 8]))
    assert find_teams(other, None) is None
    assert find_teams(mesh([2, 1], 1), None) is None  # nothing is shared
