"""Placing long sequences: each with its group of ranks (a gang), which starts when the last of them is free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.strategies.group_size import SizeTable, least_group
from simulator.strategies.problem import PlanningProblem

__all__ = ["LongSequences", "RankLoads", "place_gangs"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class RankLoads:
    """Per rank: when it is free (waiting and pipeline bubble included), next free slot, longest micro-batch."""

    free_s: Floats
    slot: Ints
    longest_s: Floats


class LongSequences:
    """Sequences that do not fit one rank without offloading, longest first, with the time they take on any group."""

    def __init__(self, problem: PlanningProblem, least_limit_s: float) -> None:
        """Limits below *least_limit_s* will not be asked for."""
        long = np.flatnonzero(problem.lengths > problem.capacity_tokens)
        self.sequence = long[np.argsort(-problem.lengths[long], kind="stable")]
        self.tokens = problem.lengths[self.sequence]
        self._least = least_group(problem, self.tokens)
        self._least_s = problem.sequence_s(self.tokens, self._least)
        self._late = np.flatnonzero(self._least_s > least_limit_s)
        self._table = SizeTable(problem, self.tokens[self._late], self._least[self._late])

    def within(self, limit_s: float) -> tuple[Ints, Floats]:
        """Smallest group of every sequence that meets the limit (else the quickest), and its time."""
        size, time_s = self._least.copy(), self._least_s.copy()
        size[self._late], time_s[self._late] = self._table.within(limit_s)
        return size, time_s


def place_gangs(
    problem: PlanningProblem,
    loads: RankLoads,
    sizes: Ints,
    times_s: Floats,
    apart_s: Floats,
    deadline_s: float,
) -> tuple[list[Ints], Ints]:
    """Give every gang its ranks, in the order given, and book it there.

    Of the groups that are ready by the deadline the one that wastes least is taken: waiting for each other, and the
    bubble a longer micro-batch than before brings to a pipeline; of equals the one with most to do already, so that
    long micro-batches gather on few ranks. If none is ready by then, the one that ends first. A group keeps to one
    node, or to whole nodes of one rail-connected block, if it fits there; where that makes it late, it may
    spread over any ranks and take *apart_s* instead of *times_s*.

    Returns:
        Ranks of every gang (ascending) and its slot, the first one free on all of them.
    """
    weight = problem.bubble_weight
    members: list[Ints] = []
    slots = np.empty(len(sizes), dtype=np.int64)
    places = _Places(problem)
    for gang, (size, time_s) in enumerate(zip(sizes.tolist(), times_s.tolist(), strict=True)):
        start_s = loads.free_s
        if weight:
            start_s = start_s + weight * np.maximum(0.0, time_s - loads.longest_s)
        ranks = places.choose(size, start_s, loads.free_s, deadline_s - time_s)
        if size > 1 and start_s[ranks].max() > deadline_s - time_s:
            spread = np.sort(np.argpartition(start_s, size - 1)[:size])
            if start_s[spread].max() + apart_s[gang] < start_s[ranks].max() + time_s:
                ranks, time_s = spread, float(apart_s[gang])
        members.append(ranks)
        slots[gang] = loads.slot[ranks].max()
        loads.free_s[ranks] = start_s[ranks].max() + time_s
        loads.slot[ranks] = slots[gang] + 1
        loads.longest_s[ranks] = np.maximum(loads.longest_s[ranks], time_s)
    return members, slots


class _Places:
    """Groups of ranks: inside a node, else whole nodes inside a block, else whole nodes anywhere."""

    def __init__(self, problem: PlanningProblem) -> None:
        cluster, ranks = problem.cost.cluster, problem.ranks
        self._ranks = ranks
        self._node = problem.ranks_per_node if ranks % problem.ranks_per_node == 0 else 1
        tp_nodes = max(
            1, problem.cost.layout.tp // cluster.node.gpus
        )  # nodes a rank takes, if it is that large
        self._block = max(1, cluster.fabric.nodes_per_block // tp_nodes)  # items of a block
        if self._node == 1 and tp_nodes == 1:
            self._block *= max(1, cluster.node.gpus // problem.cost.layout.tp)

    def choose(self, size: int, start_s: Floats, free_s: Floats, latest_s: float) -> Ints:
        """Ranks of a gang of *size* that should start by *latest_s*; ranks are ready for it at *start_s*."""
        if size == self._ranks:
            return np.arange(size, dtype=np.int64)
        if size == 1:
            ready = start_s <= latest_s
            if not ready.any():
                return np.array([start_s.argmin()])
            waste_s = np.where(ready, start_s - free_s, np.inf)
            return np.array([np.where(waste_s <= waste_s.min() + 1e-12, start_s, -1.0).argmax()])
        if size <= self._node:
            return self._window(size, 1, self._node, start_s, free_s, latest_s)
        nodes, rest = divmod(size, self._node)
        all_nodes = self._ranks // self._node
        best = np.arange(0, dtype=np.int64)
        for row in (self._block, all_nodes):
            if nodes + (rest > 0) > min(row, all_nodes):
                continue
            for spare in (rest > 0, False):
                chosen = self._window(nodes + spare, self._node, row, start_s, free_s, latest_s)
                if rest:
                    chosen = self._with_rest(
                        chosen[: nodes * self._node], rest, row, start_s, free_s, latest_s
                    )
                if start_s[chosen].max() <= latest_s:
                    return chosen
                if not len(best) or start_s[chosen].max() < start_s[best].max():
                    best = chosen
                if not rest:
                    break
        return best

    def _with_rest(
        self, chosen: Ints, rest: int, row: int, start_s: Floats, free_s: Floats, latest_s: float
    ) -> Ints:
        """Whole nodes *chosen* and *rest* ranks of one more node of the row, one that is in use if there is one."""
        node = np.arange(self._ranks) // self._node
        closed = np.isin(node, node[chosen]) | (node // row != node[chosen[0]] // row)
        begin_s = np.where(closed, np.inf, np.maximum(start_s, start_s[chosen].max()))
        more = self._window(rest, 1, self._node, begin_s, free_s, latest_s)
        return np.sort(np.concatenate((chosen, more)))

    def _window(
        self, items: int, width: int, row: int, start_s: Floats, free_s: Floats, latest_s: float
    ) -> Ints:
        """The best *items* neighbours in start time, items of *width* ranks, out of one row of *row* items."""
        if width > 1:
            start_s = start_s.reshape(-1, width).max(axis=1)
            free_s = free_s.reshape(-1, width).sum(axis=1)
        count = len(start_s)
        rows = -(-count // row)
        if rows * row > count:
            start_s = np.concatenate((start_s, np.full(rows * row - count, np.inf)))
            free_s = np.concatenate((free_s, np.zeros(rows * row - count)))
        start_s, free_s = start_s.reshape(rows, row), free_s.reshape(rows, row)
        order = np.argsort(start_s, axis=1, kind="stable")
        last_s = np.take_along_axis(start_s, order, axis=1)[:, items - 1 :]
        sums = np.cumsum(np.take_along_axis(free_s, order, axis=1), axis=1)
        spent_s = sums[:, items - 1 :].copy()
        spent_s[:, 1:] -= sums[:, :-items]
        ready = last_s <= latest_s
        if ready.any():
            waste_s = np.where(ready, items * width * last_s - spent_s, np.inf)
            equal = waste_s <= waste_s.min() * (1.0 + 1e-9) + 1e-9
            late_s = np.where(equal, last_s, -1.0)
            fullest_s = np.where(late_s >= late_s.max() * (1.0 - 1e-9), sums[:, -1:], -1.0)
            best = fullest_s.argmax()
        else:
            best = last_s.argmin()
        line, first = divmod(int(best), last_s.shape[1])
        chosen = np.sort(order[line, first : first + items]) + line * row
        if width == 1:
            return np.asarray(chosen)
        return np.asarray((chosen[:, None] * width + np.arange(width)).ravel())
