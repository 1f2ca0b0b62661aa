"""The fabric as a networkx graph: GPU - NVSwitch and GPU - NIC - leaf - spine - core.

Nodes carry `kind`, `layer` (0 = GPU, upwards), `count` (how many devices the node stands for) and, where it
applies, `node`, `block` and `pod`. Edges carry `capacity` (usable bytes/s per direction, all parallel links
together), `latency_s` (what crossing it adds) and `links` (physical links it stands for).

Collapsed, all equal devices of a block (or pod) are one graph node, so a cluster of 131,072 GPUs is a graph of
about two thousand nodes. In full, every device is a node: for drawing and for checks, on small clusters.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import networkx as nx

from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.network.fabric import Switches, check_fabric
from hdpsim.errors import InfeasibleError

FULL_GRAPH_LIMIT_GPUS = 4096
"""Above this the full graph only wastes memory: the collapsed one says the same."""

_LAYER = {"gpu": 0, "nvswitch": 1, "nic": 1, "leaf": 2, "spine": 3, "core": 4}


def build_graph(
    cluster: Cluster, calibration: NetworkCalibration | None = None, collapse: bool = True
) -> nx.Graph[str]:
    """Build the fabric of *cluster*.

    Every switch gives half of its latency to each link that ends at it, so the latencies along a path sum to
    the switches it passes. Leaf up-links are sized for a full block: down-links / oversubscription, spread
    evenly over the pod's spines; likewise spines and cores. A cluster of one block has no spines, one of one
    pod no core. The number of switches of a layer assumes switches as large as the leaves (a top layer points
    all its ports down, hence half as many).

    Args:
        cluster: nodes and fabric.
        calibration: efficiencies and latencies; None = the defaults.
        collapse: merge equal devices of a block or pod into one graph node.
    """
    check_fabric(cluster)
    if not collapse and cluster.gpus > FULL_GRAPH_LIMIT_GPUS:
        raise InfeasibleError(
            f"the full graph of {cluster.gpus} GPUs is too large (limit {FULL_GRAPH_LIMIT_GPUS}); use collapse=True"
        )
    return _Builder(cluster, calibration or NetworkCalibration(), collapse).build()


class _Builder:
    """Adds one layer after the other; *collapse* only decides whether devices get nodes of their own."""

    def __init__(self, cluster: Cluster, calibration: NetworkCalibration, collapse: bool) -> None:
        fabric, node = cluster.fabric, cluster.node
        self.cluster, self.calibration, self.collapse = cluster, calibration, collapse
        self.graph: nx.Graph[str] = nx.Graph(name=cluster.name)
        self.switches = Switches.of(cluster)
        nic = node.nic_bytes_per_s * calibration.nic_efficiency
        self.nic_bytes_per_s = nic
        self.block_up_bytes_per_s = fabric.nodes_per_block * node.nics * nic / fabric.leaf_oversubscription
        pod_bytes_per_s = self.switches.blocks_per_pod * self.block_up_bytes_per_s
        self.pod_up_bytes_per_s = pod_bytes_per_s / fabric.spine_oversubscription

    def build(self) -> nx.Graph[str]:
        fabric, nodes, switches = self.cluster.fabric, self.cluster.nodes, self.switches
        cores = self._devices("core", switches.cores) if switches.pods > 1 else []
        for pod in range(switches.pods):
            spines = self._devices("spine", switches.spines_per_pod, pod=pod) if switches.blocks > 1 else []
            self._mesh(spines, cores, self.pod_up_bytes_per_s, switches.spines_per_pod * switches.cores)
            first = pod * fabric.blocks_per_pod
            for block in range(first, min(first + fabric.blocks_per_pod, switches.blocks)):
                where = {"pod": pod, "block": block}
                leaves = self._devices("leaf", switches.leaves_per_block, **where) if nodes > 1 else []
                links = switches.leaves_per_block * switches.spines_per_pod
                self._mesh(leaves, spines, self.block_up_bytes_per_s, links)
                block_nodes = range(nodes)[
                    block * fabric.nodes_per_block : (block + 1) * fabric.nodes_per_block
                ]
                if self.collapse:
                    self._nodes(len(block_nodes), leaves, where)
                else:
                    for node in block_nodes:
                        self._nodes(1, leaves, where | {"node": node})
        return self.graph

    def _nodes(self, nodes: int, leaves: list[str], where: dict[str, int]) -> None:
        """Add *nodes* equal servers below *leaves* (more than one only when collapsing)."""
        node, calibration = self.cluster.node, self.calibration
        nvlink = node.gpu.nvlink_bytes_per_s * calibration.p2p_nvlink_efficiency
        gpus = self._devices("gpu", node.gpus, bundles=nodes, **where)
        switch = self._devices("nvswitch", 1, bundles=nodes, **where)[0]
        for gpu in gpus:
            links = nodes * node.gpus // len(gpus)
            self._link(gpu, switch, nvlink * links, calibration.nvswitch_latency_s / 2, links)
        if not leaves:
            return
        nics = self._devices("nic", node.nics, bundles=nodes, **where)
        half_hop_s = self.cluster.fabric.hop_latency_s / 2
        links = nodes * node.nics // len(nics)
        for index, nic in enumerate(nics):
            self._link(nic, leaves[index % len(leaves)], self.nic_bytes_per_s * links, half_hop_s, links)
        pairs = max(len(gpus), len(nics))
        pci_links = nodes * max(node.gpus, node.nics) // pairs
        for index in range(pairs):
            gpu, nic = gpus[index * len(gpus) // pairs], nics[index * len(nics) // pairs]
            # the PCIe port is as fast as the NIC it feeds: servers are built so
            self._link(gpu, nic, self.nic_bytes_per_s * pci_links, calibration.nic_latency_s, pci_links)

    def _devices(self, kind: str, count: int, bundles: int = 1, **where: int) -> list[str]:
        """Add *count* devices (of each of *bundles* equal servers); return their names."""
        place = ".".join(f"{key}{value}" for key, value in where.items())
        attributes: dict[str, Any] = {"kind": kind, "layer": _LAYER[kind], **where}
        if self.collapse:
            name = f"{kind}:{place}" if place else kind
            self.graph.add_node(name, count=count * bundles, **attributes)
            return [name]
        names = [f"{kind}:{place}.{index}" if place else f"{kind}:{index}" for index in range(count)]
        if kind == "gpu":
            names = [f"gpu:{where['node'] * count + index}" for index in range(count)]
        self.graph.add_nodes_from(names, count=1, **attributes)
        return names

    def _mesh(self, lower: list[str], upper: list[str], total_bytes_per_s: float, links: int) -> None:
        """Connect every lower with every upper switch; together the links carry *total_bytes_per_s*."""
        pairs, hop_s = len(lower) * len(upper), self.cluster.fabric.hop_latency_s
        for low, up in product(lower, upper):
            self._link(low, up, total_bytes_per_s / pairs, hop_s, links // pairs)

    def _link(self, a: str, b: str, capacity: float, latency_s: float, links: int) -> None:
        self.graph.add_edge(a, b, capacity=capacity, latency_s=latency_s, links=links)
