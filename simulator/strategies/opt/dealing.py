"""Dealing micro-batches of one rank: each to the rank that is free first, then exchanges between ranks."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass
from itertools import chain

import numpy as np

from hdpsim.arrays import Floats, Ints, ranges
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.packing import pack_tightly

SAME_TIME = 0.97  # shortest over longest pack from which all count as equally long
END_BISECTIONS = 7
EXCHANGE_ROUNDS = 24
EXCHANGE_ITEMS = 24  # micro-batches of a rank that are looked at, one by one
EXCHANGE_RUNS = np.array((2, 3, 4))  # so many of its shortest ones are looked at together
EXCHANGES_AT_ONCE = 2**14  # of all pairs: so many stay in the cache
CLOSED = -1  # room of a bin that is not open
MANY_RANKS = 32  # from which dealing by rounds takes less time than a heap
FEW_RANKS = 48  # up to which a heap of each fills its bins in less time than all ranks at once
SHORT_ROUND = 16  # a round with so many times fewer items than ranks takes longer than a heap
EXCHANGE_GOAL = 0.002  # how far above the mean a rank may stay


@dataclass(frozen=True, slots=True)
class Packs:
    """Sequences that fit a pack, longest first, packed into as few micro-batches of so many tokens as can be.

    Attributes:
        sequence: their numbers in the batch.
        tokens: their lengths.
        work_s: the work each adds to a micro-batch.
        pack: the pack each is in; none where they were not packed.
        seconds: time of every pack.
        loose_s: work of sequences that were not packed, in as few packs as their tokens fill.
    """

    sequence: Ints
    tokens: Ints
    work_s: Floats
    pack: Ints
    seconds: Floats
    loose_s: float = 0.0

    @property
    def short_s(self) -> float:
        """Work of all packs."""
        return float(self.seconds.sum()) + self.loose_s

    def longest_s(self, problem: PlanningProblem) -> float:
        """Time of the longest sequence as a micro-batch of its own: no draft ends earlier; 0: there is none."""
        if not len(self.tokens):
            return 0.0
        attention_s = self.work_s[:1] - problem.token_s * self.tokens[:1]
        return float(problem.micro_batch_s(attention_s, self.tokens[:1])[0])

    @property
    def same_time(self) -> bool:
        """Do all packs take the same time, because of the least time of a micro-batch?"""
        return len(self.seconds) > 0 and bool(self.seconds.min() >= self.seconds.max() * SAME_TIME)


def fill_packs(problem: PlanningProblem, *, loose: bool = False) -> Packs:
    """Pack all sequences that fit a pack in as few micro-batches as can be; *loose*: nobody deals them as packs."""
    inside = np.flatnonzero(problem.lengths <= problem.target_tokens)
    sequence = inside[np.argsort(-problem.lengths[inside], kind="stable")]
    tokens = problem.lengths[sequence]
    work_s = problem.piece_s(tokens)
    if loose:
        full = -(-int(tokens.sum()) // problem.target_tokens)
        loose_s = float(work_s.sum()) + problem.fixed_s * full
        return Packs(sequence, tokens, work_s, np.arange(0), np.zeros(0), loose_s)
    pack = pack_tightly(tokens, problem.target_tokens)
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
    rank[order] = first_free(free_s, packs.seconds[order])
    return packs.pack, rank, packs.seconds


def deal_sequences(problem: PlanningProblem, free_s: Floats, packs: Packs) -> tuple[Ints, Ints, Floats]:
    """Deal sequences one by one, longest first, then let every rank pack its own: finest balance, more micro-batches.

    Best where time follows the work of a micro-batch, however small. Returns as deal_packs.
    """
    rank_of = first_free(free_s, packs.work_s + problem.fixed_s * packs.tokens / problem.target_tokens)
    by_rank = np.argsort(rank_of, kind="stable")
    bins = np.empty(len(rank_of), dtype=np.int64)
    counts = np.bincount(rank_of, minlength=problem.ranks)
    bins[by_rank], opened = even_bins(packs.tokens[by_rank], counts, problem.target_tokens)
    bin_rank = np.repeat(np.arange(problem.ranks), opened)
    return bins, bin_rank, _pack_s(problem, bins, packs.tokens, packs.work_s)


def deal_singles(free_s: Floats, times_s: Floats, packs: Packs) -> Ints:
    """Rank of sequences that are on one rank alone (offloaded), longest first; the packs come after them.

    Where all packs take the same time u, because of the least time of a micro-batch, a rank whose time until the
    end of the step is no multiple of u stays idle for the rest. Then each sequence goes to the rank where it leaves
    the least such rest, towards the earliest end at which all packs have a place. Else to the rank free first.
    """
    if not len(times_s) or not packs.same_time:
        return first_free(free_s, times_s)
    unit_s, ranks = float(packs.seconds.max()), len(free_s)
    longer = int(np.searchsorted(-times_s, -unit_s * (1.0 + 1e-6)))  # the others count as packs
    count = len(packs.seconds) + len(times_s) - longer
    low_s = max(float(free_s.max()), float(free_s.sum() + times_s.sum() + packs.seconds.sum()) / ranks)
    high_s = low_s + unit_s
    longer_s = times_s[:longer].tolist()
    # Mostly gangs or the longest of these decide when the step ends, and the least end will do.
    best = _deal_towards(low_s + unit_s / 2**END_BISECTIONS - free_s, longer_s, unit_s, count)
    for _ in range(END_BISECTIONS if best is None else 0):
        middle_s = (low_s + high_s) / 2.0
        rank = _deal_towards(middle_s - free_s, longer_s, unit_s, count)
        if rank is None:
            low_s = middle_s
        else:
            high_s, best = middle_s, rank
    if best is None:
        return first_free(free_s, times_s)
    loads_s = free_s + np.bincount(best, weights=times_s[:longer], minlength=ranks)
    return np.concatenate((np.array(best, dtype=np.int64), first_free(loads_s, times_s[longer:])))


def _deal_towards(left_s: Floats, times_s: list[float], unit_s: float, count: int) -> list[int] | None:
    """Ranks of sequences such that *count* packs of *unit_s* find a place in the time left; None if they do not.

    Each goes to the rank with the smallest rest that is large enough, else with the smallest one of all. Ranks are
    kept by falling rest (so the lists hold it negated): what a sequence leaves goes behind, where little has to move.
    """
    small_s = 1e-9 * unit_s
    rest_s = left_s % unit_s
    order = np.argsort(rest_s, kind="stable")[::-1]
    order = order[left_s[order] >= min(times_s, default=0.0) - small_s]  # the others take none
    rests, ranks, left = (-rest_s[order]).tolist(), order.tolist(), left_s.tolist()
    # A sequence costs the places for packs it fills, or one more.
    spare = int(np.floor(left_s / unit_s + 1e-9).sum()) - count
    spare -= int(np.floor(np.array(times_s) / unit_s - 1e-6).sum())
    dealt: list[int] = []
    for time_s in times_s:
        if spare < 0:
            return None
        enough = bisect_right(rests, small_s - time_s % unit_s)
        least_s = time_s - small_s
        for at in chain(range(enough - 1, -1, -1), range(len(rests) - 1, enough - 1, -1)):
            if left[ranks[at]] >= least_s:
                break
        else:
            return None
        rank = ranks.pop(at)
        del rests[at]
        before_s = left[rank]
        left[rank] = after_s = max(0.0, before_s - time_s)
        spare -= int(before_s / unit_s + 1e-9) - int(after_s / unit_s + 1e-9) - int(time_s / unit_s - 1e-6)
        at = bisect_right(rests, -(after_s % unit_s))
        rests.insert(at, -(after_s % unit_s))
        ranks.insert(at, rank)
        dealt.append(rank)
    return dealt if spare >= 0 else None


def first_free(free_s: Floats, seconds: Floats) -> Ints:
    """Rank of every item: the one that is free first (of equals the first one), items in the order given.

    Many ranks take items round by round: the next item is for the next rank by the time it is free, until one that got
    an item in this round is free as early. Where rounds are short, a heap finds the ranks of as many items as there
    are ranks.
    """
    rank_of, ranks = np.empty(len(seconds), dtype=np.int64), len(free_s)
    if ranks < MANY_RANKS:
        _by_heap(free_s.copy(), seconds, rank_of)
        return rank_of
    free_s, done = free_s.copy(), 0
    while done < len(seconds):
        order = free_s.argsort(kind="stable")[: len(seconds) - done]
        before_s = free_s[order]
        after_s = before_s + seconds[done : done + len(order)]
        again = (before_s[1:] >= np.minimum.accumulate(after_s)[:-1]).nonzero()[0]
        taken = int(again[0]) + 1 if len(again) else len(order)
        rank_of[done : done + taken] = order[:taken]
        free_s[order[:taken]] = after_s[:taken]
        done += taken
        if taken * SHORT_ROUND < ranks:
            part = slice(done, done + ranks)
            _by_heap(free_s, seconds[part], rank_of[part])
            done += len(seconds[part])
    return rank_of


def _by_heap(free_s: Floats, seconds: Floats, rank_of: Ints) -> None:
    """Write the rank of every item to *rank_of*, and when the ranks are free then to *free_s*."""
    if not len(seconds):
        return
    heap = list(zip(free_s.tolist(), range(len(free_s)), strict=True))
    heapq.heapify(heap)
    ranks: list[int] = []
    for duration in seconds.tolist():
        free, rank = heap[0]
        ranks.append(rank)
        heapq.heapreplace(heap, (free + duration, rank))
    rank_of[:] = ranks
    ends_s, by_end = zip(*heap, strict=True)
    free_s[list(by_end)] = ends_s


def even_bins(tokens: Ints, counts: Ints, capacity: int) -> tuple[Ints, Ints]:
    """Spread the sequences of every rank over as few bins as hold them, evenly.

    What comes first on a rank goes to its emptiest bin, then what comes second, and so on; of many ranks at once.

    Args:
        tokens: one rank after the other, of each the longest first.
        counts: sequences of every rank.
        capacity: tokens of a bin.

    Returns:
        The bin of every sequence, numbered one rank after the other; how many every rank has.
    """
    ranks, begin = len(counts), np.cumsum(counts) - counts
    if ranks <= FEW_RANKS:
        return _even_bins_by_heap(tokens, counts, capacity)
    total = np.concatenate(([0], np.cumsum(tokens)))
    opened = -(-(total[begin + counts] - total[begin]) // capacity)
    room = np.where(np.arange(int(opened.max(initial=1)))[None, :] < opened[:, None], capacity, CLOSED)
    place = np.empty(len(tokens), dtype=np.int64)
    most_first = np.argsort(-counts, kind="stable")
    having = ranks - np.searchsorted(np.sort(counts), np.arange(int(counts.max(initial=0))), side="right")
    for turn, taken in enumerate(having.tolist()):
        rank = most_first[:taken]
        item = begin[rank] + turn
        length = tokens[item]
        at = room[rank].argmax(axis=1)
        full = np.flatnonzero(room[rank, at] < length)
        if len(full):
            reopened = rank[full]
            at[full] = opened[reopened]
            opened[reopened] += 1
            if opened.max() > room.shape[1]:
                room = np.concatenate((room, np.full((ranks, 1), CLOSED)), axis=1)
            room[reopened, at[full]] = capacity
        room[rank, at] -= length
        place[item] = at
    return place + np.repeat(np.cumsum(opened) - opened, counts), opened


def _even_bins_by_heap(tokens: Ints, counts: Ints, capacity: int) -> tuple[Ints, Ints]:
    """even_bins, rank by rank: each has a heap of its bins, the emptiest (the first of equals) on top."""
    bins: list[int] = []
    opened: list[int] = []
    lengths, begin, first = tokens.tolist(), 0, 0
    for count in counts.tolist():
        own, begin = lengths[begin : begin + count], begin + count
        number = -(-sum(own) // capacity)
        heap = [(-capacity, place) for place in range(number)]  # room, negated
        for length in own:
            room, place = heap[0]
            if length <= -room:
                heapq.heapreplace(heap, (room + length, place))
            else:
                place, number = number, number + 1
                heapq.heappush(heap, (length - capacity, place))
            bins.append(first + place)
        opened.append(number)
        first += number
    return np.array(bins, dtype=np.int64), np.array(opened, dtype=np.int64)


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
    by_time = np.argsort(seconds, kind="stable")
    small = np.min_scalar_type(ranks - 1)  # the smallest integers are sorted fastest
    for _ in range(EXCHANGE_ROUNDS):
        counts = np.bincount(rank, minlength=ranks)
        order = np.argsort(load_s, kind="stable")
        busy = order[::-1]
        busy = busy[(load_s[busy] > goal_s) & (counts[busy] > 0)][: ranks // 2]
        idle = order[: len(busy)]
        if not len(busy):
            break
        by_rank = by_time[np.argsort(rank[by_time].astype(small), kind="stable")]
        total_s = np.concatenate(([0.0], np.cumsum(seconds[by_rank])))
        starts = np.cumsum(counts) - counts
        given, taken = _parcels(starts, counts, busy), _parcels(starts, counts, idle)
        given_s, taken_s = (total_s[last] - total_s[first] for first, last in (given, taken))
        largest_s = np.where(given[1] > given[0], seconds[by_rank[given[1] - 1]], np.inf)
        given_s[largest_s > most_s[idle][:, None]] = np.inf
        best, larger_s = _best_exchanges(load_s[busy], load_s[idle], given_s, taken_s)
        pair = np.flatnonzero(larger_s < load_s[busy] * (1.0 - 1e-6))
        if not len(pair):
            break
        give, take = np.divmod(best[pair], taken.shape[2])
        for parcels, chosen, new in ((given, give, idle), (taken, take, busy)):
            first, last = parcels[0][pair, chosen], parcels[1][pair, chosen]
            rank[by_rank[ranges(first, last - first)]] = np.repeat(new[pair], last - first)
        load_s = base_s + np.bincount(rank, weights=seconds, minlength=ranks)
    return rank


def _best_exchanges(busy_s: Floats, idle_s: Floats, given_s: Floats, taken_s: Floats) -> tuple[Ints, Floats]:
    """Of every pair the exchange with the least larger load, what is given by what is taken, and that load.

    Some pairs at a time, so that their exchanges stay in the cache.
    """
    best, larger_s = np.empty(len(busy_s), dtype=np.int64), np.empty(len(busy_s))
    pairs = max(1, EXCHANGES_AT_ONCE // (given_s.shape[1] * taken_s.shape[1]))
    for first in range(0, len(busy_s), pairs):
        block = slice(first, first + pairs)
        moved_s = given_s[block, :, None] - taken_s[block, None, :]
        after_s = busy_s[block, None, None] - moved_s
        moved_s += idle_s[block, None, None]
        of_pair = np.maximum(after_s, moved_s, out=after_s).reshape(len(after_s), -1)
        best[block] = least = of_pair.argmin(axis=1)
        larger_s[block] = of_pair[np.arange(len(least)), least]
    return best, larger_s


def _parcels(starts: Ints, counts: Ints, ranks: Ints) -> Ints:
    """[2, ranks, n]: first and last + 1 of what a rank could give, in the list of items by rank and time.

    Nothing; single items, evenly spread over the list where it is long; its shortest items together.
    """
    first, have = starts[ranks][:, None], counts[ranks][:, None]
    most = int(have.max(initial=1))
    width = min(EXCHANGE_ITEMS, most)
    place = np.arange(width)[None, :]
    if most > width:
        place = np.where(have <= width, place, place * (have - 1) // max(1, width - 1))
    parcels = np.empty((2, len(ranks), 1 + width + len(EXCHANGE_RUNS)), dtype=np.int64)
    parcels[:] = first
    parcels[0, :, 1 : 1 + width] += np.minimum(place, have)
    parcels[1, :, 1 : 1 + width] += np.minimum(place + 1, have)
    parcels[1, :, 1 + width :] += np.minimum(EXCHANGE_RUNS, have)
    return parcels
