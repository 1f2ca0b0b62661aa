"""Who sends how much to whom: the flows of collectives and of other patterns, as arrays.

    traffic = ring_all_reduce(members, node_gpus=8)
    pattern = traffic.pattern(links, seed=1)
    traffic.wire_s(links, bytes_total)        # alone on these links, without latencies

Flows of one collective start together and depend on each other: together they are one activity.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.network.links import Links, Pattern


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Flows between GPUs that run together.

    Attributes:
        source: GPU that sends, of each flow.
        target: GPU that receives.
        share: bytes of each flow per byte of the whole (of a collective's bytes_total, see cost_models.algorithms).
    """

    source: Ints
    target: Ints
    share: Floats

    def pattern(self, links: Links, *, connection: int = 0, seed: int = 0) -> Pattern:
        """Flows on every link, as parts of the largest flow."""
        return links.routes(self.source, self.target, connection=connection, seed=seed).pattern(self.share)

    def largest_bytes(self, bytes_total: float) -> float:
        """What the largest flow moves: an activity's volume."""
        return float(bytes_total * self.share.max(initial=0.0))

    def wire_s(self, links: Links, bytes_total: float, *, connection: int = 0, seed: int = 0) -> float:
        """Seconds on the links while nobody else uses them: the busiest link's bytes over its rate."""
        pattern = self.pattern(links, connection=connection, seed=seed)
        return self.largest_bytes(bytes_total) / pattern.burst_bytes_per_s(links)


def together(traffics: Iterable[Traffic]) -> Traffic:
    """Several patterns at the same time: the rings of all lanes of a tensor-parallel rank."""
    several = list(traffics)
    return Traffic(
        source=np.concatenate([traffic.source for traffic in several]),
        target=np.concatenate([traffic.target for traffic in several]),
        share=np.concatenate([traffic.share for traffic in several]),
    )


def flows(source: ArrayLike, target: ArrayLike, share: ArrayLike = 1.0) -> Traffic:
    """Given flows; those of a GPU to itself are left out."""
    a, b = np.broadcast_arrays(np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64))
    shares = np.broadcast_to(np.asarray(share, dtype=np.float64), a.shape)
    moves = a != b
    return Traffic(source=a[moves], target=b[moves], share=shares[moves])


def hops(members: ArrayLike) -> Traffic:
    """One hop of a ring of ranks: every member sends to the next one.

    *members*: [ranks] or [ranks, lanes], ranks in the order of the ring; lanes are rings of their own.
    """
    gpus = np.asarray(members, dtype=np.int64)
    return flows(gpus.ravel(), np.roll(gpus, -1, axis=0).ravel())


def ring_all_reduce(members: ArrayLike, node_gpus: int) -> Traffic:
    """A reduce-scatter and an all-gather: each sends (n - 1)/n of the bytes over every hop.

    Rings of NCCL go through all members, one for each member of a node, each with its part of the bytes.

    A ring visits the nodes one after the other and all members of a node in between; it enters and leaves a node at
    another member than the other rings do, so they use all the members' NICs.
    """
    gpus = np.sort(np.asarray(members, dtype=np.int64).ravel())
    by_node = np.split(gpus, np.flatnonzero(np.diff(gpus // node_gpus)) + 1)
    channels = max(len(local) for local in by_node)
    rings = []
    for channel in range(channels):
        # every second node the other way round: a node is entered on the rail on which the one before it was left
        order = [np.roll(local, -channel)[:: -1 if place % 2 else 1] for place, local in enumerate(by_node)]
        rings.append(hops(np.concatenate(order)))
    ring = together(rings)
    hop_share = 2 * (len(gpus) - 1) / len(gpus)
    return Traffic(source=ring.source, target=ring.target, share=ring.share * hop_share / channels)


def all_to_all(members: ArrayLike) -> Traffic:
    """Every member sends an equal part to every other one and keeps one."""
    gpus = np.asarray(members, dtype=np.int64).ravel()
    ranks = len(gpus)
    return flows(np.repeat(gpus, ranks), np.tile(gpus, ranks), 1.0 / ranks)


def permutation(gpus: int, node_gpus: int, seed: int) -> Traffic:
    """Every GPU sends to one of its own place in another node, and receives from one: every rail in its own order."""
    rng = np.random.default_rng(seed)
    source = np.arange(gpus, dtype=np.int64).reshape(-1, node_gpus)
    if len(source) == 1:
        return hops(rng.permutation(source[0]))
    target = np.empty_like(source)
    for lane in range(node_gpus):
        order = rng.permutation(source[:, lane])
        target[(order // node_gpus), lane] = np.roll(order, -1)  # one cycle: nobody sends to itself
    return flows(source.ravel(), target.ravel())


def incast(gpus: int, node_gpus: int, senders: int) -> Traffic:
    """So many GPUs, spread over the cluster, send to GPU 0; none of its node, where there are others."""
    source = np.linspace(node_gpus if gpus > node_gpus else 1, gpus, senders, endpoint=False).astype(np.int64)
    return flows(source, 0)
