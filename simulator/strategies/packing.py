"""Packing sequences into bins of a token capacity. Every packer returns the bin of each sequence (or piece)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np
from numpy.typing import NDArray

from simulator.setup import Packing
from simulator.strategies.assembly import Pieces, ranges

__all__ = ["best_fit", "pack", "pack_tightly"]

Ints = NDArray[np.int64]

TIGHT_CHUNK = 8192  # sequences packed together: enough to choose from, few enough for lists
TIGHT_PAIRS = 6  # pairs tried to fill a pack exactly


def pack(lengths: Ints, capacity_tokens: int, method: Packing) -> Pieces:
    """Pack *lengths* (none longer than the capacity) into micro-batches of at most *capacity_tokens*.

    in-order: fill a pack until the next sequence does not fit, then open the next one (next fit).
    first-fit: longest first, each into the first pack it fits (first-fit decreasing).
    best-fit: in order of arrival, each into the fullest pack it fits.
    concatenate: the batch as one stream cut every capacity_tokens; only this packer splits sequences.
    """
    count = len(lengths)
    sequence = np.arange(count, dtype=np.int64)
    start = np.zeros(count, dtype=np.int64)
    if method == "concatenate":
        return _concatenate(lengths, capacity_tokens)
    if method == "in-order":
        bins = _next_fit(lengths, capacity_tokens)
    elif method == "best-fit":
        bins = best_fit(lengths, capacity_tokens)
    else:
        bins = _first_fit_decreasing(lengths, capacity_tokens)
    return Pieces(tokens=lengths, sequence=sequence, start=start, micro_batch=bins)


def _concatenate(lengths: Ints, capacity_tokens: int) -> Pieces:
    ends = np.cumsum(lengths)
    starts = ends - lengths
    first, last = starts // capacity_tokens, (ends - 1) // capacity_tokens
    counts = last - first + 1
    sequence = np.repeat(np.arange(len(lengths), dtype=np.int64), counts)
    bins = ranges(first, counts)
    piece_start = np.maximum(starts[sequence], bins * capacity_tokens)
    piece_end = np.minimum(ends[sequence], (bins + 1) * capacity_tokens)
    return Pieces(
        tokens=piece_end - piece_start,
        sequence=sequence,
        start=piece_start - starts[sequence],
        micro_batch=bins,
    )


def _next_fit(lengths: Ints, capacity_tokens: int) -> Ints:
    """Jump from pack to pack with one binary search each on the running sum."""
    ends = np.cumsum(lengths)
    cuts = [0]
    while cuts[-1] < len(lengths):
        before = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        cuts.append(int(np.searchsorted(ends, before + capacity_tokens, side="right")))
    return np.repeat(np.arange(len(cuts) - 1, dtype=np.int64), np.diff(cuts))


def best_fit(lengths: Ints, capacity_tokens: int) -> Ints:
    """Best fit in order of arrival: the fullest pack that still has room (a sorted list of free room)."""
    bins = np.empty(len(lengths), dtype=np.int64)
    room: list[tuple[int, int]] = []
    opened = 0
    for i, length in enumerate(lengths.tolist()):
        at = bisect_left(room, (length, -1))
        if at == len(room):
            free, where = capacity_tokens, opened
            opened += 1
        else:
            free, where = room.pop(at)
        bins[i] = where
        if free > length:
            insort(room, (free - length, where))
    return bins


def _first_fit_decreasing(lengths: Ints, capacity_tokens: int) -> Ints:
    """First fit, longest first, on a tournament tree over the packs' free room (O(log n) a sequence)."""
    count = len(lengths)
    size = 1 << max(1, (count - 1).bit_length())
    tree = [capacity_tokens] * (2 * size)
    bins = np.empty(count, dtype=np.int64)
    for i in np.argsort(-lengths, kind="stable").tolist():
        length, node = int(lengths[i]), 1
        while node < size:
            node *= 2
            if tree[node] < length:
                node += 1
        bins[i] = node - size
        tree[node] -= length
        node //= 2
        while node:
            tree[node] = max(tree[2 * node], tree[2 * node + 1])
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
        order, where, opened = _fill_tightly(lengths[numbers].tolist(), capacity_tokens, opened)
        bins[numbers[order]] = where
    return bins


def _fill_tightly(left: list[int], capacity: int, opened: int) -> tuple[list[int], list[int], int]:
    """Pack *left* (ascending): places in it, the pack of each, and the number after the last pack."""
    numbers = list(range(len(left)))
    order: list[int] = []
    where: list[int] = []
    while left:
        room, at = capacity, [len(left) - 1]
        while at:
            for place in at:
                room -= left.pop(place)
                order.append(numbers.pop(place))
                where.append(opened)
            at = _next_in_pack(left, room) if left and left[0] <= room else []
        opened += 1
    return order, where, opened


def _next_in_pack(left: list[int], room: int) -> list[int]:
    """Places in *left* (ascending) of what to add to a pack with *room* for at least one; later places first."""
    shortest = left[0]
    longest = bisect_right(left, room) - 1
    if room < 2 * shortest or left[longest] == room:
        return [longest]
    if room >= 3 * shortest:
        return [(bisect_right(left, room - 2 * shortest) - 1) // 2]
    best, waste = [longest], room - left[longest]
    half = bisect_right(left, room // 2)
    for short in range(0, half, max(1, half // TIGHT_PAIRS)):
        long = bisect_right(left, room - left[short]) - 1
        long -= long == short
        if long > short and room - left[short] - left[long] < waste:
            best, waste = [long, short], room - left[short] - left[long]
    return best
