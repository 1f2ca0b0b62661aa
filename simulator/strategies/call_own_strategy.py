"""Plans of strategies of one's own: their function is called, and what it returns is held to every promise."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from hdpsim.errors import DeadlockError, InfeasibleError, OwnPlanError, PlanError, StrategyError
from hdpsim.simulator.find_own_strategy import error_words, load_strategy
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.play.pipeline.validate_plan import promise, validate_plan
from hdpsim.simulator.strategies.hdp.groups import least_offload
from hdpsim.simulator.strategies.problem import PlanningProblem

_NO_BAND = "a strategy of one's own: no band, as no measured step was planned by it"
_WHOLE = (
    "segment_tokens", "segment_sequence", "segment_start", "segment_offsets", "member_ranks", "member_offsets", "order",
    "order_offsets",
)  # fmt: skip


def plan_own(problem: PlanningProblem) -> Plan:
    """The plan of the function that the problem's strategy names.

    Raises:
        StrategyError: it cannot be loaded, fails, or returns no Plan.
        OwnPlanError: its plan breaks a promise.
        InfeasibleError: it says so itself.
    """
    name = problem.options.name
    function = load_strategy(name)
    lengths = problem.lengths.copy()
    lengths.setflags(write=False)  # other strategies plan the same batch
    try:
        plan = function(replace(problem, lengths=lengths))
    except (InfeasibleError, StrategyError):
        raise
    except (PlanError, DeadlockError) as error:
        raise _of_strategy(name, error) from error
    except (Exception, SystemExit) as error:
        raise StrategyError(f"strategy {name} failed: {error_words(error)}") from error
    if not isinstance(plan, Plan):
        raise StrategyError(
            f"strategy {name}: expected a Plan, got {_kind(plan)}; PlanBuilder.build() makes one"
        )
    try:
        plan = _with_arrays(plan)
        check_plan(problem, plan)
    except (PlanError, DeadlockError) as error:
        raise _of_strategy(name, error) from error
    return replace(plan, strategy=name, notes=(*plan.notes, _NO_BAND))


def _of_strategy(name: str, error: PlanError | DeadlockError) -> OwnPlanError:
    broken = OwnPlanError(f"strategy {name}: {error}")
    broken.promise = "deadlock" if isinstance(error, DeadlockError) else error.promise
    return broken


def check_plan(problem: PlanningProblem, plan: Plan) -> None:
    """Raise PlanError or DeadlockError unless *plan* keeps all promises for this problem.

    More than validate_plan knows: the ranks there are, their capacity, the largest group, Equation 3 of offloading.
    """
    most = problem.capacity_tokens
    with promise("arrays"):
        if plan.ranks != problem.ranks:
            raise PlanError(f"the plan is for {plan.ranks} ranks; there are {problem.ranks}")
        if not np.all(np.isfinite([plan.ideal_s, plan.makespan_s])):
            raise PlanError("ideal_s and makespan_s must be finite seconds")
    with promise("capacity"):
        if plan.capacity_tokens > most:
            raise PlanError(f"the plan's capacity is {plan.capacity_tokens} tokens; a rank holds {most}")
    validate_plan(plan, problem.lengths, problem.stages, meets=problem.meets)
    with promise("members"):
        wide = np.flatnonzero(plan.group_size > problem.most_ranks)
        if len(wide):
            shared = f"micro-batch {wide[0]} is shared by {plan.group_size[wide[0]]} ranks"
            raise PlanError(f"{shared}: {problem.spread_reason}")
    _check_offload(problem, plan)


@promise("capacity")
def _check_offload(problem: PlanningProblem, plan: Plan) -> None:
    tokens = np.diff(np.concatenate(([0], np.cumsum(plan.segment_tokens)))[plan.segment_offsets])
    offload = np.flatnonzero(plan.offload_ratio > 0)
    ratio = least_offload(problem, tokens[offload], plan.group_size[offload])
    short = np.flatnonzero(ratio > plan.offload_ratio[offload] + 1e-9)
    if not len(short):
        return
    number = int(offload[short[0]])
    needed = f"{ratio[short[0]]:.3f} must" if ratio[short[0]] <= 1 else "more than all that may"
    raise PlanError(
        f"micro-batch {number} puts {tokens[number]} tokens on {plan.group_size[number]} ranks that hold "
        f"{problem.capacity_tokens} each; of their activations {needed} be offloaded, it offloads "
        f"{plan.offload_ratio[number]:.3f}"
    )


@promise("arrays")
def _with_arrays(plan: Plan) -> Plan:
    """The plan with its columns as arrays of the right kind, however they were written."""
    changed: dict[str, object] = {}
    for name in _WHOLE:
        values = np.asarray(getattr(plan, name))
        if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
            raise PlanError(f"{name} must be one list of whole numbers")
        changed[name] = np.ascontiguousarray(values, dtype=np.int64)
    try:
        changed["offload_ratio"] = np.asarray(plan.offload_ratio, dtype=np.float64)
        changed["notes"] = tuple(map(str, plan.notes))
        numbers = [int(plan.ranks), int(plan.capacity_tokens), float(plan.ideal_s), float(plan.makespan_s)]
    except (TypeError, ValueError) as error:
        raise PlanError(f"a field of the plan is not what {Plan.__name__} says: {error}") from error
    changed |= dict(zip(("ranks", "capacity_tokens", "ideal_s", "makespan_s"), numbers, strict=True))
    assert changed.keys() <= {field.name for field in fields(Plan)}
    return replace(plan, **changed)  # type: ignore[arg-type]


def _kind(value: object) -> str:
    return "nothing (None): does it return?" if value is None else f"a {type(value).__name__}"
