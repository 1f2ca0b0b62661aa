"""Waiting for the slowest: theory against the engine."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_ndtr
from simulator_plans import make_costs, make_plan
from simulator_setups import small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.execution import Noise
from hdpsim.simulator.play.randomness.noise import draw_noise, synchronised_pause_s
from hdpsim.simulator.play.randomness.slow_machines import clean_probability
from hdpsim.simulator.setup import ExecutionOptions, StrategyOptions
from hdpsim.simulator.step import simulate_step


def expected_maximum(ranks: int, deviation: float) -> float:
    """Expected slowest of *ranks* log-normal durations of mean 1 and that deviation, each drawn as the simulator does.

        E[max] = integral over z of  phi_N(z) exp(sigma z - sigma^2 / 2),   phi_N = d/dz Phi(z)^N

    Source: order statistics; numerical quadrature.
    """
    if deviation <= 0 or ranks == 1:
        return 1.0
    sigma = math.sqrt(math.log1p(deviation * deviation))
    z = np.linspace(-10.0, 14.0, 48_001)
    at_most = np.exp(ranks * log_ndtr(z))
    values = np.exp(sigma * z - sigma * sigma / 2.0)
    middle = 0.5 * (values[1:] + values[:-1])
    return float((middle * np.diff(at_most)).sum())


def test_order_statistics_by_hand() -> None:
    # two normals: 1 + sigma / sqrt(pi); log-normal of small deviation is as good as normal
    assert expected_maximum(2, 1e-4) == pytest.approx(1 + 1e-4 / np.sqrt(np.pi), abs=1e-8)
    assert expected_maximum(1, 0.3) == 1.0
    # 1,000 standard normals: 3.2414 (tables); the leading term for many ranks, 1 + sigma sqrt(2 ln N), is above it:
    # Cramer, Mathematical Methods of Statistics, 1946, section 28.6
    assert expected_maximum(1000, 1e-5) == pytest.approx(1 + 3.2414e-5, abs=2e-9)
    for ranks in (2, 32, 1536):
        assert expected_maximum(ranks, 0.01) <= 1.0 + 0.01 * np.sqrt(2.0 * np.log(ranks)) + 2e-4


@pytest.mark.parametrize("ranks", [4, 64, 256])
def test_the_engine_waits_as_theory_says(ranks: int) -> None:
    plan = make_plan([[r] for r in range(ranks)])
    costs = make_costs([1.0] * ranks, [0.0] * ranks)
    steps = []
    for seed in range(60):
        noise = draw_noise(plan, costs, ExecutionOptions(jitter=0.05, seed=seed), tp=1, gpus_per_node=8)
        steps.append(run_engine(plan, costs, noise).step_s)
    error = np.std(steps) / np.sqrt(len(steps))
    assert abs(np.mean(steps) - expected_maximum(ranks, 0.05)) < 4 * error


def test_large_jobs_always_have_a_slow_node() -> None:
    assert clean_probability(32, 0.005) == pytest.approx(0.85, abs=0.005)
    assert clean_probability(128, 0.005) == pytest.approx(0.53, abs=0.005)
    assert clean_probability(1536, 0.005) == pytest.approx(0.0005, abs=0.0001)


def test_garbage_collection_hits_as_often_as_chance_says() -> None:
    ranks, period, pause = 16, 40, 3.0
    plan = make_plan([[r] for r in range(ranks)])
    costs = make_costs([1.0] * ranks, [0.0] * ranks)
    hit = 0
    for seed in range(300):
        options = ExecutionOptions(gc_pause_s=pause, gc_period_steps=period, seed=seed)
        noise = draw_noise(plan, costs, options, tp=1, gpus_per_node=8)
        step = run_engine(plan, costs, noise).step_s
        assert step in (pytest.approx(1.0), pytest.approx(1.0 + pause))
        hit += step > 2.0
    expected = 1.0 - (1.0 - 1.0 / period) ** ranks  # that it is some rank's turn
    assert abs(hit / 300 - expected) < 4 * np.sqrt(expected * (1 - expected) / 300)


def test_pauses_leave_jitter_alone() -> None:
    plan = make_plan([[0, 1], [2]])
    costs = make_costs([1.0] * 3, [1.0] * 3)
    jitter = ExecutionOptions(jitter=0.1)
    pauses = replace(jitter, gc_pause_s=1.0, gc_period_steps=1)
    noise, both = (draw_noise(plan, costs, options, tp=1, gpus_per_node=8) for options in (jitter, pauses))
    assert noise is not None
    assert both is not None
    assert noise.forward is not None
    assert both.forward is not None
    added = (both.forward - noise.forward)[:, 0, 0]
    assert added.sum() == pytest.approx(2.0)  # one pause of 1 s over a forward of 1 s on each rank
    assert added[2] == pytest.approx(1.0)


def test_collecting_together_costs_less() -> None:
    alone = Layout(prefetch_gather=False)  # a prefetched gather hides behind such a pause
    setup = small_setup(nodes=2, layout=alone)
    setup = replace(setup, strategy=StrategyOptions(name="static"))
    lengths = np.full(64, 1024)

    def step_s(**options: float) -> float:
        return (
            simulate_step(replace(setup, execution=ExecutionOptions(**options)), lengths).step_s  # type: ignore[arg-type]
        )

    quiet = step_s()
    apart = np.mean([step_s(gc_pause_s=0.2, gc_period_steps=10, seed=s) for s in range(8)])
    together = step_s(gc_pause_s=0.2, gc_period_steps=10, gc_synchronised=True)
    assert together == pytest.approx(quiet + 0.02)
    assert apart > quiet + 0.05
    assert synchronised_pause_s(ExecutionOptions(gc_pause_s=0.2)) == 0.0


def test_equal_gpus_that_are_not_equally_fast() -> None:
    # nothing but compute on one stage: a rank takes its slowest GPU's time, the step the slowest rank's
    ranks, tp, spread = 32, 4, 0.02
    plan = make_plan([[r] for r in range(ranks)])
    costs = replace(make_costs([1.0] * ranks, [1.0] * ranks), terms=("gemm", "attention"))

    def drawn(costs: StepCosts, seed: int = 0) -> Noise | None:
        options = ExecutionOptions(gpu_spread=spread, seed=seed)
        return draw_noise(plan, costs, options, tp=tp, gpus_per_node=8)

    steps = []
    for seed in range(60):
        steps.append(run_engine(plan, costs, drawn(costs, seed)).step_s)
    error = np.std(steps) / np.sqrt(len(steps))
    assert abs(np.mean(steps) - 2 * expected_maximum(ranks * tp, spread)) < 4 * error
    # three quarters of every duration are a transfer, which no GPU lengthens
    half = replace(costs, terms=("gemm", "tp_communication"))
    noise, full = drawn(half), drawn(costs)
    assert noise is not None
    assert full is not None
    assert noise.rank_stage is not None
    assert full.rank_stage is not None
    np.testing.assert_allclose(noise.rank_stage - 1, (full.rank_stage - 1) / 4)
    assert draw_noise(plan, costs, ExecutionOptions(), tp=tp, gpus_per_node=8) is None


def test_loaders_that_the_gpus_wait_for() -> None:
    alone = Layout(prefetch_gather=False)  # a prefetched gather hides behind loading
    setup = replace(small_setup(nodes=2, layout=alone), strategy=StrategyOptions(name="static"))
    lengths = np.full(64, 1024)
    quiet = simulate_step(setup, lengths)
    shown = replace(setup, data_pipeline=replace(setup.data_pipeline, asynchronous=False))
    waiting = simulate_step(shown, lengths)
    needed = 64 * 1024 / 2 / setup.calibration.loader_tokens_per_s  # half of the batch on each node
    assert waiting.step_s == pytest.approx(quiet.step_s + needed)
    # loaders slower than the training beside them: the step takes as long as they do
    slow = replace(setup.calibration, loader_tokens_per_s=64 * 1024 / 2 / (3 * quiet.step_s))
    bound = simulate_step(replace(setup, calibration=slow), lengths)
    assert bound.step_s == pytest.approx(3 * quiet.step_s)
