"""Ranks that no gang has used yet, by node: while all others are late, a gang finds its ranks without a search."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from hdpsim.arrays import Floats, Ints


class FreshRanks:
    """Which ranks of which node are fresh, if all were alike at first.

    Fresh ranks waste equally much. Where no others are ready in time, a gang takes the first ones of the node that has
    most to do, as a search over all of them would find: of equals the first node.
    """

    def __init__(self, free_s: Floats, longest_s: Floats, slot: Ints, node: int) -> None:
        """Of ranks with such loads (free_s as it is booked), *node* of them a node."""
        alike = not slot.any() and bool((free_s == free_s[0]).all() and (longest_s == longest_s[0]).all())
        self._free_s, self._node = free_s, node
        self._first_s, self._longest_s = float(free_s[0]), float(longest_s[0])
        self._others_s = np.inf  # no other rank is free before
        nodes = len(free_s) // node if alike else 0
        self._ranks = [list(range(node * number, node * (number + 1))) for number in range(nodes)]
        self._busy_s = [self._busy_of(number) for number in range(nodes)]
        # By the number of fresh ranks: nodes that have or had as many, the busiest first.
        self._nodes: list[list[tuple[float, int]]] = [[] for _ in range(node + 1)]
        self._nodes[node] = [(-busy_s, number) for number, busy_s in enumerate(self._busy_s)]
        heapify(self._nodes[node])

    def choose(self, size: int, latest_s: float, time_s: float, weight: float) -> tuple[Ints, float] | None:
        """Ranks of one node for a gang that may start by *latest_s*, and when they are ready, if no others are.

        The gang takes *time_s*, and makes a pipeline idle *weight* times what that is longer than all before.
        """
        ready_s = self._first_s + weight * max(0.0, time_s - self._longest_s)
        if ready_s > latest_s or self._others_s <= latest_s * (1.0 + 1e-9):
            return None
        best: tuple[float, int] | None = None
        for many in range(size, self._node + 1):
            nodes = self._nodes[many]
            while nodes and (
                len(self._ranks[nodes[0][1]]) != many or self._busy_s[nodes[0][1]] != -nodes[0][0]
            ):
                heappop(nodes)
            if nodes and (best is None or nodes[0] < best):
                best = nodes[0]
        return None if best is None else (np.array(self._ranks[best[1]][:size]), ready_s)

    def booked(self, ranks: Ints, end_s: float) -> None:
        """*ranks*, ascending, are busy until *end_s*."""
        self._others_s = min(self._others_s, end_s)
        taken = set(ranks.tolist()) if self._ranks else set()
        for number in {rank // self._node for rank in taken}:
            if left := [rank for rank in self._ranks[number] if rank not in taken]:
                self._busy_s[number] = busy_s = self._busy_of(number)
                heappush(self._nodes[len(left)], (-busy_s, number))
            self._ranks[number] = left

    def _busy_of(self, number: int) -> float:
        """What the ranks of a node are busy, summed as a search sums it."""
        ranks = slice(number * self._node, (number + 1) * self._node)
        return float(np.sort(self._free_s[ranks]).cumsum()[-1])
