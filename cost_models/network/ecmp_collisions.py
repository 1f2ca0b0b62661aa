"""Equal-cost multi-path routing: flows as balls, up-links as bins.

A switch sends each flow over one of its equal up-links by a hash of its addresses, whatever that link already
carries. Two long flows on one link get half of it each while another link idles. Everything here is exact for
independent uniform hashes; tests hold it against Monte Carlo.
"""

from __future__ import annotations

from functools import lru_cache
from math import lgamma, log

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.errors import UserInputError

MOST_FLOWS = 65_536  # beyond it a switch has more flows than its routing table has rows
NEGLIGIBLE = 1e-12  # probability at which the tail of the maximum is cut off


@lru_cache(maxsize=512)
def maximum_distribution(links: int, flows: int) -> Floats:
    """P(the busiest of *links* carries at most x of *flows*) for x = 0, 1, ... until it is 1 to 1e-12; read-only.

        P(max <= x) = P(X <= x)^k P(S_x = n) / P(S = n),   X Poisson(n / k), S_x sum of k of them cut off at x

    Independent Poisson counts, given their sum, are the multinomial counts of balls in bins: no approximation.
    Source: D. E. Barton, F. N. David, Combinatorial Chance, 1962 (the Poisson conditioning); k-fold convolution
        by repeated squaring.
    """
    _check(links, flows)
    if not flows:
        return np.ones(1)
    mean = flows / links
    count = np.arange(flows + 1, dtype=np.float64)
    log_factorial = np.concatenate([np.zeros(1), np.cumsum(np.log(count[1:]))])
    one_bin = np.exp(count * np.log(mean) - mean - log_factorial)
    all_balls = np.exp(flows * np.log(flows) - flows - log_factorial[-1])
    distribution: list[float] = []
    for most in range(flows + 1):
        if most * links < flows:
            distribution.append(0.0)
            continue
        distribution.append(float(min(1.0, _power_at(one_bin[: most + 1], links, flows) / all_balls)))
        if distribution[-1] > 1.0 - NEGLIGIBLE:
            break
    found = np.asarray(distribution)
    found.flags.writeable = False
    return found


def _power_at(weights: Floats, times: int, degree: int) -> float:
    """The coefficient of z^degree in (sum of weights[i] z^i)^times."""
    result, base = np.ones(1), weights
    while times:
        if times & 1:
            result = np.convolve(result, base)[: degree + 1]
        times >>= 1
        if times:
            base = np.convolve(base, base)[: degree + 1]
    return float(result[degree]) if degree < len(result) else 0.0


def busiest_load(links: int, flows: int, *, per_link: float = 1.0, switches: int = 1) -> float:
    """Expected load of the busiest up-link, as a multiple of what a link carries.

        E[max over links of flows on it] / per_link

    A synchronous ring with a flow on it runs at 1 / that. With *switches* independent switches of that kind the
    maximum is over all their links: what the slowest ring of a large job meets.

    Args:
        links: equal up-links of one switch.
        flows: flows that leave it, equal and all at once.
        per_link: flows that fill one link (up-link over down-link rate, times flows of one connection).
        switches: how many such switches the maximum is taken over.
    """
    _check(links, flows)
    if not flows:
        return 0.0
    return float((1.0 - maximum_distribution(links, flows) ** switches).sum()) / per_link


def delivered_share(links: int, flows: int, *, per_link: float = 1.0) -> float:
    """Share of the offered traffic that the links carry while no flow is hashed again.

        k E[min(load of a link, 1)] / (flows / per_link),   load = Binomial(flows, 1 / k) / per_link

    The mean over flows: optimistic for a ring, whose slowest flow counts.
    """
    _check(links, flows)
    if not flows:
        return 1.0
    if links == 1:
        return min(1.0, per_link / flows)
    count = np.arange(flows + 1, dtype=np.float64)
    choose = np.array([lgamma(flows + 1) - lgamma(c + 1) - lgamma(flows - c + 1) for c in count])
    probability = np.exp(choose + count * log(1 / links) + (flows - count) * log(1 - 1 / links))
    carried = links * float((probability * np.minimum(count / per_link, 1.0)).sum())
    return min(1.0, carried * per_link / flows)


def _check(links: int, flows: int) -> None:
    if links < 1 or not 0 <= flows <= MOST_FLOWS:
        raise UserInputError(
            f"ECMP needs at least one link and at most {MOST_FLOWS} flows, got {links} links and {flows} flows"
        )
