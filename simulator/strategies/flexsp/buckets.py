"""Lengths cut into chunks and rounded to a few sizes, with the least error: what FlexSP does before it plans."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats, Ints

DISTINCT = 256
"""Lengths that are told apart before they are rounded to buckets; more are joined by tokens, neighbours first."""


def equal_chunks(lengths: Ints, parts: int) -> list[Ints]:
    """Places of *lengths* in at most *parts* runs of neighbours whose fullest has as few tokens as possible.

    By bisection over that number of tokens; a run is as long as it allows.
    Source: FlexSP, arXiv 2412.01523, section 4.2.4 (blaster), which finds the same by dynamic programming.
    """
    ends = np.cumsum(lengths)
    low, high = max(int(lengths.max()), -(-int(ends[-1]) // parts)), int(ends[-1])
    while low < high:
        middle = (low + high) // 2
        if len(_cuts(ends, middle)) <= parts:
            high = middle
        else:
            low = middle + 1
    return np.split(np.arange(len(lengths)), _cuts(ends, low)[:-1])


def _cuts(ends: Ints, most: int) -> list[int]:
    """Where runs of at most *most* tokens end."""
    cuts = list[int]()
    passed = 0
    while not cuts or cuts[-1] < len(ends):
        cuts.append(int(np.searchsorted(ends, passed + most, side="right")))
        passed = int(ends[cuts[-1] - 1])
    return cuts


def bucket_sizes(lengths: Ints, buckets: int) -> tuple[Ints, Ints]:
    """Sizes of at most so many buckets, ascending, and the bucket of every length, which counts as its size.

        error[k, q] = min over j < k of error[j, q - 1] + sum over lengths i of (j, k] of (s_k - s_i)

    Source: FlexSP, arXiv 2412.01523, section 4.1.3 (bucketing by dynamic programming).
    """
    sizes, of_length, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    if len(sizes) > DISTINCT:
        share = np.cumsum(counts * sizes) / float(lengths.sum())
        last = np.unique(np.searchsorted(share, np.arange(1, DISTINCT + 1) / DISTINCT - 1e-12))
        last[-1] = len(sizes) - 1
        joined = np.searchsorted(last, np.arange(len(sizes)))
        of_length, sizes = joined[of_length], sizes[last]
        counts = np.bincount(of_length, minlength=len(sizes))
    if len(sizes) <= buckets:
        return sizes, of_length
    last = _least_error(sizes.astype(np.float64), counts.astype(np.float64), buckets)
    return sizes[last], np.searchsorted(last, np.arange(len(sizes)))[of_length]


def _least_error(sizes: Floats, counts: Floats, buckets: int) -> Ints:
    """The last size of every bucket."""
    number = len(sizes)
    held = np.concatenate(([0.0], np.cumsum(counts)))
    tokens = np.concatenate(([0.0], np.cumsum(counts * sizes)))
    first, last = np.arange(number)[:, None], np.arange(number)[None, :]
    error = sizes[last] * (held[last + 1] - held[first]) - (tokens[last + 1] - tokens[first])
    error = np.where(first <= last, error, np.inf)  # of one bucket from first to last
    least = error[0]
    came_from = []
    for _ in range(buckets - 1):
        before = np.concatenate(([np.inf], least[:-1]))  # all sizes below `first` are in buckets
        every = before[:, None] + error
        came_from.append(every.argmin(axis=0))
        least = every.min(axis=0)
    ends = [number - 1]
    for begins in reversed(came_from):
        ends.append(int(begins[ends[-1]]) - 1)
    return np.array(ends[::-1], dtype=np.int64)
