"""The time below which no plan of a batch can be, whatever the strategy, its group sizes and what it offloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.step.data_parallel import ComputeWindows
from hdpsim.cost_models.step.epilogue import epilogue
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.step.mixed_nodes import MixedCost
from hdpsim.cost_models.step.step_costs import Epilogue
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES
from hdpsim.simulator.planning import planning_problem
from hdpsim.simulator.play.pipeline.chain import make_chain
from hdpsim.simulator.play.pipeline.schedules import STAGE_BY_STAGE
from hdpsim.simulator.setup import OF_PAPERS, Setup
from hdpsim.simulator.strategies.hdp.groups import RESIDENT_LAYERS, size_grid
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.packing import pack

RATE_CLOSE = 2e-3
"""How closely the best rate is looked for: so much lower is what is taken for it."""
PARTS = 8
"""A stretch of sizes that may hold the best rate is cut into so many."""
LARGEST = 20
"""PARTS to its power is more tokens than any micro-batch has, and still an integer of 64 bits."""


def lower_bound_s(setup: Setup, lengths: ArrayLike) -> float:
    """The largest of three times that every step of this batch on this layout takes, without noise:

    * All work over all ranks, stage by stage: every sequence's attention on the group that takes fewest rank-seconds,
      no transfers; every token at the best rate of any micro-batch a rank can hold; host work of the fewest passes.
      Around it what the first micro-batch needs to get to the stage and the last one to leave it, at least.
    * The longest sequence's way through all stages, on the group on which it is quickest, with its transfers.
    * Both with what of parameters, gradients and the optimizer nothing can hide.

    It holds for plans that keep sequences whole, whatever they pack, pad, offload or spread. Attention of a sequence
    that is cut is less work: where cutting is accepted (`concatenate`) it is the bound of the pieces.
    Ignored: that ranks hold whole micro-batches, transfers of the other sequences, waiting, bubbles of full pipelines.
    """
    problem = _as_attention_sees_it(setup, planning_problem(setup, lengths))
    if problem.mixed is not None:
        return _mixed_bound_s(problem, problem.mixed)
    return _StepBound(problem).seconds()


def _mixed_bound_s(problem: PlanningProblem, mixed: MixedCost) -> float:
    """The bound on nodes of several kinds: every rank at the speed of its own.

        work:    max over weights w of  sum over pieces of work i of  min over kinds k of  w_k x rank-seconds of i on k
        chain:   min over kinds of that of the kind

    Whoever does a piece, its ranks are busy for that long at least, and so are the members of a group of several
    kinds, each at its own speed. Any weights with sum(w_k x ranks of k) = 1 give a bound; taken are those by the speed
    of each kind at the whole batch, with which the bound is all work over the sum of speeds.
    """
    shared_epilogue = mixed.epilogue(data_s=0.0, windows=ComputeWindows.endless(problem.stages))
    bounds = [_StepBound(replace(kind, lengths=problem.lengths), shared_epilogue) for kind in problem.kinds]
    chain_s = min(bound.chain_bound_s() for bound in bounds)
    works = [bound.work() for bound in bounds]
    speed = mixed.ranks_of_kind[:, None] / np.array([work.total_s for work in works])  # [kinds, S]
    weights = speed / mixed.ranks_of_kind[:, None] / speed.sum(axis=0)
    layers = works[0].layers[:, None]
    attention = (weights[:, :, None] * np.array([work.attention_s for work in works])[:, None]).min(axis=0)
    linear, least = (
        (weights * np.array([getattr(work, name) for work in works])).min(axis=0)
        for name in ("linear_s", "floor_s")
    )
    busy_s = np.maximum((layers * attention).sum(axis=1) + linear, least)
    fills = np.array([bound.fill_s() for bound in bounds]).min(axis=0)
    return max(bounds[0].around_s(busy_s, fills[0], fills[1]), chain_s)


def _as_attention_sees_it(setup: Setup, problem: PlanningProblem) -> PlanningProblem:
    """The problem with the sequences as attention sees them."""
    options = setup.strategy
    keeps_sequences = options.name in ("hdp-naive", *OF_PAPERS) and options.dynamic_groups
    if keeps_sequences or options.packing != "concatenate":
        return problem
    return replace(problem, lengths=pack(problem.lengths, problem.context_tokens, "concatenate").tokens)


@dataclass(frozen=True, slots=True)
class _StageRates:
    """Rates of a cost model that no batch changes, as arrays over stages."""

    linear_s: Floats
    """Least seconds of a token on one rank: linear work and host time of its passes."""
    floor_s: Floats
    """The same where layers take their least time or wait for offloaded activations."""
    layers: Floats
    """Transformer layers that a micro-batch passes."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Rank-seconds of a batch, all but attention by stage.

    Attributes:
        layers: by stage.
        attention_s: rank-seconds of attention in one layer, by distinct length of sequences.
        linear_s: rank-seconds of what grows with tokens, for all of them.
        floor_s: rank-seconds of all tokens at the least time of layers.
        total_s: all of it.
    """

    layers: Floats
    attention_s: Floats
    linear_s: Floats
    floor_s: Floats
    total_s: Floats


class _StepBound:
    """The bound of one batch."""

    def __init__(self, problem: PlanningProblem, shared_epilogue: Epilogue | None = None) -> None:
        self._problem, self._cost = problem, problem.cost
        layout = self._cost.layout
        self._schedule = layout.pipeline.schedule
        self._split = layout.pipeline.schedule in SPLIT_SCHEDULES
        self._chain = make_chain(self._schedule, layout.parallel.pp, self._cost.kind.shape[1])
        endless = ComputeWindows.endless(layout.parallel.pp)
        self._epilogue = shared_epilogue or epilogue(self._cost, problem.ranks, data_s=0.0, windows=endless)

    def seconds(self) -> float:
        """Return the bound: a rank's share of the work with what surrounds it, or the longest chain."""
        busy_s = self.work().total_s / self._problem.ranks
        return max(self.around_s(busy_s, *self.fill_s()), self.chain_bound_s())

    def work(self) -> _Work:
        """The work of the batch: everything that any plan makes the ranks do."""
        problem = self._problem
        rates = _stage_rates(self._cost, problem.capacity_tokens, problem.most_tokens)
        distinct, count = np.unique(problem.lengths, return_counts=True)
        least_s = self._cost.least_attention_s(distinct)
        tokens, attention_s = float(problem.lengths.sum()), rates.layers * float(count @ least_s)
        return _Work(
            layers=rates.layers,
            attention_s=count * least_s,
            linear_s=tokens * rates.linear_s,
            floor_s=tokens * rates.floor_s,
            total_s=np.maximum(attention_s + tokens * rates.linear_s, tokens * rates.floor_s),
        )

    def around_s(self, busy_s: Floats, fill_s: Floats, drain_s: Floats) -> float:
        """The step of stages that are busy for so long, with what fills and drains the pipeline and the epilogue."""
        epilogue = self._epilogue
        opening_s, closing_s = epilogue.parameter_gather_s, epilogue.gradient_sync_s
        if self._schedule in STAGE_BY_STAGE:
            return float((opening_s + busy_s + closing_s + epilogue.optimizer_s).max())
        first = self._chain.stage[:, 0]
        opening_s = np.maximum(opening_s, opening_s[first].min() + fill_s)
        closing_s = np.maximum(closing_s, closing_s[first].min() + drain_s)
        return float((opening_s + busy_s + closing_s).max() + epilogue.optimizer_s.max())

    def fill_s(self) -> tuple[Floats, Floats]:
        """[S]: from the first forward of a step to a stage's first, and from its last backward to the last.

        At least what a micro-batch of one token takes. A weight gradient may be the last that a stage does.
        """
        cost, chain = self._cost, self._chain
        one_token = MicroBatches.one([1], 1, 0)
        ways = []
        depth = chain.virtual_stages
        for stage, chunk in zip(chain.stage[:, :depth], chain.chunk[:, :depth], strict=True):
            kinds = cost.kind[stage, chunk]
            sides = []
            for terms in cost.both_terms_s(one_token):
                until_s = np.concatenate(([0.0], np.cumsum(terms.sum(axis=0)[kinds, 0])[:-1]))
                least_s = np.full(cost.layout.parallel.pp, np.inf)
                np.minimum.at(least_s, stage, until_s)
                sides.append(least_s)
            ways.append(sides)
        fill_s, drain_s = np.array(ways).min(axis=0)
        return fill_s, np.zeros_like(drain_s) if self._split else drain_s

    def chain_bound_s(self) -> float:
        """The longest sequence's way through all stages, from the first forward to the last backward."""
        epilogue, first = self._epilogue, self._chain.stage[:, 0]
        optimizer_s = epilogue.optimizer_s
        optimizer_s = optimizer_s[first] if self._schedule in STAGE_BY_STAGE else optimizer_s.max()
        edges_s = epilogue.parameter_gather_s[first] + epilogue.gradient_sync_s[first] + optimizer_s
        return self._chain_s() + float(edges_s.min())

    def _chain_s(self) -> float:
        """The least over all group sizes.

        Between two sizes d < e that are looked at, attention takes at least d / e of its time on d ranks (its
        rank-seconds only grow with the group; where they do not all sizes are looked at), and linear work at least what
        it takes on e.
        """
        problem, cost = self._problem, self._cost
        longest = int(problem.lengths.max())
        room = problem.capacity_tokens * max(1.0, cost.busiest_layers / RESIDENT_LAYERS)
        least = min(max(1, int(np.ceil(longest / room - 1e-9))), problem.most_ranks)
        grid = size_grid(
            min(problem.most_ranks, max(longest, least)), exact=not problem.work_grows_with_groups
        )
        grid = grid[grid >= least] if least in grid else np.concatenate(([least], grid[grid > least]))
        before = np.concatenate((grid[:1], grid[:-1]))
        before = np.where(grid - before == 1, grid, before)  # nothing lies between
        total_layers = cost.attention_layers_by_stage.sum()
        sequence_s = cost.sequence_s(longest, before, problem.compact_tier(before), least=True)
        attention_s = sequence_s / max(1, cost.busiest_attention_layers)
        kinds = cost.kind[self._chain.stage[0], self._chain.chunk[0]][: self._chain.virtual_stages]
        of_kind_s = cost.linear_by_kind_s(
            longest // grid, without=overlapped_terms(cost), weight_gradients=not self._split
        )
        chain_s = total_layers * attention_s * (before / grid) + of_kind_s[kinds].sum(axis=0)
        if not self._split:
            chain_s = np.maximum(chain_s, cost.floor_by_kind_s[kinds].sum())
        return float(chain_s.min()) + 2.0 * len(kinds) * cost.pass_s


def overlapped_terms(cost: MicroBatchCost) -> tuple[str, ...]:
    """Terms that a schedule can hide behind another micro-batch's work."""
    return ("expert_all_to_all",) if cost.layout.pipeline.schedule == "dualpipe" else ()


@lru_cache(maxsize=64)
def _stage_rates(cost: MicroBatchCost, capacity_tokens: int, most_tokens: int) -> _StageRates:
    """Kept for the next batch."""
    passes_s = 2.0 * cost.layout.pipeline.vpp * cost.pass_s
    floor_s = cost.by_stage(cost.floor_by_kind_s)[:, None]

    def linear(tokens: Ints) -> Floats:
        return cost.by_stage(cost.linear_by_kind_s(tokens, without=overlapped_terms(cost)))

    return _StageRates(
        linear_s=least_rate_s(lambda tokens: linear(tokens) + passes_s, most_tokens),
        floor_s=least_rate_s(
            lambda tokens: np.maximum(floor_s, _offload_s(cost, tokens, capacity_tokens)) + passes_s,
            most_tokens,
        ),
        layers=cost.by_stage(np.array([kind.attention_layers for kind in cost.kinds], dtype=np.float64)),
    )


def _offload_s(cost: MicroBatchCost, tokens: Ints, capacity_tokens: int) -> Floats:
    """[S, n]: least time of micro-batches of more than C tokens, whose activations go to the host and come back.

    The share r that has to go is Equation 3's (see needed_ratio); a layer takes no less than its transfer.
    """
    layers = float(cost.busiest_layers)
    if layers <= RESIDENT_LAYERS:
        return np.zeros((cost.layout.parallel.pp, len(tokens)))
    kept = (capacity_tokens * layers / tokens - RESIDENT_LAYERS) / (layers - RESIDENT_LAYERS)
    rate = cost.offloading.bytes_per_s
    layer_s = np.clip(1.0 - kept, 0.0, 1.0) * cost.offloading.activation_bytes_per_token * tokens / rate
    moving = np.array([float(kind.offloading_layers) for kind in cost.kinds])
    return cost.by_stage(2.0 * moving[:, None] * layer_s)


def least_rate_s(seconds: Callable[[Ints], Floats], most_tokens: int) -> Floats:
    """[S]: least seconds per token of micro-batches of 1 to *most_tokens*, up to RATE_CLOSE lower.

    *seconds* [S, n] grows with tokens: so the time of the first size of a stretch over the tokens of the last is below
    all its rates. Stretches that may hold the best rate are cut into parts until none is left. They are cut at the same
    sizes whatever the most: layouts that price layers alike then ask for the same sizes, which were priced before.
    """
    low = PARTS ** np.arange(LARGEST)
    low = low[low <= most_tokens]
    high = PARTS * low - 1
    best: Floats | None = None
    while True:
        last = np.minimum(high, most_tokens)
        ends_s = seconds(np.concatenate((low, last)))
        first_s, last_s = ends_s[:, : len(low)], ends_s[:, len(low) :]
        rate_s = np.minimum((first_s / low).min(axis=1), (last_s / last).min(axis=1))
        best = rate_s if best is None else np.minimum(best, rate_s)
        least = best * (1.0 - RATE_CLOSE)
        undecided = (first_s / last < least[:, None]).any(axis=0) & (last > low)
        if not undecided.any():
            return np.asarray(least)
        low, high = _parts(low[undecided], high[undecided])
        low, high = low[low <= most_tokens], high[low <= most_tokens]


def _parts(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Stretches cut into PARTS that grow geometrically; empty ones are left out."""
    share = np.arange(PARTS + 1) / PARTS
    cuts = np.floor(low[:, None] * ((high + 1.0) / low)[:, None] ** share).astype(np.int64)
    cuts[:, 0], cuts[:, -1] = low, high + 1
    begin, end = cuts[:, :-1].ravel(), cuts[:, 1:].ravel() - 1
    kept = begin <= end
    return begin[kept], end[kept]
