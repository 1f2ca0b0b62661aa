"""Strategies against each other on the same global batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.fidelity import Band
from experiments.fidelity_file import setup_band
from hdpsim.errors import InfeasibleError
from simulator.lower_bound import lower_bound_s
from simulator.setup import Setup
from simulator.simulate import StepResult, simulate_step

if TYPE_CHECKING:
    from experiments.scenario import Scenario

__all__ = [
    "DEFAULT_STRATEGIES",
    "Comparison",
    "Estimate",
    "Outcome",
    "compare",
    "estimate",
    "run_batches",
    "silent",
]

DEFAULT_STRATEGIES = ("static", "hdp-naive", "hdp-balance")

CONFIDENCE = 0.95

Lengths = NDArray[np.int64]
Report = Callable[[int, int], None]
"""Told (done, total) after every simulated step."""


def silent(done: int, total: int) -> None:
    """Report to nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over batches and the half width of its 95 % confidence interval (None from a single batch)."""

    mean: float
    half_width: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and Student-t confidence interval of independent *values*.

        half width = t(0.975, n - 1) * s / sqrt(n)

    Source: Student, Biometrika 6(1), 1908.
    """
    from scipy.stats import t

    count = len(values)
    mean = float(np.mean(values))
    if count < 2:
        return Estimate(mean=mean, half_width=None)
    quantile = float(t.ppf(0.5 + CONFIDENCE / 2, count - 1))
    return Estimate(mean=mean, half_width=quantile * float(np.std(values, ddof=1)) / math.sqrt(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One strategy over all batches, or the reason why it cannot run."""

    strategy: str
    results: tuple[StepResult, ...] = ()
    reason: str = ""
    """Why it cannot run; empty when it ran."""
    band: Band | None = None
    """How well runs like it were predicted, for the first batch; None when it cannot run."""
    setup: Setup | None = None
    lengths: tuple[Lengths, ...] = ()
    """What was simulated, and the batches; only of a strategy that ran."""

    @property
    def tokens_per_s(self) -> Estimate:
        """Throughput over the batches."""
        return estimate([result.tokens_per_s for result in self.results])

    @property
    def step_s(self) -> Estimate:
        """Step time over the batches."""
        return estimate([result.step_s for result in self.results])

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation, causal attention, mean over the batches."""
        return float(np.mean([result.mfu for result in self.results]))

    @property
    def mfu_full(self) -> float:
        """The same, counting the full attention square."""
        return float(np.mean([result.mfu_full for result in self.results]))

    @property
    def lower_bounds_s(self) -> tuple[float, ...]:
        """For every batch the time below which no plan of it can be, without noise; worked out when asked for."""
        assert self.setup is not None
        return tuple(lower_bound_s(self.setup, lengths) for lengths in self.lengths)

    @property
    def over_bound(self) -> float:
        """How far steps are above the lower bound (0.03 = 3 %), mean over the batches."""
        return float(
            np.mean([r.step_s / s - 1.0 for r, s in zip(self.results, self.lower_bounds_s, strict=True)])
        )

    @property
    def over_plan_ideal(self) -> float | None:
        """How far the planner's busiest rank is above the ideal of plans of its kind; None for a static mesh."""
        planned = [r.makespan_s / r.plan_ideal_s - 1.0 for r in self.results if r.plan_ideal_s > 0]
        return float(np.mean(planned)) if planned else None

    def account_s(self) -> dict[str, float]:
        """Seconds of a step in each account, mean over ranks, stages and batches; they sum to the mean step."""
        totals: dict[str, float] = {}
        for result in self.results:
            means = result.account_s.mean(axis=(1, 2))
            for account, mean_s in zip(result.accounts, means, strict=True):
                totals[account] = totals.get(account, 0.0) + float(mean_s)
        return {account: total_s / len(self.results) for account, total_s in totals.items()}

    def speed_up(self, base: Outcome) -> Estimate:
        """Throughput relative to *base*, paired batch by batch."""
        return estimate(
            [
                mine.tokens_per_s / its.tokens_per_s
                for mine, its in zip(self.results, base.results, strict=True)
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All strategies of one comparison, in the order asked for."""

    scenario: Scenario
    outcomes: tuple[Outcome, ...]
    lengths: tuple[Lengths, ...]
    """The global batches all of them saw."""

    @property
    def batches(self) -> int:
        """How many global batches."""
        return len(self.lengths)

    @property
    def feasible(self) -> tuple[Outcome, ...]:
        """Those that ran; the first one is the base of the speed-ups."""
        return tuple(outcome for outcome in self.outcomes if outcome.results)

    @property
    def base(self) -> Outcome:
        """What the speed-ups are relative to."""
        return self.feasible[0]


def run_batches(
    scenario: Scenario,
    batches: Sequence[Lengths],
    strategy: str | None = None,
    report: Callable[[], None] = lambda: None,
    *,
    spans: bool = False,
) -> Outcome:
    """Simulate one strategy on every batch; a strategy that cannot run yields its reason, not an error."""
    results: list[StepResult] = []
    name = strategy or scenario.strategy.name
    try:
        setup = scenario.setup(strategy)
        for number, lengths in enumerate(batches):
            recorded = replace(setup, execution=replace(setup.execution, spans=spans and number == 0))
            results.append(simulate_step(recorded, lengths))
            report()
    except InfeasibleError as error:
        return Outcome(strategy=name, reason=str(error))
    band = setup_band(setup, batches[0]) if results else None
    return Outcome(strategy=name, results=tuple(results), band=band, setup=setup, lengths=tuple(batches))


def compare(
    scenario: Scenario,
    strategies: Sequence[str] = DEFAULT_STRATEGIES,
    batches: int | None = None,
    report: Report = silent,
    *,
    spans: bool = False,
) -> Comparison:
    """Simulate every strategy on the same global batches.

    Args:
        scenario: what to simulate.
        strategies: names; the first that can run is the base of the speed-ups.
        batches: how many global batches; default: the scenario's.
        report: told (done, total) after every simulated step.
        spans: record every operation of the first batch (executor engine only).

    Raises:
        InfeasibleError: no strategy can run.
    """
    lengths = scenario.batches(batches)
    total = len(strategies) * len(lengths)
    done = 0

    def step_done() -> None:
        nonlocal done
        done += 1
        report(done, total)

    outcomes = tuple(
        run_batches(scenario, lengths, strategy, step_done, spans=spans) for strategy in strategies
    )
    if not any(outcome.results for outcome in outcomes):
        reasons = "\n".join(f"  {outcome.strategy}: {outcome.reason}" for outcome in outcomes)
        raise InfeasibleError(f"no strategy can run this scenario:\n{reasons}")
    return Comparison(scenario=scenario, outcomes=outcomes, lengths=lengths)
