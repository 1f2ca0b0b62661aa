"""Throughput against the number of GPUs, for a fixed batch (strong) or one that grows with them (weak)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.compare import Report, silent
from experiments.report import one_line, outcome_json
from experiments.tables import Table
from experiments.variants import Variant, run_variants
from hdpsim.errors import InfeasibleError

if TYPE_CHECKING:
    from experiments.scenario import Scenario

__all__ = ["Scaling", "scale", "scaling_json", "scaling_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Points of one or more strategies over the same GPU counts (ascending)."""

    gpus: tuple[int, ...]
    weak: bool
    points: dict[str, tuple[Variant, ...]]

    def tokens_per_s(self) -> dict[str, list[float | None]]:
        """Mean throughput of every strategy and point; None where it cannot run."""
        return {
            strategy: [v.outcome.tokens_per_s.mean if v.feasible else None for v in variants]
            for strategy, variants in self.points.items()
        }

    def efficiency(self) -> dict[str, list[float | None]]:
        """Throughput per GPU relative to the smallest point of the same strategy that ran."""
        result: dict[str, list[float | None]] = {}
        for strategy, throughput in self.tokens_per_s().items():
            per_gpu = [None if t is None else t / g for t, g in zip(throughput, self.gpus, strict=True)]
            first = next((value for value in per_gpu if value is not None), None)
            result[strategy] = [None if v is None or first is None else v / first for v in per_gpu]
        return result


def _changes(scenario: Scenario, gpus: int, weak: bool) -> tuple[str, ...]:
    if not weak:
        return (f"gpus={gpus}",)
    batch, own_gpus = scenario.data.batch, scenario.cluster.gpus
    if batch.tokens is not None:
        return (f"gpus={gpus}", f"data.batch={max(1, batch.tokens * gpus // own_gpus)} tokens")
    return (f"gpus={gpus}", f"data.batch={max(1, (batch.sequences or 1) * gpus // own_gpus)} sequences")


def scale(
    scenario: Scenario,
    gpus: Sequence[int],
    strategies: Sequence[str],
    *,
    weak: bool = False,
    batches: int | None = None,
    report: Report = silent,
) -> Scaling:
    """Simulate every strategy at every GPU count.

    Strong scaling keeps the global batch; weak scaling grows it in proportion to the scenario's own GPUs.

    Raises:
        InfeasibleError: no point of any strategy can run.
    """
    counts = tuple(sorted(set(gpus)))
    sets = [(f"{count}", _changes(scenario, count, weak)) for count in counts]
    points: dict[str, tuple[Variant, ...]] = {}
    for index, strategy in enumerate(strategies):

        def report_all(done: int, total: int, before: int = index) -> None:
            report(before * total + done, len(strategies) * total)

        points[strategy] = run_variants(scenario, sets, strategy=strategy, batches=batches, report=report_all)
    if not any(variant.feasible for variants in points.values() for variant in variants):
        reasons = [
            f"  {variant.label} GPUs: {one_line(variant.outcome.reason)}" for variant in points[strategies[0]]
        ]
        raise InfeasibleError("no number of GPUs can run this scenario:\n" + "\n".join(reasons))
    return Scaling(gpus=counts, weak=weak, points=points)


def scaling_json(scaling: Scaling) -> list[dict[str, Any]]:
    """One object per strategy and GPU count."""
    efficiency = scaling.efficiency()
    return [
        {"gpus": gpus, "efficiency": efficiency[strategy][i], **outcome_json(variant.outcome)}
        for strategy, variants in scaling.points.items()
        for i, (gpus, variant) in enumerate(zip(scaling.gpus, variants, strict=True))
    ]


def scaling_table(scaling: Scaling) -> Table:
    """Rows of strategy and GPU count; points that cannot run carry their reason."""
    efficiency = scaling.efficiency()
    rows: list[tuple[str, ...]] = []
    for strategy, variants in scaling.points.items():
        for i, (gpus, variant) in enumerate(zip(scaling.gpus, variants, strict=True)):
            share = efficiency[strategy][i]
            if share is None:
                reason = f"cannot run: {one_line(variant.outcome.reason)}"
                rows.append((strategy, f"{gpus:,}", "-", "-", "-", "-", "-", reason))
                continue
            outcome = variant.outcome
            rows.append(
                (
                    strategy,
                    f"{gpus:,}",
                    f"{outcome.step_s.mean:.3f}",
                    f"{outcome.tokens_per_s.mean:,.0f}",
                    f"{outcome.tokens_per_s.mean / gpus:,.1f}",
                    f"{outcome.mfu:.1%}",
                    f"{share:.1%}",
                    "",
                )
            )
    heads = ("strategy", "GPUs", "step s", "tokens/s", "tokens/s/GPU", "MFU", "efficiency", "remark")
    kind = "Weak scaling (batch grows with the GPUs)" if scaling.weak else "Strong scaling (batch fixed)"
    width = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
    rows = [row[:width] for row in rows]
    return Table(title=kind, columns=heads[:width], rows=tuple(rows), left=frozenset({0, 7}))
