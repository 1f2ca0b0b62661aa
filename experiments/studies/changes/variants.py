"""Simulating variants of one scenario: the shared part of what-if tables and scaling studies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.hardware.prices import CostOptions
from hdpsim.errors import InfeasibleError, ScenarioError
from hdpsim.experiments.output.statistics import Estimate, fixed
from hdpsim.experiments.studies.comparing.compare import Outcome, Report, counted, run_batches

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.data_use import Drawn
    from hdpsim.experiments.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A changed scenario and how it did.

    Attributes:
        scenario: None when the change itself is infeasible.
        drawn: the batches it saw, the same object for variants that saw the same; None when there are none.
    """

    label: str
    changes: tuple[str, ...]
    scenario: Scenario | None
    outcome: Outcome
    drawn: Drawn | None = None

    @property
    def costs(self) -> CostOptions:
        """How money and energy of the variant are counted."""
        return CostOptions() if self.scenario is None else self.scenario.costs

    @property
    def feasible(self) -> bool:
        """Whether it ran."""
        return bool(self.outcome.results)

    def paired_with(self, other: Variant) -> bool:
        """Whether both saw the very same batches."""
        return self.drawn is not None and self.drawn is other.drawn

    def speed_up(self, base: Variant) -> Estimate | None:
        """Throughput relative to *base*: batch by batch, or of the means alone where the batches are others."""
        if not (self.feasible and base.feasible):
            return None
        if self.paired_with(base):
            return self.outcome.speed_up(base.outcome)
        return fixed(self.outcome.tokens_per_s.mean / base.outcome.tokens_per_s.mean)


def run_variants(
    base: Scenario,
    changes: Sequence[tuple[str, tuple[str, ...]]],
    *,
    strategies: Sequence[str | None] = (None,),
    batches: int | None = None,
    report: Report,
    contradictions: bool = False,
    links: bool = False,
) -> list[tuple[Variant, ...]]:
    """Simulate *base* under every set of changes with each strategy; what cannot run yields its reason.

    Variants whose data sections agree see the very same batches.

    Args:
        base: the scenario to change.
        changes: pairs of a label and ``key=value`` texts.
        strategies: each gets all of them; None: the scenario's own.
        batches: global batches to average over; default: the scenario's.
        report: told (done, total) after every simulated step.
        contradictions: changes whose keys contradict each other yield their reason too, instead of an error.
        links: record every link in the first batch (flows only).
    """
    resolved: list[tuple[str, tuple[str, ...], Scenario | InfeasibleError]] = []
    for label, overrides in changes:
        try:
            resolved.append((label, overrides, base.with_changes(overrides)))
        except InfeasibleError as error:
            resolved.append((label, overrides, error))
        except ScenarioError as error:
            if not contradictions:
                raise
            resolved.append((label, overrides, InfeasibleError("\n".join(map(": ".join, error.problems)))))
    counts = [0 if isinstance(s, InfeasibleError) else batches or s.batch_count for _, _, s in resolved]
    step_done = counted(report, sum(counts) * len(strategies))
    drawn: dict[str, Drawn] = {}
    by_strategy = []
    for strategy in strategies:
        variants = []
        for label, overrides, scenario in resolved:
            if isinstance(scenario, InfeasibleError):
                outcome = Outcome(strategy=strategy or base.strategy.name, reason=str(scenario))
                variants.append(Variant(label=label, changes=overrides, scenario=None, outcome=outcome))
                continue
            count = batches or scenario.batch_count
            key = json.dumps([scenario.document["data"], count])
            if key not in drawn:
                drawn[key] = scenario.draw(count)
            seen = drawn[key]
            outcome = run_batches(
                scenario, seen.lengths, strategy, step_done, links=links, independent=not seen.use.repeated
            )
            variants.append(
                Variant(label=label, changes=overrides, scenario=scenario, outcome=outcome, drawn=seen)
            )
        by_strategy.append(tuple(variants))
    return by_strategy


def data_lines(variants: Iterable[Variant]) -> tuple[str, ...]:
    """What the batches of all variants make of their data, each sentence once, with the variants it is about."""
    by_line: dict[str, list[str]] = {}
    several = list(variants)
    for variant in several:
        for line in variant.drawn.use.lines if variant.drawn is not None else ():
            by_line.setdefault(line, []).append(variant.label)
    ran = sum(variant.drawn is not None for variant in several)
    return tuple(
        line if len(labels) == ran else f"{', '.join(dict.fromkeys(labels))}: {line}"
        for line, labels in by_line.items()
    )


def data_json(variant: Variant) -> dict[str, Any] | None:
    """How one variant uses its data, as JSON data."""
    return None if variant.drawn is None else variant.drawn.use.document()
