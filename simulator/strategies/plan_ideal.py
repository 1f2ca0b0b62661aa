"""The least time of HDP's plans of a batch, whose long sequences are alone in their groups: what a planner is held to.

Plans of other kinds may be faster; what bounds them all is simulator.lower_bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES
from hdpsim.simulator.strategies.hdp.groups import FIRST_SIZES, least_group, size_grid
from hdpsim.simulator.strategies.problem import PlanningProblem, linear_table

BISECTIONS = 12
_KEPT = "_ideal_s"
"""Where a problem keeps its ideal."""


def plan_ideal_s(problem: PlanningProblem) -> float:
    """max(all work / ranks, the longest piece no number of ranks makes shorter), made as large as it can be.

    In a step that takes T every sequence s passes all stages of its pipeline within T, so it is on at least d(s, T)
    ranks, and on no fewer than memory allows. The ideal is the least T for which that work fits:

        sum over long s of d(s, T) * t(s, d(s, T)) + work of the short sequences  <=  ranks * T

    Short sequences (of a pack at most) count together: their work, or the full packs they make at the
    least time of a micro-batch. Every token counts at the best GEMM rate of any micro-batch size.
    It holds for plans like HDP's: a long sequence has micro-batches to itself, short ones are on one rank, and what
    is offloaded hides behind compute. Pipeline bubbles, waiting and the step's epilogue are not in it.
    """
    known = vars(problem)  # beside its cached properties: several planners of a batch ask
    if _KEPT not in known:
        known[_KEPT] = _least_step_s(problem)
    return float(known[_KEPT])


def _least_step_s(problem: PlanningProblem) -> float:
    long = problem.lengths[problem.lengths > problem.target_tokens]
    ideal = _Ideal(problem)
    short_s = ideal.short_s(problem.lengths[problem.lengths <= problem.target_tokens])
    top = problem.lengths.max()
    every_size = np.arange(1, problem.most_ranks + 1 if len(long) else 2)
    longest_s = float(ideal.sequence_s(np.full_like(every_size, top), every_size)[1].min())
    if not len(long):
        return max(short_s / problem.ranks, longest_s)
    least = least_group(problem, long)
    stage_s, through_s = ideal.sequence_s(long, least)
    least_work_s = stage_s * least
    if not problem.work_grows_with_groups:
        stage_s, _ = ideal.sequence_s(long[:, None], every_size)
        least_work_s = np.where(every_size < least[:, None], np.inf, stage_s * every_size).min(axis=1)
    bound_s = max((short_s + float(least_work_s.sum())) / problem.ranks, longest_s)
    too_slow = np.flatnonzero(through_s > bound_s)
    in_time_s = short_s + float(least_work_s.sum() - least_work_s[too_slow].sum())
    groups = list(_late_groups(ideal, long[too_slow], least[too_slow], least_work_s[too_slow], bound_s))

    def excess_s(step_s: float) -> float:
        """Work per rank that does not fit into *step_s*."""
        return (in_time_s + sum(group.work_by_s(step_s) for group in groups)) / problem.ranks - step_s

    # Less work in more time: the least T lies within the excess at any smaller one.
    reach_s = excess_s(bound_s)
    if reach_s <= 0.0:
        return bound_s
    for _ in range(BISECTIONS):
        reach_s /= 2.0
        if excess_s(bound_s + reach_s) > 0.0:
            bound_s += reach_s
    return bound_s


@dataclass(frozen=True, slots=True)
class _LateGroup:
    """Long sequences that need more ranks than the fewest: [sequences, sizes], sizes rising."""

    least_work_s: Floats
    through_s: Floats
    """Through all stages; infinite on fewer ranks than memory allows."""
    work_s: Floats
    """No more than on this size, any larger one or any between it and the one before."""

    def work_by_s(self, step_s: float) -> float:
        """Work of the long sequences if all are through in *step_s*."""
        in_time = self.through_s <= step_s
        first = in_time.argmax(axis=1)
        row = np.arange(len(first))
        # A sequence no size of the table gets ready in time is possible at best between two sizes: its least work.
        return float(np.where(in_time[row, first], self.work_s[row, first], self.least_work_s).sum())


def _late_groups(
    ideal: _Ideal, lengths: Ints, least: Ints, least_work_s: Floats, bound_s: float
) -> Iterator[_LateGroup]:
    """All sequences, with sizes up to the first that is in time for *bound_s*: no longer step needs a larger one.

    Mostly that is one of the next few. Only of the others all sizes are looked at, as of all sequences where a larger
    group may take less work.
    """
    grows = ideal.problem.work_grows_with_groups
    sizes = size_grid(ideal.problem.most_ranks, exact=not grows)
    exact = np.diff(sizes, prepend=0) == 1
    begin = np.maximum(np.searchsorted(sizes, least) - 1, 0)
    rest = np.arange(len(lengths))
    for columns in (FIRST_SIZES, len(sizes)) if grows else (len(sizes),):
        if not len(rest):
            return
        column = np.minimum(begin[rest, None] + np.arange(columns), len(sizes) - 1)
        size = sizes[column]
        stage_s, through_s = ideal.sequence_s(lengths[rest, None], size)
        too_small = size < least[rest, None]
        through_s = np.where(too_small, np.inf, through_s)
        work_s = np.where(too_small, least_work_s[rest, None], stage_s * size)
        # Work grows with the group: that of the next smaller size in the table is below that of any size between.
        before_s = np.concatenate((work_s[:, :1], work_s[:, :-1]), axis=1)
        work_s = np.where(exact[column], work_s, before_s)
        if not grows:
            work_s = np.minimum.accumulate(work_s[:, ::-1], axis=1)[:, ::-1]
        chosen = (through_s <= bound_s).any(axis=1) | (columns == len(sizes))
        yield _LateGroup(least_work_s[rest[chosen]], through_s[chosen], work_s[chosen])
        rest = rest[~chosen]


class _TokenRates:
    """Least linear seconds per token of micro-batches up to each size.

    Of the way through all stages or of the stage that takes longest with one full sequence. Time grows with tokens, so
    between two sizes of the table the smaller one's time over the larger one's tokens is below any size between.
    """

    def __init__(self, cost: MicroBatchCost, capacity: int, most: int, *, all_stages: bool) -> None:
        sizes, linear = linear_table(cost, most)
        self._sizes = sizes.astype(np.float64)  # as what is searched for
        layers = cost.attention_layers_by_stage / max(1, cost.busiest_attention_layers)
        self.layers = float(layers.sum())
        """Layers with attention over the busiest stage's."""
        self.whole = not (all_stages and cost.layout.pipeline.schedule in SPLIT_SCHEDULES)
        """Weight gradients included; those that a schedule runs apart hold up no other stage."""
        if not self.whole:
            chosen = cost.by_stage(cost.linear_by_kind_s(sizes, weight_gradients=False)).sum(axis=0)
        elif all_stages:
            chosen = linear.sum(axis=0)
        else:
            full = cost.linear_s([capacity])[:, 0] + layers * float(cost.sequence_s(capacity, 1, 0))
            stage = int(full.argmax())
            self.layers = float(layers[stage])
            chosen = linear[stage]
        self._rate_s = np.minimum.accumulate(chosen / np.append(sizes[1:], sizes[-1] + 1))

    def linear_s(self, tokens: Floats) -> Floats:
        """Seconds of micro-batches of so many tokens at their best rates."""
        place = np.maximum(np.searchsorted(self._sizes, tokens, side="right") - 1, 0)
        return np.asarray(tokens * self._rate_s[place])


_rates = lru_cache(maxsize=64)(_TokenRates)
"""The rates of a cost model, kept for the next batch."""


class _Ideal:
    """Work on the busiest stage and on all stages of a rank, with GEMMs at the best rate any number of tokens gets."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem = problem
        cost, capacity, most = problem.cost, problem.target_tokens, problem.most_tokens
        self._parts = [
            _rates(cost, capacity, most, all_stages=all_stages)
            for all_stages in ((False, True) if problem.stages > 1 else (False,))
        ]

    def sequence_s(self, lengths: Ints, group_size: Ints) -> tuple[Floats, Floats]:
        """Least time of a micro-batch that holds one sequence on a group: on the busiest stage, and through all stages.

        One rank never counts dearer than two: short attention blocks can run better in a ring. On the way through all
        stages nobody waits for weight gradients that a schedule runs apart.
        """
        problem = self.problem
        tokens, sizes = np.broadcast_arrays(lengths, group_size)
        attention_s = problem.cost.sequence_s(tokens, sizes, problem.compact_tier(sizes))
        alone = np.nonzero(sizes == 1)
        single = tokens[alone]
        two = np.full(len(single), min(2, problem.most_ranks))
        pair_s = problem.cost.sequence_s(single, two, problem.compact_tier(two))
        stage_s: list[Floats] = []
        for part, stages in zip(self._parts, (1, problem.stages), strict=False):
            work_s = attention_s * part.layers + part.linear_s(tokens / sizes)
            shared_s = 2.0 * (pair_s * part.layers + part.linear_s(single / 2.0))
            work_s[alone] = np.minimum(work_s[alone], shared_s)
            least_s = problem.floor_s * part.layers if part.whole else 0.0
            stage_s.append(np.maximum(work_s, least_s) + problem.fixed_s * stages)
        return stage_s[0], stage_s[-1]

    def short_s(self, lengths: Ints) -> float:
        """Rank-seconds on the busiest stage of sequences that fit one rank, in full packs."""
        problem, stage = self.problem, self._parts[0]
        batches = float(lengths.sum()) / problem.target_tokens
        alone = _sum_of(lengths, lambda some: problem.cost.sequence_s(some, 1, 0)) * stage.layers
        full_s = float(stage.linear_s(np.array([float(problem.target_tokens)]))[0])
        floor_s = problem.floor_s * stage.layers
        return max(alone + batches * full_s, batches * floor_s) + batches * problem.fixed_s


def _sum_of(lengths: Ints, seconds: Callable[[Ints], Floats]) -> float:
    """Sum of *seconds* over *lengths*; equal ones are worked out once."""
    if len(lengths) and lengths.min() == lengths.max():
        return len(lengths) * float(seconds(lengths[:1])[0])
    return float(seconds(lengths).sum())
