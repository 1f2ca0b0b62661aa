"""The hops of the busiest ring of a step: how long each needs its links, alone and beside others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.step.step_traffic import HOST_KINDS, StepTraffic, TrafficKind
from hdpsim.simulator.network.flow_record import FlowRecord
from hdpsim.simulator.plan import Plan

from .routes import Places, StepRoutes, Wired

RING: TrafficKind = "ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHops:
    """Hops of one ring in one forward or backward. Arrays over hops, in the order of the ring.

    Attributes:
        name: which ring.
        source: rank that sends.
        target: rank that receives.
        alone_s: bytes over the rate of the slowest link of the hop, which the ring's own flows share; 0: inside a node.
        shared_s: the same at the rate that it can have beside other transfers: what they leave of the link, at least
            its fair share.
        took_s: from the ring's start to its end.
        took_alone_s: the same while nothing else is sent. More than every hop's: compute goes on beside it.
    """

    name: str
    source: Ints
    target: Ints
    alone_s: Floats
    shared_s: Floats
    took_s: float
    took_alone_s: float


def busiest_ring(
    record: FlowRecord, wired: Wired, plan: Plan, traffic: StepTraffic, routes: StepRoutes
) -> RingHops | None:
    """Of the rings that cross nodes the one that sends most, of several that lost most; None: there is none."""
    kinds = sorted({one.kind for one in traffic.passes} - HOST_KINDS)
    rings = [number for number, one in enumerate(record.activities) if one.label == RING and one.who]
    if not rings:
        return None
    lost_s = record.lost_s
    number = max(rings, key=lambda ring: (record.activities[ring].volume_bytes, lost_s[ring]))
    activity, links = record.activities[number], record.links
    stage, group = divmod(routes.names.index(activity.who.removeprefix(f"{RING} of ")), routes.groups)
    source, target = Places(links, plan, wired.parallel).ring(group, stage)  # [members, lanes]
    way = links.routes(source.ravel(), target.ravel(), connection=kinds.index(RING), seed=wired.seed)
    hop = np.repeat(np.arange(source.size) // source.shape[1], np.diff(way.offsets))
    crosses = (source // links.cluster.node.gpus != target // links.cluster.node.gpus).any(axis=1)

    start_s, end_s = float(record.start_s[number]), float(record.end_s[number])
    own_bytes = np.zeros(len(links))
    own_bytes[activity.pattern.links] = activity.pattern.flows * activity.volume_bytes
    used = record.follows[way.link]
    known = (used >= 0) & crosses[hop]
    used, hop = used[known], hop[known]
    capacity = links.capacity_bytes_per_s[used]
    carried = record.load([start_s, end_s], used)[:, 0] * capacity * (end_s - start_s)
    others = np.maximum(carried - own_bytes[used], 0.0) / (end_s - start_s)
    own_flows, other_flows = _flows(record, number)
    fair = own_flows[used] / (own_flows[used] + other_flows[used])
    alone_s, shared_s = np.zeros((2, len(source)))
    np.maximum.at(alone_s, hop, own_bytes[used] / capacity)
    np.maximum.at(shared_s, hop, own_bytes[used] / np.maximum(capacity - others, capacity * fair))
    unit = int(np.flatnonzero(routes.group_of_unit == group)[0])
    ranks = plan.member_ranks[slice(*plan.member_offsets[unit : unit + 2].tolist())].astype(np.int64)
    return RingHops(
        name=activity.who,
        source=ranks,
        target=np.roll(ranks, -1),
        alone_s=alone_s,
        shared_s=shared_s,
        took_s=end_s - start_s,
        took_alone_s=activity.alone_s,
    )


def _flows(record: FlowRecord, number: int) -> tuple[Floats, Floats]:
    """[links]: flows of an activity, and on average over its time those of all others."""
    own, others = np.zeros((2, len(record.links)))
    pattern = record.activities[number].pattern
    own[pattern.links] = pattern.flows
    start_s, end_s = record.start_s[number], record.end_s[number]
    overlap_s = np.minimum(record.end_s, end_s) - np.maximum(record.start_s, start_s)
    overlap_s[number] = 0.0
    for other in np.flatnonzero(overlap_s > 0).tolist():
        pattern = record.activities[other].pattern
        others[pattern.links] += pattern.flows * overlap_s[other] / (end_s - start_s)
    return own, others
