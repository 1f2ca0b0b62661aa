"""FlexSP: chunks and buckets against brute force, plans by hand and by promise."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import problem_of, small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.play.pipeline.validate_plan import validate_plan
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.strategies.flexsp.buckets import bucket_sizes, equal_chunks
from hdpsim.simulator.strategies.flexsp.planner import _Times, plan_flexsp
from hdpsim.simulator.strategies.problem import PlanningProblem

ULYSSES = Layout(sharding="zero3", cp_kind="ulysses")


def problem(lengths: list[int], layout: Layout = ULYSSES, **setup: int) -> PlanningProblem:
    return problem_of(small_setup(layout=layout, name="static", **setup), lengths)  # type: ignore[arg-type]


def groups(plan: Plan) -> list[tuple[list[int], int, int]]:
    """Lengths, ranks and slot of every micro-batch."""
    slot = np.zeros(plan.micro_batches, dtype=np.int64)
    for rank in range(plan.ranks):
        order = plan.order[plan.order_offsets[rank] : plan.order_offsets[rank + 1]]
        slot[order[order >= 0]] = np.flatnonzero(order >= 0)
    offsets = plan.segment_offsets
    return [
        (plan.segment_tokens[offsets[m] : offsets[m + 1]].tolist(), int(plan.group_size[m]), int(slot[m]))
        for m in range(plan.micro_batches)
    ]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 4))
def test_chunks_have_the_least_largest_sum(lengths: list[int], parts: int) -> None:
    chunks = equal_chunks(np.array(lengths), parts)
    assert np.concatenate(chunks).tolist() == list(range(len(lengths)))
    assert len(chunks) <= parts
    found = max(sum(lengths[i] for i in chunk) for chunk in chunks)
    cuts = (
        (0, *cut, len(lengths))
        for count in range(min(parts, len(lengths)))
        for cut in combinations(range(1, len(lengths)), count)
    )
    assert found == min(max(sum(lengths[a:b]) for a, b in pairwise(cut)) for cut in cuts)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(1, 3))
def test_buckets_have_the_least_error(lengths: list[int], buckets: int) -> None:
    sizes, bucket = bucket_sizes(np.array(lengths), buckets)
    assert len(sizes) <= buckets or len(sizes) == len(set(lengths))
    rounded = sizes[bucket]
    assert (rounded >= lengths).all()
    found = int((rounded - lengths).sum())
    every = sorted(set(lengths))
    ends = (
        sorted({*some, every[-1]}) for n in range(buckets) for some in combinations(every, min(n, len(every)))
    )
    best = min(
        sum(next(e for e in end if e >= one) - one for one in lengths) for end in ends if len(end) <= buckets
    )
    assert found == best


def test_many_lengths_are_joined_before_they_are_rounded() -> None:
    lengths = np.arange(1, 5001)
    sizes, bucket = bucket_sizes(lengths, 16)
    assert len(sizes) == 16
    assert (sizes[bucket] >= lengths).all()
    assert (sizes[bucket] - lengths).mean() < 200  # equal buckets of 312: 156 in the mean


def test_a_long_sequence_gets_a_group_and_short_ones_get_ranks() -> None:
    plan = plan_flexsp(problem([4096, *[512] * 24]))
    made = groups(plan)
    long = next(group for group in made if 4096 in group[0])
    assert long[1] >= 4
    assert all(size <= 4 for lengths, size, _ in made if 4096 not in lengths)
    assert plan.notes[0].startswith("1 micro-batches on groups of <")


def test_groups_are_powers_of_two_up_to_the_heads() -> None:
    plan = plan_flexsp(problem([4096] * 8))  # 8 heads, 16 ranks
    assert {size for _, size, _ in groups(plan)} <= {4, 8}
    with pytest.raises(InfeasibleError, match=r"does not fit on 8 ranks of 1024 tokens.*heads"):
        plan_flexsp(problem([9000], context=16384))


@settings(max_examples=20)
@given(st.lists(st.integers(1, 4096), min_size=1, max_size=60), st.sampled_from([1, 2]))
def test_every_plan_is_sound_and_has_one_group_a_rank_and_slot(lengths: list[int], pp: int) -> None:
    plan = plan_flexsp(problem(lengths, Layout(cp_kind="ulysses", pp=pp)))
    validate_plan(plan, np.array(lengths), pp, meets=True)
    again = plan_flexsp(problem(lengths, Layout(cp_kind="ulysses", pp=pp)))
    assert np.array_equal(again.order, plan.order)
    assert np.array_equal(again.segment_sequence, plan.segment_sequence)


def test_faster_than_groups_of_one_size() -> None:
    """One long sequence, many short ones: equal groups that hold the long one send all tokens round."""
    lengths = [4000, *[300] * 100]
    name = "hdpsim.simulator.strategies.flexsp.planner:plan_flexsp"
    flexible = simulate_step(small_setup(layout=ULYSSES, name=name), lengths)
    equal = [
        simulate_step(
            small_setup(layout=ULYSSES.changed(cp=cp), name="static", padding=False), lengths
        ).step_s
        for cp in (4, 8)
    ]
    assert flexible.step_s < min(equal)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_micro_batch_more_costs_what_the_planner_thinks(overlap: bool) -> None:
    """Gathers and reductions of sharded parameters included: a full micro-batch on 16 ranks, and two of them."""
    layout = ULYSSES.changed(dp_overlap=overlap, cp=1)
    setup = small_setup(layout=layout, name="static", padding=False, context=1024)
    once, twice = (simulate_step(setup, [1024] * 16 * n).step_s for n in (1, 2))
    full = problem([1024] * 16, layout, context=1024)
    times = _Times.of(full, [1])
    work_s = times.work_s(full.lengths[:1])[0, 0]
    assert float(times.fixed_s[0] + work_s) == pytest.approx(twice - once, rel=0.1)


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    plan_flexsp(problem(np.random.default_rng(3).integers(10, 4096, 80).tolist()))
    print("said")
    assert capfd.readouterr().out == "said\n"


def test_a_full_part_that_rounding_makes_too_full_is_halved() -> None:
    """32 lengths fill all ranks, as buckets they need more; and no more parts are cut: the longest fills one too."""
    capacity = problem([1], nodes=1, context=8192).capacity_tokens
    short = [capacity // 4 + 2 * step for step in range(-16, 17) if step]
    assert sum(short) == 8 * capacity
    made = groups(plan_flexsp(problem([8 * capacity, *short], nodes=1, context=8192)))
    assert ([8 * capacity], 8, 0) in made
    assert {slot for _, _, slot in made} == {0, 1, 2}
    assert sorted(length for tokens, _, slot in made for length in tokens if slot) == short


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.integers(0, 9))
def test_every_batch_of_sequences_that_fit_alone_has_a_plan(ranks_worth: list[int], less: int) -> None:
    capacity = problem([1], nodes=1, context=8192).capacity_tokens
    lengths = [worth * capacity - less for worth in ranks_worth]
    plan = plan_flexsp(problem(lengths, nodes=1, context=8192))
    assert sorted(length for tokens, _, _ in groups(plan) for length in tokens) == sorted(lengths)
