"""Placing long sequences: each with its group of ranks (a gang), which starts when the last of them is free."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints
from hdpsim.simulator.strategies.problem import PlanningProblem

MOST_LOOKS = 2**24
"""Gangs times ranks that are placed at once: half a second."""
ROOM = 8
"""A region has at least so many times the ranks of the largest gang, so that it has a choice."""


@dataclass(slots=True)
class RankLoads:
    """Per rank: when it is free (waiting and pipeline bubble included), next free slot, longest micro-batch."""

    free_s: Floats
    slot: Ints
    longest_s: Floats


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Ranks that are close: those of a node, and those of a rail-connected block."""

    node: int
    block: int

    @classmethod
    def of(cls, problem: PlanningProblem) -> Neighbourhood:
        """Ranks per node and per block of the problem's cluster."""
        cluster, layout = problem.cost.cluster, problem.cost.layout
        node = problem.ranks_per_node if problem.ranks % problem.ranks_per_node == 0 else 1
        block = cluster.fabric.nodes_per_block * cluster.node.gpus // layout.parallel.rank_stride
        return cls(node, max(node, block // node * node))

    def start(self, first: Ints, size: int) -> Ints:
        """First rank from *first* on at which *size* neighbours (at most a node) are in one node."""
        return np.where(first % self.node + size <= self.node, first, -(-first // self.node) * self.node)


def place_gangs(
    problem: PlanningProblem,
    loads: RankLoads,
    sizes: Ints,
    times_s: Floats,
    apart_s: Floats,
    deadline_s: float,
) -> tuple[list[Ints], Ints, Floats]:
    """Give every gang its ranks, in the order given, and book it there.

    Of the groups that are ready by the deadline the one that wastes least is taken: waiting for each other, and the
    bubble a longer micro-batch than before brings to a pipeline; of equals the one with most to do already, so that
    long micro-batches gather on few ranks. If none is ready by then, the one that ends first. A group keeps to one
    node, or to whole nodes of one rail-connected block, if it fits there; where that makes it late, it may
    spread over any ranks and take *apart_s* instead of *times_s*.

    Every gang looks at every rank. Where that would be too much, the ranks are cut into regions of whole blocks, each
    gang goes to the region with the least to do, and looks at the ranks of that alone: time grows with the gangs and
    ranks, not with their product.

    Returns:
        Ranks of every gang (ascending); its slot, the first one free on all of them; the time it takes there.
    """
    members: list[Ints] = [np.arange(0)] * len(sizes)
    slots = np.empty(len(sizes), dtype=np.int64)
    taken_s = times_s.copy()
    near = Neighbourhood.of(problem)
    for region, gangs in _regions(near, loads, sizes, times_s):
        own = RankLoads(
            loads.free_s[region], loads.slot[region], loads.longest_s[region]
        )  # views: booked in place
        placed = _place_in_turn(
            near, problem.bubble_weight, own, sizes[gangs], times_s[gangs], apart_s[gangs], deadline_s
        )
        for gang, ranks in zip(gangs.tolist(), placed[0], strict=True):
            members[gang] = ranks + region.start
        slots[gangs], taken_s[gangs] = placed[1:]
    return members, slots, taken_s


def _regions(
    near: Neighbourhood, loads: RankLoads, sizes: Ints, times_s: Floats
) -> Iterator[tuple[slice, Ints]]:
    """Regions of the ranks, and the gangs of each in the order given; one region unless that is too much."""
    ranks, gangs = len(loads.free_s), len(sizes)
    wanted = max(1, -(-gangs * ranks // MOST_LOOKS))
    least = ROOM * int(sizes.max(initial=1))
    region = -(-max(ranks // wanted, least) // near.block) * near.block
    count = max(1, ranks // region)  # what is left over belongs to the last one
    if count == 1:
        yield slice(0, ranks), np.arange(gangs)
        return
    cuts = [*range(0, count * region, region), ranks]
    busy = [
        (float(loads.free_s[begin:end].mean()), number) for number, (begin, end) in enumerate(pairwise(cuts))
    ]
    heapq.heapify(busy)
    where = np.empty(gangs, dtype=np.int64)
    for gang, work_s in enumerate((sizes * times_s).tolist()):
        busy_s, number = busy[0]
        where[gang] = number
        heapq.heapreplace(busy, (busy_s + work_s / (cuts[number + 1] - cuts[number]), number))
    for number, (begin, end) in enumerate(pairwise(cuts)):
        yield slice(begin, end), np.flatnonzero(where == number)


def _place_in_turn(
    near: Neighbourhood,
    weight: float,
    loads: RankLoads,
    sizes: Ints,
    times_s: Floats,
    apart_s: Floats,
    deadline_s: float,
) -> tuple[list[Ints], Ints, Floats]:
    """As place_gangs, every gang looking at all ranks of *loads*."""
    members: list[Ints] = []
    slots = np.empty(len(sizes), dtype=np.int64)
    taken_s = times_s.copy()
    places = _Places(near, loads)
    for gang, (size, time_s) in enumerate(zip(sizes.tolist(), times_s.tolist(), strict=True)):
        latest_s = deadline_s - time_s
        if weight:
            places.moved_to(loads.free_s + weight * np.maximum(0.0, time_s - loads.longest_s))
        ranks, start_s = places.choose(size, latest_s)
        if size > 1 and start_s > latest_s:
            spread, spread_s = places.spread(size)
            if spread_s + apart_s[gang] < start_s + time_s:
                ranks, start_s, time_s = spread, spread_s, float(apart_s[gang])
                taken_s[gang] = time_s
        members.append(ranks)
        slots[gang] = loads.slot[ranks].max()
        loads.free_s[ranks] = start_s + time_s
        loads.slot[ranks] = slots[gang] + 1
        loads.longest_s[ranks] = np.maximum(loads.longest_s[ranks], time_s)
        places.booked(ranks)
    return members, slots, taken_s


class _Rows:
    """Ranks, or nodes of *width* ranks, in rows of *row* neighbours; those of a row by the time they are ready.

    Rows without a gang are all alike, so only the first of them is looked at; and a row is sorted again only when it
    is looked at after something changed.
    """

    def __init__(
        self, ready_s: Floats, free_s: Floats, width: int, row: int, used: Bools | None = None
    ) -> None:
        """Of ranks that are free at *free_s* and ready at *ready_s*; those not *used* (None: all are) are alike."""
        self.width, self.row = width, row
        self._free_s, self._ready_s = free_s, ready_s
        many = -(-len(ready_s) // (width * row))
        self._used = np.full(many, used is None)
        self._stale = np.ones(many, dtype=bool)
        if used is not None:
            self.booked(np.flatnonzero(used))
            self._used[-1] |= len(ready_s) % (width * row) > 0
        # Of every row: its items by the time they are ready, that time, and how long they have been busy up to each.
        self._order = np.empty((many, row), dtype=np.int64)
        self._start_s = np.empty((many, row))
        self._busy_s = np.empty((many, row))

    def booked(self, ranks: Ints) -> None:
        """*ranks* have got a gang."""
        rows = ranks // (self.width * self.row)
        self._used[rows] = True
        self._stale[rows] = True

    def moved_to(self, ready_s: Floats) -> None:
        """All ranks are ready at other times."""
        self._ready_s = ready_s
        self._stale[:] = True

    def _sort(self, rows: Ints) -> None:
        span, ranks = self.row * self.width, len(self._ready_s)
        if len(rows) * span == ranks:  # in a pipeline most gangs find all rows changed
            self._order, self._start_s, self._busy_s = self._sorted(self._ready_s, self._free_s)
            self._stale[:] = False
            return
        rank = rows[:, None] * span + np.arange(span)
        ready_s, free_s = (times_s[np.minimum(rank, ranks - 1)] for times_s in (self._ready_s, self._free_s))
        if rank[-1, -1] >= ranks:  # places of the last row that are none
            ready_s[rank >= ranks], free_s[rank >= ranks] = np.inf, 0.0
        self._order[rows], self._start_s[rows], self._busy_s[rows] = self._sorted(ready_s, free_s)
        self._stale[rows] = False

    def _sorted(self, ready_s: Floats, free_s: Floats) -> tuple[Ints, Floats, Floats]:
        """Of whole rows: the order of their items, when each is ready, and how long they have been busy up to it."""
        if self.width > 1:
            ready_s = ready_s.reshape(-1, self.width).max(axis=1)
            free_s = free_s.reshape(-1, self.width).sum(axis=1)
        ready_s, free_s = ready_s.reshape(-1, self.row), free_s.reshape(-1, self.row)
        order = ready_s.argsort(axis=1, kind="stable")
        line = np.arange(len(order))[:, None]
        return order, ready_s[line, order], free_s[line, order].cumsum(axis=1)

    def best(self, items: int, latest_s: float) -> Ints:
        """The *items* neighbours in time that waste least, of those ready by *latest_s*, else of the first ready."""
        looked_at = self._used.copy()
        looked_at[looked_at.argmin()] = True
        stale = (looked_at & self._stale).nonzero()[0]
        if len(stale):
            self._sort(stale)
        rows = looked_at.nonzero()[0]
        busy_s, last_s = self._busy_s, self._start_s[:, items - 1 :]
        if len(rows) < len(looked_at):
            busy_s, last_s = busy_s[rows], last_s[rows]
        late = last_s > max(latest_s, float(last_s[:, 0].min()) * (1.0 + 1e-9))
        # Waiting for each other: what they are busy from the same start on, less what they are busy anyway.
        waste_s = (items * self.width) * last_s - busy_s[:, items - 1 :]
        waste_s[:, 1:] += busy_s[:, :-items]
        waste_s[late] = np.inf
        equal = (waste_s <= waste_s.min() * (1.0 + 1e-9) + 1e-9).ravel().nonzero()[0]
        late_s = last_s.ravel()[equal]
        equal = equal[late_s >= late_s.max() * (1.0 - 1e-9)]
        best = int(equal[busy_s[equal // last_s.shape[1], -1].argmax()])
        at, first = divmod(best, last_s.shape[1])
        line = int(rows[at])
        chosen = np.sort(self._order[line, first : first + items]) + line * self.row
        if self.width == 1:
            return np.asarray(chosen)
        return np.asarray((chosen[:, None] * self.width + np.arange(self.width)).ravel())


class _Places:
    """Groups of ranks: inside a node, else whole nodes inside a block, else whole nodes anywhere."""

    def __init__(self, near: Neighbourhood, loads: RankLoads) -> None:
        self._ranks, self._node = len(loads.free_s), near.node
        self._block = near.block // near.node  # nodes
        self._free_s = self._ready_s = loads.free_s
        self._used = np.full(self._ranks, bool(np.ptp(loads.free_s) or np.ptp(loads.longest_s)))
        self._rows: dict[tuple[int, int], _Rows] = {}

    def moved_to(self, ready_s: Floats) -> None:
        """Ranks are ready for the next gang at *ready_s*: when they are free, and after the bubble it brings."""
        self._ready_s = ready_s
        for rows in self._rows.values():
            rows.moved_to(ready_s)

    def booked(self, ranks: Ints) -> None:
        """The times of *ranks* have changed."""
        self._used[ranks] = True
        for rows in self._rows.values():
            rows.booked(ranks)

    def spread(self, size: int) -> tuple[Ints, float]:
        """The ranks that are ready first, wherever they are, and when they are."""
        ranks = np.sort(np.argpartition(self._ready_s, size - 1)[:size])
        return ranks, float(self._ready_s[ranks].max())

    def choose(self, size: int, latest_s: float) -> tuple[Ints, float]:
        """Ranks of a gang that wants to start by *latest_s*, and when they are ready."""
        ready_s = self._ready_s
        if size == self._ranks:
            return np.arange(size, dtype=np.int64), float(ready_s.max())
        if size == 1:
            return self._single(latest_s)
        if size <= self._node:
            ranks = self._best(size, 1, self._node, latest_s)
            return ranks, float(ready_s[ranks].max())
        nodes, rest = divmod(size, self._node)
        all_nodes = self._ranks // self._node
        best, best_s = np.arange(0, dtype=np.int64), np.inf
        for row in (self._block, all_nodes):
            if nodes + (rest > 0) > min(row, all_nodes):
                continue
            for spare in (rest > 0, False):
                chosen = self._best(nodes + spare, self._node, row, latest_s)
                if rest:
                    chosen = self._with_rest(chosen[: nodes * self._node], rest, row, latest_s)
                    if not len(chosen):
                        continue
                start_s = float(ready_s[chosen].max())
                if start_s < best_s:
                    best, best_s = chosen, start_s
                if start_s <= latest_s:
                    return chosen, start_s
                if not rest:
                    break
        return best, best_s

    def _single(self, latest_s: float) -> tuple[Ints, float]:
        ready = self._ready_s <= latest_s
        if not ready.any():
            rank = int(self._ready_s.argmin())
        else:
            waste_s = np.where(ready, self._ready_s - self._free_s, np.inf)
            rank = int(np.where(waste_s <= waste_s.min() + 1e-12, self._ready_s, -1.0).argmax())
        return np.array([rank]), float(self._ready_s[rank])

    def _best(self, items: int, width: int, row: int, latest_s: float) -> Ints:
        rows = self._rows.get((width, row))
        if rows is None:
            rows = self._rows[width, row] = _Rows(self._ready_s, self._free_s, width, row, self._used)
        return rows.best(items, latest_s)

    def _with_rest(self, chosen: Ints, rest: int, row: int, latest_s: float) -> Ints:
        """Whole nodes *chosen* and *rest* ranks of one more node of the row, one that is in use if there is one.

        Empty where the row, the last one of a cluster, has no more nodes.
        """
        begin = chosen[0] // (row * self._node) * (row * self._node)
        part = slice(begin, min(begin + row * self._node, self._ranks))
        begin_s = np.maximum(self._ready_s[part], self._ready_s[chosen].max())
        if len(begin_s) == len(chosen):
            return chosen[:0]
        begin_s[chosen - begin] = np.inf
        rows = _Rows(begin_s, self._free_s[part], 1, self._node)
        return np.sort(np.concatenate((chosen, begin + rows.best(rest, latest_s))))
