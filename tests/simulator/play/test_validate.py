from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator_plans import flat_plans, make_plan, pipeline_plans

from hdpsim import PlanError, validate_plan
from hdpsim.errors import DeadlockError
from hdpsim.simulator.plan import HOLE, Plan


def lengths(plan: Plan) -> np.ndarray:
    return plan.segment_tokens.copy()


def good() -> Plan:
    return make_plan([[0, 2], [1, 2], [3]])


@given(flat_plans())
def test_good_plans_pass_without_a_pipeline(plan: Plan):
    validate_plan(plan, lengths(plan), stages=1)


@given(pipeline_plans(), st.integers(2, 4))
def test_good_plans_pass_with_a_pipeline(plan: Plan, stages: int):
    validate_plan(plan, lengths(plan), stages)


def test_split_sequences_pass():
    # Sequence 0 has 12 tokens: 8 in micro-batch 1, 4 before them in micro-batch 0 beside sequence 1 of 4.
    plan = replace(
        make_plan([[0], [1]]),
        segment_tokens=np.array([4, 4, 8]),
        segment_sequence=np.array([0, 1, 0]),
        segment_start=np.array([0, 0, 4]),
        segment_offsets=np.array([0, 2, 3]),
    )
    validate_plan(plan, np.array([12, 4]), stages=1)


def changed(name: str, place: int, value: float) -> Plan:
    plan = good()
    array = getattr(plan, name).copy()
    array[place] = value
    return replace(plan, **{name: array})


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (changed("segment_tokens", 0, 7), "7 of the 8 tokens of sequence 0 are placed"),
        (changed("segment_tokens", 0, 0), "segment 0 holds 0 tokens"),
        (changed("segment_start", 1, 1), "token 0 of sequence 1 is placed nowhere"),
        (changed("segment_sequence", 1, 0), "token 0 of sequence 0 is placed twice"),
        (changed("segment_sequence", 1, 4), "segment 1 belongs to sequence 4; the batch has 4"),
        (changed("member_ranks", 0, 3), "member rank 3 does not exist; there are 3 ranks"),
        (changed("member_ranks", 3, 0), "the members of micro-batch 2 are not strictly ascending"),
        (changed("member_ranks", 0, 2), "micro-batch 0: rank 2 does not have it in its order"),
        (changed("order", 0, 7), "the order lists micro-batch 7; there are 4"),
        (changed("order", 0, 2), "rank 0 has micro-batch 2 twice in its order"),
        (changed("order", 4, 1), "micro-batch 3: rank 2 does not have it in its order"),
        (changed("order", 4, HOLE), "holes in the order are only for pipelines"),
        (changed("order_offsets", 0, 1), "order_offsets must be 4 numbers from 0 to 5"),
        (changed("member_offsets", 1, 4), "member_offsets must not fall"),
        (changed("offload_ratio", 2, np.nan), "offload_ratio of micro-batch 2 is nan"),
        (replace(good(), capacity_tokens=7), "micro-batch 0 puts 8 tokens on 1 ranks that hold 7 each"),
        (
            replace(good(), segment_start=np.zeros(3, dtype=np.int64)),
            "segment_start has 3 entries for 4 segments",
        ),
    ],
)
def test_broken_promises(plan: Plan, message: str):
    with pytest.raises(PlanError) as caught:
        validate_plan(plan, lengths(good()), stages=1)
    assert message in str(caught.value)


def test_a_rank_that_is_no_member():
    plan = make_plan([[0], [0]], groups=[[0]])
    with pytest.raises(PlanError, match="micro-batch 0: rank 1 has it in its order without being a member"):
        validate_plan(plan, lengths(plan), stages=1)


def test_a_micro_batch_without_ranks():
    plan = make_plan([[0]], groups=[[0], []])
    with pytest.raises(PlanError, match="micro-batch 1 has no rank"):
        validate_plan(plan, lengths(plan), stages=1)


def test_missing_and_additional_sequences():
    with pytest.raises(PlanError, match="0 of the 5 tokens of sequence 4 are placed"):
        validate_plan(good(), np.append(lengths(good()), 5), stages=1)
    with pytest.raises(PlanError, match="segment 3 belongs to sequence 3; the batch has 3"):
        validate_plan(good(), lengths(good())[:3], stages=1)


def test_offloading_may_exceed_the_capacity():
    plan = replace(good(), capacity_tokens=7, offload_ratio=np.full(4, 0.5))
    validate_plan(plan, lengths(plan), stages=1)


def test_slots_matter_only_with_a_pipeline():
    plan = make_plan([[0, 1], [1]])
    validate_plan(plan, lengths(plan), stages=1)
    with pytest.raises(PlanError, match="micro-batch 1 has slot 1 on rank 0 and slot 0 on another"):
        validate_plan(plan, lengths(plan), stages=2)
    aligned = make_plan([[0, 1], [HOLE, 1]])
    validate_plan(aligned, lengths(aligned), stages=2)


def test_deadlocks_are_found():
    plan = make_plan([[0, 1], [1, 0]])
    with pytest.raises(DeadlockError, match="deadlock: rank 0"):
        validate_plan(plan, lengths(plan), stages=1)
