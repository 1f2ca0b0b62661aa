"""What is measured: every figure with its target, ready to run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hdpsim.cost_models.step.epilogue import step_costs
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.plan_micro_batches import distinct_micro_batches
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.strategies.problem import PlanningProblem

Lengths = NDArray[np.int64]
Yardstick = Literal["numpy", "simpy", "python"]

DEMO = "demo-8x22b-12k"
# One pipeline stage per rank: 12,288 GPUs are 1,536 ranks and 131,072 GPUs are 16,384. Mixtral 8x22B would not fit.
ONE_STAGE = ("model=llama-70b", "layout.pp=1", "layout.ep=1")
# The same layout at every size: ranks of 16 GPUs, 2,048 tokens per GPU and step.
SCALING_GPUS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
SCALING_TARGET_GPUS = 131072  # up to here the exponent has a target; sizes beyond are measured once
SCALING_TOKENS_PER_GPU = 2048
SCALING_CONTEXT = "256K"  # 64 ranks of 1,024 GPUs must hold the longest sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A figure with everything done that is not timed."""

    run: Callable[[], object]
    events: int = 0
    """Events the engine processes in a run."""
    items: int = 0
    item: str = ""
    """How many of what a run gets through, for a rate."""
    detail: str = ""
    command: tuple[str, ...] = ()
    """Arguments of the hdpsim command that *run* starts, if it starts one: its memory is that of a process."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing to measure."""

    name: str
    what: str
    prepare: Callable[[], Prepared]
    yardstick: Yardstick = "numpy"
    target_s: float | None = None
    target_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """A batch under a setup, planned and priced."""

    setup: Setup
    lengths: Lengths
    plan: Plan
    problem: PlanningProblem
    costs: StepCosts

    @property
    def detail(self) -> str:
        cluster, tokens = self.setup.cluster, int(self.lengths.sum())
        ideal_s = self.plan.ideal_s
        over = f", plan {self.plan.makespan_s / ideal_s - 1.0:+.1%} over its ideal" if ideal_s else ""
        return (
            f"{cluster.gpus:,} GPUs, {self.plan.ranks:,} ranks x {self.setup.layout.parallel.pp} stages, "
            f"{tokens / 2**20:g}M tokens, {len(self.lengths):,} sequences, {self.plan.micro_batches:,} micro-batches"
            f"{over}"
        )


def _prices(problem: PlanningProblem, plan: Plan) -> StepCosts:
    return step_costs(problem.cost, distinct_micro_batches(problem.cost, plan), plan.ranks, data_s=0.0)


def _step(setup: Setup, lengths: Lengths) -> _Step:
    plan, problem, _ = plan_batch(setup, lengths)
    return _Step(setup, lengths, plan, problem, _prices(problem, plan))


@lru_cache(maxsize=2)
def _of_scenario(*changes: str) -> _Step:
    scenario: Scenario = load_scenario(DEMO, changes)
    return _step(scenario.setup(), scenario.batches(1)[0])


@lru_cache(maxsize=1)
def at_scale(gpus: int) -> _Step:
    """The demonstration's layout on *gpus* GPUs with a batch in proportion."""
    tokens = SCALING_TOKENS_PER_GPU * gpus
    return _of_scenario(
        f"gpus={gpus}", f"data.batch={tokens // 2**20}M tokens", f"data.context={SCALING_CONTEXT}"
    )


def _of_step(run: Callable[[_Step], object]) -> Callable[[_Step], Prepared]:
    return lambda step: Prepared(run=lambda: run(step), detail=step.detail)


_plan = _of_step(lambda step: plan_batch(step.setup, step.lengths))
_pricing = _of_step(lambda step: _prices(step.problem, step.plan))
_replay = _of_step(lambda step: run_replay(step.plan, step.costs))
_whole = _of_step(lambda step: simulate_step(step.setup, step.lengths))
_priced_replay = _of_step(lambda step: run_replay(step.plan, _prices(step.problem, step.plan)))


def _engine(step: _Step) -> Prepared:
    events = run_engine(step.plan, step.costs).events
    played = _of_step(lambda one: run_engine(one.plan, one.costs))(step)
    return replace(played, events=events, detail=f"{events:,} events; {step.detail}")


def _fresh(step: _Step) -> Prepared:
    """A configuration that nothing is known of yet, as each one of a sweep: its cluster has a name of its own."""
    numbers = count()

    def run() -> object:
        cluster = replace(step.setup.cluster, name=f"{step.setup.cluster.name} {next(numbers)}")
        return simulate_step(replace(step.setup, cluster=cluster), step.lengths)

    return Prepared(run=run, detail=step.detail)


@lru_cache(maxsize=2)
def _uniform(gpus: int) -> _Step:
    """The static mesh on sequences of one length: what a sweep without a trace asks."""
    scenario = load_scenario(DEMO, (f"gpus={gpus}", "data.context=8K", "strategy.name=static"))
    tokens = SCALING_TOKENS_PER_GPU * gpus
    return _step(scenario.setup(), np.full(tokens // 8192, 8192, dtype=np.int64))


def _command(*arguments: str) -> Prepared:
    command = (sys.executable, "-m", "hdpsim", *arguments)
    return Prepared(
        run=lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL),
        detail=f"hdpsim {' '.join(arguments)}",
        command=arguments,
    )


_BIG = (*ONE_STAGE, "gpus=131072", "data.batch=256M tokens")
_GIGABYTE = 10**9

FIGURES: tuple[Figure, ...] = (
    Figure("plan-12k", "hdp-opt plans the demonstration's step", lambda: _plan(_of_scenario()), target_s=1.0),
    Figure("price-12k", "cost of all its micro-batches", lambda: _pricing(_of_scenario())),
    Figure("replay-12k", "replay of that plan", lambda: _replay(_of_scenario()), target_s=0.02),
    Figure(
        "engine-12k",
        "SimPy engine on that plan",
        lambda: _engine(_of_scenario()),
        target_s=0.8,
        yardstick="simpy",
    ),
    Figure(
        "step-12k", "plan, price and replay together", lambda: _whole(_of_scenario()), target_bytes=_GIGABYTE
    ),
    Figure(
        "plan-1536-ranks",
        "hdp-opt plans 32M tokens for 1,536 ranks",
        lambda: _plan(_of_scenario(*ONE_STAGE)),
        target_s=0.05,
    ),
    Figure(
        "plan-16384-ranks",
        "hdp-opt plans 256M tokens for 16,384 ranks",
        lambda: _plan(_of_scenario(*_BIG)),
        target_s=1.0,
    ),
    Figure("replay-131k", "replay of that plan", lambda: _replay(_of_scenario(*_BIG)), target_s=0.3),
    Figure(
        "engine-131k",
        "SimPy engine on that plan",
        lambda: _engine(_of_scenario(*_BIG)),
        target_s=10.0,
        target_bytes=_GIGABYTE,
        yardstick="simpy",
    ),
    Figure(
        "replay-131k-pipeline",
        "replay at 131,072 GPUs with two stages",
        lambda: _replay(at_scale(131072)),
        target_s=0.3,
    ),
    Figure(
        "engine-131k-pipeline",
        "SimPy engine at 131,072 GPUs with two stages",
        lambda: _engine(at_scale(131072)),
        target_s=10.0,
        target_bytes=_GIGABYTE,
        yardstick="simpy",
    ),
    *(
        Figure(
            f"uniform-{short}{suffix}",
            f"static mesh, equal lengths: {what}",
            lambda gpus=gpus, kind=kind: kind(_uniform(gpus)),  # type: ignore[misc]
            target_s=target_s,
        )
        for gpus, short in ((1024, "1k"), (12288, "12k"), (131072, "131k"))
        for kind, suffix, what, target_s in (
            (_priced_replay, "", "costs and replay", 0.0015),
            (_whole, "-planned", "plan, costs and replay", None),
            (_fresh, "-fresh", "the same of a configuration not seen before", None),
        )
    ),
    Figure("help", "hdpsim --help", lambda: _command("--help"), target_s=0.4, yardstick="python"),
    Figure(
        "simulate-command",
        "hdpsim simulate, one batch, everything included",
        lambda: _command("simulate", DEMO, "--batches", "1"),
        target_bytes=_GIGABYTE,
        yardstick="python",
    ),
)

SCALING: tuple[tuple[str, Yardstick, Callable[[_Step], Prepared]], ...] = (
    ("plan", "numpy", _plan),
    ("price", "numpy", _pricing),
    ("replay", "numpy", _replay),
    ("engine", "simpy", _engine),
)
"""What is measured at every number of GPUs of SCALING_GPUS."""
