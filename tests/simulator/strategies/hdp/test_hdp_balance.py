"""ByteScale's Algorithm 2: small cases by hand, and what every plan of it keeps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import MODEL, problem_of, small_cluster, small_setup

from hdpsim import validate_plan
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.strategies.hdp.balance import plan_balanced
from hdpsim.simulator.strategies.problem import PlanningProblem


def problem(lengths: list[int], ranks: int = 4, **changes: object) -> PlanningProblem:
    """Ranks of one GPU, 1,024 tokens each, nothing offloaded."""
    cluster = replace(small_cluster(ranks), node=replace(small_cluster(1).node, gpus=1, nics=1))
    changes = {"context": ranks * 1024, "selective_offloading": False, "name": "hdp-balance"} | changes
    return problem_of(small_setup(cluster=cluster, **changes), lengths)  # type: ignore[arg-type]


def orders(plan: Plan) -> list[list[list[int]]]:
    """Tokens of every micro-batch of every rank, in its order."""
    bounds = plan.segment_offsets
    tokens = [plan.segment_tokens[a:b].tolist() for a, b in pairwise(bounds.tolist())]
    by_rank = np.split(plan.order, plan.order_offsets[1:-1])
    return [[tokens[number] for number in order.tolist() if number >= 0] for order in by_rank]


def test_long_sequences_come_first_and_ranks_that_lag_are_filled() -> None:
    # All ranks start equal. 2,000 tokens take ranks 0 and 1; 1,000 rank 2, 900 and 100 rank 3; the rest who lags.
    plan = plan_balanced(problem([900, 2000, 100, 1000, 90], buckets=1))
    assert [order[0] for order in orders(plan)] == [[2000], [2000], [1000], [900, 100]]
    assert [90] in [micro_batch for order in orders(plan)[2:] for micro_batch in order[1:]]
    validate_plan(plan, np.array([900, 2000, 100, 1000, 90]), 1)


def test_a_pack_takes_the_next_sequences_of_its_bucket_that_fit() -> None:
    plan = plan_balanced(problem([500, 400, 300, 200, 100], ranks=1, buckets=1))
    assert orders(plan) == [[[500, 400], [300, 200, 100]]]


def test_too_few_lagging_ranks_are_joined_by_the_least_busy_ones() -> None:
    # One rank lags behind three after the first round; the group of two takes it and another.
    plan = plan_balanced(problem([1024, 1024, 1024, 10, 2000], ranks=4, buckets=4096))
    groups = {tuple(plan.member_ranks[a:b].tolist()) for a, b in pairwise(plan.member_offsets.tolist())}
    assert any(len(group) == 2 for group in groups)
    validate_plan(plan, np.array([1024, 1024, 1024, 10, 2000]), 1)


def test_dp_empties_one_bucket_after_the_other_and_pp_takes_turns() -> None:
    lengths = [1000] * 4 + [10] * 400
    first = {}
    for mode in ("dp", "pp"):
        plan = plan_balanced(problem(lengths, mode=mode, buckets=2))
        first[mode] = [order[0][0] for order in orders(plan)]
    assert first["dp"] == [1000] * 4
    assert sorted(set(first["pp"])) == [10, 1000]


def test_auto_means_dp_without_and_pp_with_a_pipeline() -> None:
    lengths = [3000, 1000, 900, 500, 100, 50] * 6
    for stages, mode in ((1, "dp"), (2, "pp")):
        plans = [
            plan_balanced(problem(lengths, ranks=8, layout=Layout(pp=stages), mode=chosen, context=4096))
            for chosen in ("auto", mode)
        ]
        assert np.array_equal(plans[0].order, plans[1].order)
        assert np.array_equal(plans[0].member_ranks, plans[1].member_ranks)


def test_work_is_spread_better_than_by_algorithm_one() -> None:
    lengths = np.random.default_rng(0).lognormal(7.0, 1.5, 400).clip(1, 32_768).astype(np.int64)
    setup = small_setup(nodes=4, context=32_768, name="hdp-balance")
    balance = simulate_step(setup, lengths)
    naive = simulate_step(replace(setup, strategy=replace(setup.strategy, name="hdp-naive")), lengths)
    assert balance.step_s < naive.step_s


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 8192), min_size=1, max_size=60),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1)]),
    st.sampled_from(["dp", "pp"]),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.02, 0.5]),
    st.booleans(),
)
def test_every_plan_is_sound(
    lengths: list[int], shape: tuple[int, int], mode: str, buckets: int, delta: float, offload: bool
) -> None:
    pp, vpp = shape
    layout = Layout(pp=pp, vpp=vpp, schedule="interleaved" if vpp > 1 else "1f1b")
    setup = small_setup(
        nodes=2 * pp,
        context=8192,
        model=MODEL,
        layout=layout,
        name="hdp-balance",
        mode=mode,
        buckets=buckets,
        delta=delta,
        selective_offloading=offload,
    )
    plan = plan_balanced(problem_of(setup, lengths))
    validate_plan(plan, np.array(lengths), pp)
    again = plan_balanced(problem_of(setup, lengths))
    assert np.array_equal(plan.order, again.order)
    assert np.array_equal(plan.member_ranks, again.member_ranks)
    simulate_step(setup, np.array(lengths))


def test_a_fixed_shape_is_filled_up_on_every_rank() -> None:
    # C = 1,024: 2,000 tokens on two ranks lack 48; 1,000, 900 + 100 and 90 lack 24, 24 and 934.
    lengths = [900, 2000, 100, 1000, 90]
    plan = plan_balanced(problem(lengths, buckets=1, fixed_shape=True))
    tokens = np.add.reduceat(plan.segment_tokens, plan.segment_offsets[:-1])
    assert plan.padding_tokens is not None
    assert (tokens + plan.padding_tokens == 1024 * plan.group_size).all()
    assert sorted(plan.padding_tokens.tolist()) == [24, 24, 48, 934]
    validate_plan(plan, np.array(lengths), 1)


@given(
    st.lists(st.integers(1, 16_384), min_size=1, max_size=40),
    st.sampled_from(["hdp-naive", "hdp-balance"]),
    st.sampled_from([1, 2]),
)
@settings(max_examples=40, deadline=None)
def test_padding_keeps_every_promise_and_no_rank_has_fewer_tokens(
    lengths: list[int], name: str, stages: int
) -> None:
    setup = small_setup(context=16_384, name=name, fixed_shape=True, layout=Layout(pp=stages))
    result = simulate_step(setup, np.array(lengths))
    plan = result.plan
    validate_plan(plan, np.array(lengths), stages)
    assert plan.padding_tokens is not None
    held = np.add.reduceat(plan.segment_tokens, plan.segment_offsets[:-1]) + plan.padding_tokens
    assert (held >= plan.capacity_tokens * plan.group_size).all()  # more where activations are offloaded
    assert result.tokens == sum(lengths)


def test_full_micro_batches_are_no_slower_in_a_fixed_shape_and_others_take_as_long_as_full_ones() -> None:
    full, half = [1024] * 8, [512] * 4

    def step_s(lengths: list[int], *, fixed_shape: bool) -> float:
        one = problem(lengths, fixed_shape=fixed_shape)
        return float(one.micro_batch_s(0.0, float(lengths[0])))

    assert step_s(full, fixed_shape=True) == step_s(full, fixed_shape=False)
    assert step_s(half, fixed_shape=True) == step_s(full, fixed_shape=False)
    assert step_s(half, fixed_shape=False) < step_s(half, fixed_shape=True)


def test_other_strategies_have_no_fixed_shape() -> None:
    for name in ("hdp-opt", "static"):
        assert problem([100], name=name, fixed_shape=True).shape_tokens == 0
    assert problem([100], name="hdp-opt", balancing=False, fixed_shape=True).shape_tokens == 1024
    assert problem([100], dynamic_groups=False, fixed_shape=True).shape_tokens == 0
