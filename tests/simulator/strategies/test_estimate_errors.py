"""Planners that err: steps take the true times, no token is lost, and everybody errs alike."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hdpsim
from hdpsim.simulator import find_own_strategy as own_strategy
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.strategies.call_own_strategy import check_plan
from hdpsim.simulator.strategies.compare_plans import Contest
from hdpsim.simulator.strategies.estimate_errors import DOUBTS, EstimateError

pytestmark = pytest.mark.usefixtures("each_plan_once")

HDP = ("hdp-naive", "hdp-balance", "hdp-opt")
SCENARIOS = {
    stages: hdpsim.load_scenario(
        "quickstart-8gpu",
        (f"layout.pp={stages}", "layout.tp=1", "layout.rank_capacity=8K", "data.context=64K", "memory.must_fit=false"),
    )
    for stages in (1, 2)
}  # fmt: skip


def _setup(name, error, stages=1, seed=0):
    setup = SCENARIOS[stages].setup(name)
    return replace(
        setup,
        strategy=replace(setup.strategy, estimate_error=error),
        execution=replace(setup.execution, seed=seed),
    )


def _lengths(count=100, seed=1):
    draw = np.random.default_rng(seed)
    return np.clip(np.exp(draw.normal(7.5, 1.2, count)), 1, 32_768).astype(np.int64)


def test_factors_have_mean_1_and_the_variation_that_was_asked_for():
    factors = EstimateError(variation=0.2, seed=7).factors(np.arange(1, 100_001))
    assert factors.mean() == pytest.approx(1.0, abs=0.003)
    assert factors.std() == pytest.approx(0.2, abs=0.003)
    assert np.corrcoef(factors[1:], factors[:-1])[0, 1] == pytest.approx(0.0, abs=0.01)


def test_equal_lengths_share_their_error_whoever_asks_and_in_whatever_shape():
    error = EstimateError(variation=0.1, seed=3)
    alone = error.factors(1000)
    assert alone.shape == ()
    assert error.factors([[5, 1000], [1000, 7]])[0, 1] == alone
    assert EstimateError(variation=0.1, seed=4).factors(1000) != alone


def test_a_larger_variation_stretches_the_same_draws():
    lengths = np.arange(1, 200)
    small, large = (np.log(EstimateError(variation=v).factors(lengths)) for v in (0.05, 0.1))
    by_hand = (large + 0.5 * np.log1p(0.1**2)) / np.sqrt(np.log1p(0.1**2))
    np.testing.assert_allclose((small + 0.5 * np.log1p(0.05**2)) / np.sqrt(np.log1p(0.05**2)), by_hand)


def test_a_planner_that_errs_expects_the_mean_of_steps_that_end_later_the_more_it_errs():
    # Eight ranks with a sequence each: the last of eight ends later than the mean one, by 1.42 sigma of its work; sigma
    # is that of what is believed and of what is doubted of it.
    lengths = np.arange(8001, 8009)
    plan, problem, _ = plan_batch(_setup("hdp-naive", 0.0), lengths)
    assert problem.ranks == len(plan.member_ranks) == 8
    expected_s = []
    for variation in (1e-9, 0.05, 0.1):
        error = EstimateError(variation=variation)
        assert len({doubt.seed for doubt in (error, *error.doubts())}) == DOUBTS + 1
        contest = Contest(replace(problem, error=error), plan, np.inf)
        expected_s.append(contest._step_s(plan))
    assert expected_s[0] == pytest.approx(Contest(problem, plan, np.inf)._step_s(plan))
    assert expected_s[0] < expected_s[1] < expected_s[2]
    assert expected_s[2] / expected_s[0] == pytest.approx(1 + 1.42 * 0.1 * 2**0.5, abs=0.03)


@pytest.mark.parametrize("name", HDP)
@pytest.mark.parametrize("stages", [1, 2])
def test_steps_take_the_true_times_of_the_plan_that_was_made(name, stages):
    setup, lengths = _setup(name, 0.3, stages), _lengths()
    plan, _, _ = plan_batch(setup, lengths)
    result = simulate_step(setup, lengths)
    from hdpsim.simulator.step import simulate_plan

    truth = _setup(name, 0.0, stages)
    _, problem, report = plan_batch(truth, lengths)
    assert result.step_s == simulate_plan(truth, plan, problem, report).step_s
    assert result.tokens == lengths.sum()


def test_nothing_changes_without_an_error_and_for_the_static_mesh():
    lengths = _lengths()
    for name in HDP:
        assert (
            simulate_step(_setup(name, 0.0, seed=1), lengths).step_s
            == simulate_step(_setup(name, 0.0, seed=2), lengths).step_s
        )
    steps = {simulate_step(_setup("static", error), lengths).step_s for error in (0.0, 0.5)}
    assert len(steps) == 1


@pytest.mark.parametrize("name", ["hdp-balance", "hdp-opt"])
def test_planners_that_balance_lose_by_wrong_estimates(name):
    lengths = [_lengths(seed=seed) for seed in range(4)]
    truth, wrong = (
        sum(simulate_step(_setup(name, error), batch).step_s for batch in lengths) for error in (0.0, 0.6)
    )
    assert wrong > truth


@settings(max_examples=30, derandomize=True, deadline=None)
@given(
    name=st.sampled_from((*HDP, "wlb-llm")),
    error=st.sampled_from([0.02, 0.3, 1.0]),
    stages=st.sampled_from([1, 2]),
    lengths=st.lists(st.integers(1, 32_768), min_size=1, max_size=30),
)
def test_errors_never_change_what_is_promised(name, error, stages, lengths):
    setup = _setup(name, error, stages if name != "wlb-llm" else 1)  # whose mesh holds the context
    plan, problem, _ = plan_batch(setup, lengths)
    check_plan(replace(problem, error=None), plan)
    assert plan.segment_tokens.sum() == sum(lengths)


def test_strategies_of_ones_own_see_it(monkeypatch):
    seen = {}

    def plan(problem):
        seen[problem.options.estimate_error] = problem.sequence_s(problem.lengths, 1), problem.piece_s([10])
        builder = hdpsim.PlanBuilder(problem)
        builder.add(range(len(problem.lengths)), ranks=0)
        return builder.build()

    monkeypatch.setattr(own_strategy, "_registered", {"mine": plan})
    for error in (0.0, 0.1):
        simulate_step(_setup("mine", error), [100, 200])
    factors = EstimateError(variation=0.1, seed=0).factors
    np.testing.assert_allclose(seen[0.1][0], seen[0.0][0] * factors([100, 200]))
    np.testing.assert_allclose(seen[0.1][1], seen[0.0][1] * factors([10]))
