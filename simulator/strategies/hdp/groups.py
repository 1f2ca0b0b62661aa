"""How many ranks a sequence gets, and how much of its activations goes to host memory (ByteScale, Equation 3)."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.strategies.problem import PlanningProblem

RESIDENT_LAYERS = 2.0
"""The first and last layer of a stage stay on the GPU: ByteScale, arXiv 2502.21231, section 5.2."""
EXACT_SIZES = 64
"""Group sizes up to this one are all looked at."""
SIZE_GROWTH = 1.03
"""Larger ones in these steps."""
FIRST_SIZES = 24
"""So many are looked at first."""


class SizeTable:
    """Times of sequences on groups of any size, from *least* up; asked for several time limits.

    Mostly one of the next few sizes meets all limits. Only for sequences of which none does, all are looked at.
    """

    def __init__(self, problem: PlanningProblem, lengths: Ints, least: Ints, limit_s: float) -> None:
        """Of *lengths*, which need *least* ranks, for limits of *limit_s* and more."""
        least = np.minimum(least, problem.most_ranks)[:, None]
        grid = size_grid(problem.most_ranks)
        first = np.searchsorted(grid, least, side="right")
        self._parts: list[tuple[Ints, Ints, Floats]] = []  # sequences, their sizes and times
        rest = np.arange(len(lengths))
        for columns in (FIRST_SIZES, len(grid)) if limit_s > -np.inf else (len(grid),):
            sizes = grid[np.minimum(first[rest] + np.arange(columns), len(grid) - 1)]
            sizes = np.concatenate((least[rest], sizes), axis=1)
            times_s = problem.sequence_s(lengths[rest, None], sizes)
            chosen = (times_s <= limit_s).any(axis=1) | (columns == len(grid))
            self._parts.append((rest[chosen], sizes[chosen], times_s[chosen]))
            rest = rest[~chosen]
            if not len(rest):
                break

    def quicker(self) -> tuple[Ints, Ints, Floats]:
        """Sizes on which a sequence takes less time than on all smaller ones: its number, the size and the time."""
        entries: list[tuple[Ints, Ints, Floats]] = []
        for number, sizes, times_s in self._parts:
            before_s = np.minimum.accumulate(np.insert(times_s, 0, np.inf, axis=1), axis=1)[:, :-1]
            row, column = np.nonzero(times_s < before_s)
            entries.append((number[row], sizes[row, column], times_s[row, column]))
        number, size, time_s = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        order = np.argsort(number, kind="stable")
        return number[order], size[order], time_s[order]

    def within(self, limit_s: float) -> tuple[Ints, Floats]:
        """Smallest size of every sequence whose time is at most *limit_s*, else the quickest; and that time."""
        entries = sum(len(part[0]) for part in self._parts)
        size, time_s = np.empty(entries, dtype=np.int64), np.empty(entries)
        for number, sizes, times_s in self._parts:
            meets = times_s <= limit_s
            column = np.where(meets.any(axis=1), meets.argmax(axis=1), times_s.argmin(axis=1))
            row = np.arange(len(column))
            size[number], time_s[number] = sizes[row, column], times_s[row, column]
        return size, time_s


def smallest_group(problem: PlanningProblem, lengths: Ints, limit_s: float, least: Ints) -> Ints:
    """Smallest group of at least *least* ranks whose time per sequence is at most *limit_s*, else the quickest.

    As the group grows, the time falls until transfers take over, with a step up where a ring has to leave the node,
    the block or the pod, and ripples from the tiles of GEMMs: so all sizes up to EXACT_SIZES are looked at, and
    larger ones in steps of SIZE_GROWTH.
    """
    size = np.minimum(least, problem.most_ranks)
    too_slow = np.flatnonzero(problem.sequence_s(lengths, size) > limit_s)
    if len(too_slow):
        size[too_slow] = SizeTable(problem, lengths[too_slow], size[too_slow], limit_s).within(limit_s)[0]
    return np.asarray(size)


def size_grid(ranks: int, *, exact: bool = False) -> Ints:
    """Group sizes to look at: all up to EXACT_SIZES, then growing by SIZE_GROWTH, up to all *ranks*; *exact*: all."""
    sizes = list(range(1, (ranks if exact else min(EXACT_SIZES, ranks)) + 1))
    while sizes[-1] < ranks:
        sizes.append(min(max(int(sizes[-1] * SIZE_GROWTH), sizes[-1] + 1), ranks))
    return np.array(sizes, dtype=np.int64)


def choose_groups(
    problem: PlanningProblem, lengths: Ints, limit_s: float, offload_limit_s: float
) -> tuple[Ints, Floats]:
    """Group size d and offload ratio r of every sequence.

    The smallest d that memory allows, offloading what hides behind compute (least_group), is taken unless the
    sequence would then run longer than *offload_limit_s* (never trade a few hops for a new critical path), and at
    least as many ranks as *limit_s* asks for. With strategy.offload_ratio that d is taken whatever time it takes.
    Source: ByteScale (arXiv 2502.21231), Equation 3; the time limits are ours, see docs/explanation/strategies.md.
    """
    plain = smallest_group(problem, lengths, limit_s, _group_without_offload(problem, lengths))
    if not problem.options.selective_offloading:
        return plain, needed_ratio(problem, lengths, plain)
    if problem.options.offload_ratio is not None:
        size = least_group(problem, lengths)
        return size, needed_ratio(problem, lengths, size)
    relaxed = smallest_group(problem, lengths, min(limit_s, offload_limit_s), least_group(problem, lengths))
    cheaper = problem.sequence_s(lengths, relaxed) * relaxed <= problem.sequence_s(lengths, plain) * plain
    size = np.where((relaxed < plain) & cheaper, relaxed, plain)
    return size, needed_ratio(problem, lengths, size)


def needed_ratio(problem: PlanningProblem, lengths: Ints, group_size: Ints) -> Floats:
    """The smallest offload ratio with which *lengths* fit on *group_size* ranks.

    Activations of s tokens on d ranks fit when d >= s / C * [2 + (1 - r)(l - 2)] / l, with l layers per stage of
    which the first and last stay on the GPU.  Source: ByteScale (arXiv 2502.21231), Equation 3.

    Raises:
        InfeasibleError: no ratio makes a sequence fit.
    """
    ratio = least_offload(problem, lengths, group_size)
    if np.isinf(ratio).any():
        number = np.argmin(group_size / lengths)
        however = ", even with its activations offloaded" if _can_offload(problem) else ""
        raise problem.too_long(int(lengths[number]), int(group_size[number]), however)
    return ratio


def least_offload(problem: PlanningProblem, tokens: Ints, ranks: Ints) -> Floats:
    """Least share of activations to offload so that *tokens* fit on *ranks*; infinite: they never do."""
    layers = float(problem.cost.busiest_layers)
    room = ranks * problem.capacity_tokens / tokens
    if not _can_offload(problem):
        return np.where(room >= 1.0, 0.0, np.inf)
    ratio = 1.0 - (room * layers - RESIDENT_LAYERS) / (layers - RESIDENT_LAYERS)
    return np.where(ratio > 1.0 + 1e-9, np.inf, np.clip(ratio, 0.0, 1.0))


def _can_offload(problem: PlanningProblem) -> bool:
    return problem.options.selective_offloading and problem.cost.busiest_layers > RESIDENT_LAYERS


def least_group(problem: PlanningProblem, lengths: Ints) -> Ints:
    """Smallest group on which a sequence fits with offloading that its compute hides (Equation 3 alone).

        r = min(1, t_forward * B / (act * s)), or strategy.offload_ratio
        d = ceil(s / min(C * l / [2 + (1 - r)(l - 2)], tokens that hosts have room for))

    t_forward: a layer's forward of the whole sequence, on one rank; B: host link (offload_bytes_per_s). Spreading the
    sequence over d ranks divides compute and transfer alike, so r does not depend on d. At most as
    many ranks as can share a sequence.
    """
    layers = float(problem.cost.busiest_layers)
    without = _group_without_offload(problem, lengths)
    if not _can_offload(problem):
        return without
    ratio = _hidden_ratio(problem, lengths, layers)
    shrink = (RESIDENT_LAYERS + (1.0 - ratio) * (layers - RESIDENT_LAYERS)) / layers
    held = np.minimum(problem.capacity_tokens / shrink, problem.hosted_tokens)
    return np.asarray(np.clip(np.ceil(lengths / held - 1e-9).astype(np.int64), 1, problem.most_ranks))


def _hidden_ratio(problem: PlanningProblem, lengths: Ints, layers: float) -> Floats:
    """What of a sequence's activations can go to the host beside its compute, or what the options say."""
    cost, given = problem.cost, problem.options.offload_ratio
    if given is not None:
        return np.full(len(lengths), given)
    # Forward is a share 1 / 3.5 of the attention and 1 / 3 of the linear work: 0.3 of a layer's total time.
    layer_forward_s = 0.3 * problem.piece_s(lengths) / layers
    layer_bytes = cost.offloading.activation_bytes_per_token * lengths
    return np.asarray(np.minimum(1.0, layer_forward_s * cost.offloading.bytes_per_s / layer_bytes))


def _group_without_offload(problem: PlanningProblem, lengths: Ints) -> Ints:
    return np.minimum(-(-lengths // problem.capacity_tokens), problem.most_ranks)


OFFLOAD_SHARE = 0.1
"""ByteScale's planners accept a smaller group as long as the sequence takes at most this share of a rank's mean work:
anything longer tends to become the critical path."""


def paper_groups(problem: PlanningProblem, lengths: Ints, mean_s: float) -> tuple[Ints, Floats]:
    """Group size and offload ratio as Equation 3 gives them, within that share of a rank's mean work."""
    return choose_groups(problem, lengths, np.inf, OFFLOAD_SHARE * mean_s)


def capacities_below(problem: PlanningProblem) -> tuple[int, ...]:
    """Capacities that are looked at where none is stated, the largest first.

    The context over 1, 2, 3, 4, 6, 8, 12, ..., in whole tokens of every GPU: more memory adds some and takes none away.
    """
    tp, context = problem.cost.layout.parallel.tp, problem.context_tokens
    parts = (1, *(step << halvings for halvings in range(context.bit_length()) for step in (2, 3)))
    every = dict.fromkeys(-(-context // (tp * share)) * tp for share in parts)
    return tuple(capacity for capacity in every if capacity <= problem.capacity_tokens)
