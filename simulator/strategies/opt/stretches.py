"""What gangs leave of a step on every rank: stretches of neighbouring ranks with the same past."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.strategies.opt.gangs import Neighbourhood
from hdpsim.simulator.strategies.problem import PlanningProblem

SMALL = 1e-9
SMALL_REST = 1e-3  # weight of time left over against whole units
GANGS_TOGETHER = 16  # their losses on all stretches are computed at once
MANY_CHANGED = 24  # stretches, beyond which the losses are computed again

LEFT, LONGEST, UNITS, WIDTH, IN_NODE, IN_BLOCK = range(6)  # rows of the table


class Stretches:
    """What is left of a step for gangs, which are placed one after the other.

    A plan places tens of thousands of gangs on some hundred stretches, too few for array operations to pay one gang at
    a time. So what the next gangs would lose on each stretch is computed together, and only on the stretches that
    have changed since, one or two a gang, one by one in plain Python.
    """

    def __init__(self, problem: PlanningProblem, step_s: float, unit_s: float) -> None:
        """Of *problem*'s ranks, all with *step_s*, for short micro-batches of *unit_s*."""
        self._keep_to = Neighbourhood.of(problem)
        self._weight, self._unit_s = problem.bubble_weight, unit_s
        self._in_blocks = False
        # Of every stretch: first rank, last rank + 1, next slot.
        self._first: list[int] = []
        self._last: list[int] = []
        self._slot: list[int] = []
        # Left of the step, longest micro-batch, short ones that fit, widest group on neighbours: anywhere, node, block.
        self._facts: list[tuple[float, ...]] = []
        self._table = np.empty((6, 0))
        self._lost = np.empty((0, 0))
        """[gangs, stretches]: what the next gangs lose, as when the table was settled; infinite where none fits."""
        self._changed: dict[int, None] = {}
        """Stretches that have changed since."""
        self._add(0, problem.ranks, 0, step_s - self._weight * unit_s, unit_s)

    def place(self, sizes: list[int], times_s: list[float]) -> Iterator[tuple[int, Ints] | None]:
        """Slot and ranks of every gang in turn; None where it finds none."""
        done = 0
        while done < len(sizes):
            part = slice(done, done + GANGS_TOGETHER)
            self._settle(sizes[part], times_s[part])
            for lost, size, time_s in zip(self._lost, sizes[part], times_s[part], strict=True):
                yield self._take(lost, size, time_s) or self._gather(size, time_s)
                done += 1
                if len(self._changed) > MANY_CHANGED:
                    break

    def _add(self, first: int, last: int, slot: int, left_s: float, longest_s: float) -> None:
        self._first.append(first)
        self._last.append(last)
        self._slot.append(slot)
        self._facts.append((0.0, 0.0, 0.0, 0, 0, 0))
        self._describe(len(self._first) - 1, left_s, longest_s)

    def _describe(self, at: int, left_s: float, longest_s: float) -> None:
        """Stretch *at* has changed."""
        first, last = self._first[at], self._last[at]
        node, edge = self._keep_to.node, self._edge(first)
        node_edge = (first // node + 1) * node
        units = (left_s / self._unit_s + SMALL) // 1.0
        in_node = max(min(node_edge, last) - first, min(node, last - node_edge))
        in_block = max(min(edge, last) - first, last - edge)
        self._change(at, (left_s, longest_s, units, last - first, in_node, in_block))

    def _change(self, at: int, facts: tuple[float, ...]) -> None:
        self._facts[at] = facts
        self._changed[at] = None
        if at < self._lost.shape[1]:
            self._lost[:, at] = np.inf

    def _edge(self, rank: int) -> int:
        return (rank // self._keep_to.block + 1) * self._keep_to.block

    def _widest(self, size: int) -> int:
        """The fact that says whether *size* neighbours are to be had."""
        if size <= self._keep_to.node:
            return IN_NODE
        return IN_BLOCK if size <= self._keep_to.block else WIDTH

    def _settle(self, sizes: list[int], times_s: list[float]) -> None:
        """Bring the table up to date, and what gangs of *sizes* would lose, as _take computes it."""
        missing = len(self._first) - self._table.shape[1]
        if missing:
            self._table = np.concatenate((self._table, np.empty((6, missing))), axis=1)
        changed = list(self._changed)
        self._table[:, changed] = np.array([self._facts[at] for at in changed]).T
        self._changed.clear()
        left_s, longest_s, units_before = self._table[: UNITS + 1]
        time_s = np.array(times_s)[:, None]
        after_s = left_s - time_s - self._weight * np.maximum(0.0, time_s - longest_s)
        fits = after_s >= -SMALL * time_s
        fits &= self._table[[self._widest(size) for size in sizes]] >= np.array(sizes)[:, None]
        after_s /= self._unit_s
        units = np.floor(after_s + SMALL)
        self._lost = np.where(fits, units_before - units + SMALL_REST * (after_s - units), np.inf)

    def _take(self, lost: Floats, size: int, time_s: float) -> tuple[int, Ints] | None:
        """Slot and ranks of the *size* neighbours with one past that lose least; None if there are none.

        They lose short micro-batches that no longer fit; of equals those with the shortest rest are taken, of
        equals the first.

        Args:
            lost: on all stretches that have not changed.
            size: of the gang.
            time_s: it takes.
        """
        unit_s, weight, widest, all_facts = self._unit_s, self._weight, self._widest(size), self._facts
        best = int(lost.argmin())
        least = float(lost[best])
        least_after_s = -SMALL * time_s
        for at in self._changed:
            facts = all_facts[at]
            if facts[widest] < size:
                continue
            left_s, longest_s = facts[LEFT], facts[LONGEST]
            # Less the new bubble, of which *longest_s* has been paid.
            after_s = left_s - time_s - (weight * (time_s - longest_s) if time_s > longest_s else 0.0)
            if after_s >= least_after_s:
                after = after_s / unit_s
                units = (after + SMALL) // 1.0
                loss = facts[UNITS] - units + SMALL_REST * (after - units)
                if loss < least or (loss == least and at < best):
                    best, least = at, loss
        if least == np.inf:
            return None
        begin, slot = self._start(self._first[best], size), self._slot[best]
        left_s, longest_s = all_facts[best][:UNITS]
        after_s = left_s - time_s - (weight * (time_s - longest_s) if time_s > longest_s else 0.0)
        self._split(best, begin, size, slot + 1, after_s, time_s)
        return slot, np.arange(begin, begin + size)

    def _start(self, first: int, size: int) -> int:
        """First rank from *first* on at which *size* neighbours are in one node, or one block, if they fit one."""
        for span in (self._keep_to.node, self._keep_to.block):
            if size <= span:
                edge = (first // span + 1) * span
                return first if first + size <= edge else edge
        return first

    def _split(self, at: int, start: int, size: int, slot: int, after_s: float, longest_s: float) -> None:
        """Book *size* ranks from *start* on of stretch *at*; the rest of it stays as it is."""
        first, last, before = self._first[at], self._last[at], self._slot[at]
        left_s, longest_before_s = self._facts[at][:UNITS]
        if start > first:
            self._add(first, start, before, left_s, longest_before_s)
        if last > start + size:
            self._add(start + size, last, before, left_s, longest_before_s)
        self._slot[at] = slot
        longest_s = longest_s if longest_s > longest_before_s else longest_before_s
        if size < last - first:
            self._first[at], self._last[at] = start, start + size
            self._describe(at, after_s, longest_s)
        else:
            units = (after_s / self._unit_s + SMALL) // 1.0
            self._change(at, (after_s, longest_s, units, *self._facts[at][WIDTH:]))

    def _gather(self, size: int, time_s: float) -> tuple[int, Ints] | None:
        """Slot and ranks of several stretches with about as much left; of one block, if a block is wide enough."""
        block = self._keep_to.block
        if size <= block:
            self._cut_at_blocks()
        left_s, longest_s, units, width = np.array([fact[:4] for fact in self._facts]).T
        first = np.array(self._first)
        ready_s = left_s - self._weight * np.maximum(0.0, time_s - longest_s)
        fits = np.flatnonzero(ready_s >= time_s * (1.0 - SMALL))
        row = first[fits] // block if size <= block else np.zeros_like(fits)
        order = np.lexsort((ready_s[fits], row))
        fits, row = fits[order], row[order]
        # From each stretch on the last one that is needed, those of a row by the time they have left.
        reach = np.cumsum(width[fits])
        end = np.searchsorted(reach, reach - width[fits] + size)
        begin = np.flatnonzero(end < np.searchsorted(row, row, side="right"))
        if not len(begin):
            return None
        ready, taken = np.cumsum(units[fits] * width[fits]), units[fits] * width[fits]
        lost = ready[end[begin]] - (ready - taken)[begin]
        lost -= size * np.floor((ready_s[fits[begin]] - time_s) / self._unit_s + SMALL)
        best = int(lost.argmin())
        chosen = fits[begin[best] : end[begin[best]] + 1]
        # They start together: all wait for the one with least left.
        after_s, top_s = float(ready_s[chosen].min()) - time_s, max(time_s, float(longest_s[chosen].max()))
        slot = max(self._slot[at] for at in chosen.tolist())
        ranks: list[Ints] = []
        for at in chosen.tolist():
            start = self._first[at]
            many = min(self._last[at] - start, size)
            size -= many
            ranks.append(np.arange(start, start + many))
            self._split(at, start, many, slot + 1, after_s, top_s)
        return slot, np.sort(np.concatenate(ranks))

    def _cut_at_blocks(self) -> None:
        """No stretch crosses the edge of a block; once cut none ever does again."""
        if self._in_blocks:
            return
        self._in_blocks = True
        for at in range(len(self._first)):
            last, slot = self._last[at], self._slot[at]
            left_s, longest_s = self._facts[at][:UNITS]
            edges = [*range(self._edge(self._first[at]), last, self._keep_to.block), last]
            self._last[at] = edges[0]
            self._describe(at, left_s, longest_s)
            for start, end in pairwise(edges):
                self._add(start, end, slot, left_s, longest_s)
