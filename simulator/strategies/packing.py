"""Packing sequences into bins of a token capacity. Every packer returns the bin of each sequence (or piece)."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

from simulator.setup import Packing
from simulator.strategies.assembly import Pieces, ranges

__all__ = ["best_fit", "pack"]

Ints = NDArray[np.int64]


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
