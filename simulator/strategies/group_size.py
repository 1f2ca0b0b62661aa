"""How many ranks a sequence gets, and how much of its activations goes to host memory (ByteScale, Equation 3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.strategies.problem import PlanningProblem

__all__ = ["choose_groups", "lower_bound_s", "smallest_group"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESIDENT_LAYERS = (
    2.0  # the first and last layer of a stage stay on the GPU: ByteScale, arXiv 2502.21231, section 5.2
)
BISECTION_ROUNDS = 40


def smallest_group(problem: PlanningProblem, lengths: Ints, limit_s: float, least: Ints) -> Ints:
    """Smallest group of at least *least* ranks whose time per sequence is at most *limit_s* (or all ranks).

    Bisection: time falls as the group grows until ring transfers dominate; where no size meets the limit, the
    size with the lowest time among the doublings of *least* is taken.
    """
    low = np.minimum(least, problem.ranks)
    best, best_s = low.copy(), problem.sequence_s(lengths, low)
    size = low.copy()
    while np.any((best_s > limit_s) & (size < problem.ranks)):
        size = np.minimum(size * 2, problem.ranks)
        time_s = problem.sequence_s(lengths, size)
        better = (best_s > limit_s) & (time_s < best_s)
        best, best_s = np.where(better, size, best), np.where(better, time_s, best_s)
    high = best.copy()
    open_ = (best_s <= limit_s) & (best > low)
    for _ in range(BISECTION_ROUNDS):
        if not open_.any():
            break
        middle = (low + high) // 2
        fits = problem.sequence_s(lengths, np.maximum(middle, 1)) <= limit_s
        high = np.where(open_ & fits, middle, high)
        low = np.where(open_ & ~fits, middle + 1, low)
        open_ &= low < high
    return np.asarray(high)


def choose_groups(
    problem: PlanningProblem, lengths: Ints, limit_s: float, offload_limit_s: float
) -> tuple[Ints, Floats]:
    """Group size d and offload ratio r of every sequence.

    Memory: activations of s tokens on d ranks fit when
        d >= s / C * [2 + (1 - r)(l - 2)] / l            (l layers per stage, first and last stay on the GPU)
    Overlap: a layer's transfer hides behind its forward when r * act(s / d) / B <= t_layer(s, d).
    The smallest d that both allow is taken, unless the sequence would then run longer than *offload_limit_s*
    (never trade a few hops for a new critical path), and at least as many ranks as *limit_s* asks for.
    Source: ByteScale (arXiv 2502.21231), Equation 3; the time limits are ours, see docs/strategies.md.
    """
    without = -(-lengths // problem.capacity_tokens)
    if not problem.options.selective_offloading:
        return smallest_group(problem, lengths, limit_s, without), np.zeros(len(lengths))
    least, _ = _offloaded_group(problem, lengths)
    relaxed = smallest_group(problem, lengths, min(limit_s, offload_limit_s), least)
    plain = smallest_group(problem, lengths, limit_s, without)
    cheaper = problem.sequence_s(lengths, relaxed) * relaxed <= problem.sequence_s(lengths, plain) * plain
    size = np.where((relaxed < plain) & cheaper, relaxed, plain)
    return size, needed_ratio(problem, lengths, size)


def needed_ratio(problem: PlanningProblem, lengths: Ints, group_size: Ints) -> Floats:
    """The smallest offload ratio with which *lengths* fit on *group_size* ranks."""
    layers = float(problem.cost.busiest_layers)
    if layers <= RESIDENT_LAYERS:
        return np.zeros(len(lengths))
    room = group_size * problem.capacity_tokens * layers / lengths
    return np.asarray(np.clip(1.0 - (room - RESIDENT_LAYERS) / (layers - RESIDENT_LAYERS), 0.0, 1.0))


def _offloaded_group(problem: PlanningProblem, lengths: Ints) -> tuple[Ints, Floats]:
    """Equation 3 alone: smallest group whose needed ratio is at most 1 and hidden by the layer's forward."""
    cost, layers = problem.cost, float(problem.cost.busiest_layers)
    without = -(-lengths // problem.capacity_tokens)
    if layers <= RESIDENT_LAYERS:
        return without, np.zeros(len(lengths))
    gpu = cost.cluster.gpu
    rate = gpu.host_link_duplex_bytes_per_s * cost.cal.host_link_efficiency
    # Forward is a share 1 / 3.5 of the attention and 1 / 3 of the linear work: 0.3 of a layer's total time.
    layer_forward_s = 0.3 * problem.sequence_s(lengths, without) * without / layers
    ratio = np.minimum(1.0, layer_forward_s * rate / (cost.activation_bytes_per_token * lengths))
    shrink = (RESIDENT_LAYERS + (1.0 - ratio) * (layers - RESIDENT_LAYERS)) / layers
    size = np.maximum(1, np.ceil(lengths / problem.capacity_tokens * shrink - 1e-9)).astype(np.int64)
    return size, ratio


def lower_bound_s(problem: PlanningProblem) -> float:
    """No plan is faster: max(all work / ranks, the longest piece no number of ranks makes shorter).

    A sequence that needs several ranks (or host memory) counts at the cheapest group memory allows, so
    communication a plan adds by using larger groups counts against the plan. The others count together: their
    work, or the micro-batches of C tokens they fill at the least time of a micro-batch. Pipeline bubbles and
    waiting apart.
    """
    lengths = problem.lengths
    inside = lengths <= problem.capacity_tokens
    short_tokens = float(lengths[inside].sum())
    least_batches = short_tokens / problem.capacity_tokens
    work_s = max(float(problem.piece_s(lengths[inside]).sum()), least_batches * problem.floor_s)
    work_s += least_batches * problem.fixed_s
    longest_s = 0.0
    if not inside.all():
        long = lengths[~inside]
        plain = np.minimum(-(-long // problem.capacity_tokens), problem.ranks)
        each = problem.sequence_s(long, plain) * plain
        if problem.options.selective_offloading:
            least = np.minimum(_offloaded_group(problem, long)[0], problem.ranks)
            each = np.minimum(each, problem.sequence_s(long, least) * least)
        work_s += float(each.sum())
        top = long.max(keepdims=True)
        quickest = smallest_group(problem, top, 0.0, np.ones(1, dtype=np.int64))
        longest_s = float(problem.sequence_s(top, quickest)[0])
    return max(work_s / problem.ranks, longest_s)
