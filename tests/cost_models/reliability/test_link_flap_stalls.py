"""Link flaps: timeouts by hand, stalls against Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.reliability.link_flap_stalls import LinkFlaps, nccl_timeout_s


def test_timeouts_by_hand() -> None:
    assert nccl_timeout_s(20, 7) == pytest.approx(4.294967 * 8, rel=1e-6)
    assert nccl_timeout_s(14, 7) == pytest.approx(0.5369, rel=1e-3)


@pytest.mark.parametrize(
    "flaps", [LinkFlaps(timeout=18), LinkFlaps(timeout=18, adaptive=True), LinkFlaps(timeout=14)]
)
def test_stall_and_survival_against_monte_carlo(flaps: LinkFlaps) -> None:
    length = np.random.default_rng(2).exponential(flaps.mean_s, 400_000)
    limit = nccl_timeout_s(flaps.timeout, flaps.retries)
    lived = length[length < limit]
    assert flaps.survived_share == pytest.approx(len(lived) / len(length), abs=0.003)
    retry = nccl_timeout_s(14 if flaps.adaptive else flaps.timeout, 0)
    stall = retry * np.ceil(lived / retry)
    assert flaps.stall_s == pytest.approx(stall.mean(), rel=0.01)


def test_stalls_by_hand() -> None:
    # 1,000 links, one flap in 100 days each: 10 a day
    flaps = LinkFlaps(per_link_day=0.01, mean_s=5.0, timeout=22)
    assert flaps.stall_share(1000) == pytest.approx(10 * flaps.survived_share * flaps.stall_s / 86400)
    assert LinkFlaps().stall_share(1e6) == 0.0
    assert LinkFlaps().cause is None


def test_a_short_timeout_kills_jobs_a_long_one_only_stalls_them() -> None:
    short, long = (LinkFlaps(per_link_day=0.01, timeout=t) for t in (14, 22))
    assert short.cause is not None
    assert short.cause.per_day == pytest.approx(0.01 * math.exp(-nccl_timeout_s(14, 7) / 5.0))
    assert short.cause.per_day > 0.008
    assert long.cause is None or long.cause.per_day < 1e-10


@given(st.floats(0.1, 60.0), st.integers(15, 22), st.integers(0, 10))
def test_adaptive_retransmission_never_stalls_longer(mean: float, timeout: int, retries: int) -> None:
    fixed, adaptive = (
        LinkFlaps(per_link_day=1.0, mean_s=mean, timeout=timeout, retries=retries, adaptive=on)
        for on in (False, True)
    )
    assert adaptive.stall_s <= fixed.stall_s * (1 + 1e-9)
    assert adaptive.survived_share == fixed.survived_share
