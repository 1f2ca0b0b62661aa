"""Ranks that meet after forwards and backwards: by hand, and what it never does. Random ones are in plans.cases."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_plans import Case, cases, make_costs, make_plan
from simulator_setups import small_setup

from hdpsim.cost_models.layer.output_head import LOSS_BYTES
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.step.step_costs import MeetsAfter, StepCosts
from hdpsim.errors import DeadlockError
from hdpsim.simulator.planning import micro_batch_cost
from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.execution import Noise
from hdpsim.simulator.play.replay import _run, run_replay
from hdpsim.simulator.play.shortcuts.equal_ranks import plan_of_lone_ranks
from hdpsim.simulator.setup import ExecutionOptions
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.without_effect import without_effect

from .test_repeating_micro_batches import SHAPES, costs


def meeting(costs: StepCosts, meets_after: MeetsAfter = "loss") -> StepCosts:
    return replace(costs, meets_after=meets_after)


def test_without_a_pipeline_by_hand() -> None:
    # Forwards 1 and 3, then backwards 4 and 2 with forwards 2 and 2 behind them, then backwards 1 and 5.
    plan = make_plan([[0, 2], [1, 3]])
    priced = make_costs([1, 3, 2, 2], [4, 2, 1, 5], sync_s=0.5)
    execution = run_replay(plan, meeting(priced))
    assert execution.step_s == pytest.approx(3 + 6 + 5 + 0.5)
    assert run_replay(plan, priced).step_s == pytest.approx(12 + 0.5)
    waits = [
        execution.account_s[execution.accounts.index(name), :, 0] for name in ("wait_group", "wait_gradients")
    ]
    np.testing.assert_allclose(waits, [[2, 2], [4, 0]])


def test_a_pipeline_waits_on_its_last_stage_by_hand() -> None:
    # Two stages, transfers of 0.5: forwards of rank 0 end at 2.5 there, those of rank 1 at 6.5; then backwards of 2.
    plan = make_plan([[0], [1]])
    execution = run_replay(plan, meeting(make_costs([1, 3], [2, 2], stages=2, transfer_s=0.5)))
    assert execution.step_s == pytest.approx(6.5 + 2 + 0.5 + 2)
    np.testing.assert_allclose(execution.account_s[execution.accounts.index("wait_group")], [[0, 4], [0, 0]])


@settings(max_examples=25)
@given(cases(meets=True))
def test_meeting_never_makes_a_step_shorter(case: Case) -> None:
    apart, loss, passes = (
        run_replay(case.plan, meeting(case.costs, after), case.noise).step_s for after in get_args(MeetsAfter)
    )
    assert passes >= loss * (1 - 1e-12) >= apart * (1 - 2e-12)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([("1f1b", 1, 1), *SHAPES]),
    st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.3]),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from(["loss", "pass"]),
)
def test_equal_ranks_do_not_wait(
    shape: tuple[Schedule, int, int],
    forward_s: list[float],
    transfer_s: float,
    count: int,
    overlap: bool,
    after: MeetsAfter,
) -> None:
    plan = plan_of_lone_ranks(np.full(2, count))
    overlap = overlap or shape[0].startswith("zb")
    priced = costs(shape, forward_s, transfer_s, overlap=overlap).repeated(plan.micro_batches)
    alone, met = run_replay(plan, priced), _run(plan, meeting(priced, after), None)
    assert met.step_s == pytest.approx(alone.step_s, rel=1e-12)
    np.testing.assert_allclose(met.account_s, alone.account_s, rtol=0, atol=1e-12 * alone.step_s)


def test_after_every_pass_a_pipeline_goes_at_the_pace_of_its_slowest_stages_by_hand() -> None:
    # Rank 0 is slow on stage 0, rank 1 on stage 1 (forwards 3 and 1, backwards twice that). One micro-batch: alone both
    # take 12; together forwards end at 3 and 6, backwards at 12 and 18. Ranks wait 2 + 4 on the stage that is fast.
    plan, costs = make_plan([[0], [1]]), make_costs([1, 1], [2, 2], stages=2)
    noise = Noise(rank_stage=np.array([[3.0, 1.0], [1.0, 3.0]]))
    assert run_replay(plan, costs, noise).step_s == pytest.approx(12)
    for run in (run_engine, run_replay):
        execution = run(plan, meeting(costs, "pass"), noise)
        assert execution.step_s == pytest.approx(18)
        waits = execution.account_s[execution.accounts.index("wait_group")]
        np.testing.assert_allclose(waits, [[0, 6], [6, 0]])


def test_members_that_have_a_micro_batch_at_different_slots_wait_for_ever() -> None:
    plan = make_plan([[0, 1], [1, 2]], [[0], [0, 1], [1]])
    for run, after in product((run_engine, run_replay), ("loss", "pass")):
        with pytest.raises(DeadlockError, match="waits in the forward of micro-batch"):
            run(plan, meeting(make_costs([1, 1, 1], [1, 1, 1]), after))


def test_equal_ranks_pay_its_latency_in_every_micro_batch_and_planners_of_hdp_average_once() -> None:
    layout = Layout(tp=4, cp=1, rank_capacity_tokens=1024)
    once, often = (
        small_setup(layout=layout.changed(loss_average=value), context=1024, name="static", padding=False)
        for value in ("step", "micro-batch")
    )
    lengths = np.full(4 * once.ranks, 1024)
    longer_s = simulate_step(often, lengths).step_s - simulate_step(once, lengths).step_s
    collectives = micro_batch_cost(once).collectives
    latency_s = float(collectives.all_reduce_s(LOSS_BYTES, collectives.group(once.ranks, 4)))
    assert longer_s == pytest.approx(4 * latency_s, rel=1e-6)
    uneven = np.random.default_rng(0).integers(64, 1024, 8 * once.ranks)
    later_s = simulate_step(often, uneven).step_s - simulate_step(once, uneven).step_s
    assert later_s > 40 * latency_s  # they wait for each other, too
    planned = replace(often, strategy=replace(often.strategy, name="hdp-opt"))
    assert micro_batch_cost(planned).loss_average_s == 0.0
    assert any("layout.loss_average" in note for note in without_effect(planned))


def test_unequal_packs_wait_at_8_bit_maxima_whoever_plays_them_but_not_under_hdp() -> None:
    layout = Layout(pp=2, cp=1, rank_capacity_tokens=1024, precision="fp8", blocking_maxima=True)
    setup = small_setup(layout=layout, context=1024, name="static", padding=False)
    assert micro_batch_cost(setup).meets_after == "pass"
    uneven = np.random.default_rng(0).integers(64, 1024, 8 * setup.ranks)
    steps = [
        simulate_step(replace(setup, execution=options), uneven)
        for options in (
            ExecutionOptions(),
            ExecutionOptions(executor="engine"),
            ExecutionOptions(network="flows"),
        )
    ]
    for step in steps:
        assert step.step_s == pytest.approx(steps[0].step_s, rel=1e-9)
        np.testing.assert_allclose(step.account_s.sum(axis=0), step.step_s, rtol=1e-9)
    apart = replace(setup, layout=layout.changed(blocking_maxima=False))
    equal = np.full(8 * setup.ranks, 1024)
    longer_s, latency_s = (
        simulate_step(setup, lengths).step_s - simulate_step(apart, lengths).step_s
        for lengths in (uneven, equal)
    )
    assert longer_s > 2 * latency_s > 0
    pairs = replace(setup, layout=layout.changed(schedule="dualpipe"))
    planned = replace(setup, strategy=replace(setup.strategy, name="hdp-opt"))
    assert micro_batch_cost(pairs).meets_after == micro_batch_cost(planned).meets_after == "step"
    assert any("layout.blocking_maxima" in note for note in without_effect(planned))
    summing = Layout(cp=1, rank_capacity_tokens=1024, sharding="zero2", sum_every_micro_batch=True)
    for other, meets in ((setup, "loss"), (planned, "step")):
        assert micro_batch_cost(replace(other, layout=summing)).meets_after == meets
