"""Strategies on layouts whose ranks meet in every layer: sharded parameters, experts across ranks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import MODEL, MODELS, problem_of, small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.simulator.plan_micro_batches import plan_micro_batches
from hdpsim.simulator.play.pipeline.validate_plan import validate_plan
from hdpsim.simulator.setup import ExecutionOptions, Setup
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.strategies.common_slots import has_common_slots, in_common_slots
from hdpsim.simulator.strategies.opt.best_plan import plan_best
from hdpsim.simulator.strategies.plan_builder import PlanBuilder

EXPERTS = MODELS[2]
LAYOUTS = {
    "zero3": (MODEL, Layout(sharding="zero3")),
    "hsdp": (MODEL, Layout(sharding="zero3", shard_ranks=8)),
    "experts": (EXPERTS, Layout(ep=4)),
    "experts in a pipeline": (EXPERTS, Layout(ep=4, pp=2)),
}
NAMES = (
    "static",
    "hdp-naive",
    "hdp-balance",
    "hdp-opt",
    "wlb-llm",
    "hdpsim.simulator.strategies.megatron.schedulers:dynamic_cp",
)


def setup_of(layout: str, name: str = "hdp-opt") -> Setup:
    model, switches = LAYOUTS[layout]
    return small_setup(model=model, layout=switches, name=name)


def lengths_of(seed: int) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(6, 1.2, 100)
    return np.clip(drawn, 16, 4096).astype(int).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_strategy_runs_and_both_executors_agree(layout: str) -> None:
    lengths = lengths_of(1)
    steps = {}
    for name in NAMES:
        setup = setup_of(layout, name)
        steps[name] = simulate_step(setup, lengths).step_s
        engine = simulate_step(replace(setup, execution=ExecutionOptions(executor="engine")), lengths)
        assert engine.step_s == pytest.approx(steps[name], rel=1e-9)
    assert steps["hdp-opt"] <= min(steps.values()) * 1.005


def test_layouts_say_who_meets() -> None:
    meets = [Layout(**switches).meeting_ranks(16) for switches in (
        {}, {"sharding": "zero3"}, {"sharding": "zero3", "shard_ranks": 4}, {"ep": 4}, {"ep": 4, "tp": 2},
        {"ep": 4, "tp": 4}, {"ep": 6, "etp": 1, "tp": 4}, {"sharding": "zero3", "shard_ranks": 4, "ep": 8},
    )]  # fmt: skip
    assert meets == [1, 16, 4, 4, 2, 1, 3, 8]


def test_longest_first_puts_like_beside_like() -> None:
    problem = problem_of(setup_of("zero3"), [1000, 10, 10, 1000, 3000, 500, 500])
    builder = PlanBuilder(problem)
    for sequence, rank in ((1, 0), (0, 0), (3, 1), (2, 1)):
        builder.add(sequence, rank)
    builder.add(4, range(2, 5))
    builder.add(5, 3)
    builder.add(6, 0)
    plan = in_common_slots(problem, builder.build())
    by_rank = [plan.segment_tokens[part].tolist() for part in np.split(plan.order, plan.order_offsets[1:-1])]
    assert by_rank[:2] == [[1000, 500, 10], [1000, 10]]
    assert by_rank[2:5] == [[3000], [3000, 500], [3000]]


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1))
def test_any_plan_gets_common_slots(seed: int) -> None:
    lengths = np.array(lengths_of(seed))
    problem = problem_of(setup_of("zero3"), lengths)
    plan = in_common_slots(problem, plan_best(problem))
    assert has_common_slots(plan)
    validate_plan(plan, lengths, 1, meets=True)


def test_experts_count_the_mean_of_their_block() -> None:
    problem = problem_of(setup_of("experts"), [800, 400, 400])
    builder = PlanBuilder(problem)
    builder.add(0, 0)
    builder.add(1, 1)
    builder.add(2, range(4, 8))
    batches = plan_micro_batches(problem.cost, builder.build())
    assert batches.routed_tokens is not None
    assert batches.routed_tokens.tolist() == [300, 300, 100]  # (800 + 400) / 4 ranks; 4 x 100 / 4
    gemm_s, own_s = (
        problem.cost.terms_s(some, backward=False)[0, 0]
        for some in (batches, replace(batches, routed_tokens=None))
    )
    assert gemm_s[0] < own_s[0]
    assert gemm_s[2] == pytest.approx(own_s[2])
