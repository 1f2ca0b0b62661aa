"""Megatron-Core's first schedulers of context parallelism by length: groups as small as a sample allows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hdpsim.errors import InfeasibleError
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.plan_builder import PlanBuilder
from hdpsim.simulator.strategies.problem import PlanningProblem

CLOSE = 0.05
"""A round may end when ranks differ by so much of the busiest one."""
BUCKET_SLACK = 1.1


def hybrid_cp(problem: PlanningProblem) -> Plan:
    """Rounds of groups whose ranks run their samples one after the other (`BalancedCPScheduler`).

        ranks of a sample  needed = least power of two that holds it;  work = s^2 / needed, on each of them
        buckets            samples by falling length, as many as there are numbers of ranks, of about the same work
        a round            of every bucket in turn the longest goes to the least busy group of its size, or to free
                           ranks; until nothing fits, or ranks differ by less than 5 % once the longest kind is placed
        at its end         the busiest group gives its last sample back while that makes ranks more alike;
                           while ranks are empty the first of the smallest groups is doubled

    Without a pipeline only, as in Megatron-Core. Every sample is a micro-batch of its own: nothing is packed.
    Ignored: the barrier over all ranks at the end of a round (a plan has none), and that work is s^2 whatever it takes.
    Source: Megatron-Core, pipeline_parallel/hybrid_cp_schedule.py (BalancedCPScheduler).

    Raises:
        InfeasibleError: a pipeline, or a sequence that does not fit all ranks.
    """
    if problem.stages > 1:
        raise InfeasibleError("megatron-hybrid-cp runs without a pipeline: layout.pp must be 1")
    builder = PlanBuilder(problem)
    rounds = list(_rounds(problem, packed=False))
    for group in (group for groups in rounds for group in groups):
        for sequence in group.sequences:
            builder.add(sequence, group.ranks)
    return builder.build(notes=(f"{len(rounds)} rounds of groups of powers of two, samples one by one",))


def first_dynamic_cp(problem: PlanningProblem) -> Plan:
    """The same rounds of one micro-batch on every rank: a group's samples are packed, as many tokens as its ranks hold.

    What finds no room ends a round, and no sample is given back.
    Ignored: rounds made a multiple for virtual stages.
    Source: Megatron-Core (dev) of June 2026, data_schedule_utils.py (next_hdp_group), before pull request 5154.
    """
    builder = PlanBuilder(problem)
    rounds = list(_rounds(problem, packed=True))
    for slot, groups in enumerate(rounds):
        for group in groups:
            builder.add(group.sequences, group.ranks, slot=slot)
    return builder.build(notes=(f"{len(rounds)} rounds of groups of powers of two",))


def _rounds(problem: PlanningProblem, *, packed: bool) -> Iterator[list[_Group]]:
    lengths = problem.lengths.tolist()
    needed = [_ranks_needed(length, problem) for length in lengths]
    order = sorted(range(len(lengths)), key=lambda sequence: -lengths[sequence])
    while order:
        made = _Round(problem, lengths, needed, packed=packed)
        placed = made.fill(_buckets(order, lengths, needed))
        order = [sequence for sequence in order if sequence not in placed]
        yield made.groups


def _ranks_needed(length: int, problem: PlanningProblem) -> int:
    """The least power of two that holds so many tokens, or all ranks."""
    ranks = -(-length // problem.capacity_tokens)
    size = min(1 << (ranks - 1).bit_length(), problem.most_ranks)
    if size < ranks:
        raise problem.too_long(length, size)
    return size


def _buckets(order: list[int], lengths: list[int], needed: list[int]) -> list[deque[int]]:
    """Samples by falling length in as many buckets of about the same work as there are numbers of ranks."""
    sizes_needed = len({needed[sequence] for sequence in order})
    work = {sequence: lengths[sequence] ** 2 / needed[sequence] for sequence in order}
    target = sum(work.values()) / sizes_needed
    full_buckets: list[deque[int]] = []
    bucket: deque[int] = deque()
    held = 0.0
    for place, sequence in enumerate(order):
        left = len(order) - place
        if bucket and (
            held + work[sequence] > BUCKET_SLACK * target or left <= sizes_needed - len(full_buckets) - 1
        ):
            full_buckets.append(bucket)
            bucket, held = deque(), 0.0
        bucket.append(sequence)
        held += work[sequence]
    return [*full_buckets, bucket]


@dataclass(slots=True)
class _Group:
    """Neighbouring ranks and what they run one after the other."""

    first: int
    size: int
    work: float = 0.0
    tokens: float = 0.0
    """Of a rank."""
    sequences: list[int] = field(default_factory=list)

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.size)


class _Round:
    """Groups that cover all ranks once."""

    def __init__(
        self, problem: PlanningProblem, lengths: list[int], needed: list[int], *, packed: bool
    ) -> None:
        self._ranks, self._most = problem.ranks, problem.most_ranks
        self._lengths, self._ranks_needed = lengths, needed
        self._packed, self._capacity = packed, problem.capacity_tokens if packed else math.inf
        self.groups: list[_Group] = []
        self._used = 0

    def fill(self, buckets: list[deque[int]]) -> set[int]:
        """Take samples off the buckets; return those that are placed."""
        first: int | None = None
        while True:
            at = next(
                (bucket for bucket in buckets if bucket and self._room(self._ranks_needed[bucket[0]])), None
            )
            if at is None:
                break
            size = self._ranks_needed[at[0]]
            if first is None:
                first = size
            elif size < first and self._used == self._ranks and self._alike():
                break
            if not self._place(at[0], size):
                break
            at.popleft()
        if not self._packed:
            self._trim()
        self._widen()
        return {sequence for group in self.groups for sequence in group.sequences}

    def _room(self, size: int) -> bool:
        return size <= self._ranks - self._used or any(group.size == size for group in self.groups)

    def _place(self, sequence: int, size: int) -> bool:
        tokens = self._lengths[sequence] / size
        open_groups = (
            group for group in self.groups if group.size == size and group.tokens + tokens <= self._capacity
        )
        same = min(open_groups, key=_work, default=None)
        if size <= self._ranks - self._used and (same is None or same.work > 0.0):
            same = _Group(self._used, size)
            self.groups.append(same)
            self._used += size
        if same is None:
            return False
        same.sequences.append(sequence)
        same.tokens += tokens
        same.work += self._lengths[sequence] ** 2 / size
        return True

    def _alike(self) -> bool:
        most = max(map(_work, self.groups))
        return most - min(map(_work, self.groups)) <= CLOSE * most

    def _trim(self) -> None:
        """Give the busiest group's last sample back while that makes ranks more alike; not while a rank is empty."""
        while self._used == self._ranks and not self._alike():
            busiest = max(self.groups, key=_work)
            if len(busiest.sequences) == 1:
                break
            others = [group.work for group in self.groups if group is not busiest]
            least = min(map(_work, self.groups))
            after = busiest.work - self._lengths[busiest.sequences[-1]] ** 2 / busiest.size
            if max([*others, after]) - min([*others, after]) >= busiest.work - least:
                break
            busiest.sequences.pop()
            busiest.work = after

    def _widen(self) -> None:
        """Double the first of the smallest groups while ranks are empty; what does not come out even gets the rest."""
        while self._used < self._ranks:
            smallest = min(self.groups, key=lambda group: group.size)
            more = min(smallest.size, self._ranks - self._used, self._most - smallest.size)
            if not more:
                return
            for group in self.groups:
                group.first += more * (group.first > smallest.first)
            smallest.size += more
            self._used += more


def _work(group: _Group) -> float:
    return group.work
