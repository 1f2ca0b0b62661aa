"""The same steps again with other machines and moments: how far what is drawn at random moves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.errors import UserInputError
from hdpsim.experiments.output.document import Column, Document, Table, interval
from hdpsim.experiments.output.statistics import FEWEST, Estimate, estimate, paired_ratio
from hdpsim.experiments.studies.comparing.compare import Report, counted, reported, silent
from hdpsim.experiments.studies.step_report import ratio_words
from hdpsim.simulator.planning import planning_problem
from hdpsim.simulator.playing import play_plan
from hdpsim.simulator.pricing import price_plan
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import StepResult

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.studies.comparing.compare import Comparison, Lengths, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """A strategy in all replications.

    Attributes:
        strategy: as its row is called.
        seconds: [replications]: mean step over the batches.
        base: those of the strategy that speed-ups are relative to, replication by replication.
    """

    strategy: str
    seconds: tuple[float, ...]
    base: tuple[float, ...]

    @property
    def step_s(self) -> Estimate:
        """Over the replications."""
        return estimate(self.seconds)

    @property
    def speed_up(self) -> Estimate:
        """Ratio of steps replication by replication: both meet the same machines and moments, which cancel out."""
        return paired_ratio(self.base, self.seconds)

    @property
    def saved_s(self) -> Estimate:
        """The speed-up as seconds saved."""
        return estimate([base - own for base, own in zip(self.base, self.seconds, strict=True)])


def replicate(comparison: Comparison, count: int, report: Report = silent) -> tuple[Replicated, ...]:
    """Play the plans of a comparison *count* times, the first time as they were; one row for each that runs.

    Plans and costs stay: what is drawn anew are slow nodes, unequal GPUs, jitter, pauses and slow periods.

    Raises:
        UserInputError: nothing is drawn at random.
    """
    _refuse_if_nothing_is_drawn(comparison.scenario)
    outcomes = comparison.feasible
    played = counted(report, len(outcomes) * count * comparison.batches)
    seconds = [_seconds(outcome, count, played) for outcome in outcomes]
    return tuple(
        Replicated(strategy=outcome.strategy, seconds=step_s, base=seconds[0])
        for outcome, step_s in zip(outcomes, seconds, strict=True)
    )


def replicate_runs(
    scenario: Scenario, steps: int, count: int, report: Report = silent
) -> tuple[Replicated, ...]:
    """Play a run of so many steps on one clock *count* times; seconds are means of the steps after the warm-up.

    What lasts over several steps makes the steps of one run alike, so that their spread says little about the next
    run's mean. Runs are independent.

    Raises:
        UserInputError: nothing is drawn at random.
    """
    from .run import simulate_many

    _refuse_if_nothing_is_drawn(scenario)
    seconds = []
    for number in reported(range(count), report, count):
        other = replace(scenario, execution=replace(scenario.execution, replication=number))
        seconds.append(simulate_many(other, steps).period_s.mean)
    return (Replicated(strategy=scenario.strategy.name, seconds=tuple(seconds), base=tuple(seconds)),)


def _refuse_if_nothing_is_drawn(scenario: Scenario) -> None:
    if scenario.execution.draws_nothing:
        raise UserInputError(
            "--replications: nothing is drawn at random here; set execution.node_jitter, step_jitter, jitter, "
            "slow_period_share, gpu_spread, slow_node_share or gc_pause"
        )


def with_replications(document: Document, rows: Sequence[Replicated], place: int = 1) -> Document:
    """The document with what the replications say in that place of its blocks; the same without any."""
    if not rows:
        return document
    table, blocks = replications_table(rows), document.blocks
    payload = {**document.payload, "replications": table.records()}
    return replace(document, blocks=(*blocks[:place], table, *blocks[place:]), payload=payload)


def _seconds(outcome: Outcome, count: int, played: Callable[[], None]) -> tuple[float, ...]:
    assert outcome.setup is not None
    by_batch = [
        _replays(outcome.setup.at_step(number), lengths, result, count, played)
        for number, (lengths, result) in enumerate(zip(outcome.lengths, outcome.results, strict=True))
    ]
    return tuple(np.mean(by_batch, axis=0).tolist())


def _replays(
    setup: Setup, lengths: Lengths, result: StepResult, count: int, played: Callable[[], None]
) -> Sequence[float]:
    costs = price_plan(setup, planning_problem(setup, lengths), result.plan)
    steps_s = []
    for number in range(count):
        other = replace(setup, execution=replace(setup.execution, replication=number))
        steps_s.append(play_plan(other, result.plan, costs).step_s)
        played()
    return steps_s


def replications_table(rows: Sequence[Replicated]) -> Table[Replicated]:
    """How far chance moves each strategy, and the speed-ups without what it does to both."""
    base, count = rows[0], len(rows[0].seconds)
    pairs = (
        f"95 % confidence, speed-ups over {base.strategy} in pairs"
        if count >= FEWEST
        else "ranges in brackets"
    )
    columns: tuple[Column[Replicated], ...] = (
        Column("strategy"),
        Column("step_s", heading="step", unit="s", format=interval(3), ci95=True),
        Column("", lambda row: row.step_s.lowest, heading="fastest s", format=".3f"),
        Column("", lambda row: row.step_s.highest, heading="slowest s", format=".3f"),
        Column("", lambda row: ratio_words(row.speed_up, 3, of_base=row is base), heading="speed-up"),
        Column("speed_up", shown=False, ci95=True),
        Column("saved_s", shown=False, ci95=True),
    )
    return Table(
        title=f"{count} replications with other machines and moments ({pairs})", columns=columns, rows=rows
    )
