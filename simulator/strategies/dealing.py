"""Dealing sequences that fit one rank: to the rank that is free first, in packs or one by one."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.strategies.packing import best_fit
from simulator.strategies.problem import PlanningProblem

__all__ = ["RankLoads", "deal_packs", "deal_sequences", "deal_singles"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


SLACK = 0.2
"""Part of a usual micro-batch by which ranks on average end before the last one: remainders do not all vanish."""


@dataclass(slots=True)
class RankLoads:
    """Per rank: when it is free (waiting and pipeline bubble included), next free slot, longest micro-batch."""

    free_s: Floats
    slot: Ints
    longest_s: Floats


@dataclass(frozen=True, slots=True)
class Packs:
    """Sequences that fit one rank, longest first, packed into as few micro-batches of C tokens as can be.

    Attributes:
        sequence: their numbers in the batch.
        tokens: their lengths.
        work_s: the work each adds to a micro-batch.
        pack: the pack each is in.
        seconds: time of every pack.
    """

    sequence: Ints
    tokens: Ints
    work_s: Floats
    pack: Ints
    seconds: Floats


def fill_packs(problem: PlanningProblem) -> Packs:
    """Pack all sequences that fit one rank (best fit, longest first)."""
    inside = np.flatnonzero(problem.lengths <= problem.capacity_tokens)
    sequence = inside[np.argsort(-problem.lengths[inside], kind="stable")]
    tokens = problem.lengths[sequence]
    work_s = problem.piece_s(tokens)
    pack = best_fit(tokens, problem.capacity_tokens)
    return Packs(sequence, tokens, work_s, pack, _pack_s(problem, pack, work_s))


def _pack_s(problem: PlanningProblem, pack: Ints, work_s: Floats) -> Floats:
    """Time of every pack: its work, at least the floor, and the fixed part."""
    work = np.bincount(pack, weights=work_s) if len(pack) else np.zeros(0)
    return np.asarray(np.maximum(work, problem.floor_s) + problem.fixed_s)


def deal_singles(
    problem: PlanningProblem, loads: RankLoads, times_s: Floats, inside_s: float
) -> tuple[Ints, Ints]:
    """Deal micro-batches of one rank that are longer than a usual one (offloaded sequences): (rank, slot) of each.

    Usual micro-batches come later and all take about the same time u, so a rank fills up without a gap when what
    it has left is a multiple of u. Each sequence, longest first, goes to the rank where the rest after it comes
    closest to one, towards a common finish of all work over all ranks plus SLACK u.
    """
    usual_s = max(problem.token_s * problem.capacity_tokens, problem.floor_s) + problem.fixed_s
    finish_s = (float(loads.free_s.sum()) + float(times_s.sum()) + inside_s) / problem.ranks + usual_s * SLACK
    rank, slot = np.empty(len(times_s), dtype=np.int64), np.empty(len(times_s), dtype=np.int64)
    for item, time_s in enumerate(times_s.tolist()):
        bubble_s = problem.bubble_weight * np.maximum(0.0, time_s - loads.longest_s)
        left_s = finish_s - time_s - (loads.free_s + bubble_s)
        best = int(np.where(left_s >= 0.0, np.mod(left_s, usual_s), usual_s - left_s).argmin())
        rank[item], slot[item] = best, loads.slot[best]
        loads.free_s[best] += time_s + bubble_s[best]
        loads.longest_s[best] = max(loads.longest_s[best], time_s)
        loads.slot[best] += 1
    return rank, slot


def deal_packs(problem: PlanningProblem, loads: RankLoads, packs: Packs) -> tuple[Ints, Ints, Ints]:
    """Deal full packs, longest first: fewest micro-batches. Best where a micro-batch has a least time.

    Returns:
        Pack of every sequence; rank and slot of every pack.
    """
    order = np.argsort(-packs.seconds, kind="stable")
    bin_rank = np.empty(len(order), dtype=np.int64)
    bin_rank[order] = _first_free(loads.free_s, packs.seconds[order])
    return packs.pack, bin_rank, _finish(loads, bin_rank, packs.seconds)


def deal_sequences(problem: PlanningProblem, loads: RankLoads, packs: Packs) -> tuple[Ints, Ints, Ints]:
    """Deal sequences one by one (LPT), then let every rank pack its own: finest balance, more micro-batches.

    Best where time follows the work of a micro-batch, however small. Returns as deal_packs.
    """
    rank_of = _first_free(
        loads.free_s, packs.work_s + problem.fixed_s * packs.tokens / problem.capacity_tokens
    )
    by_rank = np.argsort(rank_of, kind="stable")
    bounds = np.searchsorted(rank_of[by_rank], np.arange(problem.ranks + 1)).tolist()
    tokens = packs.tokens[by_rank].tolist()
    placed: list[int] = []
    bin_rank: list[int] = []
    for rank in range(problem.ranks):
        where, opened = _even_bins(
            tokens[bounds[rank] : bounds[rank + 1]], problem.capacity_tokens, len(bin_rank)
        )
        placed += where
        bin_rank += [rank] * opened
    bins = np.empty(len(tokens), dtype=np.int64)
    bins[by_rank] = placed
    ranks = np.array(bin_rank, dtype=np.int64)
    return bins, ranks, _finish(loads, ranks, _pack_s(problem, bins, packs.work_s))


def _first_free(free_s: Floats, seconds: Floats) -> Ints:
    """Rank of every item: the one that is free first, items in the order given."""
    heap = list(zip(free_s.tolist(), range(len(free_s)), strict=True))
    heapq.heapify(heap)
    rank_of = np.empty(len(seconds), dtype=np.int64)
    for item, duration in enumerate(seconds.tolist()):
        free, rank = heap[0]
        rank_of[item] = rank
        heapq.heapreplace(heap, (free + duration, rank))
    return rank_of


def _even_bins(tokens: list[int], capacity: int, first: int) -> tuple[list[int], int]:
    """Spread *tokens* (descending) over as few bins as hold them, evenly; returns bins from *first* on and their number."""
    count = -(-sum(tokens) // capacity)
    room = [(-capacity, first + i) for i in range(count)]
    where: list[int] = []
    for length in tokens:
        free, number = room[0]
        if -free >= length:
            heapq.heapreplace(room, (free + length, number))
        else:
            number = first + count
            count += 1
            heapq.heappush(room, (length - capacity, number))
        where.append(number)
    return where, count


def _finish(loads: RankLoads, bin_rank: Ints, seconds: Floats) -> Ints:
    """Book the packs on the ranks and return their slots, after what the ranks already have."""
    ranks = len(loads.free_s)
    loads.free_s += np.bincount(bin_rank, weights=seconds, minlength=ranks)
    order = np.argsort(bin_rank, kind="stable")
    counts = np.bincount(bin_rank, minlength=ranks)
    position = np.arange(len(bin_rank)) - np.repeat(np.cumsum(counts) - counts, counts)
    slot = np.empty(len(bin_rank), dtype=np.int64)
    slot[order] = loads.slot[bin_rank[order]] + position
    loads.slot += counts
    return slot
