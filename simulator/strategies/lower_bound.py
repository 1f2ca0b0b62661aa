"""The time below which no HDP plan of a batch can be: what a planner is held against."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_models.micro_batch_cost import MicroBatchCost
from simulator.strategies.group_size import EXACT_SIZES, SIZE_GROWTH, least_group, size_grid
from simulator.strategies.problem import PlanningProblem, linear_table

__all__ = ["lower_bound_s"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BISECTIONS = 12


def lower_bound_s(problem: PlanningProblem) -> float:
    """max(all work / ranks, the longest piece no number of ranks makes shorter), made as large as it can be.

    In a step that takes T every sequence s passes all stages of its pipeline within T, so it is on at least d(s, T)
    ranks, and on no fewer than memory allows. The bound is the least T for which that work fits:

        sum over long s of d(s, T) * t(s, d(s, T)) + work of the short sequences  <=  ranks * T

    Short sequences (at most C tokens) count together: their work, or the micro-batches of C tokens they fill at the
    least time of a micro-batch. Every token counts at the best GEMM rate of any micro-batch size.
    It holds for plans like HDP's: a long sequence has micro-batches to itself, short ones are on one rank, and what
    is offloaded hides behind compute. Pipeline bubbles, waiting and the step's epilogue are not in it.
    """
    short = problem.lengths[problem.lengths <= problem.capacity_tokens]
    long = problem.lengths[problem.lengths > problem.capacity_tokens]
    stage, pipeline = _Ideal(problem, all_stages=False), _Ideal(problem, all_stages=True)
    short_s = stage.short_s(short)
    top = problem.lengths.max()
    every_size = np.arange(1, problem.ranks + 1 if len(long) else 2)
    longest_s = float(pipeline.sequence_s(np.full_like(every_size, top), every_size).min())
    if not len(long):
        return max(short_s / problem.ranks, longest_s)
    least = least_group(problem, long)
    least_work_s = stage.sequence_s(long, least) * least
    bound_s = max((short_s + float(least_work_s.sum())) / problem.ranks, longest_s)
    late = pipeline.sequence_s(long, least) > bound_s
    in_time_s = short_s + float(least_work_s[~late].sum())
    sizes = size_grid(problem.ranks, exact=EXACT_SIZES, growth=SIZE_GROWTH)
    through_s = pipeline.sequence_s(long[late][:, None], sizes[None, :])
    too_small = sizes < least[late][:, None]
    work_s = np.where(
        too_small, least_work_s[late][:, None], stage.sequence_s(long[late][:, None], sizes[None, :]) * sizes
    )
    # Work grows with the group: that of the next smaller size in the table is below that of any size between.
    numbers = np.arange(len(sizes))
    work_s = work_s[:, np.where(np.diff(sizes, prepend=0) == 1, numbers, numbers - 1)]

    def excess_s(step_s: float) -> float:
        """Work per rank that does not fit into *step_s*."""
        in_time = (through_s <= step_s) & ~too_small
        # A sequence no size of the table gets ready in time is possible at best between two sizes: its least work.
        first = np.where(in_time.any(axis=1), in_time.argmax(axis=1), 0)
        total_s = in_time_s + float(work_s[np.arange(len(first)), first].sum())
        return total_s / problem.ranks - step_s

    # Less work in more time: the least T lies within the excess at any smaller one.
    reach_s = excess_s(bound_s)
    if reach_s <= 0.0:
        return bound_s
    for _ in range(BISECTIONS):
        reach_s /= 2.0
        if excess_s(bound_s + reach_s) > 0.0:
            bound_s += reach_s
    return bound_s


class _Ideal:
    """Work on the busiest stage, or on all stages of a rank, with GEMMs at the best rate any number of tokens gets."""

    def __init__(self, problem: PlanningProblem, *, all_stages: bool) -> None:
        self._problem, self._stages = problem, problem.stages if all_stages else 1
        self._sizes, self._token_s, self._layers = _best_token_s(
            problem.cost, problem.capacity_tokens, problem.most_tokens, all_stages
        )
        self._floor_s = problem.floor_s * self._layers

    def sequence_s(self, lengths: Ints, group_size: Ints) -> Floats:
        """Least time of a micro-batch that holds one sequence on a group.

        One rank never counts dearer than two: short attention blocks can run better in a ring.
        """
        work_s = self._work_s(lengths, group_size)
        alone = np.broadcast_to(group_size == 1, work_s.shape)
        if alone.any():
            pair_s = 2.0 * self._work_s(lengths, np.where(alone, 2, group_size))
            work_s = np.where(alone, np.minimum(work_s, pair_s), work_s)
        return np.asarray(np.maximum(work_s, self._floor_s) + self._problem.fixed_s * self._stages)

    def short_s(self, lengths: Ints) -> float:
        """Rank-seconds of sequences that fit one rank, in micro-batches of C tokens."""
        problem = self._problem
        batches = float(lengths.sum()) / problem.capacity_tokens
        alone = problem.cost.sequence_s(lengths, 1, 0).sum() * self._layers
        full_s = float(self._linear_s(np.array([float(problem.capacity_tokens)]))[0])
        return max(float(alone) + batches * full_s, batches * self._floor_s) + batches * problem.fixed_s

    def _work_s(self, lengths: Ints, sizes: Ints) -> Floats:
        problem = self._problem
        attention = problem.cost.sequence_s(lengths, sizes, problem.compact_tier(sizes))
        return np.asarray(attention * self._layers + self._linear_s(lengths / sizes))

    def _linear_s(self, tokens: Floats) -> Floats:
        place = np.searchsorted(self._sizes, tokens, side="right") - 1
        return np.asarray(tokens * self._token_s[np.maximum(place, 0)])


@lru_cache(maxsize=64)
def _best_token_s(
    cost: MicroBatchCost, capacity: int, most: int, all_stages: bool
) -> tuple[Ints, Floats, float]:
    """Sizes, least linear seconds per token of micro-batches up to each size, and layers over the busiest stage's.

    Of all stages together or of the stage that takes longest with one full sequence. Time grows with tokens, so
    between two sizes of the table the smaller one's time over the larger one's tokens is below any size between.
    """
    sizes, linear = linear_table(cost, most)
    layers = cost.layers_by_stage / cost.busiest_layers
    if all_stages:
        chosen, share = linear.sum(axis=0), layers.sum()
    else:
        full = cost.linear_s([capacity])[:, 0] + layers * float(cost.sequence_s(capacity, 1, 0))
        chosen, share = linear[full.argmax()], layers[full.argmax()]
    following = np.append(sizes[1:], sizes[-1] + 1)
    return sizes, np.minimum.accumulate(chosen / following), float(share)
