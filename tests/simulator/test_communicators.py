"""One communicator for all rings, or one for every group of ranks: time before the step, buffers in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulator_setups import small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.reliability.startup import REDIS_REQUEST_S
from hdpsim.simulator.communicators import communicators_s, ring_groups
from hdpsim.simulator.many_steps.options import RunOptions
from hdpsim.simulator.many_steps.prepared_step import prepare_step
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.strategies.compare_plans import Contest

# Two sequences of four ranks, one of two, and short ones: on 8 ranks of TP 2
NAMES = ("hdp-naive", "hdp-balance", "hdp-opt", "wlb-llm")
LENGTHS = np.array([4096, 4000, 2000, *[1000] * 8])


def setup(communicators: str, **strategy: object) -> Setup:
    chosen = {"name": "hdp-naive", "selective_offloading": False} | strategy
    return small_setup(nodes=2, context=4096, layout=Layout(tp=2), communicators=communicators, **chosen)


def test_groups_are_made_before_the_step_and_keep_buffers() -> None:
    shared, own = (simulate_step(setup(kind), LENGTHS) for kind in ("shared", "per-group"))
    groups = ring_groups(setup("per-group").strategy, own.plan)
    assert groups is not None
    distinct = {
        tuple(own.plan.member_ranks[first:last])
        for first, last in zip(own.plan.member_offsets, own.plan.member_offsets[1:], strict=False)
        if last - first > 1
    }
    assert groups.groups == len(distinct) >= 2
    # every process makes every group, one for each GPU of a rank, with two requests of all 16
    made_s = groups.groups * 2 * 2 * 16 * REDIS_REQUEST_S
    assert own.step_s - shared.step_s == pytest.approx(made_s)
    assert own.account_s[own.accounts.index("planning")].mean() == pytest.approx(made_s)
    buffer = setup("shared").memory.overheads.nccl_bytes_per_group
    more = own.memory.communication - shared.memory.communication
    assert more == pytest.approx((groups.most_of_a_rank - 1) * buffer)


def test_a_mesh_and_shared_communicators_make_none() -> None:
    own = simulate_step(setup("per-group"), LENGTHS).plan
    assert ring_groups(setup("shared").strategy, own) is None
    mesh = setup("per-group", dynamic_groups=False)
    assert ring_groups(mesh.strategy, own) is None
    short = simulate_step(setup("per-group"), np.array([100] * 8))
    assert ring_groups(setup("per-group").strategy, short.plan) == (0, 0)


def test_a_run_of_steps_makes_them_too() -> None:
    options = RunOptions(storage_bytes_per_s=1e18)
    shared, own = (prepare_step(setup(kind), LENGTHS, options) for kind in ("shared", "per-group"))
    single = (
        simulate_step(setup("per-group"), LENGTHS).step_s - simulate_step(setup("shared"), LENGTHS).step_s
    )
    assert own.step_s - shared.step_s == pytest.approx(single)


def test_many_communicators_may_not_fit() -> None:
    roomy = setup("per-group")
    overheads = replace(roomy.memory.overheads, nccl_bytes_per_group=60e9)
    tight = replace(roomy, memory=replace(roomy.memory, overheads=overheads, must_fit=True))
    with pytest.raises(Exception, match="GiB on each GPU"):
        simulate_step(tight, LENGTHS)


def test_what_groups_cost_is_weighed_against_what_they_save() -> None:
    """Groups of three sizes make the step shorter by less than it takes to make them."""
    lengths = np.array([4096, 4000, 3000, 2500, 2000, *[1000] * 8])
    steps = {name: simulate_step(setup("per-group", name=name), lengths).step_s for name in NAMES}
    assert steps["hdp-opt"] <= min(steps.values()) * 1.005


def test_a_plan_that_nobody_judged_yet_ends_after_its_groups_are_made() -> None:
    plan, problem, _ = plan_batch(setup("per-group"), LENGTHS)
    made_s = communicators_s(problem.options, problem.cost, plan)
    assert made_s > 0.0
    assert Contest(problem, plan, 1.0).end_s == 1.0 + made_s
