"""Ranks on stages of unequal speed: the same step as playing every rank's operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.step.step_costs import MeetsAfter
from hdpsim.simulator.play.execution import Noise
from hdpsim.simulator.play.replay import _run, run_replay
from hdpsim.simulator.play.shortcuts.equal_ranks import plan_of_lone_ranks
from hdpsim.simulator.play.shortcuts.unequal_stages import side_by_side

from .test_repeating_micro_batches import SHAPES, costs


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([("1f1b", 1, 1), *(shape for shape in SHAPES if shape[0] in ("1f1b", "interleaved"))]),
    st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.3]),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 99),
    st.booleans(),
    st.sampled_from(["step", "loss", "pass"]),
    st.sampled_from([0, 0, 2]),
)
def test_the_same_as_playing_every_rank(
    shape: tuple[Schedule, int, int],
    forward_s: list[float],
    transfer_s: float,
    count: int,
    ranks: int,
    seed: int,
    overlap: bool,
    meets_after: MeetsAfter,
    drains_every: int,
) -> None:
    factors = np.random.default_rng(seed).uniform(0.9, 1.3, (2, ranks, shape[1]))
    noise = Noise(rank_stage=factors[0], forward_stage=factors[1] if seed % 2 else None)
    plan = plan_of_lone_ranks(np.full(ranks, count))
    priced = costs(shape, forward_s, transfer_s, overlap=overlap).repeated(plan.micro_batches)
    priced = replace(priced, meets_after=meets_after, drains_every=drains_every)
    assert side_by_side(plan, priced, noise)
    whole, quick = _run(plan, priced, noise), run_replay(plan, priced, noise)
    assert quick.step_s == pytest.approx(whole.step_s, rel=1e-13)
    np.testing.assert_allclose(quick.account_s, whole.account_s, rtol=0, atol=1e-12 * whole.step_s)
