"""Collectives on a fabric: who is in the group, what the wires give it, and the algorithm for the size.

    collectives = Collectives(FabricModel(cluster, calibration))
    group = collectives.group(512, stride=2)          # every second GPU of the cluster
    seconds = collectives.reduce_scatter_s(2.7e9, group)

Of the algorithms and protocols that apply NCCL's tuner (nccl_tuner.py) picks one, not always the fastest.
Bytes may be arrays; the choice is made for each element. A group of one rank costs nothing, and so do zero bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Literal, assert_never

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.network.algorithms import (
    PROTOCOLS,
    SIMPLE,
    Protocol,
    Wires,
    nvls_all_reduce_s,
    nvls_tree_all_reduce_s,
    pat_s,
    pat_time,
    ring_all_reduce_s,
    ring_broadcast_s,
    ring_half_s,
    ring_half_time,
    tree_all_reduce_s,
)
from hdpsim.cost_models.network.all_to_all import all_to_all_s, message_start_s
from hdpsim.cost_models.network.fabric import TIERS, FabricModel
from hdpsim.cost_models.network.nccl_tuner import Picked, Tuner, channels_between_nodes
from hdpsim.cost_models.tracing import Latest, aside, note, priced, remembered, shared
from hdpsim.errors import InfeasibleError

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
_Options = Literal["all_reduce", "half", "half_in_place"]
"""An all-gather and a reduce-scatter are each half of an all-reduce."""

_ALL_REDUCES: dict[str, Callable[[ArrayLike, Wires], Floats]] = {
    f"{name} {protocol.name}": partial(formula, protocol=protocol)
    for name, formula in (("ring", ring_all_reduce_s), ("tree", tree_all_reduce_s))
    for protocol in PROTOCOLS
}
_SWITCHED: dict[str, Callable[[ArrayLike, Wires], Floats]] = {"NVLS": nvls_all_reduce_s}
_SWITCHED_ACROSS: dict[str, Callable[[ArrayLike, Wires], Floats]] = {"NVLS tree": nvls_tree_all_reduce_s}
# Of a NIC's line rate that NCCL counts on: its search tries 48 and 24 GB/s for 50 and 25
NCCL_NIC_SHARE = 0.97
MOST_CHANNELS = 32  # NCCL's MAXCHANNELS; connect.cc (ncclTopoPostset) doubles what the search finds
FEW_SIZES = 64  # of a collective: times of so few are kept, as the stages of a pipeline ask for them


def bus_bandwidth_factor(kind: CollectiveKind, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth (bytes / time).

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    match kind:
        case "broadcast":
            return 1.0
        case "all_reduce":
            return 2.0 * (ranks - 1) / ranks
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return (ranks - 1) / ranks
        case _:
            assert_never(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """Where the ranks (GPUs) of a collective sit.

    Attributes:
        ranks: members.
        ranks_per_node: members on a full node.
        nodes: nodes the members sit on.
        tier: fabric tier that spans them all (see cost_models.fabric).
        nic_share: part of its members' NICs the group gets: 1 while every GPU is in one such group at a time,
            1/2 when each GPU runs two collectives over the network at once. Groups that share a node through
            different GPUs do not share NICs: each member brings its own.
        blocks: blocks the members sit on; None: as few as hold so many nodes.
        pods: pods they sit on, likewise.
        stride: GPUs from a member to the next one, groups of the same kind in between; None: members are anywhere.
    """

    ranks: int
    ranks_per_node: int
    nodes: int
    tier: int
    nic_share: float = 1.0
    blocks: int | None = None
    pods: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        per_node, nodes = self.ranks_per_node, self.nodes
        if not (1 <= nodes <= self.ranks <= per_node * nodes and per_node <= self.ranks):
            raise ValueError(f"{self.ranks} ranks do not sit on {nodes} nodes, {per_node} on a full one")
        if not 0 <= self.tier < TIERS or (self.tier == 0) != (nodes == 1):
            raise ValueError(f"tier {self.tier} does not fit {nodes} nodes (0 = one node, up to {TIERS - 1})")
        if not 0.0 < self.nic_share <= 1.0:
            raise ValueError(f"nic_share must be in (0, 1], got {self.nic_share}")

    def sent_to_other_nodes(self, bytes_total: float) -> float:
        """Bytes that each member's NIC sends while *bytes_total* are gathered, or reduced and scattered, on rings.

        A ring leaves a node once with (n - 1)/n of the bytes; several rings share the NICs of a node's members.
        """
        if self.nodes == 1:
            return 0.0
        return bytes_total * (self.ranks - 1) / self.ranks / self.ranks_per_node


@dataclass(frozen=True, slots=True)
class Collectives:
    """Seconds of collectives among groups of GPUs on one fabric."""

    fabric: FabricModel
    _known_s: Latest[tuple[GroupShape, str, tuple[int, ...], bytes], Floats] = field(
        default_factory=partial(Latest, 4096), compare=False, repr=False
    )
    """What they take on a few sizes."""

    @shared(most=4096)
    def group(self, ranks: int, stride: int = 1, first_gpu: int = 0, nic_share: float = 1.0) -> GroupShape:
        """Shape of the group first_gpu, first_gpu + stride, ... (*ranks* GPUs).

        Tensor-parallel groups have stride 1, groups over ranks at one tensor-parallel index have stride tp.
        """
        cluster = self.fabric.cluster
        last_gpu = first_gpu + (ranks - 1) * stride
        if ranks < 1 or stride < 1 or first_gpu < 0 or last_gpu >= cluster.gpus:
            raise InfeasibleError(
                f"a group of {ranks} GPUs {stride} apart from GPU {first_gpu} on does not fit "
                f"{cluster.name} with {cluster.gpus} GPUs"
            )
        per_node, nodes = _members_by_node(ranks, stride, first_gpu, cluster.node.gpus)
        return GroupShape(
            ranks=ranks,
            ranks_per_node=per_node,
            nodes=nodes,
            tier=self.fabric.pair_tier(first_gpu, last_gpu),
            nic_share=nic_share,
            blocks=int(self.fabric.places(2, first_gpu, ranks, stride)),
            pods=int(self.fabric.places(3, first_gpu, ranks, stride)),
            stride=stride,
        )

    @shared(most=4096)
    def wires(self, group: GroupShape) -> Wires:
        """What the hardware gives *group*: rates, shares that cross each layer, latency."""
        fabric, calibration = self.fabric, self.fabric.calibration
        cluster = fabric.cluster
        nvlink = cluster.gpu.nvlink_bytes_per_s * cluster.node.nvlink_share(group.ranks_per_node)
        places = self._places(group)
        # rings and trees follow the numbering, and use all the NICs of their members wherever they leave a node
        tiers = list(places)
        spacing = None if group.stride is None else max(group.stride, cluster.node.gpus)
        crossing_share = partial(fabric.crossing_share, between_nodes=group.nodes, spacing_gpus=spacing)
        shares = [float(crossing_share(tier, count)) for tier, count in places.items()]
        nic_share = group.nic_share * cluster.node.collective_share
        rates = fabric.bytes_per_s(tiers, shares) * nic_share
        worst = fabric.bytes_per_s(tiers) * nic_share
        remote = tuple(
            (1 - group.ranks_per_node / group.ranks if tier == 1 else 1 - 1 / count, rate)
            for tier, count, rate in zip(tiers, places.values(), worst.tolist(), strict=True)
        )
        nic_bytes_per_s = min(rates.tolist(), default=math.inf)
        channels = channels_between_nodes(cluster.gpu.calibration, *self._nics(group))
        note(
            nvlink_bytes_per_s=nvlink * calibration.nvlink_efficiency,
            nic_bytes_per_s=nic_bytes_per_s if group.nodes > 1 else None,
        )
        return Wires(
            ranks=group.ranks,
            nodes=group.nodes,
            ranks_per_node=group.ranks_per_node,
            nvlink_bytes_per_s=nvlink * calibration.nvlink_efficiency,
            p2p_nvlink_bytes_per_s=nvlink * calibration.p2p_nvlink_efficiency,
            nic_bytes_per_s=nic_bytes_per_s,
            remote=remote,
            propagation_s=float(fabric.propagation_s(group.tier)),
            calibration=calibration,
            ring_step_s=cluster.node.ring_step_s,
            all_to_all_share=cluster.node.all_to_all_share,
            tree_channels=min(MOST_CHANNELS, 2 * channels),
        )

    def _places(self, group: GroupShape) -> dict[int, int]:
        """Nodes, blocks, pods the group spreads over, by the tier its traffic between them crosses."""
        fabric = self.fabric.cluster.fabric
        blocks = max(2, group.blocks or math.ceil(group.nodes / fabric.nodes_per_block))
        pods = max(2, group.pods or math.ceil(blocks / fabric.blocks_per_pod))
        return dict(list({1: group.nodes, 2: blocks, 3: min(pods, blocks)}.items())[: group.tier])

    @shared(most=4096)
    def tuner(self, group: GroupShape) -> Tuner:
        """NCCL's own estimates for *group*."""
        nics, nic_bytes_per_s = self._nics(group)
        wires = replace(self.wires(group), nic_bytes_per_s=nics * nic_bytes_per_s / group.ranks_per_node)
        return Tuner(wires, self.fabric.cluster.gpu.calibration, nics, nic_bytes_per_s)

    def _nics(self, group: GroupShape) -> tuple[float, float]:
        """NICs of the members on a node, and the rate of one that NCCL counts on; those of one GPU are one to it."""
        node = self.fabric.cluster.node
        nics = min(node.nics, node.gpus)
        rate = NCCL_NIC_SHARE * node.nic_bytes_per_s * node.nics / max(nics, 1)
        return nics * node.collective_share * group.ranks_per_node / node.gpus, rate

    def all_reduce_options(self, bytes_total: ArrayLike, group: GroupShape) -> dict[str, Floats]:
        """Seconds of every algorithm and protocol that applies to an all-reduce."""
        wires = self.wires(group)
        return {name: formula(bytes_total, wires) for name, formula in self._all_reduces(group).items()}

    def _all_reduces(self, group: GroupShape) -> dict[str, Callable[[ArrayLike, Wires], Floats]]:
        """The formulas of all_reduce_options."""
        node, several = self.fabric.cluster.node, group.nodes > 1
        usable = {protocol.name for protocol in self._protocols}
        formulas = {name: formula for name, formula in _ALL_REDUCES.items() if name.split()[1] in usable}
        if node.nvlink_sharp and self.fabric.calibration.nvls and group.ranks_per_node > 2:
            return formulas | (_SWITCHED_ACROSS if several else _SWITCHED)
        return formulas

    @property
    def _protocols(self) -> tuple[Protocol, ...]:
        return (SIMPLE,) if self.fabric.cluster.node.simple_only else PROTOCOLS

    @shared(most=4096)
    def _picked(self, group: GroupShape, options: _Options) -> Picked:
        """What NCCL picks for an all-reduce or a half."""
        wires, tuner = self.wires(group), self.tuner(group)
        # the tuner of AWS's plug-in (aws-ofi-nccl, src/tuner) leaves what stays inside a node to NCCL
        providers = wires.ring_step_s > 0 and wires.nodes > 1
        fastest = providers or not wires.calibration.nccl_picks
        if options == "all_reduce":
            formulas = {name: _on(wires, formula) for name, formula in self._all_reduces(group).items()}
            return Picked(tuner.all_reduce, formulas, fastest)
        in_place = options == "half_in_place"
        times = {f"ring {one.name}": ring_half_time(wires, one, in_place) for one in self._protocols}
        if self._has_pat(group):
            times["PAT"] = pat_time(wires, in_place)
        return Picked(tuner.half, {name: time.seconds for name, time in times.items()}, fastest)

    def _has_pat(self, group: GroupShape) -> bool:
        """NCCL has it since 2.23."""
        old = self.fabric.calibration.nccl_before_2_18
        return group.nodes > 1 and group.ranks_per_node == 1 and not old

    def half_options(
        self, bytes_total: ArrayLike, group: GroupShape, in_place: bool = False
    ) -> dict[str, Floats]:
        """The algorithms for an all-gather or a reduce-scatter, and their seconds."""
        wires = self.wires(group)
        half_s = partial(ring_half_s, in_place=in_place)
        options = {f"ring {one.name}": half_s(bytes_total, wires, one) for one in self._protocols}
        if self._has_pat(group):
            options["PAT"] = pat_s(bytes_total, wires, in_place)
        return options

    def _half_s(self, bytes_total: ArrayLike, group: GroupShape, in_place: bool) -> Floats:
        """What NCCL picks of half_options, in one go; a listener also sees them one by one."""
        options: _Options = "half_in_place" if in_place else "half"
        aside(lambda: self._note_picked(bytes_total, group, options))
        sizes = np.asarray(bytes_total, dtype=np.float64)
        if sizes.size > FEW_SIZES:
            return self._picked_s(sizes, group, options)
        key = (group, options, sizes.shape, sizes.tobytes())
        return remembered(self._known_s, key, lambda _: self._picked_s(sizes, group, options))

    def _note_picked(self, bytes_total: ArrayLike, group: GroupShape, options: _Options) -> None:
        """Tell a listener which of *options* is picked for most sizes, and let it see them all."""
        if group.ranks == 1:
            return
        if options == "all_reduce":
            names = list(self.all_reduce_options(bytes_total, group))
        else:
            names = list(self.half_options(bytes_total, group, options == "half_in_place"))
        places = self._picked(group, options).places(np.asarray(bytes_total, dtype=np.float64).reshape(-1))
        if len(places):
            note(algorithm=names[int(np.bincount(places).argmax())])

    def _picked_s(self, sizes: Floats, group: GroupShape, options: _Options) -> Floats:
        def seconds() -> Floats:
            return self._picked(group, options).seconds(sizes.reshape(-1)).reshape(sizes.shape)

        return _unless_nothing(seconds, sizes, group)

    @priced()
    def all_reduce_s(self, bytes_total: ArrayLike, group: GroupShape) -> Floats:
        """Every rank ends with the sum of all ranks' *bytes_total*."""
        sizes = np.asarray(bytes_total, dtype=np.float64)
        aside(lambda: self._note_picked(sizes, group, "all_reduce"))
        return self._picked_s(sizes, group, "all_reduce")

    @priced()
    def all_gather_s(self, bytes_total: ArrayLike, group: GroupShape, in_place: bool = False) -> Floats:
        """Every rank ends with *bytes_total*, of which it had 1/n (already in the result's buffer: in place)."""
        return self._half_s(bytes_total, group, in_place)

    @priced()
    def reduce_scatter_s(self, bytes_total: ArrayLike, group: GroupShape, in_place: bool = False) -> Floats:
        """Every rank ends with its 1/n of the sum of all ranks' *bytes_total*."""
        return self._half_s(bytes_total, group, in_place)

    @priced()
    def all_to_all_s(self, bytes_total: ArrayLike, group: GroupShape) -> Floats:
        """Every rank spreads its *bytes_total* evenly over all ranks (itself included)."""
        return _fastest({"pairwise": all_to_all_s(bytes_total, self.wires(group))}, bytes_total, group)

    def broadcast_s(self, bytes_total: ArrayLike, group: GroupShape) -> Floats:
        """Every rank ends with the *bytes_total* of one of them."""
        wires = self.wires(group)
        options = {f"ring {one.name}": ring_broadcast_s(bytes_total, wires, one) for one in self._protocols}
        return _fastest(options, bytes_total, group)

    def p2p_s(self, message_bytes: ArrayLike, tier: ArrayLike) -> Floats:
        """One send/recv between two GPUs.

            t = latency of the tier + start of the message [NVLink] + bytes / rate of the tier

        Counted: launch, wire, the NIC's share when all GPUs of the node send.
        Ignored: start-up of the pipeline (messages are sent in small chunks).
        Source: Hockney, Parallel Computing 20(3), 1994 (latency and bandwidth).
        """
        sizes = np.asarray(message_bytes, dtype=np.float64)
        wire_s = sizes / self.fabric.bytes_per_s(tier)
        later_s = message_start_s(sizes, wire_s, self.fabric.calibration)
        later_s = np.where(np.asarray(tier) == 0, later_s, 0.0)
        return np.where(sizes > 0, self.fabric.latency_s(tier) + later_s + wire_s, 0.0)


def _members_by_node(ranks: int, stride: int, first_gpu: int, node_gpus: int) -> tuple[int, int]:
    """Members on the fullest node, and nodes, of the group first_gpu, first_gpu + stride, ...

    In closed form where stride and node divide each other (all degrees of two): a group of 100,000 GPUs then costs
    what one of eight does.
    """
    if stride % node_gpus == 0:
        return 1, ranks
    if node_gpus % stride == 0:
        share = node_gpus // stride
        inside = first_gpu % node_gpus // stride  # places of the group's stride left free on the first node
        nodes = (inside + ranks - 1) // share + 1
        return share if nodes > 2 else max(min(ranks, share - inside), ranks - (share - inside)), nodes
    members = first_gpu + stride * np.arange(ranks, dtype=np.int64)
    # members ascend, so a node's follow each other (np.unique would sort them)
    counts = np.diff(np.flatnonzero(np.diff(members // node_gpus, prepend=-1)), append=ranks)
    return int(counts.max()), len(counts)


def _on(wires: Wires, formula: Callable[[ArrayLike, Wires], Floats]) -> Callable[[Floats], Floats]:
    return lambda sizes: formula(sizes, wires)


def _fastest(options: dict[str, Floats], bytes_total: ArrayLike, group: GroupShape) -> Floats:
    """The smallest of the options for each size."""
    aside(lambda: _note_fastest(options, group))
    # One after the other: stacking a few short arrays takes longer than the comparisons.
    least_s = partial(reduce, np.minimum, options.values())
    return _unless_nothing(least_s, np.asarray(bytes_total, dtype=np.float64), group)


def _note_fastest(options: dict[str, Floats], group: GroupShape) -> None:
    """Tell a listener which algorithm takes least over all sizes."""
    if group.ranks > 1:
        note(algorithm=min(options, key=lambda name: float(np.sum(options[name]))))


def _unless_nothing(seconds: Callable[[], Floats], sizes: Floats, group: GroupShape) -> Floats:
    """Nothing to send or nobody to send to costs nothing."""
    least = sizes.min(initial=math.inf)
    if not least >= 0:
        raise ValueError("bytes_total must be >= 0")
    if group.ranks == 1:
        return np.zeros_like(sizes)
    return seconds() if least > 0 else np.where(sizes > 0, seconds(), 0.0)
