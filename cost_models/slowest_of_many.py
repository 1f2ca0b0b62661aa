"""The slowest of many: a collective waits for it, and it is slower the more there are."""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np

from hdpsim.arrays import Floats

_FROM, _TO = -10.0, 14.0  # where standard normal numbers can lie
_STEP = 1.0 / 16.0
_STEPS = [_FROM + _STEP * i for i in range(round((_TO - _FROM) / _STEP) + 1)]
_DENSITY_POINTS = 48_001  # of the quadrature: results are exact to about 1e-8


@lru_cache(maxsize=4096)
def slowest_of(ranks: int, deviation: float) -> float:
    """Expected slowest of *ranks* durations of mean 1 and coefficient of variation *deviation*, log-normal.

        E[max] = integral of exp(sigma z - sigma^2 / 2) d Phi(z)^n,   sigma^2 = ln(1 + deviation^2)

    About 1 + sigma sqrt(2 ln n) for many ranks; 1 for one.
    Counted: ranks that are independent of each other.  Ignored: hops that wait for each other along a ring or tree.
    Source: order statistics, e.g. David and Nagaraja, Order Statistics, 2003; numerical quadrature.
    """
    if ranks <= 1 or deviation <= 0:
        return 1.0
    sigma = math.sqrt(math.log1p(deviation * deviation))
    middle, weight = _largest_normal(ranks)
    return max(1.0, float((np.exp(sigma * middle - sigma * sigma / 2.0) * weight).sum()))


@cache
def expected_largest(count: int) -> float:
    """Expected largest of *count* independent standard normal numbers: 0.56 of 2, 1.42 of 8, 3.24 of 1,000.

        E[max] = b - integral from a to b of Phi(z)^n dz        Phi(a)^n = 0, Phi(b)^n = 1

    Source: integration by parts; sums of equal steps, whose ends are flat, are exact to ten digits.
    """
    if count <= 1:
        return 0.0
    at_most = ((0.5 * math.erfc(-z * math.sqrt(0.5))) ** count for z in _STEPS)
    return _FROM + _STEP * (len(_STEPS) - sum(at_most)) - 0.5 * _STEP


def _largest_normal(ranks: int) -> tuple[Floats, Floats]:
    """Where the largest of so many standard normal numbers can lie, and how likely it lies there."""
    from scipy.special import log_ndtr

    z = np.linspace(_FROM, _TO, _DENSITY_POINTS)
    return 0.5 * (z[1:] + z[:-1]), np.diff(np.exp(ranks * log_ndtr(z)))
