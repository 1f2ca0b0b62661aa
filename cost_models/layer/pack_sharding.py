"""Attention of packs that are cut as a whole: which rank of a group has most of it."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats, Ints


def pack_imbalance(tokens: Floats, segment_offsets: Ints, group_size: Floats) -> Floats:
    """[n]: attention of the busiest rank of a micro-batch over the mean of its ranks.

        rank i of d holds chunks i and 2 d - 1 - i of the 2 d equal ones of the pack
        work of a chunk = F(end) - F(begin)
        F(x) = sum of s^2 / 2 of the documents before x + (x - begin of its own)^2 / 2

    Counted: causal pairs. One document alone is balanced: 1.
    Ignored: windows; chunks of a ring in which the busiest rank changes from step to step; short rows of kernels.
    Source: WLB-LLM, arXiv 2503.17924, section 5 (per-sequence sharding).
    """
    found = np.ones(len(group_size))
    several = np.diff(segment_offsets) > 1
    for number in np.flatnonzero((group_size > 1.0) & several).tolist():
        own = tokens[segment_offsets[number] : segment_offsets[number + 1]]
        ends = np.cumsum(own)
        before = np.concatenate(([0.0], np.cumsum(own**2 / 2.0)))
        ranks = int(group_size[number])
        cuts = np.linspace(0.0, ends[-1], 2 * ranks + 1)
        document = np.minimum(np.searchsorted(ends, cuts, side="right"), len(own) - 1)
        until = before[document] + (cuts - (ends - own)[document]) ** 2 / 2.0
        chunks = np.diff(until)
        of_rank = chunks[:ranks] + chunks[ranks:][::-1]
        found[number] = of_rank.max() / of_rank.mean()
    return found
