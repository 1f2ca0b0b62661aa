"""One simulated step: plan the batch, price it, play it, account for it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.transformer.flop import sequence_model_flop
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.play.execution import Execution, SharedLinks, Spans
from hdpsim.simulator.playing import play_plan
from hdpsim.simulator.pricing import price_plan
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step_memory import allocator_notes, fit_notes, kind_notes, recompute_notes
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.without_effect import without_effect


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepResult:
    """A simulated step, and where its time went.

    Attributes:
        strategy: strategy that planned it.
        step_s: seconds of the step.
        tokens: tokens trained on.
        gpus: GPUs used.
        tokens_per_s: throughput of the whole cluster.
        model_flop: model FLOP of the step, causal attention counted (half), recomputation not counted. Of a sequence
            that a packer splits, the pieces: that is what is computed.
        model_flop_full: model_flop with full attention counted (the convention of most MFU figures).
        hardware_flop: model_flop plus recomputation (selective: of attention), causal attention.
        hardware_flop_full: hardware_flop with full attention.
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
    events: int
    spans: Spans | None
    plan: Plan
    notes: tuple[str, ...]
    work_left_out: float = 0.0
    network: SharedLinks | None = None
    planning_wall_s: float = 0.0
    execution_wall_s: float = 0.0

    def __repr__(self) -> str:
        return (
            f"StepResult({self.strategy}: a step of {self.step_s:.3f} s, {self.tokens:,} tokens on {self.gpus:,} GPUs, "
            f"{self.tokens_per_s:,.0f} tokens/s, MFU {self.mfu:.1%}; {self.plan_micro_batches:,} micro-batches, groups "
            f"of up to {self.largest_group:,} ranks)"
        )


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
    """Simulate the step of a plan that plan_batch has made."""
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
        events=execution.events,
        network=execution.network,
        spans=execution.spans,
        plan=plan,
        notes=(
            f"calibration {', '.join(dict.fromkeys(kind.calibration.name for kind in setup.kinds))}",
            *plan.notes,
            *without_effect(setup, int(plan.group_size.max()), report, shares_packs=plan.shares_packs),
            *fit_notes(report),
            *kind_notes(setup, plan),
            *recompute_notes(setup),
            *allocator_notes(costs.allocator_s, report, execution),
        ),
        work_left_out=1.0 - model_flop / whole_flop,
    )
