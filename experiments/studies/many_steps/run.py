"""Successive global batches of a scenario on one clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.cost_models.step.data_loading import DataPath
from hdpsim.experiments.bands.residuals import setup_band
from hdpsim.experiments.output.statistics import FEWEST, Estimate
from hdpsim.experiments.output.throughput import RunningThroughput
from hdpsim.experiments.parallel.dispatch import in_order
from hdpsim.experiments.parallel.engines import LocalEngine
from hdpsim.experiments.studies.comparing.compare import Lengths, Report, silent, strategy_batches
from hdpsim.experiments.studies.links.over_steps import LinksOverSteps
from hdpsim.simulator.many_steps.clock import RunStep, run_of
from hdpsim.simulator.many_steps.lanes import Record
from hdpsim.simulator.many_steps.options import RunOptions
from hdpsim.simulator.many_steps.prepared_step import PreparedStep, prepare_step
from hdpsim.simulator.planning import settled_degree
from hdpsim.simulator.playing import wired
from hdpsim.simulator.setup import Setup

if TYPE_CHECKING:
    from hdpsim.experiments.bands.band import Band
    from hdpsim.experiments.scenario.data_use import DataUse
    from hdpsim.experiments.scenario.scenario import Scenario

FEWEST_IN_PARALLEL = 16
"""From so many different batches on processes are worth their start."""

REASONS = ("data", "plan", "checkpoint", "host_memory")
"""What a step may wait for before it begins; wait_REASON_s of a RunStep."""


def warm_up_steps(first: PreparedStep, steps: int, checkpoint_steps: int | None) -> int:
    """Steps before a run of so many has settled, whatever its batches are like.

        1 + q + (stages - 1), and what leaves whole rounds of steps and checkpoint

    The first step waits for a batch that nobody began before it; the next q batches were begun before the first step,
    not a step apart; where stages begin steps on their own, the last one is reached after stages - 1 steps.
    """
    least = 1 + first.path.ahead_steps + first.stages - 1
    if checkpoint_steps is None or steps - least < checkpoint_steps:
        return least
    return least + (steps - least) % checkpoint_steps


def loading_s(step: PreparedStep, storage_bytes_per_s: float) -> float:
    """What loading a step's batch takes while nobody else uses the storage."""
    return max(step.path.loading_s, step.path.read_bytes / storage_bytes_per_s)


def alone_s(step: PreparedStep, storage_bytes_per_s: float) -> float:
    """What each of many steps with this batch takes in closed form (DataPath): nothing comes from the steps before."""
    path, read_s = step.path, loading_s(step, storage_bytes_per_s)
    way = DataPath(loading_s=read_s, planning_s=path.planning_s, ahead_steps=path.ahead_steps)
    return step.step_s + sum(way.exposed_s(step.step_s))


@dataclass(frozen=True, kw_only=True)
class ManySteps:
    """A run of many steps.

    Attributes:
        steps: in order.
        warm_up: how many of them come before the steady state.
        use: what the batches make of their source.
        record: what happened when, if it was asked for.
        planner_busy_s: time the planner worked.
        loaders_busy_s: time the loaders worked.
        moved_bytes: read from and written to the storage.
        host_bytes: the most that the fullest host held, optimizer states apart.
        links: what they carried; None: transfers are independent.
    """

    scenario: Scenario
    strategy: str
    steps: tuple[RunStep, ...]
    warm_up: int
    use: DataUse
    record: Record
    planner_busy_s: float
    loaders_busy_s: float
    moved_bytes: float
    host_bytes: float
    links: LinksOverSteps | None

    @cached_property
    def band(self) -> Band | None:
        """How well steps like these were predicted, for the first batch; None of a strategy of one's own."""
        setup = self.scenario.setup(self.strategy)
        return None if setup.strategy.is_own else setup_band(setup, self.scenario.batches(1)[0])

    @property
    def settled(self) -> tuple[RunStep, ...]:
        """The steps after the warm-up; all where too few are left for a mean."""
        return self.steps[self.warm_up :] if self.has_settled else self.steps

    @property
    def has_settled(self) -> bool:
        """Whether anything is left after the warm-up."""
        return len(self.steps) > self.warm_up + 1

    @property
    def end_s(self) -> float:
        """When the last step ended."""
        return self.steps[-1].end_s

    @cached_property
    def tokens_per_s(self) -> Estimate:
        """Tokens over seconds of the settled steps."""
        running, rates = RunningThroughput(), []
        for row in self.settled:
            running.add(row.step.tokens, row.period_s)
            rates.append(row.step.tokens / row.period_s)
        return self._estimate(running.tokens_per_s, running.half_width(), rates)

    @cached_property
    def period_s(self) -> Estimate:
        """From the end of a step to that of the next, mean of the settled steps."""
        running, periods = RunningThroughput(), [row.period_s for row in self.settled]
        for seconds in periods:
            running.add(1, seconds)
        half = running.half_width()
        mean_s = 1.0 / running.tokens_per_s
        return self._estimate(mean_s, None if half is None else half * mean_s**2, periods)

    def _estimate(self, mean: float, half_width: float | None, values: list[float]) -> Estimate:
        """Repeated data have a range, but no interval."""
        return Estimate(
            mean=mean,
            half_width=None if self.use.repeated or len(values) < FEWEST else half_width,
            lowest=min(values),
            highest=max(values),
            count=len(values),
        )

    @cached_property
    def alone_s(self) -> float:
        """The mean of the settled steps' closed forms: of each as if all were like it, without checkpoints."""
        storage = self.scenario.run.storage_bytes_per_s
        return float(np.mean([alone_s(row.step, storage) for row in self.settled]))

    @property
    def mfu(self) -> float:
        """Model FLOP over what the GPUs could do in the settled steps, causal attention."""
        return self._utilisation("model_flop")

    @property
    def mfu_full(self) -> float:
        """MFU with the full attention square."""
        return self._utilisation("model_flop_full")

    def _utilisation(self, flop: str) -> float:
        total = sum(getattr(row.step, flop) for row in self.settled)
        peak = self.steps[0].step.peak_flop_per_s
        return float(total / (peak * sum(row.period_s for row in self.settled)))

    def wait_s(self, reason: str) -> float:
        """Mean wait of the settled steps for that reason."""
        return float(np.mean([getattr(row, f"wait_{reason}_s") for row in self.settled]))

    def account_s(self) -> dict[str, float]:
        """Seconds of a settled step in each account; they sum to its period."""
        totals: dict[str, float] = {}
        for row in self.settled:
            for account, seconds in row.account_s.items():
                totals[account] = totals.get(account, 0.0) + seconds
        return {account: seconds / len(self.settled) for account, seconds in totals.items()}


def prepare_numbered(
    numbered: tuple[int, Lengths], setup: Setup, options: RunOptions, mesh_degree: int | None
) -> PreparedStep:
    """One step, here or in a worker."""
    number, lengths = numbered
    return prepare_step(setup.at_step(number), lengths, options, mesh_degree=mesh_degree)


def _prepared(
    prepare: Callable[[tuple[int, Lengths]], PreparedStep],
    tasks: Sequence[tuple[int, Lengths]],
    *,
    parallel: bool,
) -> Iterator[PreparedStep]:
    """The steps in the order of their tasks, prepared here or in one process per core."""
    if not parallel:
        yield from map(prepare, tasks)
        return
    with LocalEngine() as engine:
        yield from in_order(engine, prepare, tasks)


def simulate_many(
    scenario: Scenario, steps: int, report: Report = silent, *, record: bool = False
) -> ManySteps:
    """Play the first *steps* global batches of a scenario on one clock.

    Args:
        scenario: what to simulate.
        steps: how many.
        report: told (done, total) after every step.
        record: keep what happened when.

    Raises:
        InfeasibleError: a step cannot run, or finds no room on the hosts.
    """
    drawn, setup = scenario.draw(steps), scenario.setup()
    batches = strategy_batches(setup, drawn.lengths)
    keys = [
        (lengths.tobytes(), setup.at_step(number).execution.step) for number, lengths in enumerate(batches)
    ]
    numbers: dict[tuple[bytes, int], list[int]] = {}
    for number, key in enumerate(keys, start=1):
        numbers.setdefault(key, []).append(number)
    tasks = [(same[0] - 1, batches[same[0] - 1]) for same in numbers.values()]
    prepare = partial(
        prepare_numbered, setup=setup, options=scenario.run, mesh_degree=settled_degree(setup, batches[0])
    )
    # only then is a prepared step small enough to be sent from one process to another
    small = setup.execution.executor == "replay" and setup.execution.network == "independent"
    prepared_steps = _prepared(prepare, tasks, parallel=small and len(tasks) >= FEWEST_IN_PARALLEL)

    links = LinksOverSteps(wired(setup).links) if setup.execution.network == "flows" else None

    def prepared() -> Iterator[PreparedStep]:
        known: dict[tuple[bytes, int], PreparedStep] = {}
        for number, key in enumerate(keys, start=1):
            if key not in known:  # equal batches are prepared once, when the first of them comes
                step = next(prepared_steps)
                if links is not None and step.network is not None:
                    step = replace(step, network=links.add(numbers[key], step.network, step.step_s))
                known[key] = step
            report(number, steps)
            yield known[key]

    run = run_of(setup, prepared(), scenario.run, record=record)
    rows = tuple(run)
    return ManySteps(
        scenario=scenario,
        strategy=scenario.strategy.name,
        steps=rows,
        warm_up=warm_up_steps(rows[0].step, steps, scenario.run.checkpoint_steps),
        use=drawn.use,
        record=run.record,
        planner_busy_s=run.planner_busy_s,
        loaders_busy_s=run.loaders_busy_s,
        moved_bytes=run.storage.moved_bytes,
        host_bytes=float(run.memory.most_bytes),
        links=links,
    )
