"""Megatron-Core's schedulers of packed sequences, as strategies that plug in by name.

They know a sequence's length and no prices: work is the square of the length over the ranks that share it. The rank
capacity is `--max-seqlen-per-dp-cp-rank`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from hdpsim.errors import InfeasibleError
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.plan_builder import PlanBuilder
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.static_mesh import mesh_degrees

ROUND_SLACK = 1.05
"""A round's ranks may have so many times the work of its longest sequence."""


def dp_balanced(problem: PlanningProblem) -> Plan:
    """Packs in order of arrival on a static mesh, as many for every data-parallel group (`dp_balanced`).

    A pack takes sequences up to the tokens of a group. Until the packs divide by the groups, the last sequence of the
    last pack that has several becomes a pack of its own. Pack i * groups + g is micro-batch i of group g.
    Source: Megatron-Core, data_schedule.py (DpBalancedScheduler).
    """
    degree = mesh_degrees(problem)[0]
    groups, room = problem.ranks // degree, degree * problem.capacity_tokens
    packs: list[list[int]] = []
    held = room
    for number, length in enumerate(problem.lengths.tolist()):
        if held + length > room:
            packs.append([])
            held = 0
        packs[-1].append(number)
        held += length
    while len(packs) % groups:
        source = next((pack for pack in reversed(packs) if len(pack) > 1), None)
        if source is None:
            raise InfeasibleError(
                f"dp_balanced needs as many packs for each of {groups} groups: the batch has {len(problem.lengths)} "
                f"sequences in {len(packs)} packs; take a larger data.batch or a larger layout.cp"
            )
        packs.append([source.pop()])
    builder = PlanBuilder(problem)
    for place, pack in enumerate(packs):
        slot, group = divmod(place, groups)
        builder.add(pack, range(group * degree, (group + 1) * degree), slot=slot)
    return builder.build(notes=(f"CP {degree} x DP {groups}, {len(packs)} packs",))


def dynamic_cp(problem: PlanningProblem) -> Plan:
    """Rounds of one micro-batch on every rank, on groups of powers of two (`default_dynamic_cp`).

        a round: its longest sequence on as few ranks as hold it; cap = 1.05 x its work per rank
        every other sequence, longest first: of all groups with room and all sizes of new groups the choice with the
        least work on the busiest rank, if that is within the cap; else it waits for a later round
        ranks left over: the first of the smallest groups is doubled until none is

    Counted: work s^2 / ranks, tokens per rank up to the capacity. Where doubling does not come out even, one group of
    all ranks takes the round; where heads allow no such group, ranks idle.  Ignored: rounds made a multiple for virtual
    stages.
    Source: Megatron-Core (dev), data_schedule_utils.py (next_hdp_group_packing_aware), pull request 5154.
    """
    lengths = problem.lengths.tolist()
    waiting = np.argsort(-problem.lengths, kind="stable").tolist()
    builder = PlanBuilder(problem)
    rounds = 0
    while waiting:
        made = _Round(problem, lengths, waiting[0])
        waiting = made.fill(waiting[1:])
        for sequences, ranks in made.spread():
            builder.add(sequences, ranks, slot=rounds)
        rounds += 1
    return builder.build(notes=(f"{rounds} rounds of groups of powers of two",))


@dataclass(slots=True)
class _Group:
    """Ranks that share all their sequences."""

    size: int
    tokens: float = 0.0
    work: float = 0.0
    """Per rank."""
    sequences: list[int] = field(default_factory=list)


class _Round:
    """One micro-batch on every rank."""

    def __init__(self, problem: PlanningProblem, lengths: list[int], longest: int) -> None:
        self._lengths, self._ranks, self._capacity = lengths, problem.ranks, problem.capacity_tokens
        self._most = problem.most_ranks
        self._sizes = [1 << power for power in range(problem.most_ranks.bit_length())]
        if self._sizes[-1] != problem.most_ranks:
            self._sizes.append(problem.most_ranks)
        self._groups: list[_Group] = []
        self._of_size: dict[int, list[_Group]] = {size: [] for size in self._sizes}
        self._busiest = 0.0
        self._free = problem.ranks
        first = next((size for size in self._sizes if lengths[longest] <= size * self._capacity), None)
        if first is None:
            raise problem.too_long(lengths[longest], self._sizes[-1])
        self._cap = ROUND_SLACK * lengths[longest] ** 2 / first
        self._add(longest, self._new(first))

    def fill(self, waiting: list[int]) -> list[int]:
        """Place what goes into this round, longest first, and return what does not.

        What a sequence finds no place for, a longer one finds none for either: the next that does is found by halves.
        """
        left: list[int] = []
        at = 0
        while at < len(waiting):
            where = self._best_group(self._lengths[waiting[at]])
            if where is None:
                following = bisect_left(waiting, True, at + 1, key=self._finds_place)
                left += waiting[at:following]
                at = following
                continue
            self._add(waiting[at], self._new(where) if isinstance(where, int) else where)
            at += 1
        return left

    def _finds_place(self, sequence: int) -> bool:
        return self._best_group(self._lengths[sequence]) is not None

    def _best_group(self, length: int) -> _Group | int | None:
        """The group, or the size of a new one, that adds least to the busiest rank; None: nowhere within the cap."""
        best: _Group | int | None = None
        least, busiest = np.inf, self._busiest
        for size, groups in self._of_size.items():
            if length > size * self._capacity:
                continue
            tokens, work = length / size, length**2 / size
            for group in groups:
                if group.work + work < least and group.tokens + tokens <= self._capacity:
                    best, least = group, max(busiest, group.work + work)
                    if least <= busiest:  # no place adds less than nothing
                        return best
            if size <= self._free and max(busiest, work) < least:
                best, least = size, max(busiest, work)
                if least <= busiest:
                    return best
        return best if least <= self._cap else None

    def spread(self) -> list[tuple[list[int], range]]:
        """The sequences of every group and its ranks, all ranks in use if heads allow it."""
        sizes = [group.size for group in self._groups]
        while self._free:
            smallest = min(sizes)
            if self._most < (2 * smallest if smallest <= self._free else self._ranks):
                break
            if smallest > self._free:
                every = [sequence for group in self._groups for sequence in group.sequences]
                return [(every, range(self._ranks))]
            sizes[sizes.index(smallest)] += smallest
            self._free -= smallest
        ends = np.cumsum(sizes).tolist()
        return [
            (group.sequences, range(end - size, end))
            for group, size, end in zip(self._groups, sizes, ends, strict=True)
        ]

    def _new(self, size: int) -> _Group:
        self._free -= size
        self._groups.append(_Group(size))
        self._of_size[size].append(self._groups[-1])
        return self._groups[-1]

    def _add(self, sequence: int, group: _Group) -> None:
        group.sequences.append(sequence)
        group.tokens += self._lengths[sequence] / group.size
        group.work += self._lengths[sequence] ** 2 / group.size
        self._busiest = max(self._busiest, group.work)
