"""The discrete-event engine for a graph of operations: plays what `Replay.ends` plays, event by event, with SimPy.

The end of an operation is one event. It is scheduled when the last member of the operation's group has started, and
releases the successors. Both executors add the same numbers in the same order, so they agree to the last bit or so.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import simpy

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.recorded.replay import OperationGraph, circle_error


def play_operations(
    graph: OperationGraph, work_s: Floats, delay_s: Floats | None = None, name: Callable[[int], str] = str
) -> Floats:
    """Return when every operation ends; see `Replay.ends` for the rules.

    Args:
        graph: what is played.
        work_s: [operations]
        delay_s: [operations]; none by default.
        name: names an operation in errors.

    Raises:
        DeadlockError: operations wait for each other in a circle.
    """
    player = _Player(graph, work_s, delay_s)
    player.env.run()
    if np.any(np.isnan(player.end_s)):
        raise circle_error(graph, ~np.isnan(player.end_s), name)
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
        groups = int(graph.group.max()) + 1 if graph.operations else 0
        self._members = _lists(graph.group, np.arange(graph.operations), groups)
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
    bounds = np.concatenate([[0], np.cumsum(np.bincount(key, minlength=count))]).tolist()
    return [ordered[low:high] for low, high in pairwise(bounds)]
