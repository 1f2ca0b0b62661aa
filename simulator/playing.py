"""A priced plan is played: by the scenario's executor, with its noise, its network and the data of the next step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from hdpsim.cost_models.network.links import Links
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.tracing import shared
from hdpsim.simulator.network.link_flaps_on_flows import Flap, draw_flaps
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.execution import Execution, Noise
from hdpsim.simulator.play.flows.engine import run_flows
from hdpsim.simulator.play.flows.routes import Wired
from hdpsim.simulator.play.randomness.noise import draw_noise, flaps_stream
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step_memory import with_allocator_waits


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
        """Seconds of the step."""


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
    memory = calibration.host_memory_bytes_per_s
    links = _links_of(setup.cluster, calibration.network, memory_bytes_per_s=memory, seed=seed)
    hashed = seed + int(setup.cluster.fabric.ecmp_seed)
    return Wired(links=links, parallel=setup.layout.parallel, seed=hashed)


_links_of = shared(most=8)(Links.of)
