"""The way of flows over the links of a cluster, by hash where there is a choice (ECMP): column by column of links."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hdpsim.arrays import Floats, Ints, offsets_of

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.parts import LinkKind
    from hdpsim.cost_models.network.links import Links

TRIES = 64  # hashes tried for a flow whose link is cut, before all links are tried in order


class RouteBuilder:
    """Collects (flow, link, share) column by column, see Links.routes."""

    def __init__(self, links: Links) -> None:
        self.links, self.cluster = links, links.cluster
        self.flow: list[Ints] = []
        self.link: list[Ints] = []
        self.share: list[Floats] = []

    def add(self, kind: LinkKind, flow: Ints, index: Ints, share: float = 1.0) -> None:
        """Add one link of a kind to each of these flows."""
        self.flow.append(flow)
        self.link.append(self.links.first[kind] + index)
        self.share.append(np.full(len(flow), share))

    def arrays(self, flows: int) -> tuple[Ints, Ints, Floats]:
        """Offsets, links and shares of *flows* flows."""
        flow = np.concatenate(self.flow)
        order = np.argsort(flow, kind="stable")
        offsets = offsets_of(np.bincount(flow, minlength=flows))
        return offsets, np.concatenate(self.link)[order], np.concatenate(self.share)[order]

    def add_nodes(self, source: Ints, target: Ints) -> None:
        """NVLink: of flows inside a node, and of those that change the rail before they leave it."""
        node = self.cluster.node
        relay = self._relay(source, target)
        moves = np.flatnonzero(source != relay)
        a, b = source[moves], relay[moves]
        self.add("gpu-out", moves, a)
        self.add("gpu-in", moves, b)
        if node.board_gpus is not None:
            other = b % node.gpus
            self.add("pair", moves, a * (node.gpus - 1) + other - (other > a % node.gpus))

    def _relay(self, source: Ints, target: Ints) -> Ints:
        """The GPU of the source's node whose NIC sends: the target itself within a node."""
        node_gpus, node_nics = self.cluster.node.gpus, self.cluster.node.nics
        if self.cluster.fabric.kind == "rail-optimised":
            same_rail = self._nics(source)[0] % max(node_nics, 1) == self._nics(target)[0] % max(node_nics, 1)
            relay = np.where(same_rail, source, source // node_gpus * node_gpus + target % node_gpus)
        else:
            relay = source
        return np.where(source // node_gpus == target // node_gpus, target, relay)

    def _nics(self, gpus: Ints) -> list[Ints]:
        """Number of every NIC that serves each GPU: one array for each NIC of a GPU."""
        node_gpus, nics = self.cluster.node.gpus, self.cluster.node.nics
        node, local = gpus // node_gpus, gpus % node_gpus
        if nics <= node_gpus and node_gpus % max(nics, 1) == 0:
            return [node * nics + local * nics // node_gpus]
        if nics % node_gpus == 0:
            return [node * nics + local * (nics // node_gpus) + part for part in range(nics // node_gpus)]
        return [node * nics + part for part in range(nics)]  # no even split: every GPU uses all of them

    def add_network(self, source: Ints, target: Ints, connection: Ints, seed: int) -> None:
        """From the NIC of the source's node to that of the target."""
        node_gpus, fabric = self.cluster.node.gpus, self.cluster.fabric
        flow = np.flatnonzero(source // node_gpus != target // node_gpus)
        if not len(flow):
            return
        source, target, connection = source[flow], target[flow], connection[flow]
        relay = self._relay(source, target)
        self.add("pcie-out", flow, relay)
        self.add("pcie-in", flow, target)
        outs, ins = self._nics(relay), self._nics(target)
        for out, in_ in zip(outs, ins, strict=True):
            share = 1.0 / len(outs)
            self.add("nic-out", flow, out, share)
            self.add("nic-in", flow, in_, share)
            parts = fabric.flows_per_connection if fabric.routing == "ecmp" else 1
            for part in range(parts):
                self._add_uplinks(flow, out, in_, share / parts, (connection, np.int64(part), np.int64(seed)))

    def _add_uplinks(
        self, flow: Ints, out: Ints, in_: Ints, share: float, salt: tuple[ArrayLike, ...]
    ) -> None:
        links = self.links
        blocks = [links.block_of_node(nic // self.cluster.node.nics) for nic in (out, in_)]
        crosses = np.flatnonzero(blocks[0] != blocks[1])
        if not len(crosses):
            return
        flow, out, in_ = flow[crosses], out[crosses], in_[crosses]
        up_leaf, down_leaf = links.leaf_of_nic(out), links.leaf_of_nic(in_)
        up_pod, down_pod = (block[crosses] // self.cluster.fabric.blocks_per_pod for block in blocks)
        words = (out, in_, *(np.broadcast_to(word, blocks[0].shape)[crosses] for word in salt))
        up, down, over = self._hashed(words, up_leaf, down_leaf, up_pod, down_pod)
        self.add("leaf-up", flow, up, share)
        self.add("leaf-down", flow, down, share)
        far = np.flatnonzero(up_pod != down_pod)
        if len(far):
            self.add("spine-up", flow[far], up_pod[far] * links.spine.bins + over[far], share)
            self.add("spine-down", flow[far], down_pod[far] * links.spine.bins + over[far], share)

    def _hashed(
        self, words: tuple[Ints, ...], up_leaf: Ints, down_leaf: Ints, up_pod: Ints, down_pod: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """(leaf-up, leaf-down, up-link of the pod) of flows: hashed, and once more where a link on the way is cut."""
        links = self.links
        bins = links.leaf.bins
        ups, downs, overs = self._choice(words, 0, up_leaf, down_leaf)
        capacity, first = links.capacity_bytes_per_s, links.first
        if bins == 1 or (capacity > 0).all():
            return ups, downs, overs
        below = math.ceil(bins / links.spines_per_pod)
        everything = bins * below * math.ceil(links.spine.bins / links.spines_per_pod)
        waiting = np.arange(len(ups))
        for attempt in range(1, TRIES + everything + 1):
            alive = capacity[first["leaf-up"] + ups[waiting]] > 0
            alive &= capacity[first["leaf-down"] + downs[waiting]] > 0
            far = np.flatnonzero(up_pod[waiting] != down_pod[waiting])
            for kind, pod in (("spine-up", up_pod), ("spine-down", down_pod)):
                numbers = (pod * links.spine.bins + overs)[waiting[far]]
                alive[far] &= capacity[first[cast("LinkKind", kind)] + numbers] > 0
            waiting = waiting[~alive]
            if not len(waiting):
                break
            waiting_words = tuple(word[waiting] for word in words)
            leaves = up_leaf[waiting], down_leaf[waiting]
            ups[waiting], downs[waiting], overs[waiting] = self._choice(waiting_words, attempt, *leaves)
        return ups, downs, overs

    def _choice(
        self, words: tuple[Ints, ...], attempt: int, up_leaf: Ints, down_leaf: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Up-link by hash, spine by up-link, the spine's own links by further hashes."""
        links = self.links
        bins, spines, pod_bins = links.leaf.bins, links.spines_per_pod, links.spine.bins
        if bins == 1:
            return up_leaf, down_leaf, np.zeros_like(up_leaf)
        if attempt <= TRIES:
            draws = [_hash((*words, np.int64(attempt), np.int64(layer))) for layer in range(3)]
            up, down_draw, over_draw = (draw % np.uint64(1 << 62) for draw in draws)
        else:  # all of them in order
            number = np.full(len(up_leaf), attempt - TRIES - 1, dtype=np.uint64)
            up, down_draw = number, number // np.uint64(bins)
            over_draw = number // np.uint64(bins * math.ceil(bins / spines))
        bin_ = (up % np.uint64(bins)).astype(np.int64)
        spine = bin_ % spines
        to_leaf = (bins - spine + spines - 1) // spines  # links between that spine and a leaf
        down = spine + spines * (down_draw % to_leaf.astype(np.uint64)).astype(np.int64)
        first_over = spine * pod_bins // spines
        own = np.maximum(1, (spine + 1) * pod_bins // spines - first_over)
        over = np.minimum(first_over + (over_draw % own.astype(np.uint64)).astype(np.int64), pod_bins - 1)
        return up_leaf * bins + bin_, down_leaf * bins + down, over


def _hash(words: tuple[ArrayLike, ...]) -> NDArray[np.uint64]:
    """One well-mixed number from several, the same on every machine.

    Source: splitmix64, Steele, Lea, Flood, OOPSLA 2014.
    """
    state = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for word in words:
            state = (state ^ np.asarray(word).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state
