"""Every directed link of a cluster as one row of arrays, and the links that a flow between two GPUs takes.

    links = Links.of(cluster, calibration)
    routes = links.routes(source_gpus, target_gpus, connection=3, seed=1)
    pattern = routes.pattern()                # flows on every link, summed: what a network of flows plays
    pattern.burst_bytes_per_s(links)          # the rate of each flow while all of them send at once

The numbers are those of FabricModel (rates by tier) and of the graph (up-links); tests hold the three together.
Links of a kind follow each other, in the order of what they belong to:

    gpu-out, gpu-in        GPU to NVSwitch and back                              one per GPU
    pair                   between two GPUs of a board without a switch           one per ordered pair of a node
    pcie-out, pcie-in      GPU's port on its PCIe switch, towards the NICs        one per GPU
    nic-out, nic-in        NIC to leaf and back                                   one per NIC
    leaf-up, leaf-down     leaf to spines and back                                per up-link; ideal routing: per leaf
    spine-up, spine-down   a pod's spines to the core and back                    per up-link; ideal routing: per pod
    host-out, host-in      GPU to host memory and back (host-both: both together) one per GPU
    memory                 host memory                                            one per node
    storage                remote storage                                         one
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hdpsim.arrays import Floats, Ints, offsets_of
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware.mixed import MixedCluster
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.network.fabric import check_fabric
from hdpsim.cost_models.network.graph import count_devices
from hdpsim.errors import InfeasibleError, UserInputError

LinkKind = Literal[
    "gpu-out", "gpu-in", "pair", "pcie-out", "pcie-in", "nic-out", "nic-in", "leaf-up", "leaf-down", "spine-up",
    "spine-down", "host-out", "host-in", "host-both", "memory", "storage",
]  # fmt: skip
KINDS: tuple[LinkKind, ...] = LinkKind.__args__  # type: ignore[attr-defined]

TRIES = 64  # hashes tried for a flow whose link is cut, before all links are tried in order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pattern:
    """Flows that run together and depend on each other, as what they put on every link.

    Attributes:
        links: numbers of the links that carry anything, ascending.
        flows: bytes on each of them per byte of the largest flow: the number of flows, if all are equal.
    """

    links: Ints
    flows: Floats

    def burst_bytes_per_s(self, links: Links) -> float:
        """Rate of the largest flow while all of them send at once and nobody else does: the slowest link decides."""
        if not len(self.links):
            return math.inf
        return float((links.capacity_bytes_per_s[self.links] / self.flows).min())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routes:
    """The links of many flows in one list: flow f takes link[offsets[f]:offsets[f + 1]].

    A flow that is spread over several links puts only a share of its bytes on each (share < 1).
    """

    offsets: Ints
    link: Ints
    share: Floats

    @property
    def flows(self) -> int:
        """How many flows there are."""
        return len(self.offsets) - 1

    def pattern(self, flow_bytes: ArrayLike = 1.0) -> Pattern:
        """All flows together; *flow_bytes* (one for each, or one for all) says how large they are to each other."""
        sizes = np.broadcast_to(np.asarray(flow_bytes, dtype=np.float64), self.flows)
        weight = self.share
        if sizes.size and (largest := sizes.max()) > 0:
            weight = weight * np.repeat(sizes / largest, np.diff(self.offsets))
        numbers, place = np.unique(self.link, return_inverse=True)
        flows: Floats = np.bincount(place, weights=weight, minlength=len(numbers)).astype(np.float64)
        return Pattern(links=numbers[flows > 0], flows=flows[flows > 0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """Switches of one layer whose up-links a flow is hashed on: those of a leaf, or all spines of a pod.

    Attributes:
        switches: how many there are.
        bins: up-links of one; 1 = they are one bundle, shared evenly.
        capacity_bytes_per_s: of one up-link (of the bundle).
    """

    switches: int
    bins: int
    capacity_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """All directed links of a cluster.

    Counted: NVLink, PCIe ports, NICs (several for a GPU, or several GPUs on one), leaf and spine up-links with
        their oversubscription, one by one where flows are hashed; host links both ways; host memory and storage
        where their rate is given.
    Ignored: switches' buffers; several leaves that stand for one in a plain fat tree; adaptive routing.
    """

    cluster: Cluster
    capacity_bytes_per_s: Floats
    """[links]: usable payload rate of each, its degradation included; 0 = cut."""
    first: Mapping[LinkKind, int]
    """Number of the first link of a kind."""
    count: Mapping[LinkKind, int]
    leaf: _Layer
    spine: _Layer
    splits: int
    """Leaves that share the NICs of a rail (of a block, in a plain fat tree): as many as its up-links need."""
    spines_per_pod: int
    place_of_node: Ints
    """[nodes]: where the job's node stands in the fabric: blocks and pods follow this number."""

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        calibration: NetworkCalibration | None = None,
        *,
        factors: Mapping[str, float] | None = None,
        storage_bytes_per_s: float = math.inf,
        memory_bytes_per_s: float = math.inf,
        seed: int = 0,
    ) -> Links:
        """All links of *cluster*.

        Args:
            cluster: nodes of one kind and their fabric.
            calibration: efficiencies; None = the defaults.
            factors: share of their rate that links have left, by name with wildcards: {"nic-out:3.*": 0.5}.
            storage_bytes_per_s: rate of the remote storage.
            memory_bytes_per_s: rate of a node's host memory.
            seed: of the places of scattered nodes.
        """
        if isinstance(cluster, MixedCluster):
            raise InfeasibleError("a network of flows needs nodes of one kind; this cluster has several")
        check_fabric(cluster)
        calibration = calibration or NetworkCalibration()
        node, fabric = cluster.node, cluster.fabric
        blocks = math.ceil(cluster.nodes / fabric.nodes_per_block)
        pods = math.ceil(blocks / fabric.blocks_per_pod)
        nic = node.nic_bytes_per_s * (node.nic_efficiency or calibration.nic_efficiency)
        rails = (node.nics if fabric.kind == "rail-optimised" else 1) if node.nics else 0
        block_up = fabric.nodes_per_block * node.nics * nic / fabric.leaf_oversubscription
        pod_up = min(fabric.blocks_per_pod, blocks) * block_up / fabric.spine_oversubscription
        up_link = fabric.port_split * nic if fabric.routing == "ecmp" else math.inf
        rail_up = block_up / max(rails, 1)
        splits = max(1, round(rail_up / up_link / fabric.uplinks))
        leaf = _layer(rails * splits * blocks if blocks > 1 else 0, rail_up / splits, up_link)
        spine = _layer(pods if pods > 1 else 0, pod_up, up_link)
        nvlink = node.gpu.nvlink_bytes_per_s * calibration.p2p_nvlink_efficiency
        host, both = node.gpu.host_link_bytes_per_s, 2 * node.gpu.host_link_duplex_bytes_per_s
        pcie = max(host, nic * max(1.0, node.nics / node.gpus))
        gpus, nics = cluster.gpus, cluster.nodes * node.nics
        pairs = gpus * (node.gpus - 1) if node.board_gpus is not None else 0
        leaf_up, spine_up = leaf.switches * leaf.bins, spine.switches * spine.bins
        rows: dict[LinkKind, tuple[int, float]] = {
            "gpu-out": (gpus, nvlink), "gpu-in": (gpus, nvlink), "pair": (pairs, nvlink * node.nvlink_share(2)),
            "pcie-out": (gpus, pcie), "pcie-in": (gpus, pcie), "nic-out": (nics, nic), "nic-in": (nics, nic),
            "leaf-up": (leaf_up, leaf.capacity_bytes_per_s), "leaf-down": (leaf_up, leaf.capacity_bytes_per_s),
            "spine-up": (spine_up, spine.capacity_bytes_per_s),
            "spine-down": (spine_up, spine.capacity_bytes_per_s),
            "host-out": (gpus, host), "host-in": (gpus, host), "host-both": (gpus, both),
            "memory": (cluster.nodes, memory_bytes_per_s), "storage": (1, storage_bytes_per_s),
        }  # fmt: skip
        counts = np.array([count for count, _ in rows.values()], dtype=np.int64)
        places = np.arange(cluster.nodes, dtype=np.int64)
        if fabric.placement == "scattered":
            places = np.random.default_rng(seed).permutation(places)
        links = cls(
            cluster=cluster,
            capacity_bytes_per_s=np.repeat([rate for _, rate in rows.values()], counts),
            first=dict(zip(rows, offsets_of(counts)[:-1].tolist(), strict=True)),
            count=dict(zip(rows, counts.tolist(), strict=True)),
            leaf=leaf,
            spine=spine,
            splits=splits,
            spines_per_pod=min(leaf.bins, max(1, splits * count_devices(cluster).get("spine", 0) // pods)),
            place_of_node=places,
        )
        return links.degraded(factors) if factors else links

    def __len__(self) -> int:
        return len(self.capacity_bytes_per_s)

    def degraded(self, factors: Mapping[str, float]) -> Links:
        """The same links, those whose names match a pattern with that share of their rate; 0 cuts them."""
        names = self.names()
        capacity = self.capacity_bytes_per_s.copy()
        for glob, factor in factors.items():
            matching = [number for number, name in enumerate(names) if fnmatchcase(name, glob)]
            if not matching:
                raise UserInputError(
                    f"no link of {self.cluster.name} is called {glob!r}; kinds: "
                    + ", ".join(f"{kind} ({count})" for kind, count in self.count.items() if count)
                    + f"; the last one is {names[-2]!r}"
                )
            capacity[matching] *= factor
        return replace(self, capacity_bytes_per_s=capacity)

    def names(self) -> list[str]:
        """Of all links, by number."""
        return [self.name(number) for number in range(len(self))]

    def kind(self, number: int) -> LinkKind:
        """Kind of a link."""
        return KINDS[int(np.searchsorted([self.first[kind] for kind in KINDS], number, side="right")) - 1]

    def kinds(self) -> Ints:
        """[links]: the kind of each, as its place in KINDS."""
        return np.repeat(np.arange(len(KINDS)), [self.count[kind] for kind in KINDS])

    def name(self, number: int) -> str:
        """Kind and place: gpu-out:17, nic-in:3.2 (node, NIC), leaf-up:0.3.7 (block, leaf, up-link)."""
        kind = next(kind for kind in reversed(KINDS) if self.count[kind] and self.first[kind] <= number)
        index, node = number - self.first[kind], self.cluster.node
        if kind == "storage":
            return kind
        parts = [index]
        if kind == "pair":
            gpu, other = divmod(index, node.gpus - 1)
            parts = [gpu, gpu // node.gpus * node.gpus + other + (other >= gpu % node.gpus)]
        elif kind.startswith("nic"):
            parts = list(divmod(index, node.nics))
        elif kind.startswith("leaf"):
            switch, link = divmod(index, self.leaf.bins)
            parts = [*divmod(switch, self._leaves), *([link] if self.leaf.bins > 1 else [])]
        elif kind.startswith("spine"):
            pod, link = divmod(index, self.spine.bins)
            parts = [pod, *([link] if self.spine.bins > 1 else [])]
        return f"{kind}:{'.'.join(map(str, parts))}"

    @property
    def _leaves(self) -> int:
        """Leaves of a block."""
        return self.splits * (self.cluster.node.nics if self.cluster.fabric.kind == "rail-optimised" else 1)

    def block_of_node(self, nodes: Ints) -> Ints:
        """The block that each of the job's nodes stands in."""
        return self.place_of_node[nodes] // self.cluster.fabric.nodes_per_block

    def leaf_of_nic(self, nics: Ints) -> Ints:
        """The leaf that each NIC is plugged into, numbered block by block."""
        fabric, per_node = self.cluster.fabric, self.cluster.node.nics
        place, local = self.place_of_node[nics // per_node], nics % per_node
        block, position = place // fabric.nodes_per_block, place % fabric.nodes_per_block
        if fabric.kind == "rail-optimised":
            inside = local * self.splits + position * self.splits // fabric.nodes_per_block
        else:
            inside = (position * per_node + local) * self.splits // (fabric.nodes_per_block * per_node)
        return block * self._leaves + inside

    def routes(
        self, source_gpus: ArrayLike, target_gpus: ArrayLike, *, connection: ArrayLike = 0, seed: int = 0
    ) -> Routes:
        """The links that flows from GPU to GPU take.

            same node:      gpu-out, [pair,] gpu-in
            same block:     [gpu-out, gpu-in,] pcie-out, nic-out, nic-in, pcie-in
            further:        the same with leaf-up, [spine-up, spine-down,] leaf-down in between

        In a rail-optimised fabric a flow to another rail crosses NVLink first and leaves by its target's rail (PXN).
        A GPU with several NICs spreads its flow evenly over them. With ideal routing a leaf's up-links are one bundle;
        with ecmp every flow (and every one of fabric.flows_per_connection parts of it) is hashed on one of them, and
        again on one of its spine's; down it comes by the same spine.

        Args:
            source_gpus: where flows start.
            target_gpus: where they end; a flow from a GPU to itself takes no link.
            connection: tells flows between the same GPUs apart (one for each, or one for all).
            seed: of the hash.
        """
        source = np.atleast_1d(np.asarray(source_gpus, dtype=np.int64))
        target = np.atleast_1d(np.asarray(target_gpus, dtype=np.int64))
        source, target = np.broadcast_arrays(source, target)
        connections = np.broadcast_to(np.asarray(connection, dtype=np.int64), source.shape)
        builder = _RouteBuilder(self)
        builder.add_nodes(source, target)
        builder.add_network(source, target, connections, seed)
        routes = builder.routes(len(source))
        cut = routes.link[self.capacity_bytes_per_s[routes.link] <= 0]
        if cut.size:
            raise InfeasibleError(
                f"the link {self.name(int(cut[0]))} is cut, and its flows have no other way"
            )
        return routes

    def host_routes(self, gpus: ArrayLike, direction: Literal["out", "in"]) -> Routes:
        """Copies between GPUs and the memory of their hosts: *out* to the host, *in* from it."""
        numbers = np.atleast_1d(np.asarray(gpus, dtype=np.int64))
        one_way = self.first[cast(LinkKind, f"host-{direction}")] + numbers
        memory = self.first["memory"] + numbers // self.cluster.node.gpus
        columns = np.stack([one_way, self.first["host-both"] + numbers, memory], axis=-1)
        return _even_routes(columns)

    def storage_routes(self, nodes: ArrayLike) -> Routes:
        """Reads from (or writes to) the remote storage: host memory of each node and the storage itself."""
        numbers = np.atleast_1d(np.asarray(nodes, dtype=np.int64))
        memory = self.first["memory"] + numbers
        return _even_routes(np.stack([memory, np.full_like(memory, self.first["storage"])], axis=-1))


def _layer(switches: int, total_bytes_per_s: float, up_link_bytes_per_s: float) -> _Layer:
    """As many up-links of a switch as its total rate needs, equal ones."""
    bins = max(1, round(total_bytes_per_s / up_link_bytes_per_s)) if switches else 1
    return _Layer(switches=switches, bins=bins, capacity_bytes_per_s=total_bytes_per_s / bins)


def _even_routes(columns: Ints) -> Routes:
    flows, width = columns.shape
    return Routes(
        offsets=np.arange(flows + 1, dtype=np.int64) * width,
        link=columns.reshape(-1),
        share=np.ones(columns.size),
    )


class _RouteBuilder:
    """Collects (flow, link, share) column by column."""

    def __init__(self, links: Links) -> None:
        self.links, self.cluster = links, links.cluster
        self.flow: list[Ints] = []
        self.link: list[Ints] = []
        self.share: list[Floats] = []

    def add(self, kind: LinkKind, flow: Ints, index: Ints, share: float = 1.0) -> None:
        self.flow.append(flow)
        self.link.append(self.links.first[kind] + index)
        self.share.append(np.full(len(flow), share))

    def routes(self, flows: int) -> Routes:
        flow = np.concatenate(self.flow)
        order = np.argsort(flow, kind="stable")
        return Routes(
            offsets=offsets_of(np.bincount(flow, minlength=flows)),
            link=np.concatenate(self.link)[order],
            share=np.concatenate(self.share)[order],
        )

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
        inside = source // node_gpus == target // node_gpus
        if self.cluster.fabric.kind == "rail-optimised":
            same_rail = self._nics(source)[0] % max(node_nics, 1) == self._nics(target)[0] % max(node_nics, 1)
            relay = np.where(same_rail, source, source // node_gpus * node_gpus + target % node_gpus)
        else:
            relay = source
        return np.where(inside, target, relay)

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
            alive = (capacity[first["leaf-up"] + ups[waiting]] > 0) & (
                capacity[first["leaf-down"] + downs[waiting]] > 0
            )
            far = up_pod[waiting] != down_pod[waiting]
            if far.any():
                for kind, pod in (("spine-up", up_pod), ("spine-down", down_pod)):
                    number = first[cast(LinkKind, kind)] + np.where(
                        far, pod[waiting] * links.spine.bins + overs[waiting], 0
                    )
                    alive &= ~far | (capacity[number] > 0)
            waiting = waiting[~alive]
            if not len(waiting):
                break
            again = tuple(word[waiting] for word in words)
            ups[waiting], downs[waiting], overs[waiting] = self._choice(
                again, attempt, up_leaf[waiting], down_leaf[waiting]
            )
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
            up, down_draw, over_draw = (
                number,
                number // np.uint64(bins),
                number // np.uint64(bins * math.ceil(bins / spines)),
            )
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
