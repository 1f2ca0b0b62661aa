"""Placing long sequences: each with its group of ranks (a gang), which starts when the last of them is free."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.strategies.problem import PlanningProblem

MOST_LOOKS = 2**20
"""Gangs times ranks that are placed at once. With 2**24 plans of 532 gangs on 12,288 ranks of two stages took two
thirds longer to make and ended 0.4 % later: who sees all ranks leaves more of them waiting."""
NEVER = 2**30
"""More slots than any rank has."""
FEW_ROWS = 4
"""So many are sorted faster one by one."""
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
        # Views: booked in place.
        own = RankLoads(loads.free_s[region], loads.slot[region], loads.longest_s[region])
        placed = _place_in_turn(
            near, problem.bubble_weight, own, sizes[gangs], times_s[gangs], apart_s[gangs], deadline_s
        )
        for gang, ranks in zip(gangs.tolist(), placed[0], strict=True):
            members[gang] = ranks + region.start if region.start else ranks
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
    """Place gangs one after the other, each of which looks at all ranks of *loads*."""
    members: list[Ints] = []
    slots = np.empty(len(sizes), dtype=np.int64)
    taken_s = times_s.copy()
    places = _RankGroups(near, loads, weight)
    size_of, time_of = sizes.tolist(), times_s.tolist()
    gang = 0
    while gang < len(size_of):
        size, time_s = size_of[gang], time_of[gang]
        latest_s = deadline_s - time_s
        places.next_gang(time_s)
        ranks, start_s = places.choose(size, latest_s)
        if size > 1 and start_s > latest_s:
            spread, spread_s = places.spread(size)
            if spread_s + apart_s[gang] < start_s + time_s:
                ranks, start_s, time_s = spread, spread_s, float(apart_s[gang])
                taken_s[gang] = time_s
        stop, end_s = gang + 1, start_s + time_s
        if weight:  # those that follow stay on these ranks while they are in time: nothing is wasted there
            longest_s = np.maximum(loads.longest_s[ranks], time_s)
            loads.longest_s[ranks] = longest_s
            most_s = longest_s.item(longest_s.argmin())
            while stop < len(size_of) and size_of[stop] == size and time_of[stop] <= most_s:
                if end_s + time_of[stop] > deadline_s:
                    break
                end_s += time_of[stop]
                stop += 1
        slot = int(loads.slot[ranks].max())
        members += [ranks] * (stop - gang)
        slots[gang:stop] = np.arange(slot, slot + stop - gang)
        loads.free_s[ranks] = end_s
        loads.slot[ranks] = slot + stop - gang
        places.booked(ranks)
        gang = stop
    return members, slots, taken_s


@dataclass(frozen=True, slots=True)
class _Next:
    """What a gang costs the ranks of a pipeline besides its time.

    A rank whose micro-batches were all shorter idles *weight* times the difference longer. A slot that it leaves out
    between two micro-batches costs as much as one of them, but never more than the pipeline takes to drain.
    """

    time_s: float = 0.0
    weight: float = 0.0

    @property
    def bubble_s(self) -> float:
        """What a pipeline idles for it."""
        return self.weight * self.time_s


_START, _BUSY, _BEFORE, _MOST, _LESS = range(5)
"""What is known of the items of a row in time: when each is ready, and how long all up to it have been busy; in a
pipeline the time it is ready less its bubble, the most slots that a rank of it has, and the fewest, negated."""


class _Rows:
    """Ranks, or nodes of *width* ranks, in rows of *row* neighbours; those of a row by the time they are free.

    A row is sorted again only when it is looked at after something changed. Rows lie one behind the other with a place
    between them that is never ready, so that neighbours in time are looked at in one stretch.
    """

    def __init__(self, ready_s: Floats, loads: RankLoads, weight: float, width: int, row: int) -> None:
        """Of ranks with such loads, ready at *ready_s* at the earliest."""
        self.width, self.row = width, row
        self._loads, self._ready_s, self._weight = loads, ready_s, weight
        self._span, ranks = width * row, len(ready_s)
        self._full = ranks // self._span  # rows without places that are none
        rows = -(-ranks // self._span)
        self._stale = set(range(rows))
        # Of every row: its items by the time they are ready, and of each what is listed at _START.
        self._order = np.empty((rows, row), dtype=np.int64)
        self._of = np.zeros((5 if weight else 2, rows, 1 + row))
        self._of[_START, :, 0] = np.inf
        self._of[_BEFORE:_MOST, :, 0] = np.inf
        self._flat = self._of.reshape(len(self._of), -1)

    def booked(self, ranks: Ints) -> None:
        """*ranks*, ascending, have got a gang."""
        first, last = ranks.item(0) // self._span, ranks.item(-1) // self._span
        self._stale.update([first] if first == last else np.unique(ranks // self._span).tolist())

    def _sort_stale(self) -> None:
        """Look again at rows in which something changed."""
        stale, self._stale = self._stale, set()
        if len(stale) <= FEW_ROWS and self.width == 1 and max(stale) < self._full:
            for number in stale:
                self._sort_one(number)
        else:
            self._sort(np.array(sorted(stale)))

    def _sort_one(self, number: int) -> None:
        """Sort one row of ranks, which is faster than _sort for one."""
        part = slice(number * self.row, (number + 1) * self.row)
        loads, of = self._loads, self._of[:, number, 1:]
        ready_s = self._ready_s[part]
        self._order[number] = order = ready_s.argsort(kind="stable")
        of[_START] = start_s = ready_s[order]
        loads.free_s[part][order].cumsum(out=of[_BUSY])
        if self._weight:
            of[_BEFORE] = start_s - self._weight * loads.longest_s[part][order]
            of[_MOST] = slot = loads.slot[part][order]
            of[_LESS] = -np.where(slot > 0, slot, NEVER)

    def _sort(self, rows: Ints) -> None:
        """Look at *rows* again."""
        span, ranks = self._span, len(self._ready_s)
        rank = rows[:, None] * span + np.arange(span)
        inside = rank if rank[-1, -1] < ranks else np.minimum(rank, ranks - 1)
        of = np.empty((len(self._of), *rank.shape))
        of[_START], of[_BUSY] = self._ready_s[inside], self._loads.free_s[inside]
        if inside is not rank:  # places of the last row that are none
            outside = rank >= ranks
            of[_START][outside], of[_BUSY][outside] = np.inf, 0.0
        if self._weight:
            slot = self._loads.slot[inside]
            of[_BEFORE] = of[_START] - self._weight * self._loads.longest_s[inside]
            of[_MOST] = slot
            of[_LESS] = -np.where(slot > 0, slot, NEVER)
        if self.width > 1:
            ranks_of = of.reshape(len(of), len(rows), self.row, self.width)
            of = ranks_of.max(axis=3)
            of[_BUSY] = ranks_of[_BUSY].sum(axis=2)
        order = of[_START].argsort(axis=1, kind="stable")
        of = of[:, np.arange(len(order))[:, None], order]
        of[_BUSY] = of[_BUSY].cumsum(axis=1)
        self._order[rows], self._of[:, rows, 1:] = order, of

    def best(self, items: int, latest_s: float, gang: _Next) -> Ints:
        """The *items* neighbours in time that waste least, of those ready by *latest_s*, else of the first ready."""
        if self._stale:
            self._sort_stale()
        of, stride = self._flat, 1 + self.row
        # By the last of the neighbours; the first possible one has the place before its row and all but it before it.
        busy_s = of[_BUSY]
        last_s = of[_START, items:]
        if gang.weight:
            last_s = self._after_pipeline_s(of, items, last_s, gang)
        else:
            last_s = last_s + _across_rows(items, stride, len(last_s))
        in_time_s = max(latest_s, float(last_s.min()) * (1.0 + 1e-9))
        # Waiting for each other: what they are busy from the same start on, less what they are busy anyway.
        waste_s = (items * self.width) * last_s
        waste_s -= busy_s[items:]
        waste_s += busy_s[:-items]
        np.putmask(waste_s, last_s > in_time_s, np.inf)
        equal = (waste_s <= waste_s.item(waste_s.argmin()) * (1.0 + 1e-9) + 1e-9).nonzero()[0]
        best = int(equal[0])
        if len(equal) > 1:
            late_s = last_s[equal]
            equal = equal[late_s >= late_s.item(late_s.argmax()) * (1.0 - 1e-9)]
            best = int(equal[busy_s[(equal + items) // stride * stride + self.row].argmax()])
        line, last = divmod(best + items, stride)
        chosen = self._order[line, last - items : last] + line * self.row
        chosen.sort()
        if self.width == 1:
            return np.asarray(chosen)
        return np.asarray((chosen[:, None] * self.width + np.arange(self.width)).ravel())

    def _after_pipeline_s(self, of: Floats, items: int, last_s: Floats, gang: _Next) -> Floats:
        """When the pipelines of every group of neighbours are ready that is free at *last_s*."""
        if items * self.width == 1:
            return np.asarray(np.maximum(last_s, of[_BEFORE, 1:] + gang.bubble_s))
        count = of.shape[1]
        most = of[_BEFORE:].flatten()  # in one stretch: what is found across two of them is not read
        most[2 * count :] *= gang.time_s
        most[2 * count :] += of[_START]
        most = window_max(most, items)
        before_s, slots, left_out_s = (most[first * count + 1 :][: len(last_s)] for first in range(3))
        # Later for every slot that a rank leaves out before the one that all have free.
        slots *= gang.time_s
        left_out_s += slots
        np.minimum(left_out_s, last_s + gang.bubble_s, out=left_out_s)
        before_s += gang.bubble_s
        np.maximum(before_s, last_s, out=before_s)
        return np.asarray(np.maximum(before_s, left_out_s, out=before_s))


@lru_cache(maxsize=64)
def _across_rows(items: int, stride: int, windows: int) -> Floats:
    """By the last of so many neighbours: 0 where they are of one row of *stride* places, infinite where of two."""
    column = np.arange(items, items + windows) % stride
    late_s = np.where(column >= items, 0.0, np.inf)
    late_s.setflags(write=False)
    return late_s


def window_max(values: Floats, items: int) -> Floats:
    """The largest of every *items* neighbours along the last axis, [..., n - items + 1], by windows that double."""
    length = 1
    while 2 * length <= items:
        values = np.maximum(values[..., :-length], values[..., length:])
        length *= 2
    more = items - length
    return np.maximum(values[..., : values.shape[-1] - more], values[..., more:]) if more else values


class _RankGroups:
    """Groups of ranks: inside a node, else whole nodes inside a block, else whole nodes anywhere."""

    def __init__(self, near: Neighbourhood, loads: RankLoads, weight: float) -> None:
        self._ranks, self._node = len(loads.free_s), near.node
        self._block = near.block // near.node  # nodes
        self._loads, self._weight = loads, weight
        self._rows: dict[tuple[int, int], _Rows] = {}
        self._gang = _Next()

    def next_gang(self, time_s: float) -> None:
        """The next gang takes so long."""
        if self._weight:
            self._gang = _Next(time_s, self._weight)

    def _each_ready_s(self, ranks: Ints | slice) -> Floats:
        """When each of these ranks is ready by itself: free, and past the bubble that the gang brings."""
        gang, free_s = self._gang, self._loads.free_s[ranks]
        if not gang.weight:
            return free_s
        return free_s + gang.weight * np.maximum(0.0, gang.time_s - self._loads.longest_s[ranks])

    def _ready_s(self, ranks: Ints) -> float:
        """When the last of these ranks is ready, past the slots that it leaves out."""
        gang, loads = self._gang, self._loads
        each_s = self._each_ready_s(ranks)
        if gang.weight and len(ranks) > 1:
            slot = loads.slot[ranks]
            left_out = np.where(slot > 0, np.minimum(slot.max() - slot, gang.weight), 0.0)
            each_s = np.maximum(each_s, loads.free_s[ranks] + gang.time_s * left_out)
        return float(each_s.max())

    def booked(self, ranks: Ints) -> None:
        """*ranks* have got a gang."""
        for rows in self._rows.values():
            rows.booked(ranks)

    def spread(self, size: int) -> tuple[Ints, float]:
        """The ranks that are ready first, wherever they are, and when they are."""
        ranks = np.sort(np.argpartition(self._each_ready_s(slice(None)), size - 1)[:size])
        return ranks, self._ready_s(ranks)

    def choose(self, size: int, latest_s: float) -> tuple[Ints, float]:
        """Ranks of a gang that wants to start by *latest_s*, and when they are ready."""
        if size == self._ranks:
            ranks = np.arange(size, dtype=np.int64)
            return ranks, self._ready_s(ranks)
        if size == 1:
            return self._single(latest_s)
        if size <= self._node:
            ranks = self._best(size, 1, self._node, latest_s)
            return ranks, self._ready_s(ranks)
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
                start_s = self._ready_s(chosen)
                if start_s < best_s:
                    best, best_s = chosen, start_s
                if start_s <= latest_s:
                    return chosen, start_s
                if not rest:
                    break
        return best, best_s

    def _single(self, latest_s: float) -> tuple[Ints, float]:
        ready_s = self._each_ready_s(slice(None))
        ready = ready_s <= latest_s
        if not ready.any():
            rank = int(ready_s.argmin())
        else:
            waste_s = np.where(ready, ready_s - self._loads.free_s, np.inf)
            rank = int(np.where(waste_s <= waste_s.min() + 1e-12, ready_s, -1.0).argmax())
        return np.array([rank]), float(ready_s[rank])

    def _best(self, items: int, width: int, row: int, latest_s: float) -> Ints:
        rows = self._rows.get((width, row))
        if rows is None:
            rows = _Rows(self._loads.free_s, self._loads, self._weight, width, row)
            self._rows[width, row] = rows
        return rows.best(items, latest_s, self._gang)

    def _with_rest(self, chosen: Ints, rest: int, row: int, latest_s: float) -> Ints:
        """Whole nodes *chosen* and *rest* ranks of one more node of the row, one that is in use if there is one.

        Empty where the row, the last one of a cluster, has no more nodes.
        """
        begin = chosen[0] // (row * self._node) * (row * self._node)
        part = slice(begin, min(begin + row * self._node, self._ranks))
        begin_s = np.maximum(self._each_ready_s(part), self._ready_s(chosen))
        if len(begin_s) == len(chosen):
            return chosen[:0]
        begin_s[chosen - begin] = np.inf
        loads = RankLoads(self._loads.free_s[part], self._loads.slot[part], self._loads.longest_s[part])
        rows = _Rows(begin_s, loads, self._weight, 1, self._node)
        return np.sort(np.concatenate((chosen, begin + rows.best(rest, latest_s, self._gang))))
