"""One simulated step: plan the batch, price it, play it, account for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.feasibility import check_mixed, rank_kinds
from hdpsim.cost_models.hardware.mixed import MixedCluster
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.network.links import Links
from hdpsim.cost_models.reading.checked import expect
from hdpsim.cost_models.step.loading import DataPath, node_loading_s
from hdpsim.cost_models.step.micro_batch import MicroBatches, StepCosts
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.step.mixed import MixedCost
from hdpsim.cost_models.step.step import loading_s, planning_s, step_costs
from hdpsim.cost_models.tracing import shared
from hdpsim.cost_models.transformer.flop import sequence_model_flop
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.quoting import quoted
from hdpsim.ranges import LIMITS
from hdpsim.simulator.network.flaps import Flap, draw_flaps
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.plan_pieces import plan_costs, plan_micro_batches
from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.execution import Execution, Noise, SharedLinks, Spans
from hdpsim.simulator.play.flows.engine import run_flows
from hdpsim.simulator.play.flows.routes import Wired
from hdpsim.simulator.play.randomness.noise import draw_noise, flaps_stream, synchronised_pause_s
from hdpsim.simulator.play.randomness.tails import with_tails
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step_memory import (
    allocator_notes,
    allocator_s,
    capacity_tokens,
    check_fits,
    communicators_s,
    fit_notes,
    hosted_tokens,
    kind_notes,
    memory_of,
    plan_memory,
    recompute_notes,
    settled_layout,
    with_allocator_waits,
)
from hdpsim.simulator.strategies.estimates import EstimateError
from hdpsim.simulator.strategies.planner import make_plan
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.without_effect import without_effect


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepResult:
    """One step and where its time went.

    Attributes:
        strategy: strategy that planned it.
        step_s: seconds of the step.
        tokens: tokens trained on.
        gpus: GPUs used.
        tokens_per_s: throughput of the whole cluster.
        model_flop: model FLOP of the step, causal attention counted (half), recomputation not counted. Of a sequence
            that a packer splits, the pieces: that is what is computed.
        model_flop_full: the same with full attention counted (the convention of most MFU figures).
        hardware_flop: model_flop plus recomputation (selective: of attention), causal attention.
        hardware_flop_full: the same with full attention.
        mfu: model_flop over dense BF16 peak.
        mfu_full: model_flop_full over dense BF16 peak.
        accounts: names of the time accounts.
        account_s: [A, R, S] seconds by account, rank and stage; sums to step_s over A.
        plan_ideal_s: what plans of this kind take at least, 0 for a static mesh (see Plan.ideal_s). What every
            plan takes at least: simulator.lower_bound.
        makespan_s: busiest rank's work in the plan.
        plan_micro_batches: micro-batches of the plan.
        largest_group: ranks of the largest dynamic group.
        rank_capacity_tokens: C.
        memory: of the fullest stage, whether it fits included.
        work_left_out: share of the model FLOP of whole sequences that is not done because a packer splits them.
        planning_wall_s: wall-clock time planning took here.
        execution_wall_s: wall-clock time pricing and playing took here.
        events: SimPy events processed (0 with the replay).
        spans: the timeline if it was asked for.
        plan: what was played.
        notes: assumptions and remarks for the reader.
        network: what sharing links does; None: transfers are independent.
    """

    strategy: str
    step_s: float
    tokens: int
    gpus: int
    tokens_per_s: float
    model_flop: float
    model_flop_full: float
    hardware_flop: float
    hardware_flop_full: float
    mfu: float
    mfu_full: float
    accounts: tuple[str, ...]
    account_s: Floats
    plan_ideal_s: float
    makespan_s: float
    plan_micro_batches: int
    largest_group: int
    rank_capacity_tokens: int
    memory: MemoryReport
    planning_wall_s: float
    execution_wall_s: float
    events: int
    spans: Spans | None
    plan: Plan
    notes: tuple[str, ...]
    work_left_out: float = 0.0
    network: SharedLinks | None = None

    def __repr__(self) -> str:
        return (
            f"StepResult({self.strategy}: a step of {self.step_s:.3f} s, {self.tokens:,} tokens on {self.gpus:,} GPUs, "
            f"{self.tokens_per_s:,.0f} tokens/s, MFU {self.mfu:.1%}; {self.plan_micro_batches:,} micro-batches, groups "
            f"of up to {self.largest_group:,} ranks)"
        )


@shared(most=64)
def _cost_of(key: tuple[object, ...]) -> MicroBatchCost:
    model, layout, cluster, cal = key
    return MicroBatchCost(model, layout, cluster, cal)  # type: ignore[arg-type]


def micro_batch_cost(setup: Setup) -> MicroBatchCost:
    """The cost model of a setup (kept for the next batch)."""
    cal = setup.calibration
    if setup.execution.gpu_spread is None:  # else each GPU's rate is drawn when the step is played
        cal = cal.of_job(setup.cluster.gpus)
    return _cost_of((setup.model, setup.layout, setup.cluster, cal))


def plan_batch(
    setup: Setup, lengths: ArrayLike, *, mesh_degree: int | None = None, quick: bool = False
) -> tuple[Plan, PlanningProblem, MemoryReport]:
    """Plan one batch (lengths of at most the context) under the setup's strategy; see simulate_step."""
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
        check_fits(kind, memory_of(kind, capacity, micro_batches=1, sequence_tokens=1))
    problem = _estimating(setup, replace(_problem(setup, tokens, capacities), quick=quick))
    plan = make_plan(problem)
    report = plan_memory(setup, plan)
    check_fits(setup, report)
    return plan, problem, report


def _estimating(setup: Setup, problem: PlanningProblem) -> PlanningProblem:
    """The problem as the planner sees it; a static mesh is not planned by estimates."""
    if not setup.strategy.estimate_error or setup.strategy.name == "static":
        return problem
    error = EstimateError(variation=setup.strategy.estimate_error, seed=setup.execution.seed)
    kinds = tuple(replace(kind, error=error) for kind in problem.kinds)
    return replace(problem, error=error, kinds=kinds)


def check_strategy(setup: Setup) -> None:
    """Raise InfeasibleError for a layout that the strategy cannot run, and for more ranks than can be planned."""
    if (
        setup.strategy.name != "static"
        and setup.execution.network == "flows"
        and setup.layout.meeting_ranks(setup.ranks) > 1
    ):
        raise InfeasibleError(
            "HDP ranks run different micro-batches and meet in every layer (layout.sharding = zero3, or experts across "
            "ranks): execution.network = flows does not follow that; use execution.network = independent"
        )
    if setup.strategy.name != "static" and setup.layout.pipeline.schedule == "dualpipe":
        raise InfeasibleError(
            "HDP ranks run different numbers of micro-batches; layout.schedule = dualpipe needs the same even number "
            "everywhere: use strategy.name = static, or zb-h1, zb-h2 or zb-v, which take any number"
        )
    most, why = LIMITS["ranks"]
    if setup.ranks > most:
        raise InfeasibleError(
            f"{setup.ranks:,} ranks of tp x pp GPUs are to be planned; at most {most:,}: {why}"
        )


def planning_problem(setup: Setup, lengths: ArrayLike) -> PlanningProblem:
    """What a strategy is asked for this batch."""
    return _problem(
        setup, _tokens_of(setup, lengths), [(kind, capacity_tokens(kind)) for kind in setup.kinds]
    )


def _tokens_of(setup: Setup, lengths: ArrayLike) -> Ints:
    """The lengths of a batch as an array, checked: whole numbers from 1 to the context, never rounded or read."""
    try:
        given = np.asarray(lengths)
    except (ValueError, OverflowError) as error:
        raise UserInputError(
            f"sequence lengths of a batch must be one list of whole numbers: {error}"
        ) from error
    if given.ndim != 1 or not len(given):
        raise UserInputError("a batch needs at least one sequence, in one list of lengths")
    truth_values = isinstance(lengths, list | tuple) and not {bool, np.bool_}.isdisjoint(map(type, lengths))
    if given.dtype.kind not in "iu" or truth_values:
        wrong = next((one for one in np.asarray(lengths, dtype=object) if not _is_integer(one)), given[0])
        raise UserInputError(f"sequence lengths of a batch must be whole numbers, got {quoted(wrong)}")
    if given.min() <= 0 or given.max() > setup.context_tokens:
        raise UserInputError(
            f"sequence lengths of a batch must be in 1..{setup.context_tokens} (the context); "
            f"got {int(given.min())}..{int(given.max())}: chunk, truncate or drop longer ones first"
        )
    return np.ascontiguousarray(given, dtype=np.int64)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


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
    mixed = MixedCost(
        kinds=tuple(problem.cost for problem in kinds),
        rank_kind=rank_kinds(setup.cluster, setup.layout.parallel),
    )
    least = min(problem.capacity_tokens for problem in kinds)
    slowest = max((replace(problem, capacity_tokens=least) for problem in kinds), key=_slowness)
    return replace(slowest, mixed=mixed, kinds=kinds)


def _slowness(problem: PlanningProblem) -> tuple[float, float]:
    """By which the slowest kind of node is chosen: the time of a sequence as long as the context, then the NICs."""
    ranks = min(-(-problem.context_tokens // problem.capacity_tokens), problem.most_ranks)
    context_s = float(problem.sequence_s(problem.context_tokens, ranks))
    return context_s, -problem.cost.cluster.node.nic_bytes_per_s_per_gpu


def micro_batches(problem: PlanningProblem, plan: Plan) -> MicroBatches:
    """The micro-batches of a plan of this problem."""
    return plan_micro_batches(problem.cost, plan)


def price_plan(setup: Setup, problem: PlanningProblem, plan: Plan) -> StepCosts:
    """What everything in the plan takes."""
    flows = setup.execution.network == "flows"
    if flows and problem.mixed is not None:
        raise InfeasibleError(
            "execution.network = flows is not modelled on nodes of several kinds; use execution.network = independent"
        )

    def priced(data_s: float) -> StepCosts:
        return plan_costs(problem.cost, problem.mixed, plan, data_s=data_s, traffic=flows)

    settled, lengths = replace(setup, layout=settled_layout(setup, plan)), problem.lengths
    costs = _with_data(settled, problem.cost, priced, tokens=int(lengths.sum()), sequences=len(lengths))
    made_s = communicators_s(setup, plan)
    if made_s:
        data_s, planning = costs.epilogue.data_s + made_s, costs.epilogue.planning_s + made_s
        costs = replace(costs, epilogue=replace(costs.epilogue, data_s=data_s, planning_s=planning))
    costs = with_tails(costs, setup.execution, settled.layout.parallel, plan)
    wait_s = allocator_s(setup, plan, problem.cost.cal)
    return replace(costs, allocator_s=wait_s) if wait_s else costs


def price_micro_batches(
    setup: Setup, cost: MicroBatchCost, batches: MicroBatches, *, tokens: int, sequences: int
) -> StepCosts:
    """What the micro-batches of a step take that trains on so many tokens and sequences, and what surrounds them."""
    return _with_data(
        setup,
        cost,
        lambda data_s: step_costs(cost, batches, setup.ranks, data_s=data_s),
        tokens=tokens,
        sequences=sequences,
    )


def _with_data(
    setup: Setup, cost: MicroBatchCost, priced: Callable[[float], StepCosts], *, tokens: int, sequences: int
) -> StepCosts:
    """What a step takes, *priced* by what its data take of it."""
    path = _data_path(setup, cost, tokens, sequences)
    loading, planning = (0.0, 0.0) if path.ahead_steps else path.exposed_s(0.0)
    costs = priced(synchronised_pause_s(setup.execution) + loading + planning)
    return replace(costs, epilogue=replace(costs.epilogue, planning_s=planning), data_path=path)


def plan_noise(setup: Setup, plan: Plan, costs: StepCosts) -> Noise | None:
    """The noise that the scenario asks for, drawn for a priced plan."""
    return draw_noise(
        plan,
        costs,
        setup.execution,
        tp=setup.layout.parallel.tp,
        gpus_per_node=setup.cluster.node_gpus,
        order=setup.layout.parallel.order,
    )


def play_plan(setup: Setup, plan: Plan, costs: StepCosts) -> Execution:
    """Play a priced plan with the scenario's executor and noise."""
    noise = plan_noise(setup, plan, costs)
    return play_with_data(costs, lambda priced: _play(setup, plan, priced, noise))


class Step(Protocol):
    """A step that was played."""

    @property
    def step_s(self) -> float:
        """Its seconds."""


PlayedT = TypeVar("PlayedT", bound=Step)


def play_with_data(costs: StepCosts, play: Callable[[StepCosts], PlayedT]) -> PlayedT:
    """What *play* makes of the costs, once more if the next batch is not ready when that step ends."""
    execution = play(costs)
    path, epilogue = costs.data_path, costs.epilogue
    loading, planning = path.exposed_s(execution.step_s) if path and path.ahead_steps else (0.0, 0.0)
    if not loading + planning:
        return execution
    data_s, planning_s = epilogue.data_s + loading + planning, epilogue.planning_s + planning
    epilogue = replace(epilogue, data_s=data_s, planning_s=planning_s)
    return play(replace(costs, epilogue=epilogue))


def settled_degree(setup: Setup, lengths: ArrayLike) -> int | None:
    """The degree of the static mesh of a run whose first batch is *lengths*; None where no mesh has to be chosen.

    Raises:
        InfeasibleError: the batch cannot run.
    """
    if not _seeks_degree(setup):
        return None
    plan, _, _ = plan_batch(setup, lengths)
    return int(plan.group_size.max())


def simulate_step(
    setup: Setup, lengths: ArrayLike, *, mesh_degree: int | None = None, quick: bool = False
) -> StepResult:
    """Simulate one step of *setup* on a batch of sequence lengths.

    Args:
        setup: what to simulate.
        lengths: tokens of every sequence.
        mesh_degree: context-parallel degree of a static mesh whose layout states none; None: the fastest for this
            batch. A run has one mesh: its first batch decides (settled_degree).
        quick: hdp-opt makes few drafts: a step of this layout that can be had, and mostly close to the best, for a
            search that simulates its survivors in full. Other strategies plan as ever.

    Raises:
        UserInputError: the batch is empty or holds anything but whole numbers from 1 to the context.
        InfeasibleError: degrees that do not divide, a context no group can hold, memory that does not suffice.
    """
    begun = time.perf_counter()
    plan, problem, report = plan_batch(setup, lengths, mesh_degree=mesh_degree, quick=quick)
    return simulate_plan(setup, plan, problem, report, planning_wall_s=time.perf_counter() - begun)


def simulate_plan(
    setup: Setup, plan: Plan, problem: PlanningProblem, report: MemoryReport, *, planning_wall_s: float = 0.0
) -> StepResult:
    """The step of a plan that there is; see plan_batch."""
    begun = time.perf_counter()
    costs = price_plan(setup, problem, plan)
    execution = play_plan(setup, plan, costs)
    execution_wall_s = time.perf_counter() - begun
    return replace(
        result_of(setup, plan, problem, report, costs, execution),
        planning_wall_s=planning_wall_s,
        execution_wall_s=execution_wall_s,
    )


def result_of(
    setup: Setup,
    plan: Plan,
    problem: PlanningProblem,
    report: MemoryReport,
    costs: StepCosts,
    execution: Execution,
) -> StepResult:
    """What a plan's *execution* says, in figures and notes."""
    total = int(problem.lengths.sum())
    model, recompute = setup.model, setup.layout.recompute.kind
    split = len(plan.segment_tokens) > len(problem.lengths)
    pieces = plan.segment_tokens if split else problem.lengths  # attention stays inside a piece
    model_flop, full_flop = (sequence_model_flop(model, pieces, causal=causal) for causal in (True, False))
    hardware, hardware_full = (
        sequence_model_flop(model, pieces, causal=causal, recompute=recompute) for causal in (True, False)
    )
    whole_flop = sequence_model_flop(model, problem.lengths, causal=True) if split else model_flop
    peak = setup.cluster.bf16_flop_per_s * execution.step_s
    return StepResult(
        strategy=setup.strategy.name,
        step_s=execution.step_s,
        tokens=total,
        gpus=setup.cluster.gpus,
        tokens_per_s=total / execution.step_s,
        model_flop=model_flop,
        model_flop_full=full_flop,
        hardware_flop=hardware,
        hardware_flop_full=hardware_full,
        mfu=model_flop / peak,
        mfu_full=full_flop / peak,
        accounts=execution.accounts,
        account_s=execution.account_s,
        plan_ideal_s=plan.ideal_s,
        makespan_s=plan.makespan_s,
        plan_micro_batches=plan.micro_batches,
        largest_group=int(plan.group_size.max()),
        rank_capacity_tokens=plan.capacity_tokens,
        memory=report,
        planning_wall_s=0.0,
        execution_wall_s=0.0,
        events=execution.events,
        network=execution.network,
        spans=execution.spans,
        plan=plan,
        notes=(
            f"calibration {_calibration_names(setup)}",
            *plan.notes,
            *without_effect(setup, int(plan.group_size.max()), report),
            *fit_notes(report),
            *kind_notes(setup, plan),
            *recompute_notes(setup),
            *allocator_notes(costs.allocator_s, report, execution),
        ),
        work_left_out=1.0 - model_flop / whole_flop,
    )


def _calibration_names(setup: Setup) -> str:
    """Of all kinds of nodes, each once."""
    return ", ".join(dict.fromkeys(kind.calibration.name for kind in setup.kinds))


def _play(setup: Setup, plan: Plan, costs: StepCosts, noise: Noise | None) -> Execution:
    if setup.execution.network == "flows":
        where = replace(wired(setup), record=setup.execution.record_links)
        flaps = partial(link_flaps, setup) if setup.execution.link_flaps_per_hour else None
        execution = run_flows(plan, costs, where, noise, spans=setup.execution.spans, flaps=flaps)
    elif setup.execution.executor == "engine":
        execution = run_engine(plan, costs, noise, spans=setup.execution.spans)
    else:
        execution = run_replay(plan, costs, noise)
    return with_allocator_waits(plan, costs.allocator_s, execution)


def link_flaps(setup: Setup, until_s: float) -> tuple[Flap, ...]:
    """Links of NICs that go down in this step, the same ones under every strategy and layout."""
    nics = setup.cluster.nodes * setup.cluster.node.nics
    return draw_flaps(setup.execution.link_flaps, nics, flaps_stream(setup.execution), until_s)


def wired(setup: Setup) -> Wired:
    """The links of the setup's cluster, and who has which GPU."""
    seed = int(setup.execution.seed)
    calibration = setup.calibration
    links = _links_of(setup.cluster, calibration.network, calibration.host_memory_bytes_per_s, seed)
    hashed = seed + int(setup.cluster.fabric.ecmp_seed)
    return Wired(links=links, parallel=setup.layout.parallel, seed=hashed)


@shared(most=8)
def _links_of(cluster: Cluster, calibration: NetworkCalibration, memory: float, seed: int) -> Links:
    try:
        return Links.of(cluster, calibration, memory_bytes_per_s=memory, seed=seed)
    except UserInputError as error:  # another fabric may have the link
        raise InfeasibleError(f"cluster.fabric.degraded_links: {error}") from error


def _data_path(setup: Setup, cost: MicroBatchCost, tokens: int, sequences: int) -> DataPath:
    """What this batch passes before its step.

    Static mesh: its loaders know their share beforehand. HDP with the remote loader: servers read their share, one
    controller plans, ranks pull what is theirs. HDP without it: no rank knows its sequences before the plan, so every
    node reads the whole batch, and all that begins with the step.
    """
    pipeline = setup.data_pipeline
    ahead = pipeline.prefetch_steps if pipeline.asynchronous else 0
    shares = (cost.cluster, setup.calibration, pipeline)
    if setup.strategy.name == "static":
        return DataPath(
            loading_s=node_loading_s(tokens, setup.layout, *shares), planning_s=0.0, ahead_steps=ahead
        )
    plan_s = planning_s(cost, sequences)
    if not setup.strategy.remote_data_loading:
        return DataPath(loading_s=loading_s(cost, tokens), planning_s=plan_s, ahead_steps=0)
    read_s = node_loading_s(tokens, setup.layout.changed(cp=None), *shares)
    return DataPath(loading_s=read_s, planning_s=plan_s, ahead_steps=ahead)
