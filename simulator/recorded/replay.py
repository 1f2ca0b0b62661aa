"""Playing a graph of operations in closed form: max-plus, level by level, for many variants at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Bools, Floats, Ints, ranges
from hdpsim.errors import DeadlockError

_SHOWN = 8  # longer circles are cut: nobody reads on


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationGraph:
    """Operations that wait for others, and groups of operations that wait for each other.

    An operation starts when all its predecessors have ended; without any, at time 0. The members of a group begin
    their work once the last of them has started, and each ends after its own work.

    Attributes:
        operations: how many there are.
        source: predecessor, per dependency.
        target: the operation that waits for it.
        group: [operations]: number of the group; operations of the same number meet. Every number has a member.
    """

    operations: int
    source: Ints
    target: Ints
    group: Ints


class Replay:
    """A graph put into an order in which it can be played; `ends` plays it.

    Attributes:
        graph: what is played.
        levels: length of the longest chain of groups.
    """

    def __init__(self, graph: OperationGraph, name: Callable[[int], str] = str) -> None:
        """Sort the groups by levels; *name* names an operation in errors.

        Raises:
            DeadlockError: operations wait for each other in a circle.
        """
        self.graph = graph
        level = _levels(graph)
        if np.any(level < 0):
            raise circle_error(graph, level[graph.group] >= 0, name)
        self.levels = int(level.max()) + 1 if len(level) else 0

        # Operations by level and group: position[i] is the place of operation i in that order.
        order = np.lexsort((graph.group, level[graph.group]))
        position = np.empty(graph.operations, dtype=np.int64)
        position[order] = np.arange(graph.operations)
        ordered_group = graph.group[order]
        first_member = np.flatnonzero(np.diff(ordered_group, prepend=-1))
        sizes = np.diff(np.append(first_member, graph.operations))
        entry_level = level[ordered_group[first_member]]

        # Place 0 of the ends is the start of the step; operations without predecessors wait for it.
        free = np.ones(graph.operations, dtype=np.bool_)
        free[graph.target] = False
        source = np.concatenate([np.zeros(int(free.sum()), dtype=np.int64), position[graph.source] + 1])
        target = np.concatenate([position[free], position[graph.target]])
        entry = np.repeat(np.arange(len(sizes)), sizes)[target]
        by_entry = np.argsort(entry, kind="stable")
        self._order, self._source, self._target = order, source[by_entry], target[by_entry]
        first_edge = np.searchsorted(entry[by_entry], np.arange(len(sizes) + 1))
        first_member = np.append(first_member, graph.operations)
        bounds = np.searchsorted(entry_level, np.arange(self.levels + 1))
        self._waves = [
            (
                slice(first_edge[low], first_edge[high]),
                first_edge[low:high] - first_edge[low],
                sizes[low:high],
                slice(first_member[low], first_member[high]),
            )
            for low, high in pairwise(bounds.tolist())
        ]

    def ends(self, work_s: ArrayLike, delay_s: ArrayLike | None = None) -> Floats:
        """Return when every operation ends.

            start(operation) = max over its predecessors of end, plus its delay
            end(operation) = max over its group of start, plus its work

        Args:
            work_s: [operations] or [variants, operations]: how long each works once its group is complete.
            delay_s: [operations], the same for all variants; none by default.

        Returns:
            The same shape as *work_s*.
        """
        work = np.asarray(work_s, dtype=np.float64)
        variants = np.ascontiguousarray(np.atleast_2d(work)[:, self._order].T)
        end = np.zeros((len(self._order) + 1, variants.shape[1]))
        delay = None
        if delay_s is not None:
            delay = np.asarray(delay_s, dtype=np.float64)[self._order][self._target, None]
        for edges, offsets, sizes, members in self._waves:
            arrival = end[self._source[edges]]
            if delay is not None:
                arrival += delay[edges]
            begin = np.repeat(np.maximum.reduceat(arrival, offsets, axis=0), sizes, axis=0)
            np.add(begin, variants[members], out=end[members.start + 1 : members.stop + 1])
        result = np.empty_like(variants)
        result[self._order] = end[1:]
        return result.T.reshape(work.shape)


def _levels(graph: OperationGraph) -> Ints:
    """Return the level of every group: one more than the highest before it; -1 in and behind a circle."""
    groups = int(graph.group.max()) + 1 if graph.operations else 0
    source, target = graph.group[graph.source], graph.group[graph.target]
    successors = target[np.argsort(source, kind="stable")]
    count = np.bincount(source, minlength=groups)
    offset = np.cumsum(count) - count
    missing = np.bincount(target, minlength=groups)
    level = np.full(groups, -1, dtype=np.int64)
    ready = np.flatnonzero(missing == 0)
    depth = 0
    while len(ready):
        level[ready] = depth
        reached, times = np.unique(successors[ranges(offset[ready], count[ready])], return_counts=True)
        missing[reached] -= times
        ready = reached[missing[reached] == 0]
        depth += 1
    return level


def circle_error(graph: OperationGraph, played: Bools, name: Callable[[int], str]) -> DeadlockError:
    """Return the error that names the operations which wait for each other, given those that could be *played*."""
    waits = ~played[graph.source] & ~played[graph.target]
    before = dict(zip(graph.group[graph.target[waits]].tolist(), np.flatnonzero(waits).tolist(), strict=True))
    group = next(iter(before))
    seen: dict[int, int] = {}
    names: list[str] = []
    while group not in seen:
        seen[group] = len(names)
        dependency = before[group]
        names.append(name(int(graph.target[dependency])))
        group = int(graph.group[graph.source[dependency]])
    circle = names[seen[group] :]
    left_out = len(circle) - _SHOWN
    if left_out > 0:
        circle = [*circle[:_SHOWN], f"{left_out} more"]
    return DeadlockError(f"deadlock: {', which waits for '.join([*circle, names[seen[group]]])}")
