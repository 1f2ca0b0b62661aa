"""Simulating variants of one scenario: the shared part of what-if tables and scaling studies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.compare import Lengths, Outcome, Report, run_batches
from hdpsim.errors import InfeasibleError, ScenarioError

if TYPE_CHECKING:
    from experiments.scenario import Scenario

__all__ = ["Variant", "run_variants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A changed scenario and how it did.

    Attributes:
        scenario: None when the change itself is infeasible.
    """

    label: str
    changes: tuple[str, ...]
    scenario: Scenario | None
    outcome: Outcome

    @property
    def feasible(self) -> bool:
        """Whether it ran."""
        return bool(self.outcome.results)


def run_variants(
    base: Scenario,
    changes: Sequence[tuple[str, tuple[str, ...]]],
    *,
    strategy: str | None = None,
    batches: int | None = None,
    report: Report,
    contradictions: bool = False,
) -> tuple[Variant, ...]:
    """Simulate *base* under every set of changes; what cannot run yields its reason.

    Variants whose data sections agree see the very same batches.

    Args:
        base: the scenario to change.
        changes: pairs of a label and ``key=value`` texts.
        strategy: instead of the scenario's own.
        batches: global batches to average over; default: the scenario's.
        report: told (done, total) after every simulated step.
        contradictions: changes whose keys contradict each other yield their reason too, instead of an error.
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
    done, total = 0, sum(counts)

    def step_done() -> None:
        nonlocal done
        done += 1
        report(done, total)

    drawn: dict[str, tuple[Lengths, ...]] = {}
    variants = []
    for label, overrides, scenario in resolved:
        if isinstance(scenario, InfeasibleError):
            name = strategy or base.strategy.name
            outcome = Outcome(strategy=name, reason=str(scenario))
            variants.append(Variant(label=label, changes=overrides, scenario=None, outcome=outcome))
            continue
        count = batches or scenario.batch_count
        key = json.dumps([scenario.document["data"], count])
        if key not in drawn:
            drawn[key] = scenario.batches(count)
        outcome = run_batches(scenario, drawn[key], strategy, step_done)
        variants.append(Variant(label=label, changes=overrides, scenario=scenario, outcome=outcome))
    return tuple(variants)
