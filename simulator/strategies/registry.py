"""From a strategy's name and switches to the function that plans."""

from __future__ import annotations

from dataclasses import replace

from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.call_own_strategy import plan_own
from hdpsim.simulator.strategies.common_slots import in_common_slots
from hdpsim.simulator.strategies.distca import plan_distca
from hdpsim.simulator.strategies.hdp.balance import plan_balance
from hdpsim.simulator.strategies.hdp.naive import plan_naive
from hdpsim.simulator.strategies.mixed_nodes import plan_by_kind
from hdpsim.simulator.strategies.opt.best_plan import plan_best
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.static_mesh import plan_static
from hdpsim.simulator.strategies.static.wlb_llm import plan_wlb_llm


def make_plan(problem: PlanningProblem) -> Plan:
    """Plan a batch under the problem's strategy.

    HDP without dynamic groups is the static mesh; hdp-balance and hdp-opt without balancing are hdp-naive. Where ranks
    meet in every layer hdp-balance and hdp-opt put micro-batches of like length into a slot. The planners' makespan is
    the work of the busiest stage. Where the longest sequence's way through all stages of a pipeline binds, that says
    too little: no plan's makespan is below its ideal. On nodes of several kinds every kind plans its part
    (plan_by_kind). Any other name is that of a function of one's own.
    """
    if problem.mixed is not None:
        return plan_by_kind(problem, problem.mixed, _plan)
    plan = _plan(problem)
    return replace(plan, makespan_s=max(plan.makespan_s, plan.ideal_s))


def _plan(problem: PlanningProblem) -> Plan:
    options = problem.options
    name = options.name if options.dynamic_groups or options.is_own else "static"
    match name:
        case "static":
            return plan_static(problem)
        case "hdp-naive":
            return plan_naive(problem)
        case "hdp-balance":
            plan = plan_balance(problem) if options.balancing else plan_naive(problem)
            return in_common_slots(problem, plan) if problem.meets else plan
        case "hdp-opt":
            return plan_best(problem) if options.balancing else plan_naive(problem)
        case "wlb-llm":
            return plan_wlb_llm(problem)
        case "distca":
            return plan_distca(problem)
        case _:
            return plan_own(problem)
