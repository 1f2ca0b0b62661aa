"""How sure it is that a run fits: by hand, and what holds for every amount of memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hdpsim
from hdpsim.experiments.bands.memory_fit import MemoryFit, fits_probability, shipped_fit
from hdpsim.experiments.scenario.scenario import resolve_scenario
from hdpsim.simulator.planning import plan_batch

FIT = MemoryFit(middle=0.05, spread=0.1, lapses=0.02, ran=1, out_of_memory=1)
SHARES = st.floats(0.01, 100.0)
SCENARIO = {
    "name": "small",
    "model": "llama-3-8b",
    "cluster": {"node": "hgx-h100-80gb", "gpus": 8},
    "layout": {"tp": 2},
    "data": {"lengths": ["4K tokens"], "batch": "16 sequences", "context": "4K tokens"},
}


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (1.05127, 0.5),  # e^0.05: the middle
        (0.95123, 0.01 + 0.98 * 0.841345),  # e^-0.05: one spread below
        (1.28403, 0.01 + 0.98 * 0.022750),  # e^0.25: two above
        (0.0, 0.99),
    ],
)
def test_by_hand(share: float, expected: float) -> None:
    assert FIT.probability(share) == pytest.approx(expected, abs=1e-4)


@given(SHARES, SHARES)
def test_more_memory_is_never_surer_to_fit(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0.0 <= FIT.probability(high) <= FIT.probability(low) <= 1.0


def test_the_shipped_numbers_say_what_was_seen() -> None:
    """Stretches of predicted over capacity, and the share that ran there, both outcomes weighing the same."""
    for share, seen in ((0.8, 0.965), (0.89, 0.874), (0.94, 0.729), (1.2, 0.166)):
        assert shipped_fit().probability(share) == pytest.approx(seen, abs=0.06)
    assert shipped_fit().probability(0.5) > 0.99 > 0.01 > shipped_fit().probability(1.6)


def test_what_does_not_fit_the_host_does_not_fit() -> None:
    scenario = resolve_scenario(SCENARIO)
    memory = plan_batch(scenario.setup(), scenario.batches(1)[0])[2]
    assert fits_probability(memory) == shipped_fit().probability(memory.total_bytes / memory.capacity_bytes)
    assert fits_probability(replace(memory, host_bytes=1.0, host_capacity_bytes=0.0)) == 0.0


def test_every_verb_says_the_same_of_the_same_memory() -> None:
    said = hdpsim.simulate(SCENARIO).to_dict()["results"]["memory"]
    assert said["fits_probability"] == shipped_fit().probability(said["total_bytes"] / said["capacity_bytes"])
    for one in hdpsim.plan(SCENARIO, budget="20 steps", batches=1).to_dict()["candidates"]:
        capacity = one["memory_gib"] + one["headroom_gib"]
        assert one["fits_probability"] == pytest.approx(
            shipped_fit().probability(one["memory_gib"] / capacity)
        )
