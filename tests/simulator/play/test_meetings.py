"""Ranks that meet in every layer: slots by hand, and both executors on random plans."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_plans import make_costs, make_plan, pipeline_plans

from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.errors import PlanError
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.execution import Noise
from hdpsim.simulator.play.replay import run_replay

pytestmark = pytest.mark.usefixtures("each_plan_once")


def met(costs: StepCosts, ranks: int) -> StepCosts:
    return replace(costs, meeting_ranks=ranks)


def test_a_slot_takes_what_its_slowest_forward_and_its_slowest_backward_take() -> None:
    # Slot 0: forwards 1 and 3, backwards 4 and 2: 3 + 4. Slot 1: rank 0 alone, 1 + 1.
    plan = make_plan([[0, 2], [1]])
    costs = met(make_costs([1, 3, 1], [4, 2, 1], sync_s=0.5), 2)
    execution = run_replay(plan, costs)
    assert execution.step_s == pytest.approx(7 + 2 + 0.5)
    own = execution.account_s[: len(costs.terms)].sum(axis=0)[:, 0]
    assert own == pytest.approx([5 + 2, 5])
    waits = execution.account_s[execution.accounts.index("wait_group")][:, 0]
    assert waits == pytest.approx([2, 4])  # 7 - 5; 7 - 5 and an empty pass of 2
    assert execution.account_s.sum(axis=0) == pytest.approx(np.full((2, 1), 9.5))


def test_blocks_go_their_own_way_unless_a_group_joins_them() -> None:
    # Blocks {0, 1} and {2, 3}. Slot 0: 5 | 1. Slot 1: micro-batch 4 on ranks 1 and 2 joins both.
    plan = make_plan([[0, HOLE], [1, 4], [2, 4], [3, 5]])
    costs = met(make_costs([5, 1, 1, 1, 2, 9], [0, 0, 0, 0, 0, 0]), 2)
    assert run_replay(plan, costs).step_s == pytest.approx(5 + 9)
    apart = make_plan([[0, HOLE], [1, 4], [2, 6], [3, 5]])
    costs = met(make_costs([5, 1, 1, 1, 2, 9, 2], [0] * 7), 2)
    assert run_replay(apart, costs).step_s == pytest.approx(1 + 9)


def test_alike_micro_batches_are_played_as_without_meetings() -> None:
    plan = make_plan([[0, 1], [2, 3]])
    costs = make_costs([2], [3]).repeated(4)
    assert run_replay(plan, met(costs, 2)).step_s == run_replay(plan, costs).step_s


def test_members_at_different_slots_would_wait_for_ever() -> None:
    plan = make_plan([[0, 1], [1]])
    with pytest.raises(PlanError, match="where ranks meet in every layer all members need the same slot"):
        run_replay(plan, met(make_costs([1, 1], [1, 1]), 2))


def test_spans_show_every_ranks_own_micro_batch_and_no_empty_pass() -> None:
    plan = make_plan([[0, 2], [1]])
    spans = run_engine(plan, met(make_costs([1, 3, 1], [4, 2, 1]), 2), spans=True).spans
    assert spans is not None
    rows = list(zip(spans.rank.tolist(), spans.op.tolist(), spans.micro_batch.tolist(), strict=True))
    assert rows == [(0, 0, 0), (0, 1, 0), (0, 0, 2), (0, 1, 2), (1, 0, 1), (1, 1, 1)]


@settings(max_examples=150)
@given(pipeline_plans(), st.sampled_from([1, 2, 3]), st.integers(0, 2**32 - 1), st.booleans())
def test_engine_and_replay_agree_and_time_adds_up(plan: Plan, stages: int, seed: int, noisy: bool) -> None:
    random = np.random.default_rng(seed)
    count = plan.micro_batches
    costs = make_costs(random.random(count), random.random(count), stages=stages, transfer_s=0.1)
    blocks = [size for size in range(1, plan.ranks + 1) if plan.ranks % size == 0]
    together = met(costs, int(random.choice(blocks)))
    shape = (len(plan.order), stages, 1)
    noise = Noise(forward=0.5 + random.random(shape), backward=0.5 + random.random(shape)) if noisy else None
    engine, replay = run_engine(plan, together, noise), run_replay(plan, together, noise)
    assert engine.step_s == pytest.approx(replay.step_s, rel=1e-9)
    np.testing.assert_allclose(engine.account_s, replay.account_s, atol=1e-9)
    np.testing.assert_allclose(replay.account_s.sum(axis=0), replay.step_s, rtol=1e-9)
    assert replay.account_s.min() >= -1e-9
    assert replay.step_s >= run_replay(plan, costs, noise).step_s * (1 - 1e-9)


@settings(max_examples=60)
@given(st.lists(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=5), min_size=1, max_size=5))
def test_without_groups_the_step_is_the_sum_of_the_slowest_of_every_slot(times: list[list[float]]) -> None:
    flat = [seconds for rank in times for seconds in rank]
    first = np.cumsum([0, *(len(rank) for rank in times)])
    plan = make_plan([list(range(a, b)) for a, b in pairwise(first)])
    costs = met(make_costs(flat, [2 * one for one in flat]), len(times))
    slots = max(len(rank) for rank in times)
    expected = sum(3 * max(rank[slot] for rank in times if slot < len(rank)) for slot in range(slots))
    if len(flat) > 1:
        assert run_replay(plan, costs).step_s == pytest.approx(expected)
