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

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.strategies.opt.gangs import RankLoads
from hdpsim.simulator.strategies.opt.long_sequences import LongKinds, LongSequences
from hdpsim.simulator.strategies.opt.stretches import SMALL, Stretches
from hdpsim.simulator.strategies.problem import PlanningProblem

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
    room = Stretches(problem, step_s, menu.unit_s)
    ranks: list[Ints] = [np.empty(0, dtype=np.int64)] * len(size)
    slot = np.empty(len(size), dtype=np.int64)
    length = np.floor(np.log(time_s / menu.unit_s) / np.log(growth) + SMALL)
    order = np.lexsort((-size, -length))
    for gang, place in zip(
        order.tolist(), room.place(size[order].tolist(), time_s[order].tolist()), strict=True
    ):
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
    # Gangs of a slot have no rank in common: all of them at once.
    for number in range(int(slot.max()) + 1):
        gangs = np.flatnonzero(slot == number)
        sizes = np.array([len(ranks[gang]) for gang in gangs.tolist()])
        members = np.concatenate([ranks[gang] for gang in gangs.tolist()])
        end_s = np.maximum.reduceat(free_s[members], np.cumsum(sizes) - sizes) + time_s[gangs]
        free_s[members] = np.repeat(end_s, sizes)
        next_slot[members] = number + 1
        longest_s[members] = np.maximum(longest_s[members], np.repeat(time_s[gangs], sizes))
    return RankLoads(free_s + weight * longest_s, next_slot, longest_s)
