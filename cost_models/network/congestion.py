"""What flows get of up-links they were hashed to: collisions, and how fast congestion control clears them up.

Two bounds. *Fair sharing*: every link delivers what it can, no flow hinders another; a mean flow gets
`delivered_share`. *Head-of-line blocking*: a link that too many flows meet makes its switch pause the senders
(priority flow control), and whatever else waits behind them stands too, so everything runs at the pace of the
busiest link. Congestion control decides how much of the time a fabric spends in the second state.

Equal-cost multi-path routing (ECMP): flows as balls, up-links as bins. A switch sends each flow over one of its equal
up-links by a hash of its addresses, whatever that link already carries. Two long flows on one link get half of it each
while another link idles. Everything here is exact for independent uniform hashes; tests hold it against Monte Carlo.
"""

from __future__ import annotations

from functools import lru_cache
from math import lgamma, log

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.hardware.parts import CongestionControl, Fabric
from hdpsim.errors import UserInputError

# DCQCN's rate timer, and the 5 increase events after a cut before it probes upwards: Zhu et al., "Congestion control
# for large-scale RDMA deployments", SIGCOMM 2015, section 5 (55 us, F = 5)
DCQCN_ROUND_S = 55e-6
# A delay-based control reacts once a round trip: Kumar et al., Swift, SIGCOMM 2020. 22 us: unloaded round trip of a
# RoCE training fabric (Meta)
ROUND_TRIP_S = 22e-6
ROUNDS_TO_CONVERGE = 5
# How long flows stay the same before the next ones start: a collective's or pipeline's message of tens of MB at
# 200 Gbit/s. Assumed.
BURST_S = 1e-3

_CONVERGENCE_S: dict[CongestionControl, float] = {
    "ideal": 0.0,
    "dcqcn": ROUNDS_TO_CONVERGE * DCQCN_ROUND_S,
    "hybrid": ROUNDS_TO_CONVERGE * ROUND_TRIP_S,
}


def blocked_share(control: CongestionControl) -> float:
    """Share of the time in which pauses, not the control, rule a congested link.

        none: 1      else: t / (t + burst),   t = 5 rounds of the control

    Counted: the time a control needs after new flows have met; a round is 55 us (DCQCN, ECN marks) or one round trip
        (MegaScale's hybrid: Swift's delay beside DCQCN's marks).
    Ignored: under-utilisation after over-reaction, unfairness between flows.
    Source: the module's constants; MegaScale, arXiv 2402.15627 section 3.6, for the hybrid.
    """
    if control == "none":
        return 1.0
    return _CONVERGENCE_S[control] / (_CONVERGENCE_S[control] + BURST_S)


@lru_cache(maxsize=4096)
def congested_rate(fabric: Fabric, tier: int, crossing_share: float) -> float:
    """Rate of a flow that is hashed at every layer up to *tier*, over what even spreading would give it.

        flows  = round(up-links x port split x oversubscription x flows per connection x share)
        fair   = k E[min(load, 1)] / sum of loads        of the first layer, and of each further one at most filled
        paced  = 1 / E[busiest load]                     over all layers
        rate   = (1 - b) fair + b paced                  over min(1, 1 / (oversubscription x share))

    Counted: leaf up-links (tier 2), leaf and spine up-links (tier 3, hashed independently); port split and several
        flows per connection make flows smaller against links; fewer flows where fewer cross.
    Ignored: collisions on the way down (a flow meets as many links there), adaptive routing, hash polarisation,
        traffic of other jobs.
    Source: balls into bins; MegaScale, arXiv 2402.15627 section 3.6 (port split).
    """
    per_link = fabric.port_split * fabric.flows_per_connection
    oversubscription = fabric.leaf_oversubscription * (fabric.spine_oversubscription if tier == 3 else 1.0)
    offered = oversubscription * crossing_share
    flows = round(fabric.uplinks * per_link * offered)
    if not flows:
        return 1.0
    layers, links = tier - 1, fabric.uplinks
    even = min(1.0, 1.0 / offered)
    fair = min(even, delivered_share(links, flows, per_link=per_link))
    # What the first layer lets through fills the next one's links at most.
    fair *= delivered_share(links, min(flows, links * per_link), per_link=per_link) ** (layers - 1)
    busiest = max(1.0, busiest_load(links, flows, per_link=per_link, switches=layers))
    blocked = blocked_share(fabric.congestion_control)
    return ((1.0 - blocked) * fair + blocked * min(fair, 1.0 / busiest)) / even


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
    probabilities = np.asarray(distribution)
    probabilities.flags.writeable = False
    return probabilities


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
