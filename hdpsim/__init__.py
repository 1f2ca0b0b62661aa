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
    "Plan",
    "QuantityError",
    "ScenarioError",
    "Setup",
    "StepResult",
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
]

if TYPE_CHECKING:
    from cost_models.calibration import calibration
    from cost_models.catalog import cluster, cluster_of, gpu, model, node
    from cost_models.hardware import Cluster
    from cost_models.layout import Layout
    from cost_models.model import Model
    from experiments.scenario import load_scenario
    from hdpsim.errors import (
        CatalogError,
        DeadlockError,
        HdpSimError,
        InfeasibleError,
        NotFiniteError,
        OutOfMemoryError,
        QuantityError,
        ScenarioError,
        TraceError,
        UserInputError,
    )
    from simulator.lower_bound import lower_bound_s
    from simulator.plan import Plan
    from simulator.setup import ExecutionOptions, Setup, StrategyOptions
    from simulator.simulate import StepResult, simulate_step
    from traces import Trace, global_batches, load_trace, read_trace

_HOME = {
    "Cluster": "cost_models.hardware",
    "ExecutionOptions": "simulator.setup",
    "Layout": "cost_models.layout",
    "Model": "cost_models.model",
    "Plan": "simulator.plan",
    "Setup": "simulator.setup",
    "StepResult": "simulator.simulate",
    "StrategyOptions": "simulator.setup",
    "Trace": "traces",
    "calibration": "cost_models.calibration",
    "cluster": "cost_models.catalog",
    "cluster_of": "cost_models.catalog",
    "global_batches": "traces",
    "gpu": "cost_models.catalog",
    "load_scenario": "experiments.scenario",
    "load_trace": "traces",
    "lower_bound_s": "simulator.lower_bound",
    "model": "cost_models.catalog",
    "node": "cost_models.catalog",
    "read_trace": "traces",
    "simulate_step": "simulator.simulate",
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
