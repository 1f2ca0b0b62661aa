"""How many ranks a sequence gets, and how much of its activations goes to host memory (ByteScale, Equation 3)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hdpsim.errors import InfeasibleError
from simulator.strategies.problem import PlanningProblem

__all__ = ["choose_groups", "least_group", "needed_ratio", "size_grid", "smallest_group"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TimeOf = Callable[[Ints, Ints], Floats]
"""Seconds of a micro-batch with one sequence, from its length and its group's size."""

RESIDENT_LAYERS = (
    2.0  # the first and last layer of a stage stay on the GPU: ByteScale, arXiv 2502.21231, section 5.2
)


def smallest_group(
    problem: PlanningProblem, lengths: Ints, limit_s: float, least: Ints, time_s: TimeOf | None = None
) -> Ints:
    """Smallest group of at least *least* ranks whose time per sequence is at most *limit_s*, else the quickest.

    As the group grows the time falls until transfers take over, then rises; a ring that has to leave the node (the
    block, the pod) is a step up. So the sizes are searched tier by tier: first the size with the least time in the
    tier, by bisection on the slope, then the smallest one below it that meets the limit.
    """
    time = time_s or problem.sequence_s
    size = np.minimum(least, problem.ranks)
    best, best_s = size.copy(), time(lengths, size)
    todo = np.flatnonzero(best_s > limit_s)
    first = 1
    for last in _tier_ends(problem):
        rows = todo[size[todo] <= last]
        if len(rows):
            low, long = np.maximum(size[rows], first), lengths[rows]
            quickest = _quickest(time, long, low, np.full_like(low, last))
            quickest_s = time(long, quickest)
            better = quickest_s < best_s[rows]
            best[rows] = np.where(better, quickest, best[rows])
            best_s[rows] = np.minimum(quickest_s, best_s[rows])
            meets = quickest_s <= limit_s
            met = rows[meets]
            best[met] = _first_within(time, long[meets], low[meets], quickest[meets], limit_s)
            todo = np.setdiff1d(todo, met, assume_unique=True)
        first = last + 1
    return best


def size_grid(ranks: int, *, exact: int, growth: float, step: int = 1) -> Ints:
    """Group sizes to look at: all up to *exact*, then multiples of *step* that grow by *growth*, up to *ranks*."""
    sizes = list(range(1, min(exact, ranks) + 1))
    while sizes[-1] < ranks:
        following = max(int(sizes[-1] * growth) // step * step, sizes[-1] // step * step + step)
        sizes.append(min(following, ranks))
    return np.array(sizes, dtype=np.int64)


def _tier_ends(problem: PlanningProblem) -> list[int]:
    """Largest group of every tier: a node, a block, a pod, everything; each once, ascending."""
    node, fabric = problem.cost.cluster.node, problem.cost.cluster.fabric
    block = node.gpus * fabric.nodes_per_block
    gpus = (node.gpus, block, block * fabric.blocks_per_pod)
    ends = {max(1, count // problem.cost.layout.tp) for count in gpus}
    return sorted({1, *(end for end in ends if end < problem.ranks), problem.ranks})


def _quickest(time: TimeOf, lengths: Ints, low: Ints, high: Ints) -> Ints:
    """Size in low .. high with the least time, where time falls, then rises."""
    low, high = low.copy(), high.copy()
    while np.any(low < high):
        middle = (low + high) // 2
        rises = time(lengths, np.minimum(middle + 1, high)) >= time(lengths, middle)
        high, low = np.where(rises, middle, high), np.where(rises, low, np.minimum(middle + 1, high))
    return low


def _first_within(time: TimeOf, lengths: Ints, low: Ints, high: Ints, limit_s: float) -> Ints:
    """Smallest size in low .. high whose time is at most *limit_s*, where time falls and *high* meets the limit."""
    low, high = low.copy(), high.copy()
    while np.any(low < high):
        middle = (low + high) // 2
        fits = time(lengths, middle) <= limit_s
        high, low = np.where(fits, middle, high), np.where(fits, low, middle + 1)
    return high


def choose_groups(
    problem: PlanningProblem, lengths: Ints, limit_s: float, offload_limit_s: float
) -> tuple[Ints, Floats]:
    """Group size d and offload ratio r of every sequence.

    The smallest d that memory allows, offloading what hides behind compute (least_group), is taken unless the
    sequence would then run longer than *offload_limit_s* (never trade a few hops for a new critical path), and at
    least as many ranks as *limit_s* asks for.
    Source: ByteScale (arXiv 2502.21231), Equation 3; the time limits are ours, see docs/strategies.md.
    """
    plain = smallest_group(problem, lengths, limit_s, _group_without_offload(problem, lengths))
    if not problem.options.selective_offloading:
        return plain, needed_ratio(problem, lengths, plain)
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
    layers = float(problem.cost.busiest_layers)
    room = group_size * problem.capacity_tokens / lengths
    offload = problem.options.selective_offloading and layers > RESIDENT_LAYERS
    least_room = RESIDENT_LAYERS / layers if offload else 1.0
    if np.any(room < least_room * (1.0 - 1e-12)):
        longest = int(lengths[np.argmin(room)])
        raise InfeasibleError(
            f"a sequence of {longest} tokens does not fit on {int(group_size[np.argmin(room)])} ranks of "
            f"{problem.capacity_tokens} tokens{', even with its activations offloaded' if offload else ''}"
        )
    if not offload:
        return np.zeros(len(lengths))
    kept = (room * layers - RESIDENT_LAYERS) / (layers - RESIDENT_LAYERS)
    return np.asarray(np.clip(1.0 - kept, 0.0, 1.0))


def least_group(problem: PlanningProblem, lengths: Ints) -> Ints:
    """Smallest group on which a sequence fits with offloading that its compute hides (Equation 3 alone).

        r = min(1, t_forward * B / (act * s)),   d = ceil(s / C * [2 + (1 - r)(l - 2)] / l)

    t_forward: a layer's forward of the whole sequence, on one rank; B: host link, both ways busy. Spreading the
    sequence over d ranks divides compute and transfer alike, so r does not depend on d. At most all ranks.
    """
    cost, layers = problem.cost, float(problem.cost.busiest_layers)
    without = _group_without_offload(problem, lengths)
    if not problem.options.selective_offloading or layers <= RESIDENT_LAYERS:
        return without
    rate = cost.cluster.gpu.host_link_duplex_bytes_per_s * cost.cal.host_link_efficiency
    # Forward is a share 1 / 3.5 of the attention and 1 / 3 of the linear work: 0.3 of a layer's total time.
    layer_forward_s = 0.3 * problem.piece_s(lengths) / layers
    ratio = np.minimum(1.0, layer_forward_s * rate / (cost.activation_bytes_per_token * lengths))
    shrink = (RESIDENT_LAYERS + (1.0 - ratio) * (layers - RESIDENT_LAYERS)) / layers
    size = np.ceil(lengths / problem.capacity_tokens * shrink - 1e-9).astype(np.int64)
    return np.asarray(np.clip(size, 1, problem.ranks))


def _group_without_offload(problem: PlanningProblem, lengths: Ints) -> Ints:
    return np.minimum(-(-lengths // problem.capacity_tokens), problem.ranks)
