"""Estimates that err are held against counts of FLOP: by hand, at both ends, and in the steps of plans."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest

import hdpsim
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.transformer.flop import sequence_flop
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.strategies.estimate_errors import DOUBTS, EstimateError
from hdpsim.simulator.strategies.opt.second_opinion import WeighedError

MODEL = catalog.model("llama-3-8b")
LENGTHS = np.arange(1, 61) * 500


@dataclass(frozen=True)
class Asked:
    """Sequences whose time is their FLOP, those of an even number of thousands *slower* times as long."""

    slower: float
    lengths: np.ndarray = field(default_factory=lambda: LENGTHS)
    error: EstimateError | None = None
    cost: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(model=MODEL))

    def piece_s(self, lengths):
        tokens = np.asarray(lengths)
        true_s = 1e-15 * sequence_flop(MODEL, tokens) * np.where(tokens % 2000, 1.0, self.slower)
        return true_s if self.error is None else true_s * self.error.factors(lengths)


def _weighed(slower, variation, seed=3):
    told = EstimateError(variation=variation, seed=seed)
    return WeighedError.of(Asked(slower, error=told), told), told


def test_times_that_follow_flop_are_believed_to_the_last_digit():
    # No more is seen of estimate / FLOP than the errors that were told, so FLOP have none: equal factors.
    weighed, told = _weighed(1.0, 0.4, seed=0)
    assert weighed.estimate_share == weighed.variation == 0.0
    factors = weighed.factors(LENGTHS)
    assert np.ptp(factors) < 1e-12
    true_s = Asked(1.0).piece_s(LENGTHS)
    assert factors[0] == pytest.approx((true_s * told.factors(LENGTHS)).sum() / true_s.sum())


def test_estimates_are_believed_where_times_do_not_follow_flop():
    # A quarter of the lengths takes 9 times as long as its FLOP say, so by work ln 9 lies between two groups.
    weighed, told = _weighed(9.0, 0.01)
    assert weighed.estimate_share > 0.999
    np.testing.assert_allclose(weighed.factors(LENGTHS), told.factors(LENGTHS), rtol=2e-3)
    assert weighed.variation == pytest.approx(0.01, rel=1e-3)


def test_what_is_believed_is_the_mean_of_both_opinions_by_their_errors():
    weighed, told = _weighed(2.0, 0.3)
    estimated_s, flop = Asked(2.0, error=told).piece_s(LENGTHS), sequence_flop(MODEL, LENGTHS)
    by_flop_s = estimated_s.sum() / flop.sum() * flop
    apart = np.log(estimated_s / by_flop_s)
    mean = (estimated_s * apart).sum() / estimated_s.sum()
    seen = (estimated_s * (apart - mean) ** 2).sum() / estimated_s.sum()
    told_squared = np.log(1 + 0.3**2)
    share = 1 - told_squared / seen
    assert 0.1 < share < 0.9
    assert weighed.estimate_share == pytest.approx(share)
    believed_s = estimated_s**share * by_flop_s ** (1 - share)
    np.testing.assert_allclose(weighed.factors(LENGTHS) * Asked(2.0).piece_s(LENGTHS), believed_s)
    assert np.log(1 + weighed.variation**2) == pytest.approx(share * told_squared)
    doubts = list(weighed.doubts())
    assert {doubt.variation for doubt in doubts} == {weighed.variation}
    assert len({doubt.seed for doubt in doubts}) == DOUBTS


@pytest.mark.usefixtures("each_plan_once")
@pytest.mark.parametrize("stages", [1, 2])
def test_large_errors_cost_hdp_opt_little(stages):
    lengths = np.clip(np.exp(np.random.default_rng(5).normal(7.5, 1.2, 30)), 64, 32_768).astype(np.int64)
    layout = (f"layout.pp={stages}", "layout.tp=1", "layout.rank_capacity=8K")
    sets = (*layout, "data.context=64K", "memory.must_fit=false")
    setup = hdpsim.load_scenario("quickstart-8gpu", sets).setup("hdp-opt")
    true_s = simulate_step(setup, lengths).step_s
    for seed in range(3):
        told = replace(setup.strategy, estimate_error=0.3)
        erring = replace(setup, strategy=told, execution=replace(setup.execution, seed=seed))
        assert simulate_step(erring, lengths).step_s <= 1.04 * true_s
