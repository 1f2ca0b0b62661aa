"""Plans of one batch held against each other, priced and played as the step will be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.step.data_parallel import ComputeWindows
from hdpsim.cost_models.step.epilogue import epilogue, step_costs
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.communicators import communicators_s
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.plan_micro_batches import distinct_micro_batches
from hdpsim.simulator.play.replay import replay_step_s
from hdpsim.simulator.strategies.common_slots import has_common_slots, in_common_slots
from hdpsim.simulator.strategies.estimate_errors import estimated_costs
from hdpsim.simulator.strategies.problem import PlanningProblem

NEARLY = 0.9
"""A plan may end so much earlier than by the planner's times, which take the slowest stage for all."""
FEW = 64
"""Micro-batches up to which their order matters to a pipeline."""


class Contest:
    """The best plan so far, and when it ends: by the planner's times until there is another to be held against."""

    def __init__(self, problem: PlanningProblem, plan: Plan, end_s: float, *, reorders: bool = False) -> None:
        """Start with *plan*, which ends at *end_s*; *reorders*: few micro-batches may run in the opposite order."""
        self.problem, self.best = problem, plan
        self.end_s = end_s + communicators_s(problem.options, problem.cost, plan)
        self._reorders = reorders and problem.in_slots
        self._judged = False
        self._seen: set[bytes] = set()
        # For a mesh dealt in two ways, and for a plan and its opposite.
        self._priced: tuple[MicroBatches, StepCosts] | None = None
        windows = ComputeWindows.endless(problem.stages)
        edges = epilogue(problem.cost, problem.ranks, data_s=0.0, windows=windows)
        edges_s = edges.parameter_gather_s + edges.gradient_sync_s + edges.optimizer_s
        self._around_s = float(edges_s.min())

    def judge(self) -> None:
        """Price and play the best plan."""
        if not self._judged:
            plan, self._judged, self.end_s = self.best, True, np.inf
            self._play(plan)

    def enter(self, plan: Plan, least_s: float) -> float:
        """Take *plan* if it is better; it ends no earlier than *least_s*.

        Returns:
            When it ends; infinite where nobody looked, since it is too late or was there before.
        """
        if least_s >= self.end_s:
            return np.inf
        self.judge()
        return self._play(plan)

    def _play(self, plan: Plan) -> float:
        """Price and play a plan, and of few micro-batches in a pipeline their opposite order, too."""
        padding = plan.segment_offsets[:0] if plan.padding_tokens is None else plan.padding_tokens
        parts = (plan.order, plan.segment_sequence, plan.segment_offsets, plan.member_ranks, padding)
        key = b"".join(part.tobytes() for part in parts)
        if key in self._seen:
            return np.inf
        self._seen.add(key)
        ways = [plan]
        if self.problem.meets and (self._reorders or not has_common_slots(plan)):
            sorted_plan = in_common_slots(self.problem, plan)
            ways = [sorted_plan]
            if has_common_slots(plan) and not np.array_equal(plan.order, sorted_plan.order):
                ways = [plan, sorted_plan]
        elif self._reorders and plan.micro_batches <= FEW:
            ways.append(_backwards(plan))
        first_s = np.inf
        for way in ways:
            step_s = self._step_s(way)
            first_s = min(first_s, step_s)
            if step_s < self.end_s:
                self.best, self.end_s = way, step_s
        return first_s

    def _step_s(self, plan: Plan) -> float:
        """The step of a plan, without noise and loading, and without what every plan's epilogue takes.

        Of estimates that are known to err the mean over errors of that size: the last of many ranks ends later than
        estimates say, and where ranks have many sequences less so.
        """
        batches = distinct_micro_batches(self.problem.cost, plan)
        if self._priced is None or not self._priced[0].same_as(batches):
            self._priced = batches, step_costs(self.problem.cost, batches, plan.ranks, data_s=0.0)
        costs, problem, error = self._priced[1], self.problem, self.problem.error
        if error is not None:
            segment_s = problem.true_piece_s(plan.segment_tokens)
            costs = estimated_costs(error, plan, segment_s, costs)
        made_s = communicators_s(problem.options, problem.cost, plan) - self._around_s
        step_s = replay_step_s(plan, costs) + made_s
        if error is None or step_s >= self.end_s:  # errors make no mean earlier
            return step_s
        segment_s = segment_s * error.factors(plan.segment_tokens)
        doubted = (estimated_costs(doubt, plan, segment_s, costs) for doubt in error.doubts())
        return float(np.mean([replay_step_s(plan, one) for one in doubted])) + made_s


def _backwards(plan: Plan) -> Plan:
    """The plan with its slots in the opposite order: of few micro-batches the short ones may better come first."""
    last = int(np.diff(plan.order_offsets).max())
    order = np.full((plan.ranks, last), HOLE, dtype=np.int64)
    _, rank, slot, micro_batch = plan.entries
    order[rank, last - 1 - slot] = micro_batch
    return replace(plan, order=order.ravel(), order_offsets=np.arange(plan.ranks + 1) * last, in_step=False)
