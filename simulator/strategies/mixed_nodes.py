"""Plans for nodes of several kinds: as if all were the slowest, or every kind gets sequences by its speed.

A static mesh gives all ranks the same, and so do wlb-llm, distca, HDP that ignores speed and strategies of one's own:
the plan is that of a cluster of the slowest kind, and the slow ranks decide when the step ends. HDP that is aware of
it cuts the batch in one part for every kind, plans each part with the strategy as on a cluster of its own (its speed,
its memory, its groups), and moves work from the part that ends late to the one that ends early. A group never crosses
kinds in such a plan. Where sharing one sequence among all ranks matters more than speed the plan that ignores it ends
earlier, and is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hdpsim.arrays import Floats, Ints, offsets_of, ranges
from hdpsim.cost_models.step.mixed_nodes import MixedCost
from hdpsim.errors import InfeasibleError
from hdpsim.quoting import counted
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.plan_micro_batches import plan_costs
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.strategies.estimate_errors import estimated_costs
from hdpsim.simulator.strategies.problem import PlanningProblem

ROUNDS = 5
"""The batch is cut so many times at most, each time by how late the kinds ended before."""
TOGETHER = 1.005
"""Kinds whose busiest ranks end this close to each other need no other cut."""

Planner = Callable[[PlanningProblem], Plan]


def plan_by_kind(problem: PlanningProblem, mixed: MixedCost, planner: Planner) -> Plan:
    """The plan of *planner* on nodes of several kinds.

    Raises:
        InfeasibleError: no plan can run.
    """
    options = problem.options
    aware = options.speed_aware and not (options.in_turns or options.is_own)
    best: Plan | None = None
    reason: InfeasibleError | None = None
    try:
        # Ideals are of a cluster of one kind.
        best = replace(planner(replace(problem, mixed=None, kinds=())), ideal_s=0.0)
    except InfeasibleError as error:
        reason = error
    if aware:
        best = _by_speed(problem, mixed, planner, best)
    if best is None:
        assert reason is not None
        raise reason
    return best


def _by_speed(
    problem: PlanningProblem, mixed: MixedCost, planner: Planner, ignoring: Plan | None
) -> Plan | None:
    """The best of some plans with a part of the batch for every kind, and of the one that ignores speed."""
    best, best_s = ignoring, np.inf
    if ignoring is not None:
        best_s = _quiet_step(problem, mixed, ignoring)[0]
    slowness = np.ones(len(mixed.kinds))
    for _ in range(ROUNDS):
        parts = _parts(problem, mixed, slowness)
        if parts is None:
            break
        try:
            asked = [
                replace(kind, lengths=problem.lengths[part], ranks=int(ranks), quick=problem.quick)
                for kind, part, ranks in zip(problem.kinds, parts, mixed.ranks_of_kind, strict=True)
            ]
            plans = [planner(one) if len(one.lengths) else None for one in asked]
        except InfeasibleError:
            break
        plan = _merged(problem, mixed, parts, plans)
        step_s, ends_s = _quiet_step(problem, mixed, plan)
        if step_s < best_s:
            best, best_s = plan, step_s
        if ends_s.max() <= TOGETHER * ends_s.min():
            break
        slowness *= ends_s / ends_s.mean()
    return best


def _quiet_step(problem: PlanningProblem, mixed: MixedCost, plan: Plan) -> tuple[float, Floats]:
    """The step of a plan without noise and loading; [kinds]: when the busiest rank of each is done."""
    costs = plan_costs(problem.cost, mixed, plan, data_s=0.0)
    costs = estimated_costs(problem.error, plan, problem.true_piece_s(plan.segment_tokens), costs)
    execution = run_replay(plan, costs)
    until = execution.accounts.index("wait_gradients")
    ends_s = np.zeros(len(mixed.kinds))
    np.maximum.at(ends_s, mixed.rank_kind, execution.account_s[:until].sum(axis=0).max(axis=1))
    return execution.step_s, ends_s


def _parts(problem: PlanningProblem, mixed: MixedCost, slowness: Floats) -> list[Ints] | None:
    """The sequences of every kind, longest first to the kind that would be done with them first; None: one fits none.

    *slowness*: [kinds]: how much longer each takes than its work says.
    """
    kinds = zip(problem.kinds, mixed.ranks_of_kind, slowness, strict=True)
    work_s = np.stack([_work_s(kind, int(ranks)) * slow / max(1, ranks) for kind, ranks, slow in kinds])
    if np.isinf(work_s).all(axis=0).any():
        return None
    order = np.argsort(-np.where(np.isinf(work_s), 0.0, work_s).max(axis=0), kind="stable")
    loads_s = [0.0] * len(work_s)
    kind_of = np.empty(work_s.shape[1], dtype=np.int64)
    for number, times_s in zip(order.tolist(), work_s[:, order].T.tolist(), strict=True):
        ends_s = [load_s + time_s for load_s, time_s in zip(loads_s, times_s, strict=True)]
        kind = ends_s.index(min(ends_s))
        loads_s[kind] = ends_s[kind]
        kind_of[number] = kind
    return [np.flatnonzero(kind_of == kind) for kind in range(len(work_s))]


def _work_s(problem: PlanningProblem, ranks: int) -> Floats:
    """[sequences]: rank-seconds on so many ranks of one kind, on the fewest that hold each; infinite where none do."""
    if not ranks:
        return np.full(len(problem.lengths), np.inf)
    own = replace(problem, ranks=ranks)
    lengths = own.lengths
    size = -(-lengths // own.capacity_tokens)
    share = lengths / own.target_tokens
    work_s = np.maximum(own.piece_s(lengths), own.floor_s * share) + own.fixed_s * share
    long = np.flatnonzero(size > 1)
    if len(long):
        held = np.minimum(size[long], own.most_ranks)
        work_s[long] = own.sequence_s(lengths[long], held) * held
    return np.where(size > own.most_ranks, np.inf, work_s)


def _merged(problem: PlanningProblem, mixed: MixedCost, parts: list[Ints], plans: list[Plan | None]) -> Plan:
    """One plan of the plans of all kinds, each for its part of the sequences."""
    made = [
        (np.flatnonzero(mixed.rank_kind == kind), part, plan)
        for kind, (part, plan) in enumerate(zip(parts, plans, strict=True))
        if plan is not None
    ]
    slots = np.zeros(mixed.ranks, dtype=np.int64)
    capacity = np.array([kind.capacity_tokens for kind in problem.kinds], dtype=np.int64)[mixed.rank_kind]
    for ranks, _, plan in made:
        slots[ranks] = np.diff(plan.order_offsets)
        capacity[ranks] = plan.capacity_tokens
    offsets = offsets_of(slots)
    order = np.full(int(offsets[-1]), HOLE, dtype=np.int64)
    before = 0
    for ranks, _, plan in made:
        order[ranges(offsets[ranks], slots[ranks])] = np.where(plan.order == HOLE, HOLE, plan.order + before)
        before += plan.micro_batches
    kind_plans = [plan for *_, plan in made]
    largest = max(int(plan.group_size.max()) for plan in kind_plans)
    padded = any(plan.padding_tokens is not None for plan in kind_plans)
    padding = [
        np.zeros(plan.micro_batches, dtype=np.int64) if plan.padding_tokens is None else plan.padding_tokens
        for plan in kind_plans
    ]
    return Plan(
        strategy=problem.options.name,
        ranks=mixed.ranks,
        capacity_tokens=int(capacity.max()),
        segment_tokens=np.concatenate([plan.segment_tokens for plan in kind_plans]),
        segment_sequence=np.concatenate([part[plan.segment_sequence] for _, part, plan in made]),
        segment_start=np.concatenate([plan.segment_start for plan in kind_plans]),
        segment_offsets=_joined([plan.segment_offsets for plan in kind_plans]),
        member_ranks=np.concatenate([ranks[plan.member_ranks] for ranks, _, plan in made]),
        member_offsets=_joined([plan.member_offsets for plan in kind_plans]),
        offload_ratio=np.concatenate([plan.offload_ratio for plan in kind_plans]),
        order=order,
        order_offsets=offsets,
        padding_tokens=np.concatenate(padding) if padded else None,
        rank_capacity_tokens=capacity,
        makespan_s=max(plan.makespan_s for plan in kind_plans),
        notes=(_shares(problem, mixed, parts), f"largest group {counted(largest, 'rank')}"),
    )


def _shares(problem: PlanningProblem, mixed: MixedCost, parts: list[Ints]) -> str:
    """The share of the batch that each kind got."""
    total = int(problem.lengths.sum())
    shares = [
        f"{int(problem.lengths[part].sum()) / total:.1%} of the tokens to {ranks} ranks of {cost.cluster.gpu.name}"
        for cost, part, ranks in zip(mixed.kinds, parts, mixed.ranks_of_kind, strict=True)
    ]
    return "by speed: " + ", ".join(shares)


def _joined(offsets: list[Ints]) -> Ints:
    """The offsets of arrays that follow each other."""
    return offsets_of(np.concatenate([np.diff(one) for one in offsets]))
