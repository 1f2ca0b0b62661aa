"""Placing long sequences: each with its group of ranks (a gang), which starts when the last of them is free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.strategies.problem import PlanningProblem

__all__ = ["Neighbourhood", "RankLoads", "place_gangs"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
        block = cluster.fabric.nodes_per_block * cluster.node.gpus // layout.rank_stride
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

    Returns:
        Ranks of every gang (ascending); its slot, the first one free on all of them; the time it takes there.
    """
    weight = problem.bubble_weight
    members: list[Ints] = []
    slots = np.empty(len(sizes), dtype=np.int64)
    taken_s = times_s.copy()
    places = _Places(problem, loads.free_s)
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
    """Ranks, or nodes of *width* ranks, in rows of *row* neighbours; those of a row by the time they are ready."""

    def __init__(self, ranks: int, width: int, row: int) -> None:
        self.width, self.row = width, row
        items = ranks // width
        self._rows = -(-items // row)
        self._missing = self._rows * row - items
        self._ready_s = np.empty((0, 0))
        self._busy_s = np.empty((0, 0))
        """Of a row's first items, 1 + so many, in order: how long they are busy, in all."""
        self._order = np.empty((0, 0), dtype=np.int64)

    def sort(self, ready_s: Floats, free_s: Floats) -> None:
        """Sort all rows."""
        if self.width > 1:
            ready_s = ready_s.reshape(-1, self.width).max(axis=1)
            free_s = free_s.reshape(-1, self.width).sum(axis=1)
        if self._missing:
            ready_s = np.concatenate((ready_s, np.full(self._missing, np.inf)))
            free_s = np.concatenate((free_s, np.zeros(self._missing)))
        self._order, self._ready_s, self._busy_s = _sorted_rows(
            ready_s.reshape(self._rows, self.row), free_s.reshape(self._rows, self.row)
        )

    def sort_again(self, ranks: Ints, ready_s: Floats, free_s: Floats) -> None:
        """Sort the rows of *ranks*, all others are as they were."""
        span = self.width * self.row
        for one in np.unique(ranks // span).tolist():
            part = slice(one * span, (one + 1) * span)
            ready, free = ready_s[part].reshape(-1, self.width), free_s[part].reshape(-1, self.width)
            many = len(ready)
            order, starts_s, busy_s = _sorted_rows(ready.max(axis=1)[None], free.sum(axis=1)[None])
            self._order[one, :many], self._ready_s[one, :many] = order[0], starts_s[0]
            self._busy_s[one, :many], self._busy_s[one, many:] = busy_s[0], busy_s[0, -1]

    def best(self, items: int, latest_s: float) -> Ints:
        """The *items* neighbours in time that waste least, of those ready by *latest_s*, else of the first ready."""
        last_s = self._ready_s[:, items - 1 :]
        late = last_s > max(latest_s, float(last_s[:, 0].min()) * (1.0 + 1e-9))
        # Waiting for each other: what they are busy from the same start on, less what they are busy anyway.
        waste_s = (items * self.width) * last_s - self._busy_s[:, items - 1 :]
        waste_s[:, 1:] += self._busy_s[:, :-items]
        waste_s[late] = np.inf
        equal = np.flatnonzero(waste_s <= waste_s.min() * (1.0 + 1e-9) + 1e-9)
        late_s = last_s.ravel()[equal]
        equal = equal[late_s >= late_s.max() * (1.0 - 1e-9)]
        best = int(equal[self._busy_s[equal // last_s.shape[1], -1].argmax()])
        line, first = divmod(best, last_s.shape[1])
        chosen = np.sort(self._order[line, first : first + items]) + line * self.row
        if self.width == 1:
            return np.asarray(chosen)
        return np.asarray((chosen[:, None] * self.width + np.arange(self.width)).ravel())


def _sorted_rows(ready_s: Floats, free_s: Floats) -> tuple[Ints, Floats, Floats]:
    order = np.argsort(ready_s, axis=1, kind="stable")
    line = np.arange(len(order))[:, None]
    return order, ready_s[line, order], np.cumsum(free_s[line, order], axis=1)


class _Places:
    """Groups of ranks: inside a node, else whole nodes inside a block, else whole nodes anywhere."""

    def __init__(self, problem: PlanningProblem, free_s: Floats) -> None:
        near = Neighbourhood.of(problem)
        self._ranks, self._node = problem.ranks, near.node
        self._block = near.block // near.node  # nodes
        self._free_s = self._ready_s = free_s
        self._rows: dict[tuple[int, int], _Rows] = {}

    def moved_to(self, ready_s: Floats) -> None:
        """Ranks are ready for the next gang at *ready_s*: when they are free, and after the bubble it brings."""
        self._ready_s = ready_s
        self._rows.clear()

    def booked(self, ranks: Ints) -> None:
        """The times of *ranks* have changed."""
        if self._ready_s is self._free_s:
            for rows in self._rows.values():
                rows.sort_again(ranks, self._ready_s, self._free_s)

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
            rows = self._rows[width, row] = _Rows(self._ranks, width, row)
            rows.sort(self._ready_s, self._free_s)
        return rows.best(items, latest_s)

    def _with_rest(self, chosen: Ints, rest: int, row: int, latest_s: float) -> Ints:
        """Whole nodes *chosen* and *rest* ranks of one more node of the row, one that is in use if there is one."""
        node = np.arange(self._ranks) // self._node
        closed = np.isin(node, node[chosen]) | (node // row != node[chosen[0]] // row)
        begin_s = np.where(closed, np.inf, np.maximum(self._ready_s, self._ready_s[chosen].max()))
        rows = _Rows(self._ranks, 1, self._node)
        rows.sort(begin_s, self._free_s)
        return np.sort(np.concatenate((chosen, rows.best(rest, latest_s))))
