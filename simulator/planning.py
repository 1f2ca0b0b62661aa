"""A batch is planned: the problem that its strategy is asked, the plan, and the memory that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Ints
from hdpsim.cost_models.hardware.mixed_cluster import MixedCluster
from hdpsim.cost_models.layout_checks import check_mixed, rank_kinds
from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.reading.checked import expect
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.step.mixed_nodes import MixedCost
from hdpsim.cost_models.tracing import shared
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.quoting import quoted
from hdpsim.ranges import LIMITS
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step_memory import (
    capacity_tokens,
    check_fits,
    held_tokens,
    hosted_tokens,
    memory_of,
    plan_memory,
)
from hdpsim.simulator.strategies.estimate_errors import EstimateError
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.registry import make_plan

_cost_of = shared(most=64)(MicroBatchCost)


def micro_batch_cost(setup: Setup) -> MicroBatchCost:
    """The cost model of a setup (kept for the next batch)."""
    cal = setup.calibration
    if setup.execution.gpu_spread is None:  # else each GPU's rate is drawn when the step is played
        cal = cal.of_job(setup.cluster.gpus)
    layout = setup.layout
    if setup.cp_sharding != (layout.context.sharding or "document"):
        layout = layout.changed(cp_sharding=setup.cp_sharding)
    if not setup.strategy.in_turns:
        alone = {"loss_average": "step", "blocking_maxima": False, "sum_every_micro_batch": False}
        if any(layout.switch(name) != value for name, value in alone.items()):
            layout = layout.changed(**alone)
    return _cost_of(setup.model, layout, setup.cluster, cal)


def plan_batch(
    setup: Setup, lengths: ArrayLike, *, mesh_degree: int | None = None, quick: bool = False
) -> tuple[Plan, PlanningProblem, MemoryReport]:
    """Plan one batch (lengths of at most the context) under the setup's strategy."""
    expect(setup, Setup, "the setup() of a scenario is one" if hasattr(setup, "setup") else "")
    tokens = _tokens_of(setup, lengths)
    if mesh_degree is not None:
        return _plan(_with_degree(setup, mesh_degree), tokens, quick)
    try:
        return _plan(setup, tokens, quick)
    except InfeasibleError:
        if not _seeks_degree(setup):
            raise
        with suppress(InfeasibleError):  # a mesh of single ranks needs no buffers to share sequences
            return _plan(_with_degree(setup, 1), tokens, quick)
        raise


def _with_degree(setup: Setup, degree: int) -> Setup:
    return replace(setup, layout=setup.layout.changed(cp=degree))


def _seeks_degree(setup: Setup) -> bool:
    """Whether the degree of a static mesh follows from a batch."""
    return setup.strategy.has_one_mesh and setup.layout.parallel.cp is None


def _plan(setup: Setup, tokens: Ints, quick: bool) -> tuple[Plan, PlanningProblem, MemoryReport]:
    check_strategy(setup)
    capacities = [(kind, capacity_tokens(kind)) for kind in setup.kinds]
    for kind, capacity in capacities:  # before a long search
        held = held_tokens(kind, capacity)
        check_fits(kind, memory_of(kind, held, micro_batches=1, sequence_tokens=1))
    problem = _estimating(setup, replace(_problem(setup, tokens, capacities), quick=quick))
    least = least_micro_batches(setup, problem) if setup.memory.must_fit else 1
    if least > 1:
        capacity = problem.capacity_tokens
        check_fits(setup, memory_of(setup, capacity, micro_batches=least, sequence_tokens=1))
    plan = make_plan(problem)
    report = plan_memory(setup, plan)
    check_fits(setup, report)
    return plan, problem, report


def least_micro_batches(setup: Setup, problem: PlanningProblem) -> int:
    """Micro-batches that some rank runs at least, whatever the plan; 1 where plans decide what a rank holds at a time.

        sum over sequences of tokens / tokens that a rank holds at a time, over all ranks, rounded up

    A rank holds at most C tokens, and of a longer sequence what fits with all layers but two offloaded. Where C is not
    stated, memory has room for it in a full pipeline.
    """
    options = setup.strategy
    by_plan = options.has_one_mesh or options.is_own or options.communicators != "shared"
    stated = setup.layout.context.rank_capacity_tokens is not None
    if by_plan or not stated or problem.mixed is not None:
        return 1
    inside = problem.lengths <= problem.capacity_tokens
    most = problem.most_tokens if options.selective_offloading else problem.capacity_tokens
    slots = problem.lengths[inside].sum() / problem.capacity_tokens + problem.lengths[~inside].sum() / most
    return max(1, int(np.ceil(slots / problem.ranks - 1e-9)))


def _estimating(setup: Setup, problem: PlanningProblem) -> PlanningProblem:
    """The problem as the planner sees it; a static mesh is not planned by estimates."""
    if not setup.strategy.estimate_error or setup.strategy.name == "static":
        return problem
    error = EstimateError(variation=setup.strategy.estimate_error, seed=setup.execution.seed)
    kinds = tuple(replace(kind, error=error) for kind in problem.kinds)
    return replace(problem, error=error, kinds=kinds)


def check_strategy(setup: Setup) -> None:
    """Raise InfeasibleError for a layout that the strategy cannot run, and for more ranks than can be planned."""
    if setup.strategy.name != "static" and setup.layout.pipeline.schedule == "dualpipe":
        raise InfeasibleError(
            "HDP ranks run different numbers of micro-batches; layout.schedule = dualpipe needs the same even number "
            "everywhere: use strategy.name = static, or zb-h1, zb-h2 or zb-v, which take any number"
        )
    most, why = LIMITS["ranks"]
    if setup.ranks > most:
        planned = f"{setup.ranks:,} ranks of tp x pp GPUs are to be planned"
        raise InfeasibleError(f"{planned}; at most {most:,}: {why}")


def planning_problem(setup: Setup, lengths: ArrayLike) -> PlanningProblem:
    """What a strategy is asked for this batch."""
    capacities = [(kind, capacity_tokens(kind)) for kind in setup.kinds]
    return _problem(setup, _tokens_of(setup, lengths), capacities)


def _tokens_of(setup: Setup, lengths: ArrayLike) -> Ints:
    """The lengths of a batch as an array, checked: whole numbers from 1 to the context, never rounded or read."""
    try:
        given = np.asarray(lengths)
    except (ValueError, OverflowError) as error:
        wanted = "sequence lengths of a batch must be one list of whole numbers"
        raise UserInputError(f"{wanted}: {error}") from error
    if given.ndim != 1 or not len(given):
        raise UserInputError("a batch needs at least one sequence, in one list of lengths")
    truth_values = isinstance(lengths, list | tuple) and not {bool, np.bool_}.isdisjoint(map(type, lengths))
    if given.dtype.kind not in "iu" or truth_values:
        every = np.asarray(lengths, dtype=object)
        others = (one for one in every if isinstance(one, bool) or not isinstance(one, Integral))
        wrong = next(others, given[0])
        raise UserInputError(f"sequence lengths of a batch must be whole numbers, got {quoted(wrong)}")
    if given.min() <= 0 or given.max() > setup.context_tokens:
        raise UserInputError(
            f"sequence lengths of a batch must be in 1..{setup.context_tokens} (the context); "
            f"got {int(given.min())}..{int(given.max())}: chunk, truncate or drop longer ones first"
        )
    return np.ascontiguousarray(given, dtype=np.int64)


def _problem(setup: Setup, lengths: Ints, capacities: Sequence[tuple[Setup, int]]) -> PlanningProblem:
    """*capacities*: every kind of node's own setup, and C there."""
    kinds = tuple(
        PlanningProblem(
            lengths=lengths,
            ranks=setup.ranks,
            capacity_tokens=capacity,
            context_tokens=setup.context_tokens,
            cost=micro_batch_cost(kind),
            options=setup.strategy,
            hosted_tokens=hosted_tokens(kind, micro_batch_cost(kind), capacity),
        )
        for kind, capacity in capacities
    )
    if not isinstance(setup.cluster, MixedCluster):
        return kinds[0]
    check_mixed(setup.model, setup.cluster, setup.layout)
    rank_kind = rank_kinds(setup.cluster, setup.layout.parallel)
    mixed = MixedCost(kinds=tuple(problem.cost for problem in kinds), rank_kind=rank_kind)
    least = min(problem.capacity_tokens for problem in kinds)
    slowest = max((replace(problem, capacity_tokens=least) for problem in kinds), key=_slowness)
    return replace(slowest, mixed=mixed, kinds=kinds)


def _slowness(problem: PlanningProblem) -> tuple[float, float]:
    """By which the slowest kind of node is chosen: the time of a sequence as long as the context, then the NICs."""
    ranks = min(-(-problem.context_tokens // problem.capacity_tokens), problem.most_ranks)
    context_s = float(problem.sequence_s(problem.context_tokens, ranks))
    return context_s, -problem.cost.cluster.node.nic_bytes_per_s_per_gpu


def settled_degree(setup: Setup, lengths: ArrayLike) -> int | None:
    """The degree of the static mesh of a run whose first batch is *lengths*; None where no mesh has to be chosen.

    Raises:
        InfeasibleError: the batch cannot run.
    """
    if not _seeks_degree(setup):
        return None
    plan, _, _ = plan_batch(setup, lengths)
    return int(plan.group_size.max())
