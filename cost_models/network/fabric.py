"""Where GPUs sit and what two of them, or a ring of them, get from the network.

A cluster has four distances, called tiers:

    0  inside a node, over NVLink
    1  same block: one leaf switch away (rail-optimised: the leaf of the rail, reached over NVLink if needed)
    2  same pod: leaf, spine, leaf
    3  across pods: leaf, spine, core, spine, leaf

GPUs are numbered node by node, nodes block by block, blocks pod by pod, so the tier of two GPUs follows from
integer divisions and never needs a graph search. `graph.build_graph` builds the same network as a graph; tests
hold the two together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware.parts import Cluster, Fabric
from hdpsim.cost_models.network.congestion import congested_rate
from hdpsim.errors import InfeasibleError

TIERS = 4
TIER_NAMES = ("node", "block", "pod", "cluster")
SWITCHES_BY_TIER = (0, 1, 3, 5)
"""Network switches a message passes: none, leaf, leaf-spine-leaf, leaf-spine-core-spine-leaf."""


@dataclass(frozen=True, slots=True)
class FabricModel:
    """Bandwidth and latency by tier, and the tier of any GPUs.

    Counted: NVLink and NIC rates with their efficiencies, NICs shared by the GPUs of a node, oversubscription
        of leaves and spines, NIC and switch latencies; where the fabric says so, ECMP collisions, congestion
        control and scattered nodes.
    Ignored: adaptive routing, congestion between unrelated jobs, cable lengths.
    Source: NVIDIA DGX SuperPOD reference architectures (rail-optimised Clos); Llama 3 (arXiv 2407.21783),
        section 3.3.1 (oversubscription above the pod).
    """

    cluster: Cluster
    calibration: NetworkCalibration = field(default_factory=NetworkCalibration)

    def __post_init__(self) -> None:
        check_fabric(self.cluster)

    def tier(self, gpu_a: ArrayLike, gpu_b: ArrayLike) -> Ints:
        """Tier between GPUs, element by element (0 for a GPU and itself); of all GPUs in between none is farther."""
        a, b = np.asarray(gpu_a, dtype=np.int64), np.asarray(gpu_b, dtype=np.int64)
        places = [(a // gpus != b // gpus).astype(np.int64) for gpus in self._place_gpus]
        tier: Ints = places[0] + places[1] + places[2]
        if self.cluster.fabric.placement == "scattered":
            tier = np.where(tier > 0, self._widest_tier, 0)
        return tier

    def pair_tier(self, gpu_a: int, gpu_b: int) -> int:
        """Tier between two GPUs: a number without arrays."""
        tier = sum(gpu_a // gpus != gpu_b // gpus for gpus in self._place_gpus)
        return self._widest_tier if tier and self.cluster.fabric.placement == "scattered" else tier

    @property
    def _place_gpus(self) -> tuple[int, int, int]:
        """GPUs of a node, a block and a pod."""
        fabric, node_gpus = self.cluster.fabric, self.cluster.node.gpus
        block_gpus = node_gpus * fabric.nodes_per_block
        return node_gpus, block_gpus, block_gpus * fabric.blocks_per_pod

    @property
    def _widest_tier(self) -> int:
        """Scattered nodes: among several neighbours one is as far away as the cluster allows."""
        gpus = self.cluster.gpus
        return sum(gpus > limit for limit in self._place_gpus)

    def crossing_share(
        self,
        tier: int,
        crossings: ArrayLike,
        between_nodes: ArrayLike,
        *,
        senders: ArrayLike | None = None,
        spacing_gpus: float | None = None,
    ) -> Floats:
        """Share of the NICs below a tier's up-links whose flows cross it at the same time: one law for all groups.

            grouped:    min( crossings / senders, 2 x spacing / GPUs of the block (pod) )
            scattered:  between nodes / senders x (1 - (m - 1) / (n - 1))

        All GPUs send at the same time, in groups like this one. Of a group's NICs those of its *crossings* carry a
        flow over the edge of a block (pod). Groups that follow the numbering are next to each other: a block's flows
        leave it at its two ends, once for each of the groups that interleave there, however many groups it holds.
        Scattered: the next of n nodes is not one of the m - 1 near ones.

        Args:
            tier: 1 (between nodes), 2 (between blocks) or 3 (between pods).
            crossings: hops of the group that cross the tier; of a ring that follows the numbering as many as it has
                blocks (pods), if more than one.
            between_nodes: hops of the group that leave a node.
            senders: hops of the group whose NICs wait for the slowest; None: only hops that leave a node have NICs.
            spacing_gpus: GPUs from one hop's sender to the next one's, in a group that follows the numbering; None:
                its members are anywhere.
        """
        leaving = np.asarray(between_nodes, dtype=np.float64)
        all_hops = leaving if senders is None else np.asarray(senders, dtype=np.float64)
        if tier == 1:
            return np.asarray(leaving / all_hops)
        fabric, all_nodes = self.cluster.fabric, self.cluster.nodes
        if fabric.placement == "grouped" or all_nodes < 2:
            share = np.asarray(crossings, dtype=np.float64) / all_hops
            if spacing_gpus is not None:
                share = np.minimum(share, 2.0 * spacing_gpus / self._place_gpus[tier - 1])
            return np.asarray(share)
        near = fabric.nodes_per_block * (fabric.blocks_per_pod if tier == 3 else 1)
        return np.asarray(leaving / all_hops * max(0.0, 1.0 - (min(near, all_nodes) - 1) / (all_nodes - 1)))

    @property
    def has_shared_uplinks(self) -> bool:
        """Whether a flow that leaves its block can get less than its NIC gives."""
        fabric = self.cluster.fabric
        oversubscription = max(fabric.leaf_oversubscription, fabric.spine_oversubscription)
        return fabric.routing == "ecmp" or oversubscription > 1

    def places(self, tier: int, first_gpu: ArrayLike, members: ArrayLike, stride: int) -> Ints:
        """Nodes (tier 1), blocks (2) or pods (3) of the GPUs first, first + stride, ... (*members* GPUs)."""
        first, count = np.asarray(first_gpu, dtype=np.int64), np.asarray(members, dtype=np.int64)
        gpus = self._place_gpus[tier - 1]
        if stride >= gpus:
            return np.broadcast_to(count, np.broadcast(first, count).shape)
        return np.asarray((first + (count - 1) * stride) // gpus - first // gpus + 1)

    def neighbour_crossing(self, group_size: ArrayLike, tier: ArrayLike, stride: int) -> Floats:
        """[..., 2]: crossing_share of tiers 2 and 3 of rings of neighbouring ranks, *stride* GPUs apart.

        A ring whose *tier* says that it leaves a block that could hold it runs through two.
        """
        sizes, _ = np.broadcast_arrays(np.asarray(group_size, dtype=np.int64), np.asarray(tier))
        nodes = self.places(1, 0, sizes, stride)
        shares = [
            self.crossing_share(
                level,
                np.maximum(2, self.places(level, 0, sizes, stride)),
                np.maximum(2, nodes),
                senders=np.maximum(2, sizes),
                spacing_gpus=stride,
            )
            for level in (2, 3)
        ]
        return np.stack(shares, axis=-1)

    def ring_crossing(self, member_gpus: ArrayLike, offsets: ArrayLike, stride: int) -> Floats | None:
        """[n, 2]: crossing_share of tiers 2 and 3 of many rings, wrap-around included; None where none can matter.

        Args:
            member_gpus: see ring_tiers.
            offsets: see ring_tiers.
            stride: GPUs from a rank to the next one; a ring that has all ranks from its first to its last follows
                the numbering.
        """
        members, starts = np.asarray(member_gpus, dtype=np.int64), np.asarray(offsets, dtype=np.int64)
        if not self.has_shared_uplinks or len(starts) < 2:
            return None
        tiers = self.tier(members, _successors(members, starts))
        sizes, first = np.diff(starts), starts[:-1]
        levels = ((tiers >= level).astype(np.int64) for level in (1, 2, 3))
        between_nodes, *crossings = (np.add.reduceat(crosses, first) for crosses in levels)
        lowest, highest = np.minimum.reduceat(members, first), np.maximum.reduceat(members, first)
        follows = highest - lowest == (sizes - 1) * stride
        share = partial(self.crossing_share, between_nodes=between_nodes, senders=sizes)
        shares = [
            np.where(follows, share(level, hops, spacing_gpus=stride), share(level, hops))
            for level, hops in zip((2, 3), crossings, strict=True)
        ]
        return np.stack(shares, axis=-1)

    def flow_crossing(self, source_gpus: ArrayLike, target_gpus: ArrayLike, width: int) -> Floats:
        """[2]: crossing_share of tiers 2 and 3 of given flows, each from *width* GPUs to as many: the busiest block's.

        The same flows the other way round are a time of their own; what is returned holds for both.
        """
        source, target = (np.asarray(gpus, dtype=np.int64).ravel() for gpus in (source_gpus, target_gpus))
        tiers = self.tier(source, target)
        between_nodes = width * int((tiers > 0).sum())
        scattered = self.cluster.fabric.placement == "scattered"
        shares = []
        for level in (2, 3):
            gpus = self._place_gpus[level - 1]
            crosses = tiers >= level
            below = (np.bincount(ends[crosses] // gpus) for ends in (source, target))
            crossings = min(gpus, width * max(int(counts.max(initial=0)) for counts in below))
            senders = max(1, self.cluster.gpus if scattered else gpus)
            shares.append(self.crossing_share(level, crossings, between_nodes, senders=senders))
        return np.asarray(shares)

    def slowest_bytes_per_s(self, tier: ArrayLike, crossing: ArrayLike) -> Floats:
        """One GPU's rate over the slowest layer that hops of a *tier* pass; *crossing*: [..., 2], of tiers 2 and 3."""
        tiers, shares = np.asarray(tier, dtype=np.int64), np.asarray(crossing, dtype=np.float64)
        rate = self.bytes_per_s(np.minimum(tiers, 1))
        for level in (2, 3):
            if (tiers >= level).any():
                shared = self.bytes_per_s(np.full(tiers.shape, level), shares[..., level - 2])
                rate = np.where(tiers >= level, np.minimum(rate, shared), rate)
        return rate

    def bytes_per_s(self, tier: ArrayLike, crossing_share: ArrayLike = 1.0) -> Floats:
        """One GPU's share of the links of a tier while all GPUs send.

            tier 0: NVLink x efficiency, of a board without a switch the links of a pair
            tier 1: NICs per GPU x efficiency = nic
            tier 2: min(nic, nic / (leaf oversubscription x crossing share))
            tier 3: min(tier 2, nic / (leaf x spine oversubscription x crossing share))

        With routing = ecmp tiers 2 and 3 get what hashed flows get (cost_models.congestion), which is never more.

        Args:
            tier: tier or array of tiers.
            crossing_share: share of all flows that cross this tier at the same time, see crossing_share. 1 is the
                worst case; rings whose members follow the numbering cross a block's edge with one flow in many.
        """
        calibration, node, fabric = self.calibration, self.cluster.node, self.cluster.fabric
        tiers = np.asarray(tier, dtype=np.int64)
        nic = node.nic_bytes_per_s_per_gpu * (node.nic_efficiency or calibration.nic_efficiency)
        nvlink = node.gpu.nvlink_bytes_per_s * node.nvlink_share(2) * calibration.p2p_nvlink_efficiency
        leaf = fabric.leaf_oversubscription
        by_tier = np.asarray([1.0, 1.0, leaf, leaf * fabric.spine_oversubscription])
        shares = np.asarray(crossing_share, dtype=np.float64)
        rate: Floats = np.where(tiers == 0, nvlink, nic / np.maximum(1.0, by_tier[tiers] * shares))
        if fabric.routing == "ecmp":
            rate = rate * _hashed(fabric, tiers, shares)
        return rate

    def propagation_s(self, tier: ArrayLike) -> Floats:
        """Hardware latency of one message, GPU to GPU: NVSwitch, or two NICs and the switches between them."""
        return np.array(self._propagation_s)[np.asarray(tier, dtype=np.int64)]

    def latency_s(self, tier: ArrayLike) -> Floats:
        """Latency of one send/recv: software (launch, proxy) plus hardware."""
        calibration, (nvlink_s, *network_s) = self.calibration, self._propagation_s
        by_tier = [calibration.p2p_intra_latency_s + nvlink_s]
        by_tier += [calibration.p2p_inter_latency_s + hardware_s for hardware_s in network_s]
        return np.array(by_tier)[np.asarray(tier, dtype=np.int64)]

    @property
    def _propagation_s(self) -> list[float]:
        """propagation_s of every tier."""
        calibration, hop_s = self.calibration, self.cluster.fabric.hop_latency_s
        network_s = [2 * calibration.nic_latency_s + switches * hop_s for switches in SWITCHES_BY_TIER[1:]]
        return [calibration.nvswitch_latency_s, *network_s]

    def ring_tiers(self, member_gpus: ArrayLike, offsets: ArrayLike) -> Ints:
        """Tier of the slowest hop of many rings, wrap-around included.

        Args:
            member_gpus: the rings' GPUs one after the other, each ring in its own order (for ranks of several
                GPUs: the first GPU of each).
            offsets: ring i is member_gpus[offsets[i]:offsets[i + 1]]; no ring is empty.
        """
        members, starts = np.asarray(member_gpus, dtype=np.int64), np.asarray(offsets, dtype=np.int64)
        if len(starts) < 2:
            return np.zeros(0, dtype=np.int64)
        if starts[0] != 0 or starts[-1] != len(members) or np.any(np.diff(starts) < 1):
            raise ValueError("offsets must start at 0, end at len(member_gpus) and leave no ring empty")
        if len(members) == len(starts) - 1:  # rings of one
            return np.zeros(len(members), dtype=np.int64)
        return np.asarray(np.maximum.reduceat(self.tier(members, _successors(members, starts)), starts[:-1]))


def _successors(members: Ints, starts: Ints) -> Ints:
    """The next member of every member's ring."""
    successors = np.roll(members, -1)
    successors[starts[1:] - 1] = members[starts[:-1]]
    return successors


def _hashed(fabric: Fabric, tiers: Ints, shares: Floats) -> Floats:
    """congested_rate of every tier and share; up-links begin above the blocks (tier 2)."""
    tiers, shares = np.broadcast_arrays(tiers, shares)
    factor = np.ones(tiers.shape)
    for tier in range(2, TIERS):
        on_tier = tiers == tier
        if on_tier.any():
            distinct, place = np.unique(shares[on_tier], return_inverse=True)
            rates = np.array([congested_rate(fabric, tier, share) for share in distinct.tolist()])
            factor[on_tier] = rates[place]
    return factor


def check_fabric(cluster: Cluster) -> None:
    """Refuse several nodes without a network between them."""
    node = cluster.node
    if cluster.nodes > 1 and not node.nic_bytes_per_s_per_gpu > 0:
        several = f"cluster {cluster.name}: {cluster.nodes} nodes"
        raise InfeasibleError(f"{several} but node {node.name} has no NICs")


@dataclass(frozen=True, slots=True)
class Switches:
    """How many switches of every layer a cluster has.

    They are as large as the leaves; a top layer points all its ports down, hence half as many.
    """

    blocks: int
    pods: int
    blocks_per_pod: int
    leaves_per_block: int
    spines_per_pod: int
    cores: int

    @classmethod
    def of(cls, cluster: Cluster) -> Switches:
        """The switches of *cluster*."""
        fabric = cluster.fabric
        blocks = math.ceil(cluster.nodes / fabric.nodes_per_block)
        pods = math.ceil(blocks / fabric.blocks_per_pod)
        leaves_per_block = cluster.node.nics if fabric.kind == "rail-optimised" else 1
        blocks_per_pod = min(fabric.blocks_per_pod, blocks)
        leaves_per_pod = leaves_per_block * blocks_per_pod / fabric.leaf_oversubscription
        spines_per_pod = math.ceil(leaves_per_pod / (2 if pods == 1 else 1))
        cores = math.ceil(spines_per_pod * pods / (2 * fabric.spine_oversubscription))
        return cls(blocks, pods, blocks_per_pod, leaves_per_block, spines_per_pod, cores)


def count_devices(cluster: Cluster) -> dict[str, int]:
    """How many devices of every kind *cluster* has, from the core down."""
    check_fabric(cluster)
    switches, node = Switches.of(cluster), cluster.node
    above = {"core": switches.cores} if switches.pods > 1 else {}
    if switches.blocks > 1:
        above["spine"] = switches.spines_per_pod * switches.pods
    if cluster.nodes > 1:
        above["leaf"] = switches.leaves_per_block * switches.blocks
    below = {"gpu": cluster.nodes * node.gpus, "nvswitch": cluster.nodes}
    if cluster.nodes > 1:
        below["nic"] = cluster.nodes * node.nics
    return above | below
