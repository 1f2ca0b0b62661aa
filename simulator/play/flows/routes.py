"""Who sends to whom in a step, and over which links: one row of links for every group of ranks on every stage.

Links that can never hold anything up are left out, and of links that always carry the same one stands for all (rails of
a tensor-parallel group, the hops of a ring on a fabric without shared up-links).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints, offsets_of
from hdpsim.cost_models.hardware.parts import KINDS
from hdpsim.cost_models.layout.switches import Parallel
from hdpsim.cost_models.network.links import Links
from hdpsim.cost_models.step.step_traffic import HOST_KINDS, StepTraffic, SumTraffic, TrafficKind
from hdpsim.simulator.network.link_flaps_on_flows import Flap
from hdpsim.simulator.plan import Plan

BLOCK_KINDS: frozenset[TrafficKind] = frozenset({"shards", "experts"})
"""Collectives of ranks that meet in every layer: all of them take part, whatever micro-batches they run."""
EQUAL = 1e-9  # relative difference below which links carry the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Wired:
    """Where a step is played: links, and which GPUs its ranks have.

    Attributes:
        links: of the cluster.
        parallel: degrees and numbering.
        seed: seed of the hashes that choose up-links.
        every_link: follow links that always carry the same one by one.
        record: keep a record of what goes over every link, those that hold nobody up included.
        flaps: links that go down in the step; times count from its begin.
    """

    links: Links
    parallel: Parallel
    seed: int = 0
    every_link: bool = False
    record: bool = False
    flaps: tuple[Flap, ...] = ()


class Sent(NamedTuple):
    """Flows between GPUs: the row each belongs to, and its bytes per byte that the busiest GPU of the row sends."""

    row: Ints
    source: Ints
    target: Ints
    weight: Floats

    @classmethod
    def of(cls, row: Ints, source: Ints, target: Ints, weight: Floats | float = 1.0) -> Sent:
        """From arrays of any shapes that fit together."""
        weights = np.asarray(weight, dtype=float)
        row, source, target, weights = map(np.ravel, np.broadcast_arrays(row, source, target, weights))
        return cls(row, source, target, weights)

    @classmethod
    def together(cls, parts: list[Sent]) -> Sent:
        """What several lists send, as one list."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def only(self, chosen: Bools) -> Sent:
        """Only some of what is sent."""
        return Sent(self.row[chosen], self.source[chosen], self.target[chosen], self.weight[chosen])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """What every row puts on links per byte that its busiest GPU sends.

    Attributes:
        offsets: row r has the entries offsets[r]:offsets[r + 1]; none: nothing of it leaves a node.
        link: link of each entry.
        flows: bytes of each entry on that link.
        largest: [rows]: bytes of the largest flow.
    """

    offsets: Ints
    link: Ints
    flows: Floats
    largest: Floats

    @classmethod
    def of(cls, links: Links, useful: Bools, sent: Sent, rows: int, connection: int, seed: int) -> Rows:
        """Route every flow over the *useful* links; *connection* tells flows of several kinds between GPUs apart."""
        node_gpus = links.cluster.node.gpus
        sent = sent.only(sent.source // node_gpus != sent.target // node_gpus)
        largest = np.zeros(rows)
        np.maximum.at(largest, sent.row, sent.weight)
        if not len(sent.row):
            none = np.zeros(rows + 1, dtype=np.int64)
            return cls(offsets=none, link=none[:0], flows=np.zeros(0), largest=largest)
        pair = sent.source * links.cluster.gpus + sent.target  # many rows send over the same pairs
        pairs, which = np.unique(pair, return_inverse=True)
        source, target = np.divmod(pairs, links.cluster.gpus)
        routes = links.routes(source, target, connection=connection, seed=seed)
        used = useful[routes.link]
        of_pair = np.repeat(np.arange(len(pairs)), np.diff(routes.offsets))[used]
        link, share = routes.link[used], routes.share[used]
        starts = offsets_of(np.bincount(of_pair, minlength=len(pairs)))
        counts = np.diff(starts)[which]
        entry = np.arange(int(counts.sum())) + np.repeat(starts[which] - offsets_of(counts)[:-1], counts)
        weight = np.repeat(sent.weight, counts) * share[entry]
        return cls._summed(links, np.repeat(sent.row, counts), link[entry], weight, largest)

    @classmethod
    def of_hosts(
        cls, links: Links, useful: Bools, row: Ints, gpu: Ints, rows: int, way: Literal["out", "in"]
    ) -> Rows:
        """A copy between each of these GPUs and its host's memory."""
        routes = links.host_routes(gpu, way)
        used = useful[routes.link]
        largest = np.zeros(rows)
        largest[row] = 1.0
        row = np.repeat(row, np.diff(routes.offsets))
        return cls._summed(links, row[used], routes.link[used], routes.share[used], largest)

    @classmethod
    def _summed(cls, links: Links, row: Ints, link: Ints, weight: Floats, largest: Floats) -> Rows:
        keys, place = np.unique(row * len(links) + link, return_inverse=True)
        flows = np.bincount(place, weights=weight, minlength=len(keys)).astype(np.float64)
        row, number = np.divmod(keys, len(links))
        offsets = offsets_of(np.bincount(row, minlength=len(largest)))
        return cls(offsets=offsets, link=number, flows=flows, largest=largest)

    @property
    def row(self) -> Ints:
        """The row of each entry."""
        return np.repeat(np.arange(len(self.largest)), np.diff(self.offsets))

    def kept(self, stay: Bools) -> Rows:
        """These rows without the entries of some links; *stay*: [links]."""
        on_link = stay[self.link]
        offsets = offsets_of(np.bincount(self.row[on_link], minlength=len(self.largest)))
        return replace(self, offsets=offsets, link=self.link[on_link], flows=self.flows[on_link])

    def bytes_per_s(self, capacity_bytes_per_s: Floats) -> Floats:
        """[rows]: rate of the busiest GPU while a row's flows have their links to themselves; infinite: none."""
        rate = np.full(len(self.largest), np.inf)
        np.minimum.at(rate, self.row, capacity_bytes_per_s[self.link] / self.flows)
        return rate

    def entries(self, row: int) -> tuple[Ints, Floats]:
        """Links and bytes on them of one row."""
        own = slice(*self.offsets[row : row + 2].tolist())
        return self.link[own], self.flows[own]


def _can_hold_up(links: Links, offloads: bool) -> Bools:
    """[links]: those that can be full before what feeds them is.

    Not ports inside a node, PCIe ports as fast as their NIC (and their host link, if the step *offloads*), and bundles
    of up-links that take all their NICs send.
    """
    rate, node, fabric = links.capacity_bytes_per_s, links.cluster.node, links.cluster.fabric
    keeps = np.ones(len(links), dtype=np.bool_)
    nics = np.concatenate([rate[links.of_kind("nic-out")], rate[links.of_kind("nic-in")]])
    if not len(nics):
        return keeps
    nic = float(nics.max())
    blocks = -(-links.cluster.nodes // fabric.nodes_per_block)
    leaf_nics = fabric.nodes_per_block * node.nics * blocks / max(links.leaf.switches, 1)
    pod_nics = leaf_nics * links.leaf.switches / max(links.spine.switches, 1)
    enough = {
        "gpu": 0.0,
        "pcie": nic * max(1.0, node.nics / node.gpus) + offloads * node.gpu.host_link_bytes_per_s,
        "leaf": nic * leaf_nics if links.leaf.bins == 1 else np.inf,
        "spine": nic * pod_nics if links.spine.bins == 1 else np.inf,
    }
    for kind in KINDS:
        own, needed = links.of_kind(kind), enough.get(kind.partition("-")[0], np.inf)
        keeps[own] = rate[own] < needed * (1.0 - EQUAL)
    return keeps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRoutes:
    """Rows of all transfers of a plan. Row of group g on stage s: s * groups + g; of sums: the stage."""

    links: Links
    """For a record, those that hold nobody up have no limit."""
    follows: Ints
    """[links]: the link in the rows that carries the same; -1: carries nothing, or is left out."""
    names: tuple[str, ...]
    """Of the groups of each row ("ranks 0 to 7, stage 1"); empty without a record."""
    group_of_unit: Ints
    groups: int
    passes: dict[TrafficKind, Rows]
    transfers: dict[tuple[int, int], Rows]
    """By sending and receiving stage; rows are groups."""
    rank_transfers: dict[tuple[int, int], Rows]
    """The same where transfers hold stages, of every rank on its own; else empty."""
    gathers: Rows
    sums: Rows
    at_once_bytes_per_s: dict[TrafficKind, Floats]
    """[rows of passes]: rate of collectives that all ranks of a block do at once, whatever micro-batches they run."""

    @classmethod
    def of(
        cls,
        wired: Wired,
        plan: Plan,
        traffic: StepTraffic,
        pairs: list[tuple[int, int]],
        *,
        by_rank: bool = False,
    ) -> StepRoutes:
        """Everything that *plan* sends; *pairs*: stages between which transfers go, *by_rank*: each rank's alone."""
        links, parallel, seed = wired.links, wired.parallel, wired.seed
        kinds = {one.kind for one in traffic.passes}
        limits = _can_hold_up(links, not kinds.isdisjoint(HOST_KINDS))
        useful = limits | wired.record
        places = Places(links, plan, parallel)
        groups, everywhere = places.groups, places.groups * parallel.pp

        def rows(sent: Sent, count: int, connection: int) -> Rows:
            return Rows.of(links, useful, sent, count, connection, seed)

        passes = {
            kind: rows(places.passes(kind, traffic), everywhere, number)
            for number, kind in enumerate(sorted(kinds - HOST_KINDS))
        }
        for kind in kinds & HOST_KINDS:
            way: Literal["out", "in"] = "out" if kind == "offload" else "in"
            passes[kind] = Rows.of_hosts(links, useful, *places.members(), everywhere, way)
        numbered_pairs = list(enumerate(pairs, start=16)) if traffic.transfer_bytes.any() else []
        transfers = {pair: rows(places.transfer(*pair), groups, number) for number, pair in numbered_pairs}
        of_ranks = numbered_pairs if by_rank else []
        rank_transfers = {pair: rows(places.rank_transfer(*pair), plan.ranks, n) for n, pair in of_ranks}
        gathers, sums = (
            rows(places.sums(parts), parallel.pp, connection)
            for connection, parts in ((14, traffic.gathers), (15, traffic.sums))
        )
        at_once: dict[TrafficKind, Floats] = {}
        capacity = np.where(limits, links.capacity_bytes_per_s, np.inf)
        for number, kind in enumerate(sorted(kinds - HOST_KINDS)):
            if kind in BLOCK_KINDS:
                sent, row = places.at_once(kind, traffic)
                count = 1 + max(int(one.max(initial=0)) for one in (sent.row, row))
                at_once[kind] = rows(sent, count, number).bytes_per_s(capacity)[row]
        follows = np.arange(len(links))
        if not wired.every_link:
            families = [*passes.values(), *transfers.values(), *rank_transfers.values(), gathers, sums]
            follows = _one_of_each_kind(links, limits, families, wired.flaps)
        stay = follows == np.arange(len(links))
        if wired.record:
            unlimited = np.where(limits, links.capacity_bytes_per_s, np.inf)
            links = replace(links, capacity_bytes_per_s=unlimited)
        return cls(
            links=links,
            follows=follows,
            names=tuple(places.names(parallel.pp)) if wired.record else (),
            group_of_unit=places.group_of_unit,
            groups=groups,
            passes={kind: one.kept(stay) for kind, one in passes.items()},
            transfers={pair: one.kept(stay) for pair, one in transfers.items()},
            rank_transfers={pair: one.kept(stay) for pair, one in rank_transfers.items()},
            gathers=gathers.kept(stay),
            sums=sums.kept(stay),
            at_once_bytes_per_s=at_once,
        )

    def burst_bytes_per_s(self, kind: TrafficKind) -> Floats:
        """[rows of passes]: rate of the busiest GPU while nothing else is sent; infinite: nothing leaves a node."""
        if kind in self.at_once_bytes_per_s:
            return self.at_once_bytes_per_s[kind]
        return self.passes[kind].bytes_per_s(self.links.capacity_bytes_per_s)

    def who(self, label: str, row: int) -> str:
        """The label of one activity of a kind; empty without a record."""
        return f"{label} of {self.names[row]}" if self.names else ""


def _one_of_each_kind(links: Links, limits: Bools, families: list[Rows], flaps: tuple[Flap, ...]) -> Ints:
    """[links]: of links with the same rate that every row loads alike, the first; -1: no row loads it.

    Those that go down stand for themselves.

    Each row adds its load, relative to its largest flow, times a random number; sums that are the same are of the same
    loads (but for a chance of one in many billions).

    Args:
        links: of the cluster.
        limits: [links]: whether it can hold anybody up.
        families: rows.
        flaps: links that go down.
    """
    own = np.zeros(len(links))
    for flap in flaps:
        own[flap.links(links)] = flap.links(links) + 1
    random = np.random.default_rng(0)
    total = np.zeros(len(links))
    for rows in families:
        of_row = random.random(len(rows.largest)) / np.where(rows.largest > 0, rows.largest, 1.0)
        total += np.bincount(rows.link, weights=rows.flows * of_row[rows.row], minlength=len(links))
    used = np.flatnonzero(total)
    follows = np.full(len(links), -1, dtype=np.int64)
    if len(used):
        digits = np.round(np.log(np.stack([total[used], links.capacity_bytes_per_s[used]])) / EQUAL)
        key = np.vstack([digits, limits[used], own[used]])
        _, first, which = np.unique(key, axis=1, return_index=True, return_inverse=True)
        follows[used] = used[first[which.reshape(-1)]]
    return follows


class Places:
    """GPUs of a plan's groups, and what they send each other."""

    def __init__(self, links: Links, plan: Plan, parallel: Parallel) -> None:
        self._links, self._parallel, self._ranks = links, parallel, plan.ranks
        self._stage_stride = parallel.stage_stride(plan.ranks)
        self.group_of_unit, self._member, self._offsets = _distinct_groups(plan)
        self.groups = len(self._offsets) - 1
        self._of_member = np.repeat(np.arange(self.groups), np.diff(self._offsets))

    def names(self, stages: int) -> Iterator[str]:
        """Names of the groups on every stage."""
        for stage in range(stages):
            for group in range(self.groups):
                members = self._member[slice(*self._offsets[group : group + 2].tolist())]
                yield _ranks_words(members) + (f", stage {stage}" if stages > 1 else "")

    def _gpus(self, rank: Ints, stage: int) -> Ints:
        """[ranks, tp]"""
        first = rank * self._parallel.rank_stride + stage * self._stage_stride
        return first[:, None] + np.arange(self._parallel.tp)

    def _gpus_of_stage(self, index: Ints, stage: int) -> Ints:
        """GPUs by their number among those of a stage."""
        rank, lane = np.divmod(index, self._parallel.tp)
        return rank * self._parallel.rank_stride + stage * self._stage_stride + lane

    def ring(self, group: int, stage: int) -> tuple[Ints, Ints]:
        """[members, lanes]: the GPUs that send in a group's ring, and those that each sends to."""
        gpus = self._gpus(self._member[slice(*self._offsets[group : group + 2].tolist())], stage)
        return gpus, np.roll(gpus, -1, axis=0)

    def members(self) -> tuple[Ints, Ints]:
        """Row and GPU of every member of every group, on all stages."""
        stages = range(self._parallel.pp)
        row = np.concatenate([stage * self.groups + self._of_member for stage in stages])
        gpus = np.concatenate([self._gpus(self._member, stage) for stage in stages])
        return np.repeat(row, gpus.shape[1]), gpus.ravel()

    def passes(self, kind: TrafficKind, traffic: StepTraffic) -> Sent:
        """What groups send on every stage in a forward or backward."""
        return Sent.together([self._on_stage(kind, traffic, stage) for stage in range(self._parallel.pp)])

    def _on_stage(self, kind: TrafficKind, traffic: StepTraffic, stage: int) -> Sent:
        node_gpus, every = self._links.cluster.node.gpus, self._gpus(self._member, stage)
        here = self._members_that_send(kind, traffic)
        member, group, gpus = self._member[here], self._of_member[here], every[here]
        row = (stage * self.groups + group)[:, None]
        size, first = np.diff(self._offsets)[group], self._offsets[group]
        place = here - first
        match kind:
            case "ring":
                return Sent.of(row, gpus, every[first + (place + 1) % size])
            case "exchange":  # a ring of nodes, the members of a node side by side
                distance = np.minimum(max(1, node_gpus // self._parallel.rank_stride), -(-size // 2))
                return Sent.of(row, gpus, every[first + (place + distance) % size])
            case "spread":
                peer = np.arange(int(size.max(initial=0)))
                exists = peer < size[:, None]
                target = every[np.where(exists, first[:, None] + peer, 0)]  # [members, peers, tp]
                source = np.broadcast_to(gpus[:, None], target.shape)
                return _evenly(row[:, :, None], source, target, exists[:, :, None], node_gpus)
            case "tensor":
                distance = min(node_gpus, self._parallel.tp)
                return Sent.of(row, gpus, np.roll(gpus, -distance, axis=1))
            case "offload" | "fetch":
                raise AssertionError("copies to hosts have rows of their own")
            case "shards" | "experts":
                return self._in_block(kind, row, member, stage, traffic)

    def _in_block(self, kind: TrafficKind, row: Ints, rank: Ints, stage: int, traffic: StepTraffic) -> Sent:
        """What ranks send to others of their block: of parameters to the next node, of tokens to all experts."""
        tp, node_gpus, gpus = self._parallel.tp, self._links.cluster.node.gpus, self._gpus(rank, stage)
        if kind == "shards":
            within = min(traffic.shard_ranks, self._ranks)
            side_by_side = min(max(1, node_gpus // self._parallel.rank_stride), within)
            block = rank // within * within
            return Sent.of(row, gpus, self._gpus(block + (rank - block + side_by_side) % within, stage))
        ranks, cut = traffic.expert_ranks
        index = rank[:, None] * tp + np.arange(tp)
        base = index // (ranks * cut) * (ranks * cut) + index % cut
        target = self._gpus_of_stage(base[:, :, None] + cut * np.arange(ranks), stage)
        source = np.broadcast_to(gpus[:, :, None], target.shape)
        return _evenly(row[:, :, None], source, target, np.array(True), node_gpus)

    def at_once(self, kind: TrafficKind, traffic: StepTraffic) -> tuple[Sent, Ints]:
        """What all ranks send, each as much, in a row for each block on each stage; and the row of each group.

        A group that spans blocks has the row of its first member.
        """
        experts, tp = traffic.expert_ranks, self._parallel.tp
        within = traffic.shard_ranks if kind == "shards" else max(1, experts[0] * experts[1] // tp)
        rank, stages = np.arange(self._ranks), np.arange(self._parallel.pp)
        first = stages[:, None] * -(-self._ranks // within)
        row = (first + rank // within)[:, :, None]
        sent = [self._in_block(kind, row[stage], rank, stage, traffic) for stage in stages.tolist()]
        return Sent.together(sent), (first + self._member[self._offsets[:-1]] // within).ravel()

    def _members_that_send(self, kind: TrafficKind, traffic: StepTraffic) -> Ints:
        """Places of members of groups that send anything of a kind."""
        sends = np.zeros(self.groups, dtype=np.bool_)
        for one in traffic.passes:
            if one.kind == kind:
                sends[self.group_of_unit[(one.times * one.sent.sent_bytes).any(axis=0)]] = True
        return np.flatnonzero(sends[self._of_member])

    def transfer(self, source: int, target: int) -> Sent:
        """From one stage to another, of every group."""
        at = partial(self._gpus, self._member)
        return Sent.of(self._of_member[:, None], at(source), at(target))

    def rank_transfer(self, source: int, target: int) -> Sent:
        """From one stage to another, of every rank."""
        rank = np.arange(self._ranks)
        return Sent.of(rank[:, None], self._gpus(rank, source), self._gpus(rank, target))

    def sums(self, parts: tuple[SumTraffic, ...]) -> Sent:
        """Collectives over neighbours among the GPUs of each stage; a row's weights are bytes."""
        index = np.arange(self._ranks * self._parallel.tp)
        none = np.zeros(0, dtype=np.int64)
        sent = [Sent.of(none, none, none)]
        for part in parts:
            size = part.members * part.stride
            base = index // size * size
            place = ((index - base) // part.stride + part.ranks_per_node) % part.members
            target = base + place * part.stride + index % part.stride
            inside = target < len(index)
            for stage in range(self._parallel.pp):
                source, peer = (self._gpus_of_stage(of[inside], stage) for of in (index, target))
                sent.append(Sent.of(np.array(stage), source, peer, part.sent_bytes[stage]))
        return Sent.together(sent)


def _ranks_words(members: Ints) -> str:
    """Which ranks a group has: `rank 3`, `ranks 0 to 7`, `ranks 0 to 56 by 8`, `5 ranks from 2 to 9`."""
    first, last = int(members.min()), int(members.max())
    steps = np.unique(np.diff(np.sort(members)))
    if len(steps) == 0:
        return f"rank {first}"
    if len(steps) == 1:
        return f"ranks {first} to {last}" + (f" by {steps[0]}" if steps[0] != 1 else "")
    return f"{len(members)} ranks from {first} to {last}"


def _evenly(row: Ints, source: Ints, target: Ints, exists: Bools, node_gpus: int) -> Sent:
    """Every source spreads its bytes evenly over its targets on other nodes, those along its axis."""
    axis = 2 if exists.ndim == 0 else 1
    far = exists & (source // node_gpus != target // node_gpus)
    sent = Sent.of(row, source, target, far / np.maximum(1, far.sum(axis=axis, keepdims=True)))
    return sent.only(sent.weight > 0)


def _distinct_groups(plan: Plan) -> tuple[Ints, Ints, Ints]:
    """The group of every micro-batch, and the distinct groups' members one after the other, with offsets."""
    offsets, members = plan.member_offsets, plan.member_ranks
    number_of: dict[bytes, int] = {}
    group_of_unit = np.empty(plan.micro_batches, dtype=np.int64)
    bounds = offsets.tolist()
    for unit in range(plan.micro_batches):
        key = members[bounds[unit] : bounds[unit + 1]].tobytes()
        group_of_unit[unit] = number_of.setdefault(key, len(number_of))
    distinct = [np.frombuffer(key, dtype=members.dtype) for key in number_of]
    sizes = np.array([len(one) for one in distinct], dtype=np.int64)
    every = np.concatenate(distinct) if distinct else np.zeros(0, dtype=np.int64)
    return group_of_unit, every.astype(np.int64), offsets_of(sizes)
