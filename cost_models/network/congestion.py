"""What flows get of up-links they were hashed to: collisions, and how fast congestion control clears them up.

Two bounds. *Fair sharing*: every link delivers what it can, no flow hinders another; a mean flow gets
`delivered_share`. *Head-of-line blocking*: a link that too many flows meet makes its switch pause the senders
(priority flow control), and whatever else waits behind them stands too, so everything runs at the pace of the
busiest link. Congestion control decides how much of the time a fabric spends in the second state.
"""

from __future__ import annotations

from functools import lru_cache

from hdpsim.cost_models.hardware.parts import CongestionControl, Fabric
from hdpsim.cost_models.network.ecmp_collisions import busiest_load, delivered_share

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
