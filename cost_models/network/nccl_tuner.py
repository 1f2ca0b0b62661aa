"""Which algorithm and protocol NCCL picks: not the fastest one, but the one that its own tables say is fastest.

NCCL times nothing. When a communicator is made, its tuner works out a latency and a bandwidth for every algorithm and
protocol from tables, and each call takes the smallest latency + bytes / bandwidth. The tables hold for any number of
ranks and know nothing of the NICs' transport, so what is picked is often not what would be fastest: Simple where LL128
would be, a ring between two nodes where a tree would send half as much.

Counted: its tables by GPU generation and number of nodes, limits of a channel, the channels of a group's NICs, tables
of before 2023 where the calibration asks for them.
Ignored: PCIe within a node, smaller changes of the tables from release to release. A provider whose transport has slow
steps brings a tuner that knows them: between its nodes the fastest is picked.
Source: NVIDIA/nccl 2.27 to 2.30, src/graph/tuning.cc (tables and estimates), src/graph/search.cc (channels); 2.10 and
2.17 (latencies of before 2.18).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.network.algorithms import (
    LL,
    LL128,
    NETWORK_OVERHEAD_S,
    NVLS_INTRA_S,
    NVLS_TREE_NETWORK_S,
    PROTOCOLS,
    RING_SIMPLE_LATENCY_FACTOR,
    SIMPLE,
    TREE_CORRECTION,
    TREE_LL128_SHARE,
    TREE_LL_DIVISOR,
    TREE_SHARE,
    CollectiveTime,
    Protocol,
    Wires,
    pat_latency_s,
)

_PLATEAU_BYTES = 64  # per rank and channel, from which a ring of Simple pays 1.4 times its latency
_DOUBLED_BYTES_PER_S = 25e9  # search.cc: channels of at least that rate are cut into two
_WHOLE_BYTES_PER_S = 50e9  # search.cc: since Hopper more than four of less than that are not
_HEADS = 16  # ranks that take part of an in-switch reduction each, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerTable:
    """What the tuner believes of one GPU generation, bytes/s; triples: on one node, on two, on more."""

    ll: float
    """LL on a ring or tree in a node."""
    ring_ll128_channel: float
    tree_channel: tuple[float, float, float]
    tree_ll128_channel: tuple[float, float, float]
    ll_network: tuple[float, float] = (39e9, 20.4e9)
    """LL between two nodes, between more: with Intel's processors, with AMD's on the servers of Ampere."""
    overhead_s: float = NETWORK_OVERHEAD_S
    """What the processor adds to a step of a ring across nodes."""
    bus: float = math.inf
    """Releases before 2.18 believe in no more than this of a ring or tree."""
    nvls_tree_channel: tuple[float, float, float] = (0.0, 57.7e9, 45.5e9)
    nvls_share: float = 0.85
    """Part of NVLink that the reduction in the switches reaches; Hopper's, for older ones have none."""
    speeds: tuple[float, ...] = (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3)
    """Rates of a channel that the search tries, GB/s."""


_TABLES = {
    "ampere": TunerTable(
        ll=87.7e9, ring_ll128_channel=20e9, tree_channel=(24e9, 23.6e9, 17.8e9),
        tree_ll128_channel=(20e9, 20e9, 20e9), ll_network=(22.5e9, 19e9), overhead_s=2e-6, bus=235e9,
    ),
    "hopper": TunerTable(
        ll=141e9, ring_ll128_channel=36.7e9, tree_channel=(38.7e9, 41.4e9, 36e9),
        tree_ll128_channel=(36.7e9, 36.7e9, 29e9), bus=370e9,
    ),
    "blackwell": TunerTable(
        ll=282e9, ring_ll128_channel=40e9, tree_channel=(70e9, 42.8e9, 24e9),
        tree_ll128_channel=(55.6e9, 31.67e9, 20e9), nvls_tree_channel=(0.0, 96e9, 80e9), nvls_share=0.74,
        speeds=(90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
    ),
}  # fmt: skip
# Before 2.18: an NVLink step of LL in a group across nodes, and no overhead of the processor
_LL_ACROSS_STEP = 1.8
_BEFORE_2_18 = {
    "LL": replace(
        LL, ring_base_s=3.6e-6, tree_base_s=4.4e-6, ring_nvlink_step_s=0.47e-6, tree_nvlink_step_s=0.52e-6,
        overhead_factor=0.0, wire_trips=0,
    ),
    "LL128": replace(LL128, ring_base_s=10e-6, tree_base_s=4.4e-6, overhead_factor=0.0, wire_trips=0),
    "Simple": replace(
        SIMPLE, tree_base_s=0.0, tree_nvlink_step_s=28e-6, ring_network_step_s=9.6e-6, tree_network_step_s=28e-6,
        overhead_factor=0.0, wire_trips=0,
    ),
}  # fmt: skip


def channels_between_nodes(generation: str, nics: float, nic_bytes_per_s: float) -> float:
    """Channels that the search finds on the NICs of a group's ranks on one node; NCCL runs twice as many."""
    channels = max(1, round(nics))
    several = generation != "ampere" and channels > 4 and nic_bytes_per_s < _WHOLE_BYTES_PER_S
    return channels * (2 if nic_bytes_per_s >= _DOUBLED_BYTES_PER_S and not several else 1)


@dataclass(frozen=True)
class Tuner:
    """The estimates of NCCL for one group.

    Attributes:
        wires: the group on the network as NCCL sees it: every NIC at its line rate, nobody else on it.
        generation: GPU generation; one that the tables do not know counts as Hopper.
        nics: number of NICs that the group's ranks have on one node.
        nic_bytes_per_s: line rate of one NIC.
    """

    wires: Wires
    generation: str
    nics: float
    nic_bytes_per_s: float

    @property
    def _table(self) -> TunerTable:
        return _TABLES.get(self.generation, _TABLES["hopper"])

    @property
    def channels(self) -> float:
        """Channels between nodes, for limits of a channel; in a node there are always enough: infinite."""
        if self.wires.nodes == 1:
            return math.inf
        return channels_between_nodes(self.generation, self.nics, self.nic_bytes_per_s)

    @property
    def _old(self) -> bool:
        return self.wires.calibration.nccl_before_2_18

    @property
    def _ll_bytes_per_s(self) -> float:
        return self._table.ll if self.wires.nodes == 1 else self._table.ll_network[self.wires.nodes > 2]

    def _nominal(self, protocol: Protocol) -> Protocol:
        """The latencies that the release counts on."""
        if not self._old:
            return protocol
        nominal, step = _BEFORE_2_18[protocol.name], _LL_ACROSS_STEP
        if protocol is not LL or self.wires.nodes == 1:
            return nominal
        ring_s, tree_s = step * nominal.ring_nvlink_step_s, step * nominal.tree_nvlink_step_s
        return replace(nominal, ring_nvlink_step_s=ring_s, tree_nvlink_step_s=tree_s)

    def _bus_bytes_per_s(self, wires_bytes_per_s: float) -> float:
        return min(wires_bytes_per_s, self._table.bus) if self._old else wires_bytes_per_s

    def _of_nodes(self, by_nodes: tuple[float, float, float]) -> float:
        """Limit of all channels together."""
        return self.channels * by_nodes[min(self.wires.nodes, 3) - 1]

    def _ring_latency_s(self, protocol: Protocol, rounds: int) -> float:
        """Base + NVLink steps x max(NVLink step, proxy) + network steps x network step."""
        wires, protocol = self.wires, self._nominal(protocol)
        network_steps = rounds * (wires.nodes - 1)
        step_s = protocol.ring_nvlink_step_s
        if wires.nodes > 1:
            step_s = max(step_s, protocol.overhead_factor * self._table.overhead_s)
        alone = wires.ranks_per_node == 1
        network_s = protocol.tree_network_step_s if alone else protocol.ring_network_step_s
        network_s += protocol.wire_trips * wires.propagation_s
        nvlink_steps = rounds * (wires.ranks - 1) - network_steps
        return protocol.ring_base_s + nvlink_steps * step_s + network_steps * network_s

    def _ring(self, protocol: Protocol, rounds: int) -> CollectiveTime:
        """Latency + rounds (n - 1)/n bytes / bus bandwidth: LL half of it, LL128 0.92, both limited.

        Releases before 2.18 give LL a quarter of it across nodes and to an all-reduce, else a third.
        """
        wires = self.wires
        bytes_per_s = self._bus_bytes_per_s(wires.ring_bytes_per_s)
        if protocol is LL:
            share = 0.5 if not self._old else 1 / 4 if wires.nodes > 1 or rounds == 2 else 1 / 3
            bytes_per_s = min(self._ll_bytes_per_s, share * bytes_per_s)
        elif protocol is LL128:
            bytes_per_s = min(0.92 * bytes_per_s, self.channels * self._table.ring_ll128_channel)
        latency_s = self._ring_latency_s(protocol, rounds)
        plateau = rounds == 2 and protocol is SIMPLE and wires.nodes > 1
        factor, long_bytes = RING_SIMPLE_LATENCY_FACTOR, 2 * self.channels * wires.ranks * _PLATEAU_BYTES
        if self._old:
            factor, long_bytes = 1.9, wires.ranks * 4096
        return CollectiveTime(
            latency_s=latency_s,
            wire_share=rounds * (wires.ranks - 1) / wires.ranks,
            wire_bytes_per_s=bytes_per_s,
            long_s=(factor - 1) * latency_s if plateau else 0.0,
            long_bytes=long_bytes if plateau else 0.0,
        )

    def _tree(self, protocol: Protocol) -> CollectiveTime:
        """Latency up and down + 2 bytes / bus bandwidth, corrections by size apart."""
        wires, table, protocol = self.wires, self._table, self._nominal(protocol)
        network_s = protocol.tree_network_step_s + protocol.wire_trips * wires.propagation_s
        chain_s = (wires.ranks / wires.nodes - 1) * protocol.tree_nvlink_step_s
        bytes_per_s = TREE_SHARE * self._bus_bytes_per_s(wires.tree_bytes_per_s)
        bytes_per_s = min(bytes_per_s, self._of_nodes(table.tree_channel))
        if protocol.name == "LL":
            bytes_per_s = min(bytes_per_s / TREE_LL_DIVISOR, self._ll_bytes_per_s)
        elif protocol.name == "LL128":
            share = TREE_LL128_SHARE[wires.nodes > 1]
            bytes_per_s = min(bytes_per_s * share, self._of_nodes(table.tree_ll128_channel))
        latency_s = protocol.tree_base_s + 2 * (chain_s + int(math.log2(wires.nodes)) * network_s)
        return CollectiveTime(latency_s, 2.0, bytes_per_s)

    def _nvls(self) -> CollectiveTime:
        """In the switches: on one node 25 us + bytes / bandwidth, every rank the head of a channel; a tree on several.

        Of 4 GPUs the channels are too few for it to beat a ring, of 6 and more it does. Source: 4 H200s and 5 B200s
        take the ring, 7 and 8 the switches (stas00/ml-engineering).
        """
        wires, bytes_per_s = self.wires, self._nvls_bytes_per_s
        bus_share = 2 * (wires.ranks - 1) / wires.ranks
        if wires.nodes == 1:
            return CollectiveTime(NVLS_INTRA_S, bus_share, bytes_per_s)
        network_s = NVLS_TREE_NETWORK_S + 2 * wires.propagation_s
        latency_s = NVLS_INTRA_S + 2 * int(math.log2(wires.nodes)) * network_s
        between = min(wires.tree_network_bytes_per_s, self._of_nodes(self._table.nvls_tree_channel))
        return CollectiveTime(latency_s, bus_share, min(bytes_per_s, between))

    @property
    def _nvls_bytes_per_s(self) -> float:
        """Bus bandwidth: twice what the heads' channels carry, for an all-reduce puts reduction and copy in a row."""
        heads, table = min(self.wires.ranks_per_node, _HEADS), self._table
        head_bytes_per_s = self.wires.nvlink_bytes_per_s / heads
        speed = next(
            (1e9 * speed for speed in table.speeds if 0.99e9 * speed <= head_bytes_per_s), head_bytes_per_s
        )
        return 2 * table.nvls_share * speed * (heads - 1)

    @cached_property
    def all_reduce(self) -> dict[str, CollectiveTime]:
        """Estimates by the name of the algorithm and protocol."""
        rings = {f"ring {protocol.name}": self._ring(protocol, 2) for protocol in PROTOCOLS}
        trees = {f"tree {protocol.name}": self._tree(protocol) for protocol in PROTOCOLS}
        return {**rings, **trees, "NVLS" if self.wires.nodes == 1 else "NVLS tree": self._nvls()}

    @cached_property
    def half(self) -> dict[str, CollectiveTime]:
        """What NCCL picks for an all-gather or a reduce-scatter."""
        rings = {f"ring {protocol.name}": self._ring(protocol, 1) for protocol in PROTOCOLS}
        nominal_s = pat_latency_s(self.wires, base_factor=1.0, network_factor=1.0)
        return rings | {"PAT": CollectiveTime(nominal_s, 1.0, 0.75 * self.wires.ring_bytes_per_s)}


class Picked:
    """The seconds of what NCCL picks among some algorithms, by size.

    A message takes at least as long as a shorter one: where NCCL changes too late to a faster algorithm its time would
    drop, which no published sweep shows.
    """

    def __init__(
        self,
        estimates: Mapping[str, CollectiveTime],
        formulas: Mapping[str, Callable[[Floats], Floats]],
        fastest: bool,
    ) -> None:
        """*formulas*: what each one really takes; *fastest*: whoever picks knows that, as providers' tuners do."""
        self.names = list(formulas)
        self._formulas, self._fastest = list(formulas.values()), fastest
        self._times = CollectiveTime.stacked(estimates[name] for name in self.names)
        self._trees = [
            (row, 2.0 / float(estimates[name].wire_bytes_per_s), np.array((*TREE_CORRECTION[name[5:]], 1.0)))
            for row, name in enumerate(self.names)
            if name.startswith("tree ")
        ]

    def places(self, sizes: Floats) -> Ints:
        """Which of the names, for [n] sizes."""
        if self._fastest:
            return np.asarray(np.argmin([formula(sizes) for formula in self._formulas], axis=0))
        switches, places, _ = self._ranges
        return np.asarray(places[np.searchsorted(switches, sizes, side="right")])

    def seconds(self, sizes: Floats) -> Floats:
        """What they take, [n]."""
        if self._fastest:
            return np.asarray(reduce(np.minimum, [formula(sizes) for formula in self._formulas]))
        switches, places, least_s = self._ranges
        ranges = np.searchsorted(switches, sizes, side="right")
        return np.maximum(self._seconds(sizes, places[ranges]), least_s[ranges])

    def _seconds(self, sizes: Floats, places: Ints) -> Floats:
        first = places[0] if len(places) else 0
        if (places == first).all():
            return self._formulas[first](sizes)
        out = np.empty(len(sizes))
        for place in np.unique(places).tolist():
            chosen = places == place
            out[chosen] = self._formulas[place](sizes[chosen])
        return out

    def _smallest(self, sizes: Floats) -> Ints:
        """Which estimate is smallest."""
        seconds = self._times.seconds(sizes)
        # NCCL looks up by powers of two how much of its bandwidth a tree reaches
        octave = np.log2(np.maximum(sizes, 64.0) / 64).astype(np.int64)
        for row, s_per_byte, reached in self._trees:
            share = reached[np.minimum(octave, len(reached) - 1)]
            seconds[row] += sizes * s_per_byte * (1.0 / share - 1.0)
        return np.asarray(seconds.argmin(axis=0))

    @cached_property
    def _ranges(self) -> tuple[Floats, Ints, Floats]:
        """Ranges of sizes with one pick each: where each next one begins, its pick, the time that it takes at least."""
        places = self._smallest(_SIZES)
        changes = np.flatnonzero(places[1:] != places[:-1])
        picks, low, high = places[np.append(changes, len(places) - 1)], _SIZES[changes], _SIZES[changes + 1]
        for _ in range(_HALVINGS):  # of the gap between two sizes
            middle = (low + high) / 2
            same = self._smallest(middle) == picks[:-1]
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        return high, picks, np.maximum.accumulate(np.append(0.0, self._seconds(low, picks[:-1])))


_SIZES = 2.0 ** np.arange(0.0, 44.0, 0.25)
"""A pick that holds for less than a quarter of an octave is not seen."""
_HALVINGS = 20
