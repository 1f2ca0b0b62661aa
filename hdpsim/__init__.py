"""hdpsim: how fast would this model train, on this cluster, with this data, under this strategy, and why?

The public API in one import. Names are loaded on first use, so that `import hdpsim` costs nothing: not even typing or
importlib, while which Ctrl-C would find the command without a handler.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes a while to load

__version__ = "0.1.0"

__all__ = [
    "CatalogError",
    "Cluster",
    "DeadlockError",
    "ExecutionOptions",
    "HdpSimError",
    "InfeasibleError",
    "Layout",
    "Model",
    "NotFiniteError",
    "OutOfMemoryError",
    "OwnPlanError",
    "Plan",
    "PlanBuilder",
    "PlanError",
    "PlanningProblem",
    "QuantityError",
    "ScenarioError",
    "Setup",
    "StepResult",
    "StrategyError",
    "StrategyOptions",
    "Trace",
    "TraceError",
    "UserInputError",
    "__version__",
    "calibration",
    "cluster",
    "cluster_of",
    "global_batches",
    "gpu",
    "load_scenario",
    "load_trace",
    "lower_bound_s",
    "model",
    "node",
    "read_trace",
    "simulate_step",
    "strategy",
    "validate_plan",
]

if TYPE_CHECKING:
    from hdpsim.cost_models.calibration.calibration import calibration
    from hdpsim.cost_models.hardware.catalog import cluster, cluster_of, gpu, model, node
    from hdpsim.cost_models.hardware.parts import Cluster
    from hdpsim.cost_models.layout.layout import Layout
    from hdpsim.cost_models.transformer.model import Model
    from hdpsim.errors import (
        CatalogError,
        DeadlockError,
        HdpSimError,
        InfeasibleError,
        NotFiniteError,
        OutOfMemoryError,
        OwnPlanError,
        PlanError,
        QuantityError,
        ScenarioError,
        StrategyError,
        TraceError,
        UserInputError,
    )
    from hdpsim.experiments.scenario.scenario import load_scenario
    from hdpsim.simulator.lower_bound import lower_bound_s
    from hdpsim.simulator.own import strategy
    from hdpsim.simulator.plan import Plan
    from hdpsim.simulator.play.validate import validate_plan
    from hdpsim.simulator.setup import ExecutionOptions, Setup, StrategyOptions
    from hdpsim.simulator.step import StepResult, simulate_step
    from hdpsim.simulator.strategies.plan_builder import PlanBuilder
    from hdpsim.simulator.strategies.problem import PlanningProblem
    from hdpsim.traces import Trace, global_batches, load_trace, read_trace

_HOME = {
    "Cluster": "hdpsim.cost_models.hardware.parts",
    "ExecutionOptions": "hdpsim.simulator.setup",
    "Layout": "hdpsim.cost_models.layout.layout",
    "Model": "hdpsim.cost_models.transformer.model",
    "Plan": "hdpsim.simulator.plan",
    "PlanBuilder": "hdpsim.simulator.strategies.plan_builder",
    "PlanningProblem": "hdpsim.simulator.strategies.problem",
    "Setup": "hdpsim.simulator.setup",
    "StepResult": "hdpsim.simulator.step",
    "StrategyOptions": "hdpsim.simulator.setup",
    "Trace": "hdpsim.traces",
    "calibration": "hdpsim.cost_models.calibration.calibration",
    "cluster": "hdpsim.cost_models.hardware.catalog",
    "cluster_of": "hdpsim.cost_models.hardware.catalog",
    "global_batches": "hdpsim.traces",
    "gpu": "hdpsim.cost_models.hardware.catalog",
    "load_scenario": "hdpsim.experiments.scenario.scenario",
    "load_trace": "hdpsim.traces",
    "lower_bound_s": "hdpsim.simulator.lower_bound",
    "model": "hdpsim.cost_models.hardware.catalog",
    "node": "hdpsim.cost_models.hardware.catalog",
    "read_trace": "hdpsim.traces",
    "simulate_step": "hdpsim.simulator.step",
    "strategy": "hdpsim.simulator.own",
    "validate_plan": "hdpsim.simulator.play.validate",
}
"""The module each public name is loaded from; every other name of __all__ is an error of hdpsim.errors."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'hdpsim' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    value: object = getattr(import_module(_HOME.get(name, "hdpsim.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
