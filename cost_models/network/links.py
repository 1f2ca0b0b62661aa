"""Every directed link of a cluster as one row of arrays, and the links that a flow between two GPUs takes.

    links = Links.of(cluster, calibration)
    routes = links.routes(source_gpus, target_gpus, connection=3, seed=1)
    pattern = routes.pattern()                # flows on every link, summed: what a network of flows plays
    pattern.burst_bytes_per_s(links)          # the rate of each flow while all of them send at once

The numbers are those of FabricModel (rates by tier) and of the graph (up-links); tests hold the three together.
Links of a kind follow each other, in the order of what they belong to:

    gpu-out, gpu-in        GPU to NVSwitch and back                              one per GPU
    pair                   between two GPUs of a board without a switch           one per ordered pair of a node
    pcie-out, pcie-in      GPU's port on its PCIe switch, to NICs and the host    one per GPU
    nic-out, nic-in        NIC to leaf and back                                   one per NIC
    leaf-up, leaf-down     leaf to spines and back                                per up-link; ideal routing: per leaf
    spine-up, spine-down   a pod's spines to the core and back                    per up-link; ideal routing: per pod
    host-out, host-in      GPUs to host memory and back (host-both: both together) one per PCIe switch (host_link_gpus)
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
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints, offsets_of
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware.mixed_cluster import MixedCluster
from hdpsim.cost_models.hardware.parts import KINDS, Cluster, LinkKind, Node, degraded_links
from hdpsim.cost_models.network.fabric import check_fabric, count_devices
from hdpsim.cost_models.network.routes import RouteBuilder
from hdpsim.errors import InfeasibleError


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
        capacity_bytes_per_s: rate of one up-link (of the bundle).
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
        memory_bytes_per_s: float = math.inf,
        seed: int = 0,
    ) -> Links:
        """All links of *cluster*.

        Args:
            cluster: nodes of one kind and their fabric.
            calibration: efficiencies; None = the defaults.
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
        hosts = cluster.nodes * _host_links(node)
        pairs = gpus * (node.gpus - 1) if node.board_gpus is not None else 0
        leaf_up, spine_up = leaf.switches * leaf.bins, spine.switches * spine.bins
        rows: dict[LinkKind, tuple[int, float]] = {
            "gpu-out": (gpus, nvlink), "gpu-in": (gpus, nvlink), "pair": (pairs, nvlink * node.nvlink_share(2)),
            "pcie-out": (gpus, pcie), "pcie-in": (gpus, pcie), "nic-out": (nics, nic), "nic-in": (nics, nic),
            "leaf-up": (leaf_up, leaf.capacity_bytes_per_s), "leaf-down": (leaf_up, leaf.capacity_bytes_per_s),
            "spine-up": (spine_up, spine.capacity_bytes_per_s),
            "spine-down": (spine_up, spine.capacity_bytes_per_s),
            "host-out": (hosts, host), "host-in": (hosts, host), "host-both": (hosts, both),
            "memory": (cluster.nodes, memory_bytes_per_s), "storage": (1, math.inf),
        }  # fmt: skip
        counts = np.array([count for count, _ in rows.values()], dtype=np.int64)
        places = np.arange(cluster.nodes, dtype=np.int64)
        if fabric.placement == "scattered":
            places = np.random.default_rng(seed).permutation(places)
        return cls(
            cluster=cluster,
            capacity_bytes_per_s=np.repeat([rate for _, rate in rows.values()], counts),
            first=dict(zip(rows, offsets_of(counts)[:-1].tolist(), strict=True)),
            count=dict(zip(rows, counts.tolist(), strict=True)),
            leaf=leaf,
            spine=spine,
            splits=splits,
            spines_per_pod=min(leaf.bins, max(1, splits * count_devices(cluster).get("spine", 0) // pods)),
            place_of_node=places,
        ).degraded(degraded_links(fabric.degraded_links))

    def __len__(self) -> int:
        return len(self.capacity_bytes_per_s)

    def degraded(self, factors: Mapping[str, float]) -> Links:
        """The same links, those whose names match a pattern with that share of their rate; 0 cuts them."""
        if not factors:
            return self
        names = self.names()
        capacity = self.capacity_bytes_per_s.copy()
        for glob, factor in factors.items():
            matching = [number for number, name in enumerate(names) if fnmatchcase(name, glob)]
            if not matching:
                kinds = [(self.first[kind], count) for kind, count in self.count.items() if count]
                ends = [dict.fromkeys((names[first], names[first + count - 1])) for first, count in kinds]
                known = ", ".join(" to ".join(pair) for pair in ends)
                raise InfeasibleError(
                    f"cluster.fabric.degraded_links: no link of {self.cluster.name} is called {glob!r}; "
                    f"there are {known}"
                )
            capacity[matching] *= factor
        return replace(self, capacity_bytes_per_s=capacity)

    def names(self) -> list[str]:
        """Names of all links, by number."""
        return [self.name(number) for number in range(len(self))]

    def of_kind(self, kind: LinkKind) -> slice:
        """The numbers of all links of a kind."""
        return slice(self.first[kind], self.first[kind] + self.count[kind])

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
        builder = RouteBuilder(self)
        builder.add_nodes(source, target)
        builder.add_network(source, target, connections, seed)
        offsets, link, share = builder.arrays(len(source))
        routes = Routes(offsets=offsets, link=link, share=share)
        cut = routes.link[self.capacity_bytes_per_s[routes.link] <= 0]
        if cut.size:
            name = self.name(int(cut[0]))
            raise InfeasibleError(f"the link {name} is cut, and its flows have no other way")
        return routes

    def host_routes(self, gpus: ArrayLike, direction: Literal["out", "in"]) -> Routes:
        """Copies between GPUs and the memory of their hosts: *out* to the host, *in* from it.

        A GPU's port on its PCIe switch carries them beside what it sends to its NIC, or gets from there.
        """
        numbers = np.atleast_1d(np.asarray(gpus, dtype=np.int64))
        node = self.cluster.node
        place, own = np.divmod(numbers, node.gpus)
        behind = place * _host_links(node) + own // node.host_link_gpus
        one_way = self.first[cast(LinkKind, f"host-{direction}")] + behind
        port = self.first[cast(LinkKind, f"pcie-{direction}")] + numbers
        both, memory = self.first["host-both"] + behind, self.first["memory"] + place
        columns = np.stack([port, one_way, both, memory], axis=-1)
        flows, width = columns.shape
        offsets = np.arange(flows + 1, dtype=np.int64) * width
        return Routes(offsets=offsets, link=columns.reshape(-1), share=np.ones(columns.size))


def _host_links(node: Node) -> int:
    """Links of a node between its GPUs and host memory."""
    return -(-node.gpus // node.host_link_gpus)


def _layer(switches: int, total_bytes_per_s: float, up_link_bytes_per_s: float) -> _Layer:
    """The layer of switches that have as many equal up-links as their total rate needs."""
    bins = max(1, round(total_bytes_per_s / up_link_bytes_per_s)) if switches else 1
    return _Layer(switches=switches, bins=bins, capacity_bytes_per_s=total_bytes_per_s / bins)
