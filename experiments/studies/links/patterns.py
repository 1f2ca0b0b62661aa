"""Patterns of traffic tried on a fabric: how long they take, which links are hottest, who met whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.network.links import Links
from hdpsim.cost_models.network.traffic import (
    Traffic,
    all_to_all,
    hops,
    incast,
    permutation,
    ring_all_reduce,
)
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.network.activity import Activity
from hdpsim.simulator.network.flow_record import FlowRecord
from hdpsim.simulator.network.flows import play_together

PatternName = Literal["permutation", "ring", "all-reduce", "all-to-all", "incast"]
MOST_FLOWS = 2**20  # of one all-to-all: beyond it a trial takes gigabytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A pattern of traffic, and what happened when it was played.

    Attributes:
        pattern: its name.
        group: GPUs of each ring or collective, senders of an incast; 1 where every flow is on its own.
        size_bytes: what a GPU sends (ring, permutation, incast) or holds (collectives).
        record: all that happened.
    """

    pattern: PatternName
    group: int
    size_bytes: float
    record: FlowRecord

    @property
    def took_s(self) -> Floats:
        """[activities]: from the start, which is one for all."""
        return self.record.end_s

    @property
    def alone_s(self) -> Floats:
        """[activities]: with nobody else on the links."""
        return self.record.end_s - self.record.lost_s


def try_pattern(links: Links, pattern: PatternName, *, group: int, size_bytes: float, seed: int = 0) -> Trial:
    """Play *pattern* over all GPUs of *links*' cluster at once, in groups of *group* neighbours.

    Rings and collectives are one activity each, of permutations and incasts every flow is.

    Raises:
        InfeasibleError: groups do not come out even, or there are too many flows.
    """
    gpus = links.cluster.gpus
    coupled = pattern in ("ring", "all-reduce", "all-to-all")
    if coupled and (group < 2 or gpus % group):
        raise InfeasibleError(f"{gpus} GPUs are not a whole number of groups of {group} GPUs (at least 2)")
    if pattern == "all-to-all" and group * group > MOST_FLOWS:
        raise InfeasibleError(
            f"an all-to-all of {group} GPUs has {group * group:,} flows (limit {MOST_FLOWS:,})"
        )
    if pattern == "incast" and not 1 <= group < gpus:
        raise InfeasibleError(f"an incast needs 1 to {gpus - 1} senders among {gpus} GPUs, got {group}")
    activities = list(_activities(links, pattern, group, size_bytes, seed))
    record = play_together(links, activities)
    return Trial(pattern=pattern, group=group if coupled else 1, size_bytes=size_bytes, record=record)


def _activities(
    links: Links, pattern: PatternName, group: int, size_bytes: float, seed: int
) -> Iterator[Activity]:
    gpus, node_gpus = links.cluster.gpus, links.cluster.node.gpus
    if pattern in ("permutation", "incast"):
        traffic = (
            permutation(gpus, node_gpus, seed) if pattern == "permutation" else incast(gpus, node_gpus, group)
        )
        for source, target in zip(traffic.source.tolist(), traffic.target.tolist(), strict=True):
            routes = links.routes(source, target, seed=seed)
            yield Activity.of(links, routes.pattern(), size_bytes, label=f"GPU {source} to {target}")
        return
    made: dict[PatternName, Callable[[Ints], Traffic]] = {
        "ring": lambda members: hops(_lanes(members, node_gpus)),
        "all-reduce": lambda members: ring_all_reduce(members, node_gpus),
        "all-to-all": all_to_all,
    }
    for first in range(0, gpus, group):
        traffic = made[pattern](np.arange(first, first + group))
        label = f"{pattern} of GPUs {first} to {first + group - 1}"
        volume = traffic.largest_bytes(size_bytes)
        yield Activity.of(links, traffic.pattern(links, seed=seed), volume, label=label)


def _lanes(members: Ints, node_gpus: int) -> Ints:
    """[nodes, lanes]: a ring over whole nodes has a lane for each of their GPUs."""
    fills_nodes = len(members) % node_gpus == 0 and len(members) > node_gpus
    return members.reshape(-1, node_gpus) if fills_nodes else members
