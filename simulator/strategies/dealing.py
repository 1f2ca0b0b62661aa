"""Dealing micro-batches of one rank: each to the rank that is free first, then exchanges between ranks."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.strategies.assembly import ranges
from simulator.strategies.packing import pack_tightly
from simulator.strategies.problem import PlanningProblem

__all__ = ["Packs", "deal_packs", "deal_sequences", "deal_singles", "exchange", "fill_packs"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SAME_TIME = 0.97  # shortest over longest pack from which all count as equally long
END_BISECTIONS = 7
FIRST_LOOK = 64  # ranks looked at before all others are
EXCHANGE_ROUNDS = 24
EXCHANGE_ITEMS = 24  # micro-batches of a rank that are looked at, one by one
EXCHANGE_RUNS = (2, 3, 4)  # so many of its shortest ones are looked at together
EXCHANGE_GOAL = 0.002  # how far above the mean a rank may stay


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

    @property
    def same_time(self) -> bool:
        """Do all packs take the same time, because of the least time of a micro-batch?"""
        return len(self.seconds) > 0 and bool(self.seconds.min() >= self.seconds.max() * SAME_TIME)


def fill_packs(problem: PlanningProblem) -> Packs:
    """Pack all sequences that fit one rank in as few micro-batches as can be."""
    inside = np.flatnonzero(problem.lengths <= problem.capacity_tokens)
    sequence = inside[np.argsort(-problem.lengths[inside], kind="stable")]
    tokens = problem.lengths[sequence]
    work_s = problem.piece_s(tokens)
    pack = pack_tightly(tokens, problem.capacity_tokens)
    return Packs(sequence, tokens, work_s, pack, _pack_s(problem, pack, tokens, work_s))


def _pack_s(problem: PlanningProblem, pack: Ints, tokens: Ints, work_s: Floats) -> Floats:
    """Time of every pack."""
    if not len(pack):
        return np.zeros(0)
    attention_s = np.bincount(pack, weights=work_s - problem.token_s * tokens)
    return problem.micro_batch_s(attention_s, np.bincount(pack, weights=tokens))


def deal_packs(problem: PlanningProblem, free_s: Floats, packs: Packs) -> tuple[Ints, Ints, Floats]:
    """Deal full packs, longest first: fewest micro-batches. Best where a micro-batch has a least time.

    Returns:
        Pack of every sequence; rank and seconds of every pack.
    """
    order = np.argsort(-packs.seconds, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = _first_free(free_s, packs.seconds[order])
    return packs.pack, rank, packs.seconds


def deal_sequences(problem: PlanningProblem, free_s: Floats, packs: Packs) -> tuple[Ints, Ints, Floats]:
    """Deal sequences one by one, longest first, then let every rank pack its own: finest balance, more micro-batches.

    Best where time follows the work of a micro-batch, however small. Returns as deal_packs.
    """
    rank_of = _first_free(free_s, packs.work_s + problem.fixed_s * packs.tokens / problem.capacity_tokens)
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
    return bins, np.array(bin_rank, dtype=np.int64), _pack_s(problem, bins, packs.tokens, packs.work_s)


def deal_singles(free_s: Floats, times_s: Floats, packs: Packs) -> Ints:
    """Rank of sequences that are on one rank alone (offloaded), longest first; the packs come after them.

    Where all packs take the same time u, because of the least time of a micro-batch, a rank whose time until the
    end of the step is no multiple of u stays idle for the rest. Then each sequence goes to the rank where it leaves
    the least such rest, towards the earliest end at which all packs have a place. Else to the rank free first.
    """
    plain = _first_free(free_s, times_s)
    if not packs.same_time:
        return plain
    unit_s, ranks = float(packs.seconds.max()), len(free_s)
    longer = int(np.searchsorted(-times_s, -unit_s * (1.0 + 1e-6)))  # the others count as packs
    count = len(packs.seconds) + len(times_s) - longer
    low_s = max(float(free_s.max()), float(free_s.sum() + times_s.sum() + packs.seconds.sum()) / ranks)
    high_s = low_s + unit_s
    best: list[int] | None = None
    for _ in range(END_BISECTIONS):
        middle_s = (low_s + high_s) / 2.0
        rank = _deal_towards(middle_s - free_s, times_s[:longer].tolist(), unit_s, count)
        if rank is None:
            low_s = middle_s
        else:
            high_s, best = middle_s, rank
    if best is None:
        return plain
    loads_s = free_s + np.bincount(best, weights=times_s[:longer], minlength=ranks)
    return np.concatenate((np.array(best, dtype=np.int64), _first_free(loads_s, times_s[longer:])))


def _deal_towards(left_s: Floats, times_s: list[float], unit_s: float, count: int) -> list[int] | None:
    """Ranks of sequences such that *count* packs of *unit_s* find a place in the time left; None if they do not."""
    small_s = 1e-9 * unit_s
    rest_s = left_s % unit_s
    order = np.argsort(rest_s, kind="stable")
    rest_s, left_s = rest_s[order], left_s[order]
    ranks: list[int] = []
    for time_s in times_s:
        # The smallest rest that is large enough, else the smallest one of all: where the least remains.
        enough = int(rest_s.searchsorted(time_s % unit_s - small_s))
        for first, last in ((enough, enough + FIRST_LOOK), (enough + FIRST_LOOK, None), (0, enough)):
            fits = left_s[first:last] >= time_s - small_s
            if fits.any():
                at = first + int(fits.argmax())
                break
        else:
            return None
        rank = int(order[at])
        after_s = max(0.0, float(left_s[at]) - time_s)
        to = int(rest_s.searchsorted(after_s % unit_s))
        if to > at:
            to -= 1
            old, new = slice(at + 1, to + 1), slice(at, to)
        else:
            old, new = slice(to, at), slice(to + 1, at + 1)
        for values, value in ((rest_s, after_s % unit_s), (left_s, after_s), (order, rank)):
            values[new] = values[old]
            values[to] = value
        ranks.append(rank)
    room = np.floor(left_s / unit_s + 1e-9).sum()
    return ranks if room >= count else None


def _first_free(free_s: Floats, seconds: Floats) -> Ints:
    """Rank of every item: the one that is free first, items in the order given."""
    heap = list(zip(free_s.tolist(), range(len(free_s)), strict=True))
    heapq.heapify(heap)
    rank_of: list[int] = []
    for duration in seconds.tolist():
        free, rank = heap[0]
        rank_of.append(rank)
        heapq.heapreplace(heap, (free + duration, rank))
    return np.array(rank_of, dtype=np.int64)


def _even_bins(tokens: list[int], capacity: int, first: int) -> tuple[list[int], int]:
    """Spread *tokens* (descending) over as few bins as hold them, evenly; the bins, from *first* on, and how many."""
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


def exchange(rank: Ints, seconds: Floats, base_s: Floats, most_s: Floats) -> Ints:
    """Exchange micro-batches between ranks until the busiest are near the mean; returns the new ranks.

    Each round pairs the busiest rank with the least busy one, the second with the second and so on, and gives every
    pair the exchange of one micro-batch for another (or for none, or for some short ones) that lowers the larger of
    their two loads most.

    Args:
        rank: of every micro-batch that may move.
        seconds: its time.
        base_s: per rank, what does not move.
        most_s: per rank, the longest micro-batch it may be given.
    """
    rank = rank.copy()
    ranks = len(base_s)
    load_s = base_s + np.bincount(rank, weights=seconds, minlength=ranks)
    goal_s = float(load_s.mean()) * (1.0 + EXCHANGE_GOAL)
    for _ in range(EXCHANGE_ROUNDS):
        counts = np.bincount(rank, minlength=ranks)
        order = np.argsort(load_s, kind="stable")
        busy = order[::-1]
        busy = busy[(load_s[busy] > goal_s) & (counts[busy] > 0)][: ranks // 2]
        idle = order[: len(busy)]
        if not len(busy):
            break
        by_rank = np.lexsort((seconds, rank))
        total_s = np.concatenate(([0.0], np.cumsum(seconds[by_rank])))
        starts = np.cumsum(counts) - counts
        given, taken = _parcels(starts, counts, busy), _parcels(starts, counts, idle)
        given_s = (total_s[given[1]] - total_s[given[0]])[:, :, None]
        taken_s = (total_s[taken[1]] - total_s[taken[0]])[:, None, :]
        moved_s = given_s - taken_s
        larger_s = np.maximum(load_s[busy][:, None, None] - moved_s, load_s[idle][:, None, None] + moved_s)
        largest_s = np.where(given[1] > given[0], seconds[by_rank[given[1] - 1]], np.inf)[:, :, None]
        larger_s = np.where(largest_s <= most_s[idle][:, None, None], larger_s, np.inf)
        larger_s = larger_s.reshape(len(busy), -1)
        best = larger_s.argmin(axis=1)
        pair = np.flatnonzero(larger_s[np.arange(len(busy)), best] < load_s[busy] * (1.0 - 1e-6))
        if not len(pair):
            break
        give, take = np.divmod(best[pair], taken.shape[2])
        for parcels, chosen, new in ((given, give, idle), (taken, take, busy)):
            first, last = parcels[0][pair, chosen], parcels[1][pair, chosen]
            rank[by_rank[ranges(first, last - first)]] = np.repeat(new[pair], last - first)
        load_s = base_s + np.bincount(rank, weights=seconds, minlength=ranks)
    return rank


def _parcels(starts: Ints, counts: Ints, ranks: Ints) -> Ints:
    """[2, ranks, n]: first and last + 1 of what a rank could give, in the list of items by rank and time.

    Nothing; single items, evenly spread over the list where it is long; its shortest items together.
    """
    first, have = starts[ranks][:, None], counts[ranks][:, None]
    width = int(min(EXCHANGE_ITEMS, have.max(initial=1)))
    step = np.arange(width)[None, :]
    place = np.where(have <= width, step, step * (have - 1) // max(1, width - 1))
    single = np.stack((first + np.minimum(place, have), first + np.minimum(place + 1, have)))
    runs = np.minimum(np.array(EXCHANGE_RUNS)[None, :], have)
    together = np.stack((np.broadcast_to(first, runs.shape), first + runs))
    nothing = np.stack((first, first))
    return np.concatenate((nothing, single, together), axis=2)
