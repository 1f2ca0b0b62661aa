"""Sequences with micro-batches to themselves: how long they take on groups of any size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.strategies.hdp.groups import SizeTable, least_group
from hdpsim.simulator.strategies.problem import PlanningProblem

LENGTH_GROWTH = 1.005
"""Sequences whose lengths differ by less are of one kind."""
STEP_CLOSE = 1e-4
"""How closely the ideal step is looked for."""


class LongKinds:
    """Long sequences of about the same length, and the group sizes worth a look for each kind.

    Attributes:
        kind: of every sequence, longest first.
        count: sequences of every kind.
        sizes: group sizes at which a kind takes less time than on all smaller ones, one kind after the other.
        times_s: the time of its longest sequence on each.
        bounds: the first entry of every kind.
    """

    def __init__(self, problem: PlanningProblem, tokens: Ints, least: Ints, limit_s: float) -> None:
        """Of *tokens* (longest first) that need *least* ranks, with sizes up to where they take *limit_s*."""
        step = np.floor(np.log(tokens) / np.log(LENGTH_GROWTH))
        first = np.flatnonzero(np.diff(step, prepend=np.inf))
        self.count = np.diff(first, append=len(step))
        self.kind = np.repeat(np.arange(len(first)), self.count)
        table = SizeTable(problem, tokens[first], np.maximum.reduceat(least, first), limit_s)
        self._row, self.sizes, self.times_s = table.quicker()
        self.bounds = np.searchsorted(self._row, np.arange(len(first)))

    def within(self, limit_s: float) -> Ints:
        """Of every kind the entry of *sizes* with the fewest ranks that takes *limit_s* at most, else the quickest."""
        last = np.append(self.bounds[1:], len(self._row)) - 1
        return np.asarray(
            np.minimum(self.bounds + np.add.reduceat(self.times_s > limit_s, self.bounds), last)
        )

    def least(self, cost: Floats) -> float:
        """The sum over all sequences of their kind's least *cost*; infinite if a kind has only infinite ones."""
        return float(self.count @ np.minimum.reduceat(cost, self.bounds))

    def cheapest(self, cost: Floats) -> Ints | None:
        """Of every kind the entry of *sizes* with the least *cost*; None if one has only infinite ones."""
        least = np.minimum.reduceat(cost, self.bounds)
        if not np.isfinite(least).all():
            return None
        hits = np.flatnonzero(cost <= least[self._row])
        return np.asarray(hits[np.flatnonzero(np.diff(self._row[hits], prepend=-1))])


class LongSequences:
    """Sequences that do not fit a pack, longest first, with the time they take on any group that memory allows."""

    def __init__(self, problem: PlanningProblem, limit_s: float = -np.inf) -> None:
        """Of the problem; nobody asks for less time than *limit_s*."""
        long = np.flatnonzero(problem.lengths > problem.target_tokens)
        self.sequence = long[np.argsort(-problem.lengths[long], kind="stable")]
        self.tokens = problem.lengths[self.sequence]
        self.least = least_group(problem, self.tokens)
        self._problem, self._limit_s = problem, limit_s

    @cached_property
    def _least_s(self) -> Floats:
        return self._problem.sequence_s(self.tokens, self.least)

    @cached_property
    def kinds(self) -> LongKinds:
        """The long sequences by length."""
        return LongKinds(self._problem, self.tokens, self.least, self._limit_s)

    def within(self, limits_s: list[float]) -> Iterator[tuple[Ints, Floats]]:
        """For every limit the smallest group of every sequence that meets it (else the quickest), and its time.

        Of a pipeline by kinds, which are known there.
        """
        if self._problem.stages > 1 and len(self.tokens):
            sizes = np.stack([self.kinds.sizes[self.kinds.within(limit_s)] for limit_s in limits_s])
            sizes = sizes[:, self.kinds.kind]
            yield from zip(sizes, self._problem.sequence_s(self.tokens[None, :], sizes), strict=True)
            return
        too_slow = np.flatnonzero(self._least_s > min(limits_s))
        table = SizeTable(self._problem, self.tokens[too_slow], self.least[too_slow], min(limits_s))
        for limit_s in limits_s:
            size, time_s = self.least.copy(), self._least_s.copy()
            size[too_slow], time_s[too_slow] = table.within(limit_s)
            yield size, time_s


def ideal_step_s(
    problem: PlanningProblem, long: LongSequences, usual_s: float, short_s: float, least_s: float
) -> tuple[float, Ints]:
    """The least step of a pipeline whose ranks are filled without gaps, with the group sizes it takes.

    A rank whose longest micro-batch takes t has T - w t left for work (w t: bubble). So work of this length takes at
    least d t / (T - w t) ranks wherever it is, and the step is the least T with

        sum over long sequences of the least d t(d) / (T - w t(d))  +  short work / (T - w u)  <=  ranks

    *short_s*: work of short sequences in micro-batches of *usual_s* (u). *least_s*: a step below which none is.
    """
    weight, kinds = problem.bubble_weight, long.kinds if len(long.tokens) else None

    def cost(step_s: float) -> Floats:
        """Ranks that a sequence of each kind takes on each size of group."""
        assert kinds is not None
        left_s = step_s - weight * kinds.times_s
        cost = np.full(left_s.shape, np.inf)
        np.divide(kinds.sizes * kinds.times_s, left_s, out=cost, where=left_s >= kinds.times_s)
        return cost

    def fits(step_s: float) -> bool:
        if step_s <= weight * usual_s and short_s:
            return False
        ranks = short_s / (step_s - weight * usual_s) if short_s else 0.0
        return ranks + (0.0 if kinds is None else kinds.least(cost(step_s))) <= problem.ranks

    low_s = high_s = least_s
    while not fits(high_s):
        low_s, high_s = high_s, high_s * 1.2
    while high_s > low_s * (1.0 + STEP_CLOSE):
        middle_s = (low_s + high_s) / 2.0
        low_s, high_s = (low_s, middle_s) if fits(middle_s) else (middle_s, high_s)
    entry = None if kinds is None else kinds.cheapest(cost(high_s))
    sizes = np.empty(0, dtype=np.int64) if kinds is None or entry is None else kinds.sizes[entry][kinds.kind]
    return high_s, sizes
