"""Throughput against the number of GPUs, for a fixed batch (strong) or one that grows with them (weak)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hdpsim.errors import InfeasibleError
from hdpsim.experiments.output.amounts import memory_of
from hdpsim.experiments.output.document import Column, Document, Table, files_of, interval, only_where
from hdpsim.experiments.output.plots import runs as plots
from hdpsim.experiments.output.statistics import Estimate, bars_in_words, estimate_json, with_interval
from hdpsim.experiments.studies.changes.variants import Variant, data_json, data_lines, run_variants
from hdpsim.experiments.studies.comparing.compare import Outcome, Report, silent
from hdpsim.experiments.studies.comparing.static_rows import (
    MESH_COLUMNS,
    best_json,
    best_of,
    best_words,
    mesh_lines,
    over_best,
)
from hdpsim.experiments.studies.step_report import (
    averaging,
    band_lines,
    mfu_note,
    noise_note,
    one_line,
    outcome_json,
    ratio_words,
    scenario_document,
)

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.prices import CostOptions
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.studies.comparing.baseline import Baseline

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One strategy on so many GPUs, and what it is held against.

    Attributes:
        own_start: throughput per GPU relative to the smallest number of GPUs on which the same strategy ran.
        speed_up: throughput relative to the first strategy on as many GPUs and the same batches.
        best: the best static mesh on as many GPUs; None when nobody looked for it, or none runs.
    """

    strategy: str
    gpus: int
    variant: Variant
    own_start: Estimate | None
    speed_up: Estimate | None
    best: Baseline | None

    @property
    def outcome(self) -> Outcome:
        """What the strategy did on so many GPUs."""
        return self.variant.outcome

    @property
    def feasible(self) -> bool:
        """Whether it ran."""
        return self.variant.feasible


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Points of one or more strategies, one strategy after the other, over the same GPU counts (ascending)."""

    gpus: tuple[int, ...]
    weak: bool
    points: tuple[Point, ...]
    baseline: bool
    """Whether the best static mesh of every point was looked for."""

    def series(self, figure: Callable[[Point], T | None]) -> dict[str, list[T | None]]:
        """A figure of every strategy and point; None where it cannot run."""
        figures: dict[str, list[T | None]] = {}
        for point in self.points:
            figures.setdefault(point.strategy, []).append(figure(point) if point.feasible else None)
        return figures

    @property
    def rates(self) -> list[Estimate]:
        """Throughput of every point that ran."""
        return [point.outcome.tokens_per_s for point in self.points if point.feasible]


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
    by_strategy = run_variants(scenario, sets, strategies=strategies, batches=batches, report=report)
    ran = dict(zip(strategies, by_strategy, strict=True))
    if not any(variant.feasible for variants in ran.values() for variant in variants):
        reasons = [
            f"  {variant.label} GPUs: {one_line(variant.outcome.reason)}" for variant in ran[strategies[0]]
        ]
        raise InfeasibleError("no number of GPUs can run this scenario:\n" + "\n".join(reasons))
    baseline = baseline and len(ran) > 1 and "static" in ran
    best = [best_of(variant, variant.outcome) for variant in ran["static"]] if baseline else None
    points = [
        Point(
            strategy=strategy,
            gpus=count,
            variant=variants[place],
            own_start=_own_start_of(counts, variants, place),
            speed_up=variants[place].speed_up(ran[strategies[0]][place]),
            best=best[place] if best else None,
        )
        for strategy, variants in ran.items()
        for place, count in enumerate(counts)
    ]
    return Scaling(gpus=counts, weak=weak, points=tuple(points), baseline=baseline)


def _own_start_of(counts: Sequence[int], variants: Sequence[Variant], place: int) -> Estimate | None:
    first = next((place for place, variant in enumerate(variants) if variant.feasible), 0)
    ratio = variants[place].speed_up(variants[first])
    return None if ratio is None else ratio.scaled(counts[first] / counts[place])


def scaling_document(scaling: Scaling, scenario: Scenario) -> Document:
    """Everything about a scaling study."""
    title = f"{'Weak' if scaling.weak else 'Strong'} scaling of {scenario.name}"
    table = scaling_table(scaling)
    figure = partial(
        plots.plot_scaling,
        scaling.gpus,
        scaling.series(lambda point: point.outcome.tokens_per_s.mean),
        scaling.series(lambda point: point.outcome.tokens_per_s.ends),
        what=bars_in_words(scaling.rates),
        title=title,
    )
    document = scenario_document(
        "scale",
        scenario,
        scaling_json(scaling, scenario.costs),
        more={"weak": scaling.weak},
        blocks=(table,),
        notes=(*scaling_lines(scaling, scenario), mfu_note(scenario)),
        bands=(point.outcome.band for point in scaling.points),
        files=files_of("scale", {"scaling.csv": lambda: table, "scaling": figure}),
    )
    return replace(document, title=title)


def scaling_json(scaling: Scaling, costs: CostOptions) -> list[dict[str, Any]]:
    """One object per strategy and GPU count."""
    return [
        {
            "gpus": point.gpus,
            "efficiency": point.own_start and point.own_start.mean,
            "efficiency_vs_own_start": point.own_start and estimate_json(point.own_start),
            "speed_up": point.speed_up and estimate_json(point.speed_up),
            "data": data_json(point.variant),
            **best_json(point.outcome, point.best),
            **outcome_json(point.outcome, costs),
        }
        for point in scaling.points
    ]


def scaling_table(scaling: Scaling) -> Table[Point]:
    """Rows of strategy and GPU count; points that cannot run carry their reason."""
    base, several = scaling.points[0].strategy, scaling.points[0].strategy != scaling.points[-1].strategy
    ran = next(point.outcome for point in scaling.points if point.feasible)
    kind = "Weak scaling (batch grows with the GPUs)" if scaling.weak else "Strong scaling (batch fixed)"

    def over_base(point: Point) -> str | None:
        return ratio_words(point.speed_up, 2, of_base=point.strategy == base)

    columns: tuple[Column[Point], ...] = (
        Column("strategy"),
        Column("gpus", heading="GPUs", format=","),
        Column("batches", lambda point: len(point.outcome.results), shown=False),
        *only_where(lambda p: p.feasible, (
            Column("", lambda p: p.outcome.step_s.mean, heading="step", unit="s", format=".3f"),
            Column("tokens_per_s", lambda p: p.outcome.tokens_per_s, heading="tokens/s", format=interval(), ci95=True),
            Column("tokens_per_s_per_gpu", lambda p: p.outcome.tokens_per_s.mean / p.gpus, heading="tok/s/GPU",
                   format=",.1f"),
            Column("step_s", lambda p: p.outcome.step_s, shown=False, ci95=True),
            Column("mfu", lambda p: p.outcome.mfu, heading="MFU", format=".1%"),
            Column("memory_bytes", lambda p: p.outcome.results[0].memory.total_bytes, shown=False),
            Column("", over_base, heading=f"over {base}", shown=several),
            Column("", lambda p: over_best(p.outcome, p.best), heading="over best static", format=interval(2),
                   shown=scaling.baseline),
            Column("efficiency", lambda p: p.own_start, heading="own start", format=_own_start),
            Column("", lambda p: memory_of(p.outcome.results[0].memory), heading="memory"),
        )),
        *(column.below(lambda point: point.outcome) for column in MESH_COLUMNS),
        Column("speed_up_vs_best_static", lambda p: over_best(p.outcome, p.best), shown=False, ci95=True),
        Column("reason", lambda p: p.outcome.reason, shown=False),
        Column("", _remark, heading="remark", left=True, optional=True),
    )  # fmt: skip
    return Table(
        title=f"{kind}; {averaging(len(ran.results), ran.independent)}", columns=columns, rows=scaling.points
    )


def _own_start(share: Estimate) -> str:
    return "100%" if share.mean == 1.0 else f"{with_interval(share, 100, 1)}%"


def _remark(point: Point) -> str:
    if not point.feasible:
        return f"cannot run: {one_line(point.outcome.reason)}"
    return point.outcome.mesh.words if point.outcome.mesh else ""


def scaling_lines(scaling: Scaling, scenario: Scenario) -> tuple[str, ...]:
    """What a reader of the table must know."""
    variants = [point.variant for point in scaling.points]
    first: dict[str, Outcome] = {}
    for point in scaling.points:
        if point.feasible:
            first.setdefault(point.strategy, point.outcome)
    lines = [
        "own start: tokens/s per GPU relative to the smallest number of GPUs on which the same strategy runs.",
    ]
    if len(scaling.points) > len(scaling.gpus):
        lines.append(
            "It does not rank strategies: a slow one that stays as slow has 100 %. What ranks them is tokens/s per GPU."
        )
    noise = noise_note(scenario)
    return (
        *lines,
        *_static_lines(scaling),
        *([noise] if noise else []),
        *data_lines(variants),
        *band_lines(first.values()),
    )


def _static_lines(scaling: Scaling) -> list[str]:
    if not scaling.baseline:
        return list(mesh_lines(point.outcome.mesh.packing for point in scaling.points if point.outcome.mesh))
    best = {point.gpus: point.best for point in scaling.points}
    lines = [f"  {gpus:,} GPUs: {best_words(mesh)}" for gpus, mesh in best.items() if mesh is not None]
    if not lines:
        return []
    return [
        "over best static: relative to the fastest static mesh of this layout on as many GPUs (packers and "
        "context-parallel degrees as `hdpsim compare` tries them):",
        *lines,
    ]
