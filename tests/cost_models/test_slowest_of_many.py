"""The slowest of many, against tables, exact values and draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hdpsim.cost_models.slowest_of_many import expected_largest, slowest_of


def test_largest_of_normals_is_that_of_tables() -> None:
    # Two: 1 / sqrt(pi); three: 1.5 / sqrt(pi); 8 and 1,000: Harter, Biometrika 48, 1961
    assert expected_largest(1) == 0.0
    assert expected_largest(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    assert expected_largest(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-6)
    assert expected_largest(8) == pytest.approx(1.42360, abs=1e-5)
    assert expected_largest(1000) == pytest.approx(3.24144, abs=1e-4)


def test_slowest_of_log_normals() -> None:
    assert slowest_of(1, 0.3) == slowest_of(100, 0.0) == 1.0
    drawn = np.random.default_rng(5).lognormal(
        -math.log1p(0.04) / 2, math.sqrt(math.log1p(0.04)), (20_000, 16)
    )
    largest = drawn.max(axis=1)
    assert abs(slowest_of(16, 0.2) - largest.mean()) < 4 * largest.std() / math.sqrt(20_000)


def test_more_ranks_wait_longer() -> None:
    for deviation in (0.01, 0.1, 0.5):
        by_ranks = [slowest_of(2**i, deviation) for i in range(15)]
        assert by_ranks == sorted(by_ranks)
        assert by_ranks[-1] <= 1 + 2 * deviation * math.sqrt(2 * math.log(2**14)) * math.exp(4 * deviation)
