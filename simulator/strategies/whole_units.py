"""Pipelines whose short micro-batches all take the same time: long sequences placed by whole micro-batches.

Where a micro-batch has a least time u, a rank runs few of them, and what counts is how many fit a step T. A rank with k
long micro-batches of at most l and m short ones ends by T if

    (k + w) l + m u <= T        w: micro-batch times a pipeline idles (bubble_weight)

so for every k and m there is a level l(k, m) up to which long micro-batches cost the same, and the ranks such a
micro-batch costs are those of its group times (1 - m / n) / k, with n short ones on a rank that holds nothing else.
Every sequence takes the group size at which that is least; the least T for which all ranks suffice is the goal.
Gangs then find their ranks one by one, longest first, where they cost fewest whole micro-batches. The T is
raised until there is a place for every short one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.strategies.gangs import Neighbourhood, RankLoads
from simulator.strategies.long_sequences import LongKinds, LongSequences
from simulator.strategies.problem import PlanningProblem

__all__ = ["LongPlaces", "WholeUnitMenu", "whole_unit_places"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SMALL = 1e-9
SMALL_REST = 1e-3  # weight of time left over against whole units
VALUE_BISECTIONS = 5
"""Bisections of what a place for a short micro-batch is worth, where there are more places than short ones."""
STEP_CLOSE = 1.003
"""How closely the least step is looked for."""
STEP_GROWTH = 0.004
"""A step that does not suffice is raised by this share."""
STEPS_TRIED = 40
LENGTH_GROWTHS = (1.02, 1.1)
"""Micro-batches whose times differ by less are placed widest first: both are tried."""


@dataclass(frozen=True, slots=True)
class LongPlaces:
    """Long sequences on their ranks, in the order of LongSequences.

    Attributes:
        size: ranks of each.
        time_s: time of each.
        gang_ranks: its ranks, ascending.
        slot: its slot, the same on all of them.
        loads: per rank, bubble included.
        step_s: the step planned for.
    """

    size: Ints
    time_s: Floats
    gang_ranks: list[Ints]
    slot: Ints
    loads: RankLoads
    step_s: float


@dataclass(frozen=True, slots=True)
class _Levels:
    """Kinds of ranks for one step, by rising level."""

    level_s: Floats
    shelves: Ints
    packs: Ints
    most: int
    """Micro-batches of a rank that holds short ones only."""


@dataclass(frozen=True, slots=True)
class _Mix:
    """A level and a group size for every kind of sequence."""

    level: Ints
    size: Ints
    ranks: float
    """Ranks that all work takes, were there no remainders."""


class WholeUnitMenu:
    """Levels and group sizes for all kinds of long sequences."""

    def __init__(self, kinds: LongKinds, packs: int, unit_s: float, weight: float) -> None:
        self.packs, self.unit_s, self.weight, self.kinds = packs, unit_s, weight, kinds
        self.times_s = np.maximum(kinds.times_s, unit_s)

    def levels(self, step_s: float) -> _Levels:
        """All kinds of ranks of a step."""
        most = int(step_s / self.unit_s - self.weight + SMALL)
        items, shelves = np.divmod(np.arange(most * most), max(1, most)) + np.array([[1], [1]])
        packs = items - shelves
        level_s = (step_s - packs * self.unit_s) / (shelves + self.weight)
        fits = (packs >= 0) & (level_s >= self.unit_s * (1.0 - SMALL))
        order = np.flatnonzero(fits)[np.argsort(level_s[fits], kind="stable")]
        return _Levels(level_s[order] * (1.0 + SMALL), shelves[order], packs[order], most)

    def choose(self, levels: _Levels, at: Ints, value: float) -> tuple[Ints, Ints] | None:
        """The cheapest level and size of every kind; None if one exceeds all levels.

        A rank of a level saves *value* of a rank's n-th part for each short micro-batch it has place for.
        """
        price = (1.0 - levels.packs * value / max(1, levels.most)) / levels.shelves
        least = np.minimum.accumulate(price[::-1])[::-1]
        lowest = np.flatnonzero(price <= least * (1.0 + SMALL))
        entry = self.kinds.cheapest(self.kinds.sizes * np.append(least, np.inf)[at])
        # Of equal prices the lowest level.
        return (
            None if entry is None else (lowest[np.searchsorted(lowest, at[entry])], self.kinds.sizes[entry])
        )

    def mix(self, step_s: float) -> _Mix | None:
        """Levels that take fewest ranks, none with places for more short micro-batches than there are."""
        levels = self.levels(step_s)
        at = np.searchsorted(levels.level_s, self.times_s)
        chosen = self.choose(levels, at, 1.0)
        if chosen is None:
            return None
        level, size = chosen
        places = self._places(levels, level, size)
        if places.sum() > self.packs:
            low, high = 0.0, 1.0
            other = self.choose(levels, at, 0.0)
            for _ in range(VALUE_BISECTIONS):
                value = (low + high) / 2.0
                middle = self.choose(levels, at, value)
                if middle is not None and self._places(levels, *middle).sum() > self.packs:
                    high, (level, size) = value, middle
                else:
                    low, other = value, middle
            if other is not None:
                # Longer sequences as with the higher value, shorter ones as with the lower one.
                more, fewer = self._places(levels, level, size), self._places(levels, *other)
                first = np.cumsum(more - fewer) + fewer.sum() <= self.packs
                level, size = np.where(first, level, other[0]), np.where(first, size, other[1])
        ranks = self.kinds.count * size / levels.shelves[level]
        rest = max(0.0, self.packs - float(self._places(levels, level, size).sum()))
        return _Mix(level, size, float(ranks.sum()) + rest / max(1, levels.most))

    def _places(self, levels: _Levels, level: Ints, size: Ints) -> Floats:
        return np.asarray(self.kinds.count * size / levels.shelves[level] * levels.packs[level])

    def least_step_s(self, ranks: int, low_s: float) -> float:
        """The least step whose work fits *ranks* ranks."""

        def fits(step_s: float) -> bool:
            mix = self.mix(step_s)
            return mix is not None and mix.ranks <= ranks

        high_s = low_s
        while not fits(high_s):
            low_s, high_s = high_s, high_s * 1.1
        while high_s > low_s * STEP_CLOSE:
            middle_s = (low_s + high_s) / 2.0
            low_s, high_s = (low_s, middle_s) if fits(middle_s) else (middle_s, high_s)
        return high_s


def whole_unit_places(
    problem: PlanningProblem, long: LongSequences, packs: int, unit_s: float, least_s: float
) -> Iterator[LongPlaces]:
    """Placements of all long sequences, each with room for *packs* micro-batches of *unit_s*; shortest step first."""
    menu = WholeUnitMenu(long.kinds, packs, unit_s, problem.bubble_weight)
    step_s = menu.least_step_s(problem.ranks, max(least_s, (1.0 + problem.bubble_weight) * unit_s))
    for _ in range(STEPS_TRIED):
        mix = menu.mix(step_s)
        missing = 0.0
        for growth in LENGTH_GROWTHS:
            placed = None if mix is None else _place(problem, long, menu, mix, step_s, growth)
            if placed is None:
                continue
            left_s = np.maximum(0.0, step_s * (1.0 + SMALL) - placed.loads.free_s)
            missing = packs - float(np.floor(left_s / unit_s + SMALL).sum())
            if missing <= 0:
                yield placed
        step_s += max(step_s * STEP_GROWTH, missing * unit_s / problem.ranks / 2.0)


def _place(
    problem: PlanningProblem,
    long: LongSequences,
    menu: WholeUnitMenu,
    mix: _Mix,
    step_s: float,
    growth: float,
) -> LongPlaces | None:
    """Every gang on its ranks, longest first, widest first where they are about as long; None if one does not fit."""
    size = mix.size[long.kinds.kind]
    time_s = problem.sequence_s(long.tokens, size)
    room = _Room(problem, step_s, menu.unit_s)
    ranks: list[Ints] = [np.empty(0, dtype=np.int64)] * len(size)
    slot = np.empty(len(size), dtype=np.int64)
    sizes, times_s = size.tolist(), time_s.tolist()
    length = np.floor(np.log(time_s / menu.unit_s) / np.log(growth) + SMALL)
    for gang in np.lexsort((-size, -length)).tolist():
        place = room.take(sizes[gang], times_s[gang]) or room.gather(sizes[gang], times_s[gang])
        if place is None:
            return None
        slot[gang], ranks[gang] = place
    return LongPlaces(size, time_s, ranks, slot, _loads(problem, menu.unit_s, ranks, slot, time_s), step_s)


def _loads(
    problem: PlanningProblem, unit_s: float, ranks: list[Ints], slot: Ints, time_s: Floats
) -> RankLoads:
    """What the gangs leave of every rank, waiting for each other and bubbles included."""
    weight = problem.bubble_weight
    free_s = np.zeros(problem.ranks)
    next_slot = np.zeros(problem.ranks, dtype=np.int64)
    longest_s = np.full(problem.ranks, unit_s)
    for gang in np.argsort(slot, kind="stable").tolist():
        members = ranks[gang]
        free_s[members] = free_s[members].max() + time_s[gang]
        next_slot[members] = slot[gang] + 1
        longest_s[members] = np.maximum(longest_s[members], time_s[gang])
    return RankLoads(free_s + weight * longest_s, next_slot, longest_s)


class _Room:
    """What is left of the step: stretches of neighbouring ranks with the same past."""

    def __init__(self, problem: PlanningProblem, step_s: float, unit_s: float) -> None:
        self._keep_to = Neighbourhood.of(problem)
        self._weight, self._unit_s = problem.bubble_weight, unit_s
        self._many = 0
        self._in_blocks = False
        # First rank, last rank + 1, next slot, edge of the first rank's block.
        self._whole = np.zeros((4, problem.ranks + 1), dtype=np.int64)
        self._seconds = np.zeros((2, problem.ranks + 1))  # left of the step, longest micro-batch
        self._add(0, problem.ranks, 0, step_s - self._weight * unit_s, unit_s)

    def _add(self, first: int, last: int, slot: int, left_s: float, longest_s: float) -> None:
        self._whole[:, self._many] = first, last, slot, self._edge(first)
        self._seconds[:, self._many] = left_s, longest_s
        self._many += 1

    def _edge(self, rank: int) -> int:
        return (rank // self._keep_to.block + 1) * self._keep_to.block

    def take(self, size: int, time_s: float) -> tuple[int, Ints] | None:
        """Slot and ranks of the *size* neighbours with one past that lose least; None if there are none.

        They lose short micro-batches that no longer fit; of equals those with the shortest rest are taken.
        """
        first, last, slot, edge = self._whole[:, : self._many]
        left_s, longest_s = self._seconds[:, : self._many]
        after_s = left_s - time_s - self._weight * np.maximum(0.0, time_s - longest_s)
        start = first
        if 1 < size <= self._keep_to.node:
            start = self._keep_to.start(first, size)
        elif 1 < size <= self._keep_to.block:
            start = np.where(first + size <= edge, first, edge)
        fits = (start + size <= last) & (after_s >= -SMALL * time_s)
        units = self._units(after_s)
        lost = self._units(left_s) - units + SMALL_REST * (after_s / self._unit_s - units)
        at = int(np.where(fits, lost, np.inf).argmin())
        if not fits[at]:
            return None
        where, begin = int(slot[at]), int(start[at])
        self._split(at, begin, size, where + 1, float(after_s[at]), time_s)
        return where, np.arange(begin, begin + size)

    def _units(self, left_s: Floats) -> Floats:
        return np.asarray(np.floor(left_s / self._unit_s + SMALL))

    def _split(self, at: int, start: int, size: int, slot: int, after_s: float, longest_s: float) -> None:
        """Book *size* ranks from *start* on of stretch *at*; the rest of it stays as it is."""
        first, last, before, _ = self._whole[:, at].tolist()
        left_s, longest_before_s = self._seconds[:, at].tolist()
        if start > first:
            self._add(first, start, before, left_s, longest_before_s)
        if last > start + size:
            self._add(start + size, last, before, left_s, longest_before_s)
        self._whole[:, at] = start, start + size, slot, self._edge(start)
        self._seconds[:, at] = after_s, max(longest_before_s, longest_s)

    def gather(self, size: int, time_s: float) -> tuple[int, Ints] | None:
        """Slot and ranks of several stretches with about as much left; of one block, if a block is wide enough."""
        block = self._keep_to.block
        if size <= block:
            self._cut_at_blocks()
        first, last, slot, _ = self._whole[:, : self._many]
        left_s, longest_s = self._seconds[:, : self._many]
        ready_s = left_s - self._weight * np.maximum(0.0, time_s - longest_s)
        fits = np.flatnonzero(ready_s >= time_s * (1.0 - SMALL))
        fits = fits[np.argsort(ready_s[fits], kind="stable")]
        row = first[fits] // block if size <= block else np.zeros_like(fits)
        best_lost, chosen = np.inf, fits[:0]
        for one in np.unique(row):
            part = fits[row == one]
            widths = last[part] - first[part]
            reach = np.cumsum(widths)
            end = np.searchsorted(reach, reach - widths + size)  # the last stretch of the row from each on
            begin = np.flatnonzero(end < len(part))
            if not len(begin):
                continue
            units = np.cumsum(self._units(left_s[part]) * widths)
            before = np.concatenate(([0.0], units))[begin]
            lost = units[end[begin]] - before - size * self._units(ready_s[part[begin]] - time_s)
            if lost.min() < best_lost:
                at = int(lost.argmin())
                best_lost, chosen = float(lost[at]), part[begin[at] : end[begin[at]] + 1]
        if not len(chosen):
            return None
        # They start together: all wait for the one with least left.
        after_s, top_s = float(ready_s[chosen].min()) - time_s, max(time_s, float(longest_s[chosen].max()))
        where = int(slot[chosen].max())
        ranks: list[Ints] = []
        starts, widths = first[chosen].tolist(), (last - first)[chosen].tolist()
        for at, start, width in zip(chosen.tolist(), starts, widths, strict=True):
            many = min(width, size)
            size -= many
            ranks.append(np.arange(start, start + many))
            self._split(at, start, many, where + 1, after_s, top_s)
        return where, np.sort(np.concatenate(ranks))

    def _cut_at_blocks(self) -> None:
        """No stretch crosses the edge of a block; once cut none ever does again."""
        if self._in_blocks:
            return
        self._in_blocks = True
        block = self._keep_to.block
        for at in range(self._many):
            _, last, slot, edge = self._whole[:, at].tolist()
            edges = [*range(edge, last, block), last]
            self._whole[1, at] = edges[0]
            for start, end in pairwise(edges):
                self._add(start, end, slot, *self._seconds[:, at].tolist())
