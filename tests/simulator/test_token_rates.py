"""Searching for the best rate finds what the table of all sizes says, and prices few sizes for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import problem_of, small_setup

from cost_models.layout import Layout
from simulator.strategies import token_rates as module
from simulator.strategies.lower_bound import lower_bound_s
from simulator.strategies.problem import table_sizes
from simulator.strategies.token_rates import TokenRates

LAYOUTS = (
    Layout(),
    Layout(tp=2, pp=2),
    Layout(tp=4, sequence_parallel=False, recompute="full"),
    Layout(pp=4, vpp=2, schedule="interleaved"),
)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(LAYOUTS), st.integers(1, 6000), st.lists(st.floats(1.0, 6000.0), min_size=1, max_size=6)
)
@pytest.mark.parametrize("all_stages", [False, True])
def test_a_search_finds_the_table_s_rates(all_stages: bool, layout: Layout, most: int, tokens: list[float]):
    cost = problem_of(small_setup(layout=layout), [100]).cost
    asked = np.array(tokens)
    table, search = (
        TokenRates(cost, min(most, 1024), most, all_stages=all_stages, searched=searched).least_s(asked)
        for searched in (False, True)
    )
    np.testing.assert_allclose(search, table, rtol=1e-13)


def test_a_search_prices_a_part_of_the_sizes(monkeypatch: pytest.MonkeyPatch):
    cost = problem_of(small_setup(layout=Layout(tp=2)), [100]).cost
    priced: list[int] = []
    linear_s = type(cost).linear_s

    def counted(self: object, tokens: np.ndarray) -> np.ndarray:
        priced.append(len(tokens))
        return linear_s(self, tokens)

    monkeypatch.setattr(type(cost), "linear_s", counted)
    module._priced_sizes.cache_clear()
    rates = TokenRates(cost, 4096, 4096, all_stages=True, searched=True)
    first = rates.least_s(np.array([4096.0]))
    assert sum(priced) < len(table_sizes(4096)) / 2
    priced.clear()
    assert rates.least_s(np.array([4096.0])) == first
    assert not priced  # known


@pytest.mark.parametrize("lengths", [[512] * 40, [300, 700, 1024, 5], [4096, 100, 2000]])
def test_the_bound_is_the_same_without_a_table(lengths: list[int]):
    problem = problem_of(small_setup(context=4096, capacity=1024), lengths)
    assert lower_bound_s(problem, tabulated=False) == pytest.approx(lower_bound_s(problem), rel=1e-13)
