"""Balanced HDP (ByteScale, Algorithm 2): equal work at every time step, unequal numbers of micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.plan import Plan
from simulator.strategies.assembly import Pieces, assemble
from simulator.strategies.dealing import (
    Packs,
    deal_packs,
    deal_sequences,
    deal_singles,
    exchange,
    fill_packs,
)
from simulator.strategies.gangs import LongSequences, RankLoads, place_gangs
from simulator.strategies.group_size import needed_ratio
from simulator.strategies.lower_bound import lower_bound_s
from simulator.strategies.problem import PlanningProblem

__all__ = ["plan_balanced"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Dealer = Callable[[PlanningProblem, Floats, Packs], tuple[Ints, Ints, Floats]]

LIMIT_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.17, 0.12, 0.08, 0.055, 0.04, 0.028)
"""Time limits of one sequence that are considered, as shares of the longest a step of the bound allows."""
LIMITS_WITHOUT_PIPELINE = 3
"""So many of them without a pipeline: long micro-batches cost no bubbles there."""
DRAFTS = 3
"""Most promising time limits that are planned in full."""
GOOD_ENOUGH = 1.05
"""A draft this close to the ideal of its limit ends the search."""
ROOM = 1.01
"""Gangs may end this much later than the ideal step."""
FLOOR_SHARES = (0.25, 0.8)
"""Least time of a micro-batch over the time of a full one: below, sequences are dealt, above, packs; both between."""


def plan_balanced(problem: PlanningProblem) -> Plan:
    """Long sequences first, each as a gang of ranks; then everything else to the ranks that are free first.

    1. A time limit gives every sequence the smallest group that memory (with offload) and the limit allow. For each
       limit the ideal step is estimated (see _ideal_step_s); the most promising ones are planned in full.
    2. Gangs, longest sequence first (see place_gangs); light ranks end up with more, shorter micro-batches.
    3. Sequences that fit one rank are dealt to the ranks that are free first, as full packs or one by one,
       and exchanged between the busiest and the least busy ranks (see dealing).
    With a pipeline a rank's longest micro-batch also costs (p - 1) / v bubbles of its length: it counts as load.
    The draft with the smallest estimated makespan wins.
    """
    bound_s = lower_bound_s(problem)
    packs = fill_packs(problem)
    limits = len(LIMIT_SHARES) if problem.stages > 1 else LIMITS_WITHOUT_PIPELINE
    limits_s = np.array(LIMIT_SHARES[:limits]) * bound_s / problem.stages
    long = LongSequences(problem, float(limits_s.min()))
    choices = [_Choice.of(problem, long, packs, bound_s, limit_s) for limit_s in limits_s.tolist()]
    choices.sort(key=lambda choice: choice.step_s)
    best: _Draft | None = None
    for choice in choices[:DRAFTS]:
        placed = _place_long(problem, packs, long, choice)
        for dealer in _dealers(problem):
            draft = _Draft.of(problem, packs, placed, dealer)
            if best is None or draft.makespan_s < best.makespan_s:
                best = draft
        if best is not None and best.makespan_s <= choice.step_s * GOOD_ENOUGH:
            break
    assert best is not None
    return best.plan(problem, bound_s)


def _dealers(problem: PlanningProblem) -> tuple[_Dealer, ...]:
    """What may be the better way to deal short sequences."""
    share = problem.floor_s / (problem.token_s * problem.capacity_tokens)
    if share < FLOOR_SHARES[0]:
        return (deal_sequences,)
    return (deal_packs,) if share > FLOOR_SHARES[1] else (deal_packs, deal_sequences)


def _usual_s(problem: PlanningProblem) -> float:
    """Time of a full micro-batch of short sequences."""
    return max(problem.token_s * problem.capacity_tokens, problem.floor_s) + problem.fixed_s


@dataclass(frozen=True, slots=True)
class _Choice:
    """Group sizes under one time limit and the step they could ideally reach."""

    size: Ints
    time_s: Floats
    step_s: float

    @classmethod
    def of(
        cls, problem: PlanningProblem, long: LongSequences, packs: Packs, bound_s: float, limit_s: float
    ) -> _Choice:
        size, time_s = long.within(limit_s)
        return cls(
            size, time_s, max(bound_s, _ideal_step_s(problem, size, time_s, float(packs.seconds.sum())))
        )


def _ideal_step_s(problem: PlanningProblem, size: Ints, time_s: Floats, short_s: float) -> float:
    """Step in which all work fits if ranks could be filled without gaps, by levels of micro-batch length.

    A rank whose longest micro-batch takes t has T - w t left for work (w t: bubble), so work of level t takes
    d t / (T - w t) ranks:   sum over sequences of d t / (T - w t) + short work / (T - w u) = ranks
    """
    weight, usual_s = problem.bubble_weight, _usual_s(problem)
    work_s = np.append(size * time_s, short_s)
    level_s = np.append(time_s, usual_s)
    if not weight:
        return max(float(work_s.sum()) / problem.ranks, float(level_s[:-1].max(initial=0.0)))
    low_s = float((weight + 1.0) * level_s[work_s > 0].max())
    high_s = low_s + float(work_s.sum()) / problem.ranks * (1.0 + weight)
    for _ in range(20):
        middle_s = (low_s + high_s) / 2.0
        if float((work_s / (middle_s - weight * level_s)).sum()) > problem.ranks:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


@dataclass(frozen=True, slots=True)
class _Placed:
    """Long sequences on their ranks: gangs with their slots, single ranks still without."""

    sequence: Ints
    size: Ints
    offload_ratio: Floats
    gang_ranks: list[Ints]
    gang_slot: Ints
    single_rank: Ints
    single_s: Floats
    loads: RankLoads
    """After the gangs."""


def _place_long(problem: PlanningProblem, packs: Packs, long: LongSequences, choice: _Choice) -> _Placed:
    weight, usual_s = problem.bubble_weight, _usual_s(problem)
    loads = RankLoads(
        free_s=np.full(problem.ranks, weight * usual_s),
        slot=np.zeros(problem.ranks, dtype=np.int64),
        longest_s=np.full(problem.ranks, usual_s),
    )
    # Without a pipeline single ranks are filled without gaps, after the gangs; in one the levels of length stay
    # together. The longest sequences, with the largest groups, find their ranks first.
    single = (choice.size == 1) & (problem.stages == 1)
    gangs, singles = np.flatnonzero(~single), np.flatnonzero(single)
    members, slots = place_gangs(
        problem, loads, choice.size[gangs], choice.time_s[gangs], choice.step_s * ROOM
    )
    order = np.concatenate((gangs, singles))
    return _Placed(
        sequence=long.sequence[order],
        size=choice.size[order],
        offload_ratio=needed_ratio(problem, long.tokens[order], choice.size[order]),
        gang_ranks=members,
        gang_slot=slots,
        single_rank=deal_singles(loads.free_s, choice.time_s[singles], packs),
        single_s=choice.time_s[singles],
        loads=loads,
    )


@dataclass(frozen=True, slots=True)
class _Draft:
    """Everything on its ranks: one candidate, before it becomes a Plan."""

    makespan_s: float
    work_s: float
    placed: _Placed
    packs: Packs
    pack_of: Ints
    rank: Ints
    """Of every micro-batch of one rank: single sequences, then packs."""
    seconds: Floats

    @classmethod
    def of(cls, problem: PlanningProblem, packs: Packs, placed: _Placed, dealer: _Dealer) -> _Draft:
        """Deal the short sequences, then exchange micro-batches of one rank between ranks."""
        base_s, longest_s = placed.loads.free_s, placed.loads.longest_s
        free_s = base_s + np.bincount(placed.single_rank, weights=placed.single_s, minlength=problem.ranks)
        pack_of, pack_rank, pack_s = dealer(problem, free_s, packs)
        rank, seconds = (
            np.concatenate((placed.single_rank, pack_rank)),
            np.concatenate((placed.single_s, pack_s)),
        )
        most_s = np.maximum(longest_s, pack_s.max(initial=0.0) if problem.stages > 1 else np.inf)
        rank = exchange(rank, seconds, base_s, most_s)
        longest_s = longest_s.copy()
        np.maximum.at(longest_s, rank, seconds)
        load_s = base_s + np.bincount(rank, weights=seconds, minlength=problem.ranks)
        load_s += problem.bubble_weight * (longest_s - placed.loads.longest_s)
        return cls(
            makespan_s=float(load_s.max()),
            work_s=_without_bubbles(problem, load_s, longest_s),
            placed=placed,
            packs=packs,
            pack_of=pack_of,
            rank=rank,
            seconds=seconds,
        )

    def plan(self, problem: PlanningProblem, bound_s: float) -> Plan:
        placed, packs, count = self.placed, self.packs, len(problem.lengths)
        long = len(placed.sequence)
        micro_batch = np.empty(count, dtype=np.int64)
        micro_batch[placed.sequence] = np.arange(long)
        micro_batch[packs.sequence] = long + self.pack_of
        size = np.concatenate((placed.size, np.ones(len(self.rank) - len(placed.single_s), dtype=np.int64)))
        gang_slots = np.repeat(placed.gang_slot, placed.size[: len(placed.gang_slot)])
        return assemble(
            strategy=problem.options.name,
            ranks=problem.ranks,
            capacity_tokens=problem.capacity_tokens,
            pieces=Pieces(
                tokens=problem.lengths,
                sequence=np.arange(count, dtype=np.int64),
                start=np.zeros(count, dtype=np.int64),
                micro_batch=micro_batch,
            ),
            member_ranks=np.concatenate((*placed.gang_ranks, self.rank)),
            member_offsets=np.concatenate(([0], np.cumsum(size))),
            slot=np.concatenate((gang_slots, _slots(placed.loads.slot, self.rank, self.seconds))),
            offload_ratio=np.concatenate((placed.offload_ratio, np.zeros(len(size) - long))),
            keep_holes=problem.stages > 1,
            lower_bound_s=bound_s,
            makespan_s=self.work_s,
            notes=(f"largest group {int(size.max())} ranks",),
        )


def _slots(first: Ints, rank: Ints, seconds: Floats) -> Ints:
    """Slot of every micro-batch of one rank: after the gangs of its rank, longest first."""
    order = np.lexsort((-seconds, rank))
    counts = np.bincount(rank, minlength=len(first))
    slot = np.empty(len(rank), dtype=np.int64)
    slot[order] = np.arange(len(rank)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    return slot


def _without_bubbles(problem: PlanningProblem, load_s: Floats, longest_s: Floats) -> float:
    """Makespan without pipeline bubbles: the busiest rank's end less the mean bubble.

    At least the way of the longest micro-batch through all stages, which is no bubble a planner could fill.
    """
    work_s = float(load_s.max()) - problem.bubble_weight * float(longest_s.mean())
    return max(work_s, problem.stages * float(longest_s.max())) if problem.stages > 1 else work_s
