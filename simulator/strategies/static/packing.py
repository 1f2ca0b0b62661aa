"""Packing sequences into bins of a token capacity. Every packer returns the bin of each sequence (or piece)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, assert_never

import numpy as np

from hdpsim.arrays import Floats, Ints, offsets_of, ranges
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.setup import Packing
from hdpsim.simulator.strategies.problem import PlanningProblem

TIGHT_CHUNK = 8192  # sequences packed together: enough to choose from, few enough for lists
IN_TURN = (
    2**14
)  # sequences up to which packs are filled in turn: taking out of the middle of longer lists takes longer
MOST_KEPT = 4096  # sequences of a batch whose packs are kept
TIGHT_PAIRS = 6  # pairs tried to fill a pack exactly


def pack(lengths: Ints, capacity_tokens: int, method: Packing) -> Pieces:
    """Pack *lengths* (none longer than the capacity) into micro-batches of at most *capacity_tokens*.

    in-order: fill a pack until the next sequence does not fit, then open the next one (next fit).
    first-fit: longest first, each into the first pack it fits (first-fit decreasing).
    best-fit: in order of arrival, each into the fullest pack it fits.
    concatenate: the batch as one stream cut every capacity_tokens; only this packer splits sequences.
    """
    match method:
        case "concatenate":
            return _concatenate(lengths, capacity_tokens)
        case "in-order":
            bins = _next_fit(lengths, capacity_tokens)
        case "best-fit":
            bins = _packed_once(best_fit, lengths, capacity_tokens)
        case "first-fit":
            bins = _packed_once(first_fit_decreasing, lengths, capacity_tokens)
        case _:
            assert_never(method)
    return Pieces.of_whole(lengths, bins)


def pack_chunked(lengths: Ints, capacity_tokens: int, method: Packing, chunks: int) -> Pieces:
    """Pack sequences that take the room of whole chunks (see in_chunks)."""
    filled = in_chunks(lengths, capacity_tokens, method, chunks)
    pieces = pack(filled, capacity_tokens, method)
    return pieces if filled is lengths else pieces._replace(tokens=lengths)


def in_chunks(lengths: Ints, capacity_tokens: int, method: Packing, chunks: int) -> Ints:
    """Lengths of sequences that are padded to so many equal *chunks*.

    A ring cuts every sequence into two chunks a rank, so that all ranks hold as much of it. A stream that is cut where
    packs end (concatenate) is not padded, nor is anything over the capacity.
    Source: Transformer Engine, pull request 641 ("each individual sequence length is divisible by
    (2*context_parallel_size)": NVIDIA-NeMo/Speech, pull request 9540); zhuzilin/ring-flash-attention, issue 51;
    ByteScale, arXiv 2502.21231, Figure 14.
    """
    if chunks == 1 or method == "concatenate":
        return lengths
    return np.minimum(-(-lengths // chunks) * chunks, capacity_tokens)


def _packed_once(packer: Callable[[Ints, int], Ints], lengths: Ints, capacity_tokens: int) -> Ints:
    """What *packer* makes of the lengths: a search packs the same small batch for layout after layout."""
    if len(lengths) > MOST_KEPT:
        return packer(lengths, capacity_tokens)
    return _packed(packer, lengths.astype(np.int64, copy=False).tobytes(), capacity_tokens)


@lru_cache(maxsize=64)
def _packed(packer: Callable[[Ints, int], Ints], lengths: bytes, capacity_tokens: int) -> Ints:
    bins = packer(np.frombuffer(lengths, dtype=np.int64), capacity_tokens)
    bins.setflags(write=False)
    return bins


def split_packs(pieces: Pieces, more: int) -> Pieces:
    """Return the same packs and *more*: the last sequences of the first packs that hold several get packs of their own.

    *pieces* are in the order of their packs, and hold enough of them.
    """
    counts = np.bincount(pieces.micro_batch)
    spare = counts - 1
    leaving = np.clip(more - (np.cumsum(spare) - spare), 0, spare)
    place = ranges(np.zeros_like(counts), counts)
    begins = (place == 0) | (place >= np.repeat(counts - leaving, counts))
    return pieces._replace(micro_batch=np.cumsum(begins) - 1)


def _concatenate(lengths: Ints, capacity_tokens: int) -> Pieces:
    ends = np.cumsum(lengths)
    starts = ends - lengths
    first, last = starts // capacity_tokens, (ends - 1) // capacity_tokens
    counts = last - first + 1
    sequence = np.repeat(np.arange(len(lengths), dtype=np.int64), counts)
    bins = ranges(first, counts)
    piece_start = np.maximum(starts[sequence], bins * capacity_tokens)
    return Pieces(
        tokens=np.minimum(ends[sequence], (bins + 1) * capacity_tokens) - piece_start,
        sequence=sequence,
        start=piece_start - starts[sequence],
        micro_batch=bins,
    )


def _next_fit(lengths: Ints, capacity_tokens: int) -> Ints:
    """Jump from pack to pack: where the one that starts with a sequence ends is searched for all sequences at once."""
    count = len(lengths)
    if lengths.min() == lengths.max():
        return np.arange(count, dtype=np.int64) // (capacity_tokens // int(lengths[0]))
    ends = np.cumsum(lengths)
    following = np.searchsorted(ends, ends - lengths + capacity_tokens, side="right").tolist()
    cuts = [0]
    while cuts[-1] < count:
        cuts.append(following[cuts[-1]])
    return np.repeat(np.arange(len(cuts) - 1, dtype=np.int64), np.diff(cuts))


def best_fit(lengths: Ints, capacity_tokens: int) -> Ints:
    """Best fit in order of arrival: the fullest pack that still has room (a sorted list of free room)."""
    bins: list[int] = []
    # Free room and the number of the pack in one number each: comparing tuples takes longer.
    bits = len(lengths).bit_length()
    room: list[int] = []
    opened = 0
    for length in lengths.tolist():
        at = bisect_left(room, length << bits)
        if at == len(room):
            free = (capacity_tokens << bits) + opened
            opened += 1
        else:
            free = room.pop(at)
        bins.append(free & ((1 << bits) - 1))
        left = free - (length << bits)
        if left >> bits:
            insort(room, left)
    return np.array(bins, dtype=np.int64)


def first_fit_decreasing(lengths: Ints, capacity_tokens: int) -> Ints:
    """First fit, longest first: each sequence goes to the first pack that has room for it."""
    return (_fill_in_turn if len(lengths) <= IN_TURN else _first_fit_by_room)(lengths, capacity_tokens)


def _fill_in_turn(lengths: Ints, capacity_tokens: int) -> Ints:
    """First fit, longest first, one pack after the other: the first one takes of all what fits, the next of the rest.

    A length and its place are one number, as in _fill_tightly, ascending; of equal lengths the first one comes last.
    """
    count = len(lengths)
    bits = count.bit_length()
    place = (1 << bits) - 1
    left = np.sort((lengths.astype(np.int64) << bits) + np.arange(count)[::-1]).tolist()
    taken: list[int] = []
    sizes: list[int] = []
    while left:
        before, end = len(taken), len(left)
        room = (capacity_tokens << bits) + place
        while (
            end := bisect_right(left, room, 0, end) - 1
        ) >= 0:  # the longest that fits, of those not looked at
            taken.append(left.pop(end))
            room -= taken[-1] & ~place
        sizes.append(len(taken) - before)
    bins = np.empty(count, dtype=np.int64)
    number = count - 1 - (np.array(taken, dtype=np.int64) & place)
    bins[number] = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    return bins


def _first_fit_by_room(lengths: Ints, capacity_tokens: int) -> Ints:
    """The same on a tournament tree over the packs' free room: O(log packs) a sequence, however many there are.

    No two packs together hold less than one can, so that there are at most twice as many as the tokens fill.
    """
    count = len(lengths)
    most = min(count, 2 * -(-int(lengths.sum()) // capacity_tokens) + 1)
    size = 1 << max(1, (most - 1).bit_length())
    tree = [capacity_tokens] * (2 * size)
    bins = np.empty(count, dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    for i, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        node = 1
        while node < size:
            node *= 2
            if tree[node] < length:
                node += 1
        bins[i] = node - size
        tree[node] -= length
        node //= 2
        while node:
            room = max(tree[2 * node], tree[2 * node + 1])
            if tree[node] == room:
                break
            tree[node] = room
            node //= 2
    return bins


def pack_tightly(lengths: Ints, capacity_tokens: int) -> Ints:
    """Fill one pack after the other so that almost none has room left; order of arrival does not matter.

    A pack starts with the longest sequence left. While three or more can follow, one from the middle of those
    that leave room for them is added, so that what remains stays mixed; the last two are the pair, or the one,
    that fills the pack best.
    """
    chunks = -(-len(lengths) // TIGHT_CHUNK)
    ascending = np.argsort(lengths, kind="stable")
    bins = np.empty(len(lengths), dtype=np.int64)
    opened = 0
    for chunk in range(chunks):
        numbers = ascending[chunk::chunks]
        order, sizes = _fill_tightly(lengths[numbers].tolist(), capacity_tokens)
        bins[numbers[order]] = np.repeat(np.arange(opened, opened + len(sizes), dtype=np.int64), sizes)
        opened += len(sizes)
    return bins


def _fill_tightly(lengths: list[int], capacity: int) -> tuple[Ints, list[int]]:
    """Pack *lengths* (ascending): places in it, one pack after the other, and how many every pack has.

    A length and its place are one number (the place in the low bits), so that one list holds both: taking something
    out of the middle of thousands is what this spends its time on, with calls, which is why it is one loop.
    """
    bits = len(lengths).bit_length()
    place = (1 << bits) - 1
    length = ~place
    left = [(tokens << bits) + number for number, tokens in enumerate(lengths)]
    taken: list[int] = []
    sizes: list[int] = []
    while left:
        before = len(taken)
        taken.append(left.pop())
        # Room in these units, and all places: what is no larger fits.
        rest = (capacity << bits) - (taken[-1] & length) + place
        while left and left[0] <= rest:
            shortest = left[0] & length
            at = bisect_right(left, rest) - 1
            if rest >= 2 * shortest and left[at] < rest & length:
                if rest >= 3 * shortest:
                    at = (bisect_right(left, rest - 2 * shortest) - 1) // 2
                else:
                    at, short = _best_pair(left, rest, at, bits)
                    if short >= 0:
                        taken.append(left.pop(at))
                        rest -= taken[-1] & length
                        at = short
            taken.append(left.pop(at))
            rest -= taken[-1] & length
        sizes.append(len(taken) - before)
    return np.array(taken, dtype=np.int64) & place, sizes


def _best_pair(left: list[int], rest: int, longest: int, bits: int) -> tuple[int, int]:
    """The two in *left* that fill *rest* best, the longer one first; *longest* and -1 if alone it fills more."""
    length = -1 << bits
    room = rest & length
    best, most = (longest, -1), left[longest] & length
    half = bisect_right(left, (((rest >> bits) // 2 + 1) << bits) - 1)
    for short in range(0, half, max(1, half // TIGHT_PAIRS)):
        tokens = left[short] & length
        long = bisect_right(left, rest - tokens) - 1
        if long == short:
            long -= 1
        if long > short and tokens + (left[long] & length) > most:
            best, most = (long, short), tokens + (left[long] & length)
            if most == room:
                break
    return best


class Pieces(NamedTuple):
    """Segments with the micro-batch each one went to (micro-batches numbered from 0, none empty)."""

    tokens: Ints
    sequence: Ints
    start: Ints
    micro_batch: Ints

    @classmethod
    def of_whole(cls, lengths: Ints, micro_batch: Ints) -> Pieces:
        """Sequences that nobody cuts, each in one micro-batch."""
        count = len(lengths)
        zeros = np.zeros(count, dtype=np.int64)
        return cls(lengths, np.arange(count, dtype=np.int64), zeros, micro_batch)

    def totals(self, count: int) -> Ints:
        """Tokens of each of *count* micro-batches."""
        totals = np.zeros(count, dtype=np.int64)
        np.add.at(totals, self.micro_batch, self.tokens)
        return totals

    def at(self, places: Ints) -> Pieces:
        """The pieces at these places."""
        return Pieces(*(column[places] for column in self))


def assemble(
    problem: PlanningProblem,
    pieces: Pieces,
    *,
    group_size: Ints,
    member_ranks: Ints,
    slot: Ints,
    offload_ratio: Floats,
    keep_holes: bool,
    **said: Any,
) -> Plan:
    """Build the Plan.

    Args:
        problem: what is planned.
        pieces: segments and their micro-batches.
        group_size: per micro-batch.
        member_ranks: of one micro-batch after the other, ascending inside a group.
        slot: per micro-batch, the one at which its ranks run it.
        offload_ratio: per micro-batch.
        keep_holes: keep slot numbers as they are (pipelines need equal slots in a group); otherwise a rank's
            micro-batches only keep their order.
        said: other fields of the Plan, times, padding and notes.
    """
    by_batch = np.argsort(pieces.micro_batch, kind="stable")
    batch_of = np.repeat(np.arange(len(offload_ratio), dtype=np.int64), group_size)
    slot_of = slot[batch_of]
    if keep_holes:
        last = np.full(problem.ranks, -1, dtype=np.int64)
        np.maximum.at(last, member_ranks, slot_of)
        order_offsets = offsets_of(last + 1)
        order = np.full(int(order_offsets[-1]), HOLE, dtype=np.int64)
        order[order_offsets[member_ranks] + slot_of] = batch_of
    else:
        order_offsets = offsets_of(np.bincount(member_ranks, minlength=problem.ranks))
        order = batch_of[np.lexsort((slot_of, member_ranks))]
    return Plan(
        strategy=problem.options.name,
        ranks=problem.ranks,
        capacity_tokens=problem.capacity_tokens,
        segment_tokens=pieces.tokens[by_batch],
        segment_sequence=pieces.sequence[by_batch],
        segment_start=pieces.start[by_batch],
        segment_offsets=offsets_of(np.bincount(pieces.micro_batch, minlength=len(offload_ratio))),
        member_ranks=member_ranks,
        member_offsets=offsets_of(group_size),
        offload_ratio=offload_ratio,
        order=order,
        order_offsets=order_offsets,
        **said,
    )
