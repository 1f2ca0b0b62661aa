"""Means, intervals and ranges: what they say of few values, of repeated data, of the same batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.experiments.output.statistics import (
    FEWEST,
    estimate,
    estimate_json,
    paired_ratio,
    ratio_of_sums,
    with_interval,
)

values = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=12)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(values, st.booleans())
def test_no_interval_of_few_or_dependent_values(found: list[float], independent: bool) -> None:
    value = estimate(found, independent=independent)
    assert (value.half_width is None) == (not independent or len(found) < FEWEST)
    assert value.lowest <= value.mean * (1 + 1e-12)
    assert value.mean <= value.highest * (1 + 1e-12)
    shown = value.half_width is not None and value.half_width > 1e-9 * value.mean  # of equals: the mean alone
    assert ("±" in with_interval(value)) == shown
    assert estimate_json(value)["ci95_half_width"] == value.half_width


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.lists(st.floats(10.0, 1e4), min_size=3, max_size=10), st.floats(0.5, 3.0))
def test_what_a_batch_does_to_both_cancels_out(base: list[float], gain: float) -> None:
    ratio = paired_ratio([gain * rate for rate in base], base)
    assert ratio.mean == pytest.approx(gain)
    assert ratio.half_width == pytest.approx(0.0, abs=1e-9)


def test_a_gain_that_batches_hide_shows_in_pairs() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(100.0, 400.0, 8)
    mine = 1.05 * base * (1.0 + rng.normal(0.0, 0.005, 8))
    ratio = paired_ratio(mine.tolist(), base.tolist())
    assert ratio.half_width is not None
    assert ratio.half_width < 0.01
    alone = estimate(mine.tolist())
    assert alone.half_width is not None
    assert alone.half_width / alone.mean > 0.1


def test_throughput_of_a_run_is_all_tokens_over_all_seconds() -> None:
    """Two steps of 100 tokens in 1 and 4 s: 40 tokens/s, where the mean of 100 and 25 would say 62.5."""
    rate = ratio_of_sums([[100.0, 100.0]], [[1.0, 4.0]])
    assert (rate.mean, rate.lowest, rate.highest) == (40.0, 25.0, 100.0)
    assert rate.half_width is None, "of two values there is none"
    speed_up = ratio_of_sums([[100.0, 100.0], [2.0, 4.0]], [[1.0, 4.0], [100.0, 100.0]])
    assert (speed_up.mean, speed_up.lowest, speed_up.highest) == pytest.approx((6.0 / 5.0, 1.0, 2.0))


def test_the_interval_of_a_ratio_is_that_of_its_residuals() -> None:
    tokens, seconds = [10.0, 30.0, 20.0, 25.0], [1.0, 2.0, 2.5, 2.0]
    ratio = sum(tokens) / sum(seconds)
    rest = [t - ratio * s for t, s in zip(tokens, seconds, strict=True)]
    cochran = 3.1824 * math.sqrt(sum(r * r for r in rest) / 3 / 4) / (sum(seconds) / 4)
    assert ratio_of_sums([tokens], [seconds]).half_width == pytest.approx(cochran, rel=1e-4)
    # What a batch does to both sides cancels out: always twice as fast is twice as fast for sure.
    sure = ratio_of_sums([tokens, [2 * s for s in seconds]], [seconds, tokens])
    assert (sure.mean, sure.half_width) == pytest.approx((2.0, 0.0), abs=1e-12)
    assert ratio_of_sums([tokens], [seconds], independent=False).half_width is None
