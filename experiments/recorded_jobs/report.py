"""A replayed job as one document: tables, sentences, JSON and the files of a run directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.experiments.output.document import Column, Document, Table, files_of
from hdpsim.experiments.output.json_data import attributes
from hdpsim.experiments.recorded_jobs.plots import plot_attribution, plot_steps, plot_workers
from hdpsim.simulator.recorded.graph import RecordedGraph
from hdpsim.simulator.recorded.operations import COMPUTE, RecordedJob, is_kind
from hdpsim.simulator.recorded.whatif import Analysis, Effect

_STEPS_SHOWN = 60
_RANKS_SHOWN = 8


def job_document(graph: RecordedGraph, analysis: Analysis) -> Document:
    """Everything about a replayed job."""
    job = graph.job
    steps, workers = _steps(job, analysis), _workers(graph, analysis)
    kinds = _effects("By kind of operation", analysis.by_kind)
    stages = _effects("By stage", analysis.by_stage)
    ranks = _effects("By data-parallel rank", analysis.by_rank)
    remedies = _effects("If computation were spread evenly", analysis.remedies)
    cut = f" (the first {_STEPS_SHOWN} of {len(steps.rows)})" if len(steps.rows) > _STEPS_SHOWN else ""
    by: dict[str, Table[Any]] = {"optype": kinds, "stage": stages, "dp_rank": ranks, "rank": workers}
    tables: dict[str, Table[Any]] = {
        "steps": steps,
        **{f"by_{k}": one for k, one in by.items()},
        "remedies": remedies,
    }
    records: dict[str, Callable[[], object]] = {f"{name}.csv": one.records for name, one in tables.items()}
    return Document(
        kind="replay-ops",
        title=f"Replay of {job.name}",
        head=headline(job),
        blocks=(
            replace(steps, title=f"Steps{cut}", rows=steps.rows[:_STEPS_SHOWN]),
            kinds,
            stages,
            replace(workers, rows=workers.rows[:_RANKS_SHOWN]),
            remedies,
        ),
        notes=sentences(graph, analysis),
        payload={
            "job": _job_json(graph),
            "steps": steps.records(),
            "summary": _summary_json(analysis),
            "slowdown": analysis.slowdown,
            "attribution": {f"by_{name}": table.records() for name, table in by.items()},
            "remedies": remedies.records(),
        },
        files=files_of("replay-ops", records | _figures(graph, analysis)),
    )


def headline(job: RecordedJob) -> str:
    """What was recorded, in one line."""
    chunks = f" x {job.chunks} chunks" if job.chunks > 1 else ""
    return (
        f"{job.name}: {job.gpus} GPUs, {job.data_parallel} data-parallel ranks x {job.stages} stages{chunks}, "
        f"{len(job.steps)} steps, {len(job):,} operations"
    )


def _job_json(graph: RecordedGraph) -> dict[str, Any]:
    job = graph.job
    return {
        **attributes(job, "name gpus"),
        "dp_size": job.data_parallel,
        "pp_size": job.stages,
        "vpp_size": job.chunks,
        "operations": len(job),
        "transfers_that_never_ran": len(job) - len(graph.row),
        "transfers_block_computation": graph.blocking,
    }


def _summary_json(analysis: Analysis) -> dict[str, Any]:
    error = np.abs(analysis.error)
    return {
        "count": len(error),
        "median_abs_error": np.median(error),
        "mean_abs_error": error.mean(),
        "p90_abs_error": np.quantile(error, 0.9),
        "max_abs_error": error.max(),
        "median_abs_error_with_usual_transfers": _median_error(analysis.usual_transfers_s, analysis),
        "median_abs_error_without_host_gaps": _median_error(analysis.without_gaps_s, analysis),
        "recorded_mean_s": analysis.recorded_s.mean(),
        "predicted_mean_s": analysis.predicted_s.mean(),
        "without_host_gaps_mean_s": analysis.without_gaps_s.mean(),
        "ideal_mean_s": analysis.ideal_s.mean(),
        "engine_against_closed_form": analysis.engine_difference,
    }


def _steps(job: RecordedJob, analysis: Analysis) -> Table[int]:
    """A table with a row for every recorded step."""

    def seconds(name: str, values: Floats, heading: str, *, shown: bool = True) -> Column[int]:
        return Column(name, lambda i: float(values[i]), heading=heading, unit="s", format=".3f", shown=shown)

    recorded_s, predicted_s, ideal_s = analysis.recorded_s, analysis.predicted_s, analysis.ideal_s
    columns: tuple[Column[int], ...] = (
        Column("step", lambda i: int(job.steps[i])),
        seconds("recorded_s", recorded_s, "recorded"),
        seconds("predicted_s", predicted_s, "predicted"),
        Column("error", lambda i: float(predicted_s[i] / recorded_s[i] - 1.0), format="+.2%"),
        seconds("with_usual_transfers_s", analysis.usual_transfers_s, "with usual transfers", shown=False),
        seconds("without_host_gaps_s", analysis.without_gaps_s, "without host gaps", shown=False),
        seconds("ideal_s", ideal_s, "ideal"),
        Column("slowdown", lambda i: float(analysis.without_gaps_s[i] / ideal_s[i]), format=_times(2)),
    )
    return Table(title="Steps", columns=columns, rows=range(len(job.steps)))


def _times(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}x"


def _unsigned_zero(spec: str) -> Callable[[float], str]:
    """A format in which what rounds to nothing has no sign."""

    def shown(value: float) -> str:
        text = format(value, spec)
        return text.removeprefix("-") if not text.strip("-0.%") else text

    return shown


_NAME: Column[Effect] = Column("name", heading="")
_EFFECT: tuple[Column[Effect], ...] = (
    Column("operations", shown=False),
    Column("slowdown_alone", heading="alone", format=_times(3), missing=""),
    Column("saved_s", heading="saved", unit="s", format=_unsigned_zero(".3f")),
    Column("share_of_slowdown", lambda effect: effect.share, heading="share", format=_unsigned_zero(".1%"),
           missing=""),
)  # fmt: skip


def _effects(title: str, effects: Sequence[Effect]) -> Table[Effect]:
    """What parts of the job cost."""
    return Table(title=title, columns=(_NAME, *_EFFECT), rows=effects)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    """One stage of one data-parallel rank."""

    effect: Effect
    rank: int
    dp_rank: int
    stage: int
    compute_s: float


def _workers(graph: RecordedGraph, analysis: Analysis) -> Table[_Worker]:
    """What each worker costs, worst first."""
    job = graph.job
    recorded_rank = np.zeros(job.workers, dtype=np.int64)
    recorded_rank[job.worker] = job.rank
    compute_s = _compute_s(graph)
    rows = [
        _Worker(
            effect=effect,
            rank=int(recorded_rank[rank * job.stages + stage]),
            dp_rank=rank,
            stage=stage,
            compute_s=float(compute_s[stage, rank]),
        )
        for effect, (rank, stage) in zip(analysis.by_worker, analysis.worker, strict=True)
    ]
    columns: tuple[Column[_Worker], ...] = (
        Column("", lambda worker: f"rank {worker.rank} ({worker.effect.name})"),
        Column("rank", shown=False),
        Column("dp_rank", shown=False),
        Column("stage", shown=False),
        Column("compute_s", shown=False),
        *(column.below(lambda worker: worker.effect) for column in _EFFECT),
    )
    return Table(title="Slowest ranks", columns=columns, rows=rows)


def _figures(graph: RecordedGraph, analysis: Analysis) -> dict[str, Callable[[], object]]:
    job = graph.job
    parts = {
        "kinds of operations": analysis.by_kind,
        "stages": analysis.by_stage,
        "computation evened out": analysis.remedies,
    }
    saved_s = {name: {effect.name: effect.saved_s for effect in effects} for name, effects in parts.items()}
    return {
        "steps": lambda: plot_steps(
            job.steps.tolist(), analysis.recorded_s, analysis.predicted_s, analysis.ideal_s,
            title=f"Step time of {job.name}",
        ),
        "attribution": lambda: plot_attribution(saved_s, title=f"What would make {job.name} faster"),
        "workers": lambda: plot_workers(
            _compute_s(graph), title=f"Computation per step of every worker of {job.name}"
        ),
    }  # fmt: skip


def sentences(graph: RecordedGraph, analysis: Analysis) -> tuple[str, ...]:
    """The result in words."""
    error = np.abs(analysis.error)
    usual = _median_error(analysis.usual_transfers_s, analysis)
    without = _median_error(analysis.without_gaps_s, analysis)
    lines = [
        f"Predicted against recorded step time: median error {np.median(error):.2%}, largest {error.max():.2%}. "
        f"With the median transfer time of each kind instead of the recorded ones: median error {usual:.2%}; "
        f"without the usual host gaps between operations: {without:.2%}.",
        f"Slowdown against ideal: {analysis.slowdown:.3f}x. Ideal: every operation of a kind takes the same time "
        f"(computation its mean, communication its median), {analysis.ideal_s.mean():.3f} s a step.",
        "alone: slowdown if everything else were ideal. saved: seconds of a step if only this were ideal; "
        "shares of the slowdown overlap and need not sum to 100 %.",
    ]
    left_out = len(graph.job) - len(graph.row)
    if left_out:
        lines.append(
            f"{left_out:,} recorded sends and receives without a neighbour never ran and are left out."
        )
    return tuple(lines)


def _median_error(step_s: Floats, analysis: Analysis) -> float:
    return float(np.median(np.abs(step_s / analysis.recorded_s - 1.0)))


def _compute_s(graph: RecordedGraph) -> Floats:
    """[stages, data-parallel ranks]: seconds of computation per step."""
    job = graph.job
    compute = is_kind(job.kind, *COMPUTE)
    seconds = np.bincount(job.worker[compute], job.duration_s[compute], job.workers) / len(job.steps)
    return seconds.reshape(job.data_parallel, job.stages).T
