"""Noise that does not average away: machines that drift, slow periods, tails; common to all strategies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_plans import make_costs, make_plan
from simulator_setups import small_setup

from hdpsim.cost_models.layout.switches import Parallel
from hdpsim.cost_models.slowest_of_many import expected_largest, slowest_of
from hdpsim.simulator.play.randomness.noise import draw_noise, with_tails
from hdpsim.simulator.play.randomness.slow_machines import drifting, in_slow_period
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.setup import ExecutionOptions, StrategyOptions
from hdpsim.simulator.step import simulate_step

NODES = 4000


def stream(cause: int, step: int) -> np.random.Generator:
    return np.random.default_rng((cause, step))


@pytest.mark.parametrize("steps", [1, 10, 100])
def test_drift_has_no_warm_up_and_the_memory_asked_for(steps: int) -> None:
    pace = {step: drifting(partial(stream, 1), step, NODES, steps) for step in (0, 1, 50, 50 + steps)}
    for values in pace.values():  # 4,000 draws: mean off by 1 / 63, deviation by 1 / 90
        assert abs(values.mean()) < 4 / 63
        assert abs(values.std() - 1) < 4 / 90
    assert abs(np.corrcoef(pace[0], pace[1])[0, 1] - np.exp(-1 / steps)) < 0.07
    assert abs(np.corrcoef(pace[50], pace[50 + steps])[0, 1] - np.exp(-1)) < 0.07
    assert abs(np.corrcoef(drifting(partial(stream, 1), 3, NODES, 0), pace[0])[0, 1]) < 0.07


def test_late_steps_remember_what_matters() -> None:
    draw, nodes = partial(stream, 3), 200
    pace, slow = draw(0).standard_normal(nodes), draw(0).random(nodes) < 0.2
    for step in range(1, 900):
        pace = np.exp(-1 / 10) * pace + np.sqrt(1 - np.exp(-2 / 10)) * draw(step).standard_normal(nodes)
        uniform = draw(step).random(nodes)
        slow = np.where(slow, uniform >= 1 / 8, uniform < 1 / 32)
    np.testing.assert_allclose(drifting(draw, 899, nodes, 10), pace, atol=1e-7)
    np.testing.assert_array_equal(in_slow_period(draw, 899, nodes, 0.2, 8), slow)


def test_slow_periods_take_their_share_and_last_as_long_as_asked_for() -> None:
    share, mean_steps = 0.1, 8
    slow = np.array(
        [in_slow_period(partial(stream, 2), step, NODES, share, mean_steps) for step in range(60)]
    )
    # a node's own share varies by sqrt(2 x 0.09 x 8 / 60) around 0.1; the mean over 4,000 by 0.008
    assert abs(slow.mean() - share) < 4 * np.sqrt(2 * 0.09 * mean_steps / 60 / NODES)
    assert abs(slow[0].mean() - share) < 4 * np.sqrt(0.09 / NODES)  # no warm-up
    ended = (slow[:-1] & ~slow[1:]).sum() / slow[:-1].sum()
    assert ended == pytest.approx(1 / mean_steps, rel=0.05)


def test_a_step_shares_its_factor_and_a_node_its_own() -> None:
    # 2 ranks x 2 stages x tp 4 on two nodes of 8: a stage of all ranks is a node
    plan = make_plan([[0], [1]])
    costs = replace(make_costs([1.0] * 2, [1.0] * 2, stages=2), terms=("gemm", "attention"))
    for options, distinct in (({"step_jitter": 0.1}, 1), ({"node_jitter": 0.1}, 2)):
        by_step = []
        for step in range(3):
            noise = draw_noise(plan, costs, ExecutionOptions(**options, step=step), tp=4, gpus_per_node=8)
            assert noise is not None
            assert noise.rank_stage is not None
            assert len(np.unique(noise.rank_stage)) == distinct
            np.testing.assert_array_equal(noise.rank_stage[0], noise.rank_stage[1])
            by_step.append(noise.rank_stage[0, 0])
        assert len(set(by_step)) == 3


@pytest.mark.parametrize(
    "options", [{"node_jitter": 0.1, "node_jitter_steps": 5}, {"slow_period_share": 0.3}]
)
def test_the_same_node_in_the_same_step_whatever_layout_and_strategy(options: dict[str, float]) -> None:
    # 64 GPUs, 8 nodes; nothing but compute, so that the slowest node shows in whichever stage it serves
    found = []
    for ranks, stages, tp, slots in ((8, 1, 8, 1), (8, 1, 8, 3), (4, 2, 8, 2), (2, 4, 8, 1), (16, 2, 2, 1)):
        plan = make_plan([list(range(r * slots, (r + 1) * slots)) for r in range(ranks)])
        count = ranks * slots
        costs = make_costs([1.0] * count, [1.0] * count, stages=stages)
        costs = replace(costs, terms=("gemm", "attention"))
        execution = ExecutionOptions(**options, step=7, seed=3)
        noise = draw_noise(plan, costs, execution, tp=tp, gpus_per_node=8)
        assert noise is not None
        assert noise.rank_stage is not None
        by_node = noise.rank_stage.T.reshape(-1)
        found.append(by_node if tp == 8 else by_node.reshape(8, -1).max(axis=1))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_the_same_processes_collect_garbage_whatever_the_layout() -> None:
    pauses = []
    for ranks, stages, tp, slots in ((8, 1, 8, 1), (4, 2, 8, 3), (64, 1, 1, 2), (2, 4, 8, 5)):
        plan = make_plan([list(range(r * slots, (r + 1) * slots)) for r in range(ranks)])
        costs = make_costs([1.0] * ranks * slots, [1.0] * ranks * slots, stages=stages)
        execution = ExecutionOptions(gc_pause_s=0.5, gc_period_steps=4, step=2)
        noise = draw_noise(plan, costs, execution, tp=tp, gpus_per_node=8)
        assert noise is not None
        assert noise.forward is not None
        pauses.append(float((noise.forward - 1.0).sum() / 0.5))
    assert pauses == pytest.approx([pauses[0]] * 4)
    assert 5 < pauses[0] < 30  # of 64 processes, one step in four


def test_replications_meet_other_machines() -> None:
    plan, costs = make_plan([[0]]), replace(make_costs([1.0], [1.0]), terms=("gemm", "attention"))
    drawn = [
        draw_noise(plan, costs, ExecutionOptions(gpu_spread=0.1, replication=r), tp=1, gpus_per_node=8)
        for r in range(3)
    ]
    assert (
        len({float(noise.rank_stage[0, 0]) for noise in drawn if noise and noise.rank_stage is not None}) == 3
    )


def test_tails_of_collectives_and_launches_by_hand() -> None:
    # 4 ranks x 4 micro-batches; a forward of 0.5 s gemm and 0.5 s of a tensor-parallel collective of 8
    ranks, slots = 4, 4
    plan = make_plan([list(range(r * slots, (r + 1) * slots)) for r in range(ranks)])
    costs = make_costs([1.0] * 16, [2.0] * 16)
    costs = replace(costs, terms=("gemm", "tp_communication"))
    costs = replace(costs, epilogue=replace(costs.epilogue, gradient_sync_s=np.array([3.0])))
    shares = costs.forward_terms_s[:, 0, 0]
    options = ExecutionOptions(collective_jitter=0.1, launch_skew_s=0.01)
    tailed = with_tails(costs, options, Parallel(tp=8), plan)
    assert tailed.forward_s[0, 0] == pytest.approx(shares[0] + shares[1] * slowest_of(8, 0.1))
    summed = 3.0 * slowest_of(4, 0.1) + 0.01 * 2.0 * expected_largest(4)  # sqrt(4 micro-batches)
    assert tailed.epilogue.gradient_sync_s[0] == pytest.approx(summed)
    assert with_tails(costs, ExecutionOptions(), Parallel(tp=8), plan) is costs
    alike = with_tails(replace(costs).repeated(16), options, Parallel(tp=8), plan)
    assert alike.alike
    assert run_replay(plan, alike).step_s == pytest.approx(run_replay(plan, tailed).step_s)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.floats(0.0, 0.3), st.floats(0.0, 0.01), st.sampled_from(("static", "hdp-opt")))
def test_waiting_for_the_slowest_never_speeds_a_step_up(jitter: float, skew_s: float, strategy: str) -> None:
    setup = replace(small_setup(nodes=2), strategy=StrategyOptions(name=strategy))  # type: ignore[arg-type]
    lengths = np.array([4000, 3000, 3000] + [500] * 40)
    plain = simulate_step(setup, lengths).step_s
    execution = ExecutionOptions(collective_jitter=jitter, launch_skew_s=skew_s)
    assert simulate_step(replace(setup, execution=execution), lengths).step_s >= plain * (1 - 1e-12)
