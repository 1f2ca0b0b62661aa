"""Throughput against the number of GPUs, for a fixed batch (strong) or one that grows with them (weak)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdpsim.errors import InfeasibleError
from hdpsim.experiments.output.statistics import Estimate, estimate_json, with_interval
from hdpsim.experiments.output.tables import Table
from hdpsim.experiments.output.words import memory_of
from hdpsim.experiments.studies.compare import Report, silent
from hdpsim.experiments.studies.report import averaging, band_lines, noise_note, one_line, outcome_json
from hdpsim.experiments.studies.static_rows import (
    best_json,
    best_words,
    first_batch_best,
    mesh_lines,
    over_best_words,
)
from hdpsim.experiments.studies.variants import Variant, data_json, data_lines, run_variants

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.data_use import Drawn
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.studies.baseline import Baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Points of one or more strategies over the same GPU counts (ascending)."""

    gpus: tuple[int, ...]
    weak: bool
    points: dict[str, tuple[Variant, ...]]
    best: tuple[Baseline | None, ...] = ()
    """The best static mesh of every point on its first batch; empty when nobody looked for it."""

    def tokens_per_s(self) -> dict[str, list[float | None]]:
        """Mean throughput of every strategy and point; None where it cannot run."""
        return {
            strategy: [v.outcome.tokens_per_s.mean if v.feasible else None for v in variants]
            for strategy, variants in self.points.items()
        }

    def efficiency_estimates(self) -> dict[str, list[Estimate | None]]:
        """Throughput per GPU relative to the smallest point of the same strategy that ran."""
        result: dict[str, list[Estimate | None]] = {}
        for strategy, variants in self.points.items():
            first = next((i for i, variant in enumerate(variants) if variant.feasible), 0)
            ratios = [variant.speed_up(variants[first]) for variant in variants]
            result[strategy] = [
                None if ratio is None else ratio.scaled(self.gpus[first] / gpus)
                for ratio, gpus in zip(ratios, self.gpus, strict=True)
            ]
        return result

    def efficiency(self) -> dict[str, list[float | None]]:
        """The same without intervals."""
        return {
            strategy: [None if value is None else value.mean for value in row]
            for strategy, row in self.efficiency_estimates().items()
        }

    def best_at(self, place: int) -> Baseline | None:
        """The best static mesh on so many GPUs."""
        return self.best[place] if self.best else None

    def half_widths(self) -> dict[str, list[float | None]]:
        """Half widths of the throughput's intervals; empty when there is none."""
        found = {
            strategy: [v.outcome.tokens_per_s.half_width if v.feasible else None for v in variants]
            for strategy, variants in self.points.items()
        }
        return found if any(value is not None for row in found.values() for value in row) else {}

    def speed_ups(self) -> dict[str, list[Estimate | None]]:
        """Throughput relative to the first strategy on as many GPUs and the same batches."""
        base = next(iter(self.points.values()))
        return {
            strategy: [variant.speed_up(its) for variant, its in zip(variants, base, strict=True)]
            for strategy, variants in self.points.items()
        }


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
    baseline: bool = False,
) -> Scaling:
    """Simulate every strategy at every GPU count.

    Strong scaling keeps the global batch; weak scaling grows it in proportion to the scenario's own GPUs.

    Args:
        scenario: what to simulate.
        gpus: numbers of GPUs.
        strategies: names; the first is the base of the speed-ups.
        weak: grow the batch.
        batches: how many global batches; default: the scenario's.
        report: told (done, total) after every simulated step.
        baseline: look for the best static mesh of every point, where other strategies are held against a static one.

    Raises:
        InfeasibleError: no point of any strategy can run.
    """
    counts = tuple(sorted(set(gpus)))
    sets = [(f"{count}", _changes(scenario, count, weak)) for count in counts]
    points: dict[str, tuple[Variant, ...]] = {}
    drawn: dict[str, Drawn] = {}
    for index, strategy in enumerate(strategies):

        def report_all(done: int, total: int, before: int = index) -> None:
            report(before * total + done, len(strategies) * total)

        points[strategy] = run_variants(
            scenario, sets, strategy=strategy, batches=batches, report=report_all, drawn=drawn
        )
    if not any(variant.feasible for variants in points.values() for variant in variants):
        reasons = [
            f"  {variant.label} GPUs: {one_line(variant.outcome.reason)}" for variant in points[strategies[0]]
        ]
        raise InfeasibleError("no number of GPUs can run this scenario:\n" + "\n".join(reasons))
    best: tuple[Baseline | None, ...] = ()
    if baseline and len(points) > 1 and "static" in points:
        best = tuple(first_batch_best(variant, variant.outcome) for variant in points["static"])
    return Scaling(gpus=counts, weak=weak, points=points, best=best)


def scaling_json(scaling: Scaling) -> list[dict[str, Any]]:
    """One object per strategy and GPU count."""
    efficiency, speed_ups = scaling.efficiency_estimates(), scaling.speed_ups()
    rows = []
    for strategy, variants in scaling.points.items():
        for i, (gpus, variant) in enumerate(zip(scaling.gpus, variants, strict=True)):
            own, ratio = efficiency[strategy][i], speed_ups[strategy][i]
            rows.append(
                {
                    "gpus": gpus,
                    "efficiency": None if own is None else own.mean,
                    "efficiency_vs_own_start": own and estimate_json(own),
                    "speed_up": ratio and estimate_json(ratio),
                    "data": data_json(variant),
                    **best_json(variant.outcome, scaling.best_at(i)),
                    **outcome_json(variant.outcome),
                }
            )
    return rows


def scaling_table(scaling: Scaling) -> Table:
    """Rows of strategy and GPU count; points that cannot run carry their reason."""
    efficiency, speed_ups = scaling.efficiency_estimates(), scaling.speed_ups()
    base, several = next(iter(scaling.points)), len(scaling.points) > 1
    rows: list[tuple[str, ...]] = []
    for strategy, variants in scaling.points.items():
        for i, (gpus, variant) in enumerate(zip(scaling.gpus, variants, strict=True)):
            share, ratio = efficiency[strategy][i], speed_ups[strategy][i]
            if share is None:
                reason = f"cannot run: {one_line(variant.outcome.reason)}"
                dashes = ("-",) * (6 + several + bool(scaling.best))
                rows.append((strategy, f"{gpus:,}", *dashes, reason))
                continue
            outcome = variant.outcome
            over = () if not several else ("-" if ratio is None else with_interval(ratio, digits=2),)
            rows.append(
                (
                    strategy,
                    f"{gpus:,}",
                    f"{outcome.step_s.mean:.3f}",
                    with_interval(outcome.tokens_per_s),
                    f"{outcome.tokens_per_s.mean / gpus:,.1f}",
                    f"{outcome.mfu:.1%}",
                    *(("1",) if several and strategy == base else over),
                    *((over_best_words(outcome, scaling.best_at(i)),) if scaling.best else ()),
                    "100%" if share.mean == 1.0 else f"{with_interval(share, 100, 1)}%",
                    memory_of(outcome.results[0].memory),
                    outcome.mesh.words if outcome.mesh else "",
                )
            )
    over_base = [f"over {base}"] if several else []
    if scaling.best:
        over_base.append("over best static")
    heads = (
        "strategy", "GPUs", "step s", "tokens/s", "tok/s/GPU", "MFU", *over_base, "own start", "memory", "remark",
    )  # fmt: skip
    kind = "Weak scaling (batch grows with the GPUs)" if scaling.weak else "Strong scaling (batch fixed)"
    ran = next(v.outcome for variants in scaling.points.values() for v in variants if v.feasible)
    kind += f"; {averaging(len(ran.results), ran.independent)}"
    last = len(heads) - 1
    width = last + 1 if any(row[-1] for row in rows) else last
    rows = [row[:width] for row in rows]
    return Table(title=kind, columns=heads[:width], rows=tuple(rows), left=frozenset({0, last}))


def scaling_lines(scaling: Scaling, scenario: Scenario) -> tuple[str, ...]:
    """What a reader of the table must know."""
    everything = [variant for variants in scaling.points.values() for variant in variants]
    first = [next((v.outcome for v in variants if v.feasible), None) for variants in scaling.points.values()]
    lines = [
        "own start: tokens/s per GPU relative to the smallest number of GPUs on which the same strategy runs.",
    ]
    if len(scaling.points) > 1:
        lines.append(
            "It does not rank strategies: a slow one that stays as slow has 100 %. What ranks them is tokens/s per GPU."
        )
    noise = noise_note(scenario)
    return (
        *lines,
        *_static_lines(scaling, everything),
        *([noise] if noise else []),
        *data_lines(everything),
        *band_lines(outcome for outcome in first if outcome is not None),
    )


def _static_lines(scaling: Scaling, variants: Sequence[Variant]) -> list[str]:
    if not scaling.best:
        return list(mesh_lines(v.outcome.mesh.packing for v in variants if v.outcome.mesh))
    found = [
        f"{gpus:,} GPUs: {best_words(best)}"
        for gpus, best in zip(scaling.gpus, scaling.best, strict=True)
        if best is not None
    ]
    if not found:
        return []
    return [
        "over best static: on the first batch, relative to the fastest static mesh of as many GPUs (packers and "
        "context-parallel degrees as `hdpsim compare` tries them):",
        *(f"  {line}" for line in found),
    ]
