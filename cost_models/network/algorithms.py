"""How long one collective takes with one algorithm: pure functions of bytes and wires.

The model is NCCL's own: time = latency part + bytes / bandwidth, for each algorithm and each of its three wire
protocols (LL and LL128 put flags into the data and save synchronisation at the price of bandwidth; Simple
moves plain data and synchronises in memory). Every function takes bytes as a number or an array.

`bytes_total` follows nccl-tests: the buffer of an all-reduce or broadcast, the gathered result of an
all-gather, the input of a reduce-scatter, what one rank holds for all peers (itself included) of an all-to-all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.tracing import priced

NETWORK_OVERHEAD_S = 1e-6  # tuning.cc getNetOverhead, any CPU but AMD
_LL_TWO_NODES_BYTES_PER_S = 39e9  # tuning.cc llMaxBws, two nodes
_LL_MORE_NODES_BYTES_PER_S = 20.4e9  # tuning.cc llMaxBws, three and more nodes
RING_SIMPLE_LATENCY_FACTOR = 1.4  # tuning.cc: multi-node ring all-reduce with Simple, Ampere and later
# NCCL_LL_THREAD_THRESHOLD x LL threads: fewer bytes (times ranks on a ring), one channel
LL_CHANNEL_BYTES = 8.0 * 512
# of 8 H100s: "24 coll channels" in NCCL's log, 12 rings of 30 GB/s, each cut in two (A100: 12 of 20)
_CHANNELS = 24
# enqueue.cc: a tree's least chunk; NCCL_SIMPLE_THREAD_THRESHOLD 64 B x 512 threads
_SIMPLE_CHUNK_BYTES = 32 * 1024
_SLOTS = 8  # NCCL_STEPS
_SIMPLE_SLICE_BYTES = 4 * 1024 * 1024 / _SLOTS  # of NCCL_BUFFSIZE
# NCCL_LL128_ELEMS_PER_THREAD x _MAX_NTHREADS x 8 B, of which 120 in 128
_LL128_SLICE_BYTES = 120 * 640 * 8 * 15 / 16
_NVLS_CHUNK_BYTES, _NVLS_CHANNELS, _MANY_NODES = 128 * 1024, 16, 4
TREE_SHARE = 0.92  # tuning.cc: tree all-reduce against ring bus bandwidth
TREE_LL_DIVISOR = 3.8  # tuning.cc
TREE_LL128_SHARE = (7 / 9, 120 / 128)  # tuning.cc: on one node, on several
_SERVER_GPUS = 16  # NVLink domains up to this size have one layer of switches in the server
NVLS_INTRA_S = 25e-6  # tuning.cc: NVLS step over NVLink
NVLS_TREE_NETWORK_S = 20.9e-6  # tuning.cc: NVLSTree step over the network
_PAT_BASE_S = 8e-6  # tuning.cc
_PAT_NETWORK_DIVISOR = 3.5  # tuning.cc: PAT pipelines its network steps
_PAT_RANK_S = 2.8e-6  # tuning.cc: linear part, per rank
_PAT_SHARE = 0.75  # tuning.cc
TREE_CORRECTION = {  # tuning.cc treeCorrectionFactor: tree bandwidth at 64 B x 2^i
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "Simple": (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7,
               0.8, 0.9, 0.9, 0.9),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """What a group of ranks gets from the hardware.

    Attributes:
        ranks: GPUs of the group.
        nodes: nodes they sit on.
        ranks_per_node: GPUs of the group on a (full) node.
        nvlink_bytes_per_s: NVLink rate of a GPU that NCCL's rings reach.
        p2p_nvlink_bytes_per_s: NVLink rate of a GPU that one plain send/recv reaches.
        nic_bytes_per_s: network rate of one rank, in a ring or tree (slowest network hop).
        remote: (share of an all-to-all's bytes that cross, bytes/s of one rank there) for each network tier.
        propagation_s: hardware latency of a network hop.
    """

    ranks: int
    nodes: int
    ranks_per_node: int
    nvlink_bytes_per_s: float
    p2p_nvlink_bytes_per_s: float
    nic_bytes_per_s: float
    remote: tuple[tuple[float, float], ...]
    propagation_s: float
    calibration: NetworkCalibration
    ring_step_s: float = 0.0
    """Least time of a step of a ring across nodes, and of a tree's step over the network (Node.ring_step_s)."""
    all_to_all_share: float = 1.0
    """Share of the rates in `remote`, see Node.all_to_all_share."""
    tree_channels: float = math.inf
    """Channels of a tree across nodes."""

    @property
    def ring_bytes_per_s(self) -> float:
        """Bus bandwidth of rings: NVLink inside a node, and the NICs of the group's ranks between nodes."""
        return self._bus_bytes_per_s(self.ranks_per_node * self.nic_bytes_per_s)

    @property
    def tree_network_bytes_per_s(self) -> float:
        """The network's share in twice a tree's rate: NICs of the group's ranks, twice that between two nodes.

        Up and down the double tree a node sends twice the buffer; of two nodes each sends it once, to the other.
        """
        return (2 if self.nodes == 2 else 1) * self.ranks_per_node * self.nic_bytes_per_s

    @property
    def tree_bytes_per_s(self) -> float:
        """Bus bandwidth of trees."""
        return self._bus_bytes_per_s(self.tree_network_bytes_per_s)

    def _bus_bytes_per_s(self, network: float) -> float:
        if self.nodes == 1:
            return self.nvlink_bytes_per_s
        return network if self.ranks_per_node == 1 else min(network, self.nvlink_bytes_per_s)

    @property
    def ll_limit_bytes_per_s(self) -> float:
        """What LL can reach at most between nodes (its 8-byte flags cost the cores more than the wire)."""
        if self.nodes == 1:
            return math.inf
        return _LL_TWO_NODES_BYTES_PER_S if self.nodes == 2 else _LL_MORE_NODES_BYTES_PER_S


def ring_latency_s(wires: Wires, protocol: Protocol, rounds: int) -> float:
    """Latency part of a ring of *rounds* x (n - 1) steps, of which rounds x (N - 1) go over the network.

        t = base + (steps - network steps) max(NVLink step, overhead) + network steps x network step
            at least base + steps x least step of a ring across nodes

    Counted: one step per hop, the proxy's overhead on every step of a multi-node ring, wire latency (twice for
        Simple, which flushes), a least step where the transport has one. With one rank per node the tree's network
        step applies, as in NCCL. Simple in a node has factors of its own: it starts later than NCCL counts on.
    Ignored: variation from rank to rank.
    Source: NCCL tuning.cc, its constants scaled by the calibration.
    """
    calibration = wires.calibration
    network_steps = rounds * (wires.nodes - 1)
    nvlink_steps = rounds * (wires.ranks - 1) - network_steps
    simple = protocol is SIMPLE and wires.nodes == 1
    step_factor = calibration.simple_step_factor if simple else calibration.intra_latency_factor
    nvlink_step_s = protocol.ring_nvlink_step_s * step_factor
    if wires.nodes > 1:
        nvlink_step_s = max(nvlink_step_s, protocol.overhead_factor * NETWORK_OVERHEAD_S)
    alone = wires.ranks_per_node == 1
    network_s = protocol.tree_network_step_s if alone else protocol.ring_network_step_s
    network_s = network_s * calibration.inter_latency_factor + protocol.wire_trips * wires.propagation_s
    base_factor = calibration.simple_base_factor if simple else calibration.base_latency_factor
    steps_s = nvlink_steps * nvlink_step_s + network_steps * network_s
    if wires.nodes > 1:
        steps_s = max(steps_s, (nvlink_steps + network_steps) * wires.ring_step_s)
    return protocol.ring_base_s * base_factor + steps_s


def channels_s(wires: Wires, protocol: Protocol) -> float:
    """What an LL message takes longer once it is too long for one channel: thread blocks and channels start up.

    Source: NCCL enqueue.cc (channels are dropped while a thread would have less than its threshold to send).
    """
    return wires.calibration.channels_rank_s * wires.ranks_per_node if protocol is LL else 0.0


def ring_bytes_per_s(wires: Wires, protocol: Protocol) -> float:
    """Bus bandwidth of a ring with a protocol: LL half of it and limited, LL128 0.92, Simple all."""
    if protocol is LL:
        return min(0.5 * wires.ring_bytes_per_s, wires.ll_limit_bytes_per_s)
    return (0.92 if protocol is LL128 else 1.0) * wires.ring_bytes_per_s


@priced()
def ring_half_s(bytes_total: ArrayLike, wires: Wires, protocol: Protocol, in_place: bool = False) -> Floats:
    """All-gather or reduce-scatter on a ring.

        t = ring latency (n - 1 steps) + (n - 1)/n bytes / bus bandwidth + pipeline fill (Simple)
            + bytes / n / copy rate (unless in place)
        LL in a node:  t = ring latency + bytes / bus bandwidth

    Counted: every rank sends n - 1 shards, all links busy at once; the copy of the own shard. With LL in a node what
        the cores handle: n shards, as they also read the one that came last.
    Ignored: the reduction's arithmetic (hidden behind the wire).
    Source: Thakur et al., IJHPCA 19(1), 2005; NCCL tuning.cc.
    """
    return ring_half_time(wires, protocol, in_place).seconds(np.asarray(bytes_total, dtype=np.float64))


def ring_half_time(wires: Wires, protocol: Protocol, in_place: bool) -> CollectiveTime:
    """Return latency, bandwidth and copies of an all-gather or reduce-scatter on a ring, which ring_half_s adds up."""
    return _ring_time(wires, protocol, ring_latency_s(wires, protocol, rounds=1), 1, copied=not in_place)


@priced()
def ring_all_reduce_s(bytes_total: ArrayLike, wires: Wires, protocol: Protocol) -> Floats:
    """All-reduce on a ring: a reduce-scatter and an all-gather in one pipeline.

        t = ring latency (2 (n - 1) steps) + w + pipeline fill (Simple) + bytes / n / copy rate
        w = 2 (n - 1)/n bytes / bus bandwidth; LL in a node: (2 n - 1)/n bytes / bus bandwidth
        Simple across nodes:  t = max(w, 1.4 x ring latency + w / 2) + bytes / n / copy rate

    Counted, Ignored: as ring_half_s. A rank handles 2 n - 1 shards for 2 (n - 1) hops: the one that came last is only
        copied into the result. Across nodes a chunk of Simple travels as two slices: while one is under way the other
        is sent, so long messages hide the latency of their steps (not on a transport with slow steps of its own).
    Source: Thakur et al. 2005; NCCL tuning.cc, ALLREDUCE_SLICESTEPS and ALLREDUCE_CHUNKSTEPS. All-reduces of 64 MiB and
        more of 2 and 4 A100s, H200s and B300s are slower than the wire by bytes / n at 0.5 to 1.5 TB/s, the rate of a
        gather's copy (aiconfigurator). 16 to 128 A100s reduce 1 GiB at the same bus bandwidth to 3 % (NetX-lab/Echo).
    """
    latency_s, sizes = ring_latency_s(wires, protocol, rounds=2), np.asarray(bytes_total, dtype=np.float64)
    across = protocol is SIMPLE and wires.nodes > 1
    if across:
        latency_s *= RING_SIMPLE_LATENCY_FACTOR
    time = _ring_time(wires, protocol, latency_s, 2, copied=protocol is not LL)
    if not across or wires.ring_step_s:
        return time.seconds(sizes)
    wire_s = sizes * (time.wire_share / time.wire_bytes_per_s)
    hidden_s: Floats = np.minimum(latency_s, wire_s / 2)
    return time._replace(fill_limit_s=0.0).seconds(sizes) - hidden_s


def _ring_time(
    wires: Wires, protocol: Protocol, latency_s: float, rounds: int, *, copied: bool
) -> CollectiveTime:
    """*rounds* x (n - 1) hops of a shard each; *copied*: and one shard more into the result.

    The cores of a rank handle every byte of LL themselves, at half of the rate of NVLink, and the last shard like the
    others. Source: LL messages of 512 KiB to 4 MiB among 2, 4 and 8 A100s, H100s and B300s, gathered, reduced or both,
    handle shards at 0.43 to 0.6 of the usable rate of NVLink; their wires carry 0.25 to 0.5 of it (aiconfigurator).
    """
    hops = rounds * (wires.ranks - 1)
    if protocol is LL and wires.nodes == 1:
        hops, copied = hops + 1, False
    return CollectiveTime(
        latency_s=latency_s,
        wire_share=hops / wires.ranks,
        wire_bytes_per_s=ring_bytes_per_s(wires, protocol),
        fill_limit_s=wires.calibration.pipeline_fill_s if protocol is SIMPLE else 0.0,
        ranks=wires.ranks,
        copy_bytes_per_s=wires.calibration.copy_bytes_per_s if copied else math.inf,
        long_s=channels_s(wires, protocol),
        long_bytes=LL_CHANNEL_BYTES * wires.ranks,
    )


@priced()
def tree_all_reduce_s(bytes_total: ArrayLike, wires: Wires, protocol: Protocol) -> Floats:
    """All-reduce up and down a double binary tree of nodes, chains inside a node.

        t = base + 2 ((n/N - 1) NVLink step + floor(log2 N) network step) + 2 bytes / (bandwidth x correction)
        NVLink step of Simple = LL's + (its own - LL's) x min(1, bytes / 32 KiB)

    Counted: NCCL's correction by size (trees are slow between 64 KiB and 4 MiB), interpolated in log2(bytes)
        so that more bytes never take less time; with Simple or LL128 on a transport with slow steps slots_s instead,
        and all of the wires' rate. A step of Simple hands a chunk on when all of it is there: of up to
        32 KiB the whole message, which one channel sends, of longer ones no less (NCCL's least chunk).
    Ignored: per-channel limits that bind only with few channels.
    Source: NCCL tuning.cc; Sanders, Speck, Traeff, Parallel Computing 35(12), 2009 (double binary trees).
    """
    calibration = wires.calibration
    sizes = np.asarray(bytes_total, dtype=np.float64)
    chain_s: float | Floats = protocol.tree_nvlink_step_s * calibration.intra_latency_factor
    if protocol is SIMPLE:
        least_s = LL.tree_nvlink_step_s * calibration.intra_latency_factor
        chain_s = least_s + (chain_s - least_s) * np.minimum(1.0, sizes / _SIMPLE_CHUNK_BYTES)
    network_s = protocol.tree_network_step_s * calibration.inter_latency_factor
    network_s = max(network_s + protocol.wire_trips * wires.propagation_s, wires.ring_step_s)
    depth = int(math.log2(wires.nodes))
    base_s = protocol.tree_base_s * calibration.base_latency_factor
    latency_s = base_s + 2 * ((wires.ranks / wires.nodes - 1) * chain_s + depth * network_s)
    bytes_per_s = TREE_SHARE * wires.tree_bytes_per_s
    if protocol is LL:
        bytes_per_s = min(bytes_per_s / TREE_LL_DIVISOR, wires.ll_limit_bytes_per_s)
    elif protocol is LL128:
        bytes_per_s *= TREE_LL128_SHARE[wires.nodes > 1]
    if protocol is not LL and wires.nodes > 1 and wires.ring_step_s:
        share = 1.0 if protocol is SIMPLE else TREE_LL128_SHARE[1]
        time_s: Floats = latency_s + 2 * sizes / (share * wires.tree_bytes_per_s)
        time_s = time_s + slots_s(sizes, wires, protocol)
    else:
        table = TREE_CORRECTION[protocol.name]
        correction = np.interp(np.log2(np.maximum(sizes, 1.0) / 64), np.arange(len(table)), table)
        time_s = latency_s + 2 * sizes / (bytes_per_s * correction)
    time_s = time_s + np.where(sizes >= LL_CHANNEL_BYTES, channels_s(wires, protocol), 0.0)
    if protocol is not SIMPLE:
        return time_s
    return time_s + fill_s(2 * sizes / bytes_per_s, calibration.pipeline_fill_s)


def slots_s(bytes_total: Floats, wires: Wires, protocol: Protocol) -> Floats:
    """What a tree of Simple or LL128 waits for free buffers on a transport with slow steps.

        t = chunks of a channel x 2 steps over the network / 8

    Counted: a connection has 8 buffers of a chunk each, and one is free again when its chunk is there and word of that
        back. Chunks are halved. Simple, d steps from end to end: from 512 KiB to 128 while a channel has fewer than 8 d
        of them, to 64 below 4 d, to 32 below d. LL128, r ranks on each of N nodes, n = 1 + log2 N + r / 10: from
        562 KiB to 70 below 64 n / r, to 18 below 16 n / r.
    Ignored: up to twice as many chunks right before their size changes, so that more bytes never take less time.
    Source: NVIDIA/nccl to 2.19, src/enqueue.cc (computeColl, lastChunkSize), NCCL_STEPS, NCCL_BUFFSIZE. All-reduces of
        8 B to 2 GiB between two p4de agree to 12 % (aws-samples; Simple); their step was read off those of 8 B.
    """
    of_node, depth = wires.ranks / wires.nodes, int(math.log2(wires.nodes))
    if protocol is SIMPLE:
        steps = of_node - 1 + depth
        slice_bytes, fewest_of = _SIMPLE_SLICE_BYTES, {1: 8 * steps, 4: 4 * steps, 8: steps, 16: 0.0}
    else:
        steps = (1 + depth + 0.1 * of_node) / of_node
        slice_bytes, fewest_of = _LL128_SLICE_BYTES, {1: 64 * steps, 8: 16 * steps, 32: 0.0}
    largest = bytes_total / wires.tree_channels / slice_bytes
    chunks = np.full_like(largest, np.inf)
    for halved, fewest in fewest_of.items():
        chunks = np.maximum(fewest, np.minimum(halved * largest, chunks))
    return np.asarray(chunks * 2 * wires.ring_step_s / _SLOTS)


def nvls_bytes_per_s(wires: Wires) -> float:
    """Algorithm bandwidth of in-switch reduction: NVLink x efficiency x n / (n + 1).

    A rank puts its whole buffer on the wire once (the switches fetch and add it) and the 1/n it reduced once
    more (the switches multicast it).
    """
    local = wires.ranks_per_node
    calibration = wires.calibration
    share = calibration.nvls_efficiency if local <= _SERVER_GPUS else calibration.nvls_rack_efficiency
    return share * wires.nvlink_bytes_per_s * local / (local + 1)


@priced()
def nvls_all_reduce_s(bytes_total: ArrayLike, wires: Wires) -> Floats:
    """All-reduce inside the NVSwitches of one node (NVLink SHARP).

        t = 25 us x factor + (1 + 1/n) bytes / (NVLink x NVLS efficiency) + pipeline fill

    Counted: wire bytes of fetch-and-add and multicast.
    Ignored: the SMs it leaves free for computing.
    Source: NCCL tuning.cc; 5 to 8 H200s and B200s measured in stas00/ml-engineering fit n/(n + 1) to 1%.
    """
    sizes = np.asarray(bytes_total, dtype=np.float64)
    bytes_per_s = nvls_bytes_per_s(wires)
    latency_s = NVLS_INTRA_S * wires.calibration.nvls_latency_factor
    return CollectiveTime(latency_s, 1.0, bytes_per_s, wires.calibration.nvls_fill_s).seconds(sizes)


@priced()
def nvls_tree_all_reduce_s(bytes_total: ArrayLike, wires: Wires) -> Floats:
    """All-reduce with NVLS inside nodes and, between nodes, one tree per local rank on its own NIC.

        t = 25 us x factor + 2 floor(log2 N) network step + bytes / min(NVLS, NICs of the node / 2) + pipeline fill
            [+ chunks of a channel x 2 network steps / 8]

    Counted: every NIC carries its 1/r of the buffer up and down a double binary tree: 2 bytes / r each way (two nodes:
        1 byte / r). On a transport with slow steps the wait for free buffers (slots_s): 16 channels send for each rank
        of a node chunks of 128 KiB, of 64 KiB from four nodes on.
    Ignored: reduction in InfiniBand switches (SHARP).
    Source: NCCL tuning.cc, NVLSTree; enqueue.cc (calcCollChunking, NCCL_NVLSTREE_MAX_CHUNKSIZE).
    """
    sizes = np.asarray(bytes_total, dtype=np.float64)
    calibration = wires.calibration
    bytes_per_s = min(nvls_bytes_per_s(wires), wires.tree_network_bytes_per_s / 2)
    network_s = NVLS_TREE_NETWORK_S * calibration.inter_latency_factor + 2 * wires.propagation_s
    network_s = max(network_s, wires.ring_step_s)
    latency_s = NVLS_INTRA_S * calibration.nvls_latency_factor + 2 * int(math.log2(wires.nodes)) * network_s
    time_s = CollectiveTime(latency_s, 1.0, bytes_per_s, wires.calibration.nvls_fill_s).seconds(sizes)
    chunk = _NVLS_CHUNK_BYTES / (2 if wires.nodes >= _MANY_NODES else 1)
    chunks = sizes / (wires.ranks_per_node * _NVLS_CHANNELS * chunk)
    return time_s + chunks * 2 * wires.ring_step_s / _SLOTS


@priced()
def pat_s(bytes_total: ArrayLike, wires: Wires, in_place: bool = False) -> Floats:
    """All-gather or reduce-scatter with parallel aggregated trees (one rank per node only).

        t = base + floor(log2 N) x network step / 3.5 + 2.8 us x n + (n - 1)/n bytes / (0.75 NIC) + pipeline fill
            + bytes / n / copy rate (unless in place)

    Counted: the logarithmic network depth and the linear part of local scheduling.
    Ignored: what aggregation of small messages saves beyond NCCL's own estimate.
    Source: NCCL tuning.cc; Jeaugey, arXiv 2506.20252.
    """
    return pat_time(wires, in_place).seconds(np.asarray(bytes_total, dtype=np.float64))


def pat_time(wires: Wires, in_place: bool) -> CollectiveTime:
    """Return latency, bandwidth and copies of an all-gather or reduce-scatter by PAT, which pat_s adds up."""
    calibration = wires.calibration
    return CollectiveTime(
        latency_s=pat_latency_s(wires, calibration.base_latency_factor, calibration.inter_latency_factor),
        wire_share=(wires.ranks - 1) / wires.ranks,
        wire_bytes_per_s=_PAT_SHARE * wires.ring_bytes_per_s,
        fill_limit_s=calibration.pipeline_fill_s,
        ranks=wires.ranks,
        copy_bytes_per_s=math.inf if in_place else calibration.copy_bytes_per_s,
    )


def pat_latency_s(wires: Wires, base_factor: float, network_factor: float) -> float:
    """The latency part of PAT, with NCCL's constants scaled."""
    step_s = SIMPLE.tree_network_step_s * network_factor + 2 * wires.propagation_s
    steps_s = int(math.log2(wires.nodes)) * step_s / _PAT_NETWORK_DIVISOR
    return _PAT_BASE_S * base_factor + _PAT_RANK_S * wires.ranks + steps_s


@priced()
def ring_broadcast_s(bytes_total: ArrayLike, wires: Wires, protocol: Protocol) -> Floats:
    """Broadcast down a chain of n ranks, pipelined.

        t = ring latency (n - 1 steps) + bytes / bus bandwidth + pipeline fill (Simple)
            + (n - 2) min(bytes, channels x 512 KiB) / bus bandwidth (Simple)

    Counted: the chain's latency, every link carries the buffer once; with Simple a rank passes a slice on when all of
        it is there (1/8 of a buffer of 4 MiB on every channel), with LL and LL128 line by line.
    Ignored: tree broadcasts of other libraries.
    Source: NCCL tuning.cc (NCCL broadcasts on rings only); slices: NCCL_BUFFSIZE, BROADCAST_SLICESTEPS 1.
    """
    sizes = np.asarray(bytes_total, dtype=np.float64)
    time = _ring_time(wires, protocol, ring_latency_s(wires, protocol, rounds=1), 1, copied=False)
    time_s = time._replace(wire_share=1.0).seconds(sizes)
    if protocol is not SIMPLE:
        return time_s
    slice_s = np.minimum(sizes, _CHANNELS * _SIMPLE_SLICE_BYTES) / time.wire_bytes_per_s
    passed_on_s: Floats = max(0, wires.ranks - 2) * slice_s
    return time_s + passed_on_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One NCCL wire protocol. Source of all numbers: NVIDIA/nccl 2.30, src/graph/tuning.cc."""

    name: str
    ring_base_s: float
    tree_base_s: float
    ring_nvlink_step_s: float
    tree_nvlink_step_s: float
    ring_network_step_s: float
    tree_network_step_s: float
    overhead_factor: float
    """Times the 1 us a network proxy adds to every step of a multi-node ring."""
    wire_trips: int
    """Times a network step pays the hardware latency: Simple flushes and pays twice."""


LL = Protocol(
    name="LL", ring_base_s=6.6e-6, tree_base_s=6.8e-6, ring_nvlink_step_s=0.6e-6, tree_nvlink_step_s=0.6e-6,
    ring_network_step_s=2.7e-6, tree_network_step_s=5.0e-6, overhead_factor=1.0, wire_trips=1,
)  # fmt: skip
LL128 = Protocol(
    name="LL128", ring_base_s=14e-6, tree_base_s=14e-6, ring_nvlink_step_s=1.9e-6, tree_nvlink_step_s=1.25e-6,
    ring_network_step_s=4.0e-6, tree_network_step_s=8.5e-6, overhead_factor=1.0, wire_trips=1,
)  # fmt: skip
SIMPLE = Protocol(
    name="Simple", ring_base_s=8.4e-6, tree_base_s=8.4e-6, ring_nvlink_step_s=3.4e-6, tree_nvlink_step_s=4.0e-6,
    ring_network_step_s=14e-6, tree_network_step_s=14e-6, overhead_factor=3.0, wire_trips=2,
)  # fmt: skip
PROTOCOLS = (LL, LL128, SIMPLE)


def fill_s(wire_s: Floats, limit_s: ArrayLike) -> Floats:
    """Start-up and drain of a pipelined transfer that takes *wire_s* on the wire: t = w f / (w + f).

    The buffers' worth of time (f) for long transfers, all of the wire time again for short ones.
    """
    limit = np.asarray(limit_s)
    return np.asarray(wire_s * limit / np.maximum(wire_s + limit, 1e-12))


class CollectiveTime(NamedTuple):
    """t = latency + w + fill(w) + bytes / ranks / copy rate [+ long, of long messages],   w = bytes x wire share / rate

    Of one algorithm on some wires; stacked, of several at once, [algorithms, 1] each.
    """

    latency_s: float | Floats
    wire_share: float | Floats
    wire_bytes_per_s: float | Floats
    fill_limit_s: float | Floats = 0.0
    """See fill_s; 0 = not pipelined."""
    ranks: float | Floats = 1.0
    copy_bytes_per_s: float | Floats = math.inf
    """Copying the own shard into the result; infinite = there is nothing to copy."""
    long_s: float | Floats = 0.0
    """What a message of *long_bytes* or more takes besides."""
    long_bytes: float | Floats = 0.0

    @classmethod
    def stacked(cls, times: Iterable[CollectiveTime]) -> CollectiveTime:
        """Several algorithms, one per row."""
        rows = list(times)
        several = cls(*np.array(rows, dtype=np.float64).T[:, :, None])
        copied = any(row.copy_bytes_per_s != math.inf for row in rows)
        return several if copied else several._replace(copy_bytes_per_s=math.inf)

    def seconds(self, bytes_total: Floats) -> Floats:
        """Seconds of each size; with stacked algorithms [algorithms, sizes]."""
        wire_s = bytes_total * self.wire_share / self.wire_bytes_per_s
        copy_s = bytes_total / self.ranks / self.copy_bytes_per_s
        long_s = self.long_s * (bytes_total >= self.long_bytes)
        return np.asarray(self.latency_s + long_s + wire_s + fill_s(wire_s, self.fill_limit_s) + copy_s)
