"""A plan is priced: what its micro-batches take, and what its data, its planning and its communicators add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.step.data_loading import DataPath, node_loading_s
from hdpsim.cost_models.step.epilogue import loading_s, planning_s, step_costs
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.communicators import communicators_s
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.plan_micro_batches import plan_costs
from hdpsim.simulator.play.randomness.noise import synchronised_pause_s, with_tails
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step_memory import allocator_s, settled_layout
from hdpsim.simulator.strategies.problem import PlanningProblem


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
    made_s = communicators_s(setup.strategy, problem.cost, plan)
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

    def priced(data_s: float) -> StepCosts:
        return step_costs(cost, batches, setup.ranks, data_s=data_s)

    return _with_data(setup, cost, priced, tokens=tokens, sequences=sequences)


def _with_data(
    setup: Setup, cost: MicroBatchCost, priced: Callable[[float], StepCosts], *, tokens: int, sequences: int
) -> StepCosts:
    """The costs of a step, with the time that its data add."""
    path = _data_path(setup, cost, tokens, sequences)
    loading, planning = (0.0, 0.0) if path.ahead_steps else path.exposed_s(0.0)
    costs = priced(synchronised_pause_s(setup.execution) + loading + planning)
    return replace(costs, epilogue=replace(costs.epilogue, planning_s=planning), data_path=path)


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
        read_s = node_loading_s(tokens, setup.layout, *shares)
        return DataPath(loading_s=read_s, planning_s=0.0, ahead_steps=ahead)
    plan_s = planning_s(cost, sequences)
    if not setup.strategy.remote_data_loading:
        return DataPath(loading_s=loading_s(cost, tokens), planning_s=plan_s, ahead_steps=0)
    read_s = node_loading_s(tokens, setup.layout.changed(cp=None), *shares)
    return DataPath(loading_s=read_s, planning_s=plan_s, ahead_steps=ahead)
