"""Strategies against each other on the same global batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from hdpsim.errors import HdpSimError, InfeasibleError, OwnPlanError, StrategyError
from hdpsim.experiments.bands.band import Band
from hdpsim.experiments.bands.residuals import setup_band
from hdpsim.experiments.output.statistics import Estimate, estimate, ratio_of_sums
from hdpsim.experiments.studies.links.over_steps import LinksOverSteps
from hdpsim.simulator.hidden_settings import hidden_settings
from hdpsim.simulator.lower_bound import lower_bound_s
from hdpsim.simulator.planning import settled_degree
from hdpsim.simulator.playing import wired
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import StepResult, simulate_step
from hdpsim.simulator.strategies.static.outlier_queues import OutlierQueues, delayed_batches

from .strategy_variants import read_variants

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.data_use import DataUse, Drawn
    from hdpsim.experiments.scenario.scenario import Scenario

    from .baseline import Baseline
    from .other_degrees import OtherDegree
    from .other_kinds import OtherKind


DEFAULT_STRATEGIES = ("static", "hdp-naive", "hdp-balance", "hdp-opt")

BEST_STATIC = "best-static"
"""The row of the fastest static mesh that was found; see `baseline`."""

Lengths = NDArray[np.int64]
Item = TypeVar("Item")
Report = Callable[[int, int], None]
"""Told (done, total) after every simulated step."""


def silent(done: int, total: int) -> None:
    """Report to nobody."""


def counted(report: Report, total: int) -> Callable[[], None]:
    """What to call after each of *total* steps, so that *report* is told how many are done."""
    done = count(1)
    return lambda: report(next(done), total)


def reported(items: Iterable[Item], report: Report, total: int) -> Iterator[Item]:
    """The items one by one; *report* hears how many of them are done with."""
    for done, item in enumerate(items, start=1):
        yield item
        report(done, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """What decides how fast a static mesh is, besides the layout: packer, padding, context-parallel degree."""

    packing: str
    padding: bool
    cp: int

    @property
    def words(self) -> str:
        """For a sentence: `in-order packing, padded, CP 8`."""
        return f"{self.packing} packing, {'padded' if self.padding else 'not padded'}, CP {self.cp}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One strategy over all batches, or the reason why it cannot run."""

    strategy: str
    results: tuple[StepResult, ...] = ()
    reason: str = ""
    """Why it cannot run; empty when it ran."""
    error: HdpSimError | None = None
    """Of a strategy of one's own that failed, or whose plan broke a promise: what it did."""
    band: Band | None = None
    """How well runs like it were predicted, for the first batch; None when it cannot run, or one's own planned it."""
    setup: Setup | None = None
    lengths: tuple[Lengths, ...] = ()
    """What was simulated, and the batches; only of a strategy that ran."""
    links: LinksOverSteps | None = None
    """What they carried in all batches, of several whose transfers share links."""
    mesh: Mesh | None = None
    """The mesh of a static strategy that ran."""
    independent: bool = True
    """Whether the batches are independent samples; no interval if not."""

    @property
    def tokens_per_s(self) -> Estimate:
        """Throughput of a run of all batches: all their tokens over all their seconds."""
        return ratio_of_sums([self._each("tokens")], [self._each("step_s")], independent=self.independent)

    @property
    def step_s(self) -> Estimate:
        """Step time over the batches."""
        return estimate(self._each("step_s"), independent=self.independent)

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation, causal attention, of a run of all batches."""
        return float(np.average(self._each("mfu"), weights=self._each("step_s")))

    @property
    def mfu_full(self) -> float:
        """MFU, counting the full attention square."""
        return float(np.average(self._each("mfu_full"), weights=self._each("step_s")))

    def _each(self, name: str) -> list[float]:
        """One field of the results, batch by batch."""
        return [float(getattr(result, name)) for result in self.results]

    @cached_property
    def hidden_notes(self) -> tuple[str, ...]:
        """A sentence for every setting whose effect is hidden in all batches; worked out when asked for."""
        return () if self.setup is None else hidden_settings(self.setup, self.lengths, self.results)

    @cached_property
    def lower_bounds_s(self) -> tuple[float, ...]:
        """For every batch the time below which no plan of it can be, without noise; worked out when asked for."""
        assert self.setup is not None
        is_own = self.setup.strategy.is_own  # may cut sequences, whose parts have less attention
        return tuple(
            lower_bound_s(self.setup, result.plan.segment_tokens if is_own else lengths)
            for lengths, result in zip(self.lengths, self.results, strict=True)
        )

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

    @property
    def work_left_out(self) -> float:
        """Share of the model FLOP that a packer saves by splitting sequences, mean over the batches."""
        return float(np.mean([result.work_left_out for result in self.results]))

    def account_s(self) -> dict[str, float]:
        """Seconds of a step in each account, mean over ranks, stages and batches; they sum to the mean step."""
        return mean_accounts(self.results)

    def shares(self) -> dict[str, float]:
        """Shares of the step by kind: compute, exposed communication, overhead, waiting; they sum to 1."""
        from hdpsim.experiments.output.plots.style import ACCOUNT_GROUPS, account_group

        seconds = dict.fromkeys(ACCOUNT_GROUPS, 0.0)
        for account, mean_s in self.account_s().items():
            seconds[account_group(account)] += mean_s
        total_s = sum(seconds.values())
        return {name: part / total_s for name, part in seconds.items()}

    def speed_up(self, base: Outcome) -> Estimate:
        """Throughput of a run of all batches relative to *base* on the same ones."""
        over, under = (
            (self._each("tokens"), base._each("step_s")),
            (self._each("step_s"), base._each("tokens")),
        )
        return ratio_of_sums(over, under, independent=self.independent)


def mean_accounts(results: Sequence[StepResult]) -> dict[str, float]:
    """Seconds of a step in each account, mean over ranks, stages and results."""
    totals: dict[str, float] = {}
    for result in results:
        for account, mean_s in zip(result.accounts, result.account_s.mean(axis=(1, 2)), strict=True):
            totals[account] = totals.get(account, 0.0) + float(mean_s)
    return {account: total_s / len(results) for account, total_s in totals.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All strategies of one comparison, in the order asked for; the best static mesh follows `static`."""

    scenario: Scenario
    outcomes: tuple[Outcome, ...]
    drawn: Drawn
    """The global batches all of them saw."""
    baseline: Baseline | None = None
    """What was tried to find the best static mesh; None when nobody asked, or none can run."""
    other_degree: OtherDegree | None = None
    """A static mesh of another tensor-parallel degree that is clearly faster; None when nobody asked, or none is."""
    other_kind: OtherKind | None = None
    """A static mesh of another `layout.cp_kind` that is clearly faster; None when nobody asked, or none is."""

    @property
    def lengths(self) -> tuple[Lengths, ...]:
        """Lengths of every batch."""
        return self.drawn.lengths

    @property
    def use(self) -> DataUse:
        """What the batches make of their source."""
        return self.drawn.use

    @property
    def batches(self) -> int:
        """How many global batches."""
        return len(self.lengths)

    @property
    def error(self) -> HdpSimError | None:
        """What the first strategy of one's own did wrong, if one did."""
        return next((outcome.error for outcome in self.outcomes if outcome.error is not None), None)

    @property
    def feasible(self) -> tuple[Outcome, ...]:
        """The strategies that ran; the first one is the base of the speed-ups."""
        return tuple(outcome for outcome in self.outcomes if outcome.results)

    @property
    def base(self) -> Outcome:
        """What the speed-ups are relative to."""
        return self.feasible[0]

    @property
    def best_static(self) -> Outcome | None:
        """The fastest static mesh: found, as the scenario has it, or a variant; None when it was not looked for."""
        if self.baseline is None:
            return None
        meshes = (outcome for outcome in self.feasible if outcome.mesh is not None)
        return max((self.baseline.best, *meshes), key=lambda outcome: outcome.tokens_per_s.mean)


def run_batches(
    scenario: Scenario,
    batches: Sequence[Lengths],
    strategy: str | None = None,
    report: Callable[[], None] = lambda: None,
    *,
    spans: bool = False,
    links: bool = False,
    independent: bool = True,
    before: Outcome | None = None,
) -> Outcome:
    """Simulate one strategy (or a variant) on every batch; one that cannot run yields its reason, not an error."""
    name = strategy or scenario.strategy.name
    try:
        setup = scenario.setup(strategy) if "(" not in name else read_variants([name])[0].setup(scenario)
    except InfeasibleError as error:
        return Outcome(strategy=name, reason=str(error))
    shown = {"spans": spans, "links": links}
    return run_setup(setup, batches, name, report, **shown, independent=independent, before=before)


def run_setup(
    setup: Setup,
    batches: Sequence[Lengths],
    name: str,
    report: Callable[[], None] = lambda: None,
    *,
    spans: bool = False,
    links: bool = False,
    independent: bool = True,
    before: Outcome | None = None,
) -> Outcome:
    """Simulate a setup on all batches; equal ones are simulated once, unless every step draws something anew.

    Args:
        setup: what to simulate.
        batches: sequence lengths.
        name: of the row.
        report: called after every batch.
        spans: record every operation of the first batch (executor engine only).
        links: record every link in the first batch (flows only).
        independent: whether the batches are independent samples.
        before: what became of this setup on some of the batches, to be taken from there.
    """
    batches = strategy_batches(setup, batches)
    known: dict[tuple[bytes, int], StepResult] = {}
    results: list[StepResult] = []
    several = setup.execution.network == "flows" and len(batches) > 1
    loads = LinksOverSteps(wired(setup).links) if several else None
    try:
        degree = settled_degree(setup, batches[0]) if len(batches) > 1 else None
        if before is not None and degree is None:  # what a run settles, its mesh, was free there
            for number, (lengths, result) in enumerate(zip(before.lengths, before.results, strict=True)):
                known[lengths.tobytes(), setup.at_step(number).execution.step] = result
        for number, lengths in enumerate(batches):
            at_step = setup.at_step(number)
            key = (lengths.tobytes(), at_step.execution.step)
            if key not in known:
                first = number == 0
                seen = links and first and at_step.execution.network == "flows"
                options = replace(at_step.execution, spans=spans and first, record_links=seen)
                recorded = replace(at_step, execution=options)
                known[key] = simulate_step(recorded, lengths, mesh_degree=degree)
            result = known[key]
            if loads is not None and result.network is not None:
                shared = loads.add([number + 1], result.network, result.step_s)
                result = replace(result, network=shared)
            results.append(result)
            report()
    except InfeasibleError as error:
        return Outcome(strategy=name, reason=str(error))
    return Outcome(
        strategy=name,
        results=tuple(results),
        band=setup_band(setup, batches[0]) if results and not setup.strategy.is_own else None,
        mesh=_mesh(setup, results),
        independent=independent,
        setup=setup,
        lengths=tuple(batches),
        links=loads,
    )


def strategy_batches(setup: Setup, batches: Sequence[Lengths]) -> Sequence[Lengths]:
    """The batches that the setup's strategy trains on: those drawn, unless long documents wait for later ones."""
    if OutlierQueues.of(setup) is None:
        return batches
    return delayed_batches(batches, setup.strategy.outlier_queues, setup.context_tokens)


def _mesh(setup: Setup, results: Sequence[StepResult]) -> Mesh | None:
    options = setup.strategy
    if options.name != "static" or not results:
        return None
    return Mesh(packing=options.packing, padding=options.padding, cp=results[0].largest_group)


def compare(
    scenario: Scenario,
    strategies: Sequence[str] = DEFAULT_STRATEGIES,
    batches: int | None = None,
    report: Report = silent,
    *,
    spans: bool = False,
    links: bool = False,
    baseline: bool = False,
) -> Comparison:
    """Simulate every strategy on the same global batches.

    Args:
        scenario: what to simulate.
        strategies: names, or variants such as static(cp=8); the first that can run is the base of the speed-ups.
        batches: how many global batches; default: the scenario's.
        report: told (done, total) after every simulated step.
        spans: record every operation of the first batch (executor engine only).
        links: record every link in the first batch (flows only).
        baseline: look for the fastest static mesh, and give it a row when it is not the scenario's own.

    A strategy of one's own that fails is a row with its reason and its error; the others go on.

    Raises:
        InfeasibleError: no strategy can run.
        StrategyError, OwnPlanError: none did, and one's own is wrong.
    """
    from .baseline import best_static
    from .other_degrees import faster_degree
    from .other_kinds import faster_kind

    drawn = scenario.draw(batches)
    lengths, independent = drawn.lengths, not drawn.use.repeated
    step_done = counted(report, len(strategies) * len(lengths))

    def outcome_of(strategy: str) -> Outcome:
        try:
            return run_batches(
                scenario, lengths, strategy, step_done, spans=spans, links=links, independent=independent
            )
        except (StrategyError, OwnPlanError) as error:
            return Outcome(strategy=strategy, reason=str(error), error=error)

    outcomes = [outcome_of(strategy) for strategy in strategies]
    if not any(outcome.results for outcome in outcomes):
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        reasons = "\n".join(f"  {outcome.strategy}: {outcome.reason}" for outcome in outcomes)
        raise InfeasibleError(
            f"no strategy can run this scenario:\n{reasons}\n"
            "`hdpsim check` looks for the nearest change that makes it run"
        )
    static_baseline = None
    if baseline and "static" in strategies:
        place = list(strategies).index("static")
        static_baseline = best_static(
            scenario, lengths, outcomes[place], links=links, independent=independent
        )
        if static_baseline is not None and static_baseline.best is not outcomes[place]:
            outcomes.insert(place + 1, static_baseline.best)
    comparison = Comparison(
        scenario=scenario, outcomes=tuple(outcomes), drawn=drawn, baseline=static_baseline
    )
    best = comparison.best_static
    if static_baseline is None or best is None or len(strategies) == 1:
        return comparison
    return replace(
        comparison,
        other_degree=faster_degree(scenario, lengths, best),
        other_kind=faster_kind(scenario, lengths, best),
    )
