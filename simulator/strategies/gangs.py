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

SMALL = 1e-3  # weight of idle time against whole units


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
    unit_s: float = 0.0,
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
    places = _Places(problem)
    for gang, (size, time_s) in enumerate(zip(sizes.tolist(), times_s.tolist(), strict=True)):
        start_s = loads.free_s
        if weight:
            start_s = start_s + weight * np.maximum(0.0, time_s - loads.longest_s)
        wanted = _Wanted(size, deadline_s - time_s, unit_s)
        whole = np.floor((deadline_s - loads.free_s) / unit_s + 1e-9) if unit_s else loads.free_s
        ranks = places.choose(wanted, start_s, loads.free_s, whole)
        if size > 1 and start_s[ranks].max() > deadline_s - time_s:
            spread = np.sort(np.argpartition(start_s, size - 1)[:size])
            if start_s[spread].max() + apart_s[gang] < start_s[ranks].max() + time_s:
                ranks, time_s = spread, float(apart_s[gang])
                taken_s[gang] = time_s
        members.append(ranks)
        slots[gang] = loads.slot[ranks].max()
        loads.free_s[ranks] = start_s[ranks].max() + time_s
        loads.slot[ranks] = slots[gang] + 1
        loads.longest_s[ranks] = np.maximum(loads.longest_s[ranks], time_s)
    return members, slots, taken_s


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a gang asks of its ranks."""

    size: int
    latest_s: float
    """Start by which it is ready by the deadline."""
    unit_s: float
    """Time of the micro-batches that will fill the ranks up to the deadline, if they all take the same; else 0."""

    def waste_s(self, last_s: Floats, free_s: Floats, whole: Floats, ranks: int) -> Floats:
        """What *ranks* ranks lose that start together at *last_s* and were free for *free_s* in all.

        Without a unit: the time they wait. With one: the whole units that no longer fit before the deadline
        (*whole*: those that did fit), and of equals the time they wait.
        """
        idle_s = ranks * last_s - free_s
        if not self.unit_s:
            return idle_s
        left = np.floor((self.latest_s - last_s) / self.unit_s + 1e-9)
        return np.asarray((whole - ranks * left) * self.unit_s + SMALL * idle_s)


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

    def choose(self, wanted: _Wanted, start_s: Floats, free_s: Floats, whole: Floats) -> Ints:
        """Ranks of a gang; they are free at *free_s* and ready for it at *start_s*."""
        size, latest_s = wanted.size, wanted.latest_s
        if size == self._ranks:
            return np.arange(size, dtype=np.int64)
        if size == 1:
            ready = start_s <= latest_s
            if not ready.any():
                return np.array([start_s.argmin()])
            waste_s = np.where(ready, wanted.waste_s(start_s, free_s, whole, 1), np.inf)
            return np.array([np.where(waste_s <= waste_s.min() + 1e-12, start_s, -1.0).argmax()])
        if size <= self._node:
            return self._window(wanted, size, 1, self._node, start_s, free_s, whole)
        nodes, rest = divmod(size, self._node)
        all_nodes = self._ranks // self._node
        best = np.arange(0, dtype=np.int64)
        for row in (self._block, all_nodes):
            if nodes + (rest > 0) > min(row, all_nodes):
                continue
            for spare in (rest > 0, False):
                chosen = self._window(wanted, nodes + spare, self._node, row, start_s, free_s, whole)
                if rest:
                    chosen = self._with_rest(
                        wanted, chosen[: nodes * self._node], rest, row, start_s, free_s, whole
                    )
                if start_s[chosen].max() <= latest_s:
                    return chosen
                if not len(best) or start_s[chosen].max() < start_s[best].max():
                    best = chosen
                if not rest:
                    break
        return best

    def _with_rest(
        self,
        wanted: _Wanted,
        chosen: Ints,
        rest: int,
        row: int,
        start_s: Floats,
        free_s: Floats,
        whole: Floats,
    ) -> Ints:
        """Whole nodes *chosen* and *rest* ranks of one more node of the row, one that is in use if there is one."""
        node = np.arange(self._ranks) // self._node
        closed = np.isin(node, node[chosen]) | (node // row != node[chosen[0]] // row)
        begin_s = np.where(closed, np.inf, np.maximum(start_s, start_s[chosen].max()))
        more = self._window(wanted, rest, 1, self._node, begin_s, free_s, whole)
        return np.sort(np.concatenate((chosen, more)))

    def _window(
        self,
        wanted: _Wanted,
        items: int,
        width: int,
        row: int,
        start_s: Floats,
        free_s: Floats,
        whole: Floats,
    ) -> Ints:
        """The best *items* neighbours in start time, items of *width* ranks, out of one row of *row* items."""
        if width > 1:
            start_s = start_s.reshape(-1, width).max(axis=1)
            free_s, whole = (values.reshape(-1, width).sum(axis=1) for values in (free_s, whole))
        count = len(start_s)
        rows = -(-count // row)
        if rows * row > count:
            start_s = np.concatenate((start_s, np.full(rows * row - count, np.inf)))
            free_s, whole = (np.concatenate((x, np.zeros(rows * row - count))) for x in (free_s, whole))
        start_s, free_s, whole = (values.reshape(rows, row) for values in (start_s, free_s, whole))
        order = np.argsort(start_s, axis=1, kind="stable")
        last_s = np.take_along_axis(start_s, order, axis=1)[:, items - 1 :]
        sums = np.cumsum(np.take_along_axis(free_s, order, axis=1), axis=1)
        ready = last_s <= wanted.latest_s
        if ready.any():
            spent_s = _of_windows(sums, items)
            units = np.cumsum(np.take_along_axis(whole, order, axis=1), axis=1) if wanted.unit_s else sums
            waste_s = wanted.waste_s(last_s, spent_s, _of_windows(units, items), items * width)
            waste_s = np.where(ready, waste_s, np.inf)
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


def _of_windows(sums: Floats, items: int) -> Floats:
    """Sums over every window of *items* neighbours, from the cumulative sums of rows."""
    windows = sums[:, items - 1 :].copy()
    windows[:, 1:] -= sums[:, :-items]
    return windows
