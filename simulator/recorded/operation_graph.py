"""A graph of operations, played in closed form (max-plus, for many variants at once) or event by event with SimPy.

Both executors add the same numbers in the same order, so they agree to the last bit or so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import simpy
from numpy.typing import ArrayLike

from hdpsim.arrays import Bools, Floats, Ints, offsets_of, ranges
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
        name: names an operation in errors.
    """

    operations: int
    source: Ints
    target: Ints
    group: Ints
    name: Callable[[int], str] = str

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.group.max()) + 1 if self.operations else 0


class Replay:
    """A graph put into an order in which it can be played; `ends` plays it.

    Attributes:
        graph: what is played.
        levels: length of the longest chain of groups.
    """

    def __init__(self, graph: OperationGraph) -> None:
        """Sort the groups by levels.

        Raises:
            DeadlockError: operations wait for each other in a circle.
        """
        self.graph = graph
        level = _levels(graph)
        if np.any(level < 0):
            raise _circle_error(graph, level[graph.group] >= 0)
        self.levels = int(level.max()) + 1 if len(level) else 0

        # Operations by level and group: position[i] is the place of operation i in that order.
        order = np.lexsort((graph.group, level[graph.group]))
        position = np.argsort(order)
        ordered_group = graph.group[order]
        first_member = np.flatnonzero(np.diff(ordered_group, prepend=-1))
        sizes = np.diff(np.append(first_member, graph.operations))

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
        bounds = np.searchsorted(level[ordered_group[first_member[:-1]]], np.arange(self.levels + 1))
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


def play_operations(graph: OperationGraph, work_s: Floats, delay_s: Floats | None = None) -> Floats:
    """Return when every operation ends, played with SimPy; see `Replay.ends` for rules and arguments.

    The end of an operation is one event. It is scheduled when the last member of the operation's group has started, and
    releases the successors.

    Raises:
        DeadlockError: operations wait for each other in a circle.
    """
    player = _Player(graph, work_s, delay_s)
    player.env.run()
    ended = ~np.isnan(player.end_s)
    if not ended.all():
        raise _circle_error(graph, ended)
    return player.end_s


class _Event(simpy.Event):
    """The start or the end of one operation."""

    def __init__(
        self, env: simpy.Environment, operation: int, then: Callable[[simpy.Event], None], delay_s: float
    ) -> None:
        super().__init__(env)
        self.operation = operation
        self.callbacks = [then]
        self._ok, self._value = True, None
        env.schedule(self, delay=delay_s)


class _Player:
    """One run. Arrays are turned to lists: reading one element of an array costs ten times as much."""

    def __init__(self, graph: OperationGraph, work_s: Floats, delay_s: Floats | None) -> None:
        self.env = simpy.Environment()
        self.end_s = np.full(graph.operations, np.nan)
        self._work_s = work_s.tolist()
        self._delay_s = [0.0] * graph.operations if delay_s is None else delay_s.tolist()
        self._group = graph.group.tolist()
        self._successors = _lists(graph.source, graph.target, graph.operations)
        self._missing = np.bincount(graph.target, minlength=graph.operations).tolist()
        self._members = _lists(graph.group, np.arange(graph.operations), graph.groups)
        self._absent = [len(members) for members in self._members]
        for operation, missing in enumerate(self._missing):
            if not missing:
                self._release(operation)

    def _release(self, operation: int) -> None:
        """Everything before *operation* has ended."""
        delay_s = self._delay_s[operation]
        if delay_s > 0:
            _Event(self.env, operation, self._delayed, delay_s)
        else:
            self._start(operation)

    def _delayed(self, event: simpy.Event) -> None:
        assert isinstance(event, _Event)
        self._start(event.operation)

    def _start(self, operation: int) -> None:
        """Join the group; the last one to come sets everybody to work."""
        group = self._group[operation]
        self._absent[group] -= 1
        if not self._absent[group]:
            for member in self._members[group]:
                _Event(self.env, member, self._ended, self._work_s[member])

    def _ended(self, event: simpy.Event) -> None:
        assert isinstance(event, _Event)
        self.end_s[event.operation] = self.env.now
        for successor in self._successors[event.operation]:
            self._missing[successor] -= 1
            if not self._missing[successor]:
                self._release(successor)


def _lists(key: Ints, value: Ints, count: int) -> list[list[int]]:
    """Return for each key from 0 to *count* - 1 the list of its values."""
    ordered = value[np.argsort(key, kind="stable")].tolist()
    bounds = offsets_of(np.bincount(key, minlength=count)).tolist()
    return [ordered[low:high] for low, high in pairwise(bounds)]


def _levels(graph: OperationGraph) -> Ints:
    """Return the level of every group: one more than the highest before it; -1 in and behind a circle."""
    groups = graph.groups
    source, target = graph.group[graph.source], graph.group[graph.target]
    successors = target[np.argsort(source, kind="stable")]
    count = np.bincount(source, minlength=groups)
    offset = offsets_of(count)
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


def _circle_error(graph: OperationGraph, played: Bools) -> DeadlockError:
    """Return the error that names the operations which wait for each other, given those that could be *played*."""
    waits = ~played[graph.source] & ~played[graph.target]
    before = dict(zip(graph.group[graph.target[waits]].tolist(), np.flatnonzero(waits).tolist(), strict=True))
    group = next(iter(before))
    seen: dict[int, int] = {}
    names: list[str] = []
    while group not in seen:
        seen[group] = len(names)
        dependency = before[group]
        names.append(graph.name(int(graph.target[dependency])))
        group = int(graph.group[graph.source[dependency]])
    circle = names[seen[group] :]
    left_out = len(circle) - _SHOWN
    if left_out > 0:
        circle = [*circle[:_SHOWN], f"{left_out} more"]
    return DeadlockError(f"deadlock: {', which waits for '.join([*circle, names[seen[group]]])}")
