"""hdpsim: how fast would this model train, on this cluster, with this data, under this strategy, and why?

Every verb of the command `hdpsim` is a function here. It takes a scenario and, like `--set`, keys to change:

    import hdpsim

    result = hdpsim.compare("quickstart-8gpu", {"layout.tp": 4}, strategies=["static", "hdp-opt"], batches=2)
    result                        # in a notebook: the tables; print(result): the text of the command
    result.to_frame()             # a data frame of pandas, units in the names of its columns
    result.plot()                 # a figure of matplotlib; result.figures names the others
    result.save("runs/first")     # tables, plots, JSON, and a README that explains every file
    result.to_dict()              # what `hdpsim compare --json` prints

A scenario is the name of a shipped one, the path of a YAML file, a dictionary of its keys, or what load_scenario
returns. Wrong input raises UserInputError, a legal request that cannot run InfeasibleError, both with what is allowed.

Run and look:
    simulate        how long is one step, and where does the time go? steps=N: many steps on one clock
    compare         which strategy is fastest, by how much, and why?
    explain         where does this number come from: formula, inputs, sources?
    replay          how fast does training go through a whole data set?
    replay_ops      what slowed this recorded job down?
    campaign        what is left of a weeks-long run after failures and checkpoints?
    fabric, flows   what does the network give a GPU, and how fast are transfers that share links?

Decide:
    plan            which layout and strategy is best on these GPUs?
    recommend       which GPUs, and how many, for tokens, a date and a sum?
    check           what wastes time in this scenario, and which change helps?
    scale           what do more GPUs buy?
    whatif          what does each change buy, alone and together? tornado="10%": which inputs matter?
    sweep           which of many combinations is best?
    check_strategy  does a strategy of my own keep every promise of a plan?

Believe:
    validate        how good are the predictions, on published runs or on mine?
    calibrate       which constants do my measurements tell?
    reproduce       how close are the predictions to what a paper published?
    doctor          is this installation sound?

Read: load_scenario, load_trace, read_trace, and of the catalog model, gpu, node, cluster, calibration. `strategy` makes
a strategy of a function. Below the verbs are the parts they are made of: Setup, Layout, Plan, PlanBuilder, StepResult,
simulate_step, lower_bound_s, validate_plan, global_batches; and the errors of hdpsim.errors.

Documentation: docs/how-to/python.md and the pages beside it. Names are loaded on first use, so that an import costs
nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes a while to load

__version__ = "0.1.0"

__all__ = [
    "Result", "__version__", "calibrate", "calibration", "campaign", "check", "check_strategy", "cluster",
    "compare", "doctor", "explain", "fabric", "flows", "gpu", "load_scenario", "load_trace", "model",
    "node", "plan", "read_trace", "recommend", "replay", "replay_ops", "reproduce", "scale", "simulate",
    "strategy", "sweep", "validate", "whatif",
]  # fmt: skip
"""What `help(hdpsim)` shows."""

if TYPE_CHECKING:
    from hdpsim.cost_models.calibration.calibration import calibration
    from hdpsim.cost_models.hardware.catalog import cluster, gpu, model, node
    from hdpsim.cost_models.hardware.catalog import cluster_of as cluster_of
    from hdpsim.cost_models.hardware.parts import Cluster as Cluster
    from hdpsim.cost_models.layout.layout import Layout as Layout
    from hdpsim.cost_models.transformer.model import Model as Model
    from hdpsim.errors import CatalogError as CatalogError
    from hdpsim.errors import DeadlockError as DeadlockError
    from hdpsim.errors import HdpSimError as HdpSimError
    from hdpsim.errors import InfeasibleError as InfeasibleError
    from hdpsim.errors import NotFiniteError as NotFiniteError
    from hdpsim.errors import OutOfMemoryError as OutOfMemoryError
    from hdpsim.errors import OwnPlanError as OwnPlanError
    from hdpsim.errors import PlanError as PlanError
    from hdpsim.errors import QuantityError as QuantityError
    from hdpsim.errors import ScenarioError as ScenarioError
    from hdpsim.errors import StrategyError as StrategyError
    from hdpsim.errors import TraceError as TraceError
    from hdpsim.errors import UserInputError as UserInputError
    from hdpsim.experiments.scenario.scenario import Scenario as Scenario
    from hdpsim.experiments.scenario.scenario import load_scenario
    from hdpsim.experiments.verbs.doctor import doctor
    from hdpsim.experiments.verbs.measurements import calibrate, reproduce, validate
    from hdpsim.experiments.verbs.network import fabric, flows
    from hdpsim.experiments.verbs.planning import check, check_strategy, plan, recommend, scale, sweep, whatif
    from hdpsim.experiments.verbs.result import Result
    from hdpsim.experiments.verbs.running import campaign, compare, explain, replay, replay_ops, simulate
    from hdpsim.simulator.find_own_strategy import strategy
    from hdpsim.simulator.lower_bound import lower_bound_s as lower_bound_s
    from hdpsim.simulator.plan import Plan as Plan
    from hdpsim.simulator.play.pipeline.validate_plan import validate_plan as validate_plan
    from hdpsim.simulator.setup import ExecutionOptions as ExecutionOptions
    from hdpsim.simulator.setup import Setup as Setup
    from hdpsim.simulator.setup import StrategyOptions as StrategyOptions
    from hdpsim.simulator.step import StepResult as StepResult
    from hdpsim.simulator.step import simulate_step as simulate_step
    from hdpsim.simulator.strategies.plan_builder import PlanBuilder as PlanBuilder
    from hdpsim.simulator.strategies.problem import PlanningProblem as PlanningProblem
    from hdpsim.traces import Trace as Trace
    from hdpsim.traces import global_batches as global_batches
    from hdpsim.traces import load_trace, read_trace

_NAMES = {
    "hdpsim.cost_models.calibration.calibration": "calibration",
    "hdpsim.cost_models.hardware.catalog": "cluster cluster_of gpu model node",
    "hdpsim.cost_models.hardware.parts": "Cluster",
    "hdpsim.cost_models.layout.layout": "Layout",
    "hdpsim.cost_models.transformer.model": "Model",
    "hdpsim.errors": "CatalogError DeadlockError HdpSimError InfeasibleError NotFiniteError OutOfMemoryError "
    "OwnPlanError PlanError QuantityError ScenarioError StrategyError TraceError UserInputError",
    "hdpsim.experiments.scenario.scenario": "Scenario load_scenario",
    "hdpsim.experiments.verbs.doctor": "doctor",
    "hdpsim.experiments.verbs.measurements": "calibrate reproduce validate",
    "hdpsim.experiments.verbs.network": "fabric flows",
    "hdpsim.experiments.verbs.planning": "check check_strategy plan recommend scale sweep whatif",
    "hdpsim.experiments.verbs.result": "Result",
    "hdpsim.experiments.verbs.running": "campaign compare explain replay replay_ops simulate",
    "hdpsim.simulator.lower_bound": "lower_bound_s",
    "hdpsim.simulator.find_own_strategy": "strategy",
    "hdpsim.simulator.plan": "Plan",
    "hdpsim.simulator.play.pipeline.validate_plan": "validate_plan",
    "hdpsim.simulator.setup": "ExecutionOptions Setup StrategyOptions",
    "hdpsim.simulator.step": "StepResult simulate_step",
    "hdpsim.simulator.strategies.plan_builder": "PlanBuilder",
    "hdpsim.simulator.strategies.problem": "PlanningProblem",
    "hdpsim.traces": "Trace global_batches load_trace read_trace",
}
"""Every module from which public names are loaded, and the names."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
PARTS = tuple(sorted(_HOME.keys() - {*__all__}))
"""What the verbs are made of, and the errors they raise: as public, and left out of `help(hdpsim)`."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'hdpsim' has no attribute {name!r}; it has {', '.join(__dir__())}")
    from importlib import import_module

    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *PARTS))
