"""A replayed job as tables, sentences, one JSON document and a run directory."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.experiments.jobs.plots import plot_attribution, plot_steps, plot_workers
from hdpsim.experiments.output.run_directory import SCHEMA_VERSION, RunDirectory
from hdpsim.experiments.output.tables import Table
from hdpsim.simulator.recorded.graph import RecordedGraph
from hdpsim.simulator.recorded.operations import COMPUTE, RecordedJob, is_kind
from hdpsim.simulator.recorded.whatif import Analysis, Effect

Floats = NDArray[np.float64]

_STEPS_SHOWN = 60
_RANKS_SHOWN = 8


def headline(job: RecordedJob) -> str:
    """What was recorded, in one line."""
    chunks = f" x {job.chunks} chunks" if job.chunks > 1 else ""
    return (
        f"{job.name}: {job.gpus} GPUs, {job.data_parallel} data-parallel ranks x {job.stages} stages{chunks}, "
        f"{len(job.steps)} steps, {len(job):,} operations"
    )


def document_of(graph: RecordedGraph, analysis: Analysis) -> dict[str, Any]:
    """Everything as one JSON document."""
    from hdpsim import __version__

    job = graph.job
    error = np.abs(analysis.error)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "replay-ops",
        "hdpsim_version": __version__,
        "job": {
            "name": job.name,
            "gpus": job.gpus,
            "dp_size": job.data_parallel,
            "pp_size": job.stages,
            "vpp_size": job.chunks,
            "operations": len(job),
            "transfers_that_never_ran": len(job) - len(graph.row),
            "transfers_block_computation": graph.blocking,
        },
        "steps": _step_rows(job, analysis),
        "summary": {
            "count": len(job.steps),
            "median_abs_error": float(np.median(error)),
            "mean_abs_error": float(error.mean()),
            "p90_abs_error": float(np.quantile(error, 0.9)),
            "max_abs_error": float(error.max()),
            "median_abs_error_with_usual_transfers": _median_error(analysis.usual_transfers_s, analysis),
            "median_abs_error_without_host_gaps": _median_error(analysis.without_gaps_s, analysis),
            "recorded_mean_s": float(analysis.recorded_s.mean()),
            "predicted_mean_s": float(analysis.predicted_s.mean()),
            "without_host_gaps_mean_s": float(analysis.without_gaps_s.mean()),
            "ideal_mean_s": float(analysis.ideal_s.mean()),
            "engine_against_closed_form": analysis.engine_difference,
        },
        "slowdown": analysis.slowdown,
        "attribution": {
            "by_optype": [_effect_row(effect) for effect in analysis.by_kind],
            "by_stage": [_effect_row(effect) for effect in analysis.by_stage],
            "by_dp_rank": [_effect_row(effect) for effect in analysis.by_rank],
            "by_rank": _worker_rows(graph, analysis),
        },
        "remedies": [_effect_row(effect) for effect in analysis.remedies],
    }


def tables(graph: RecordedGraph, analysis: Analysis) -> list[Table]:
    """What the command prints: steps, then who and what made them slow."""
    job = graph.job
    rows = [
        (
            str(row["step"]),
            f"{row['recorded_s']:.3f}",
            f"{row['predicted_s']:.3f}",
            f"{row['error']:+.2%}",
            f"{row['ideal_s']:.3f}",
            f"{row['slowdown']:.2f}x",
        )
        for row in _step_rows(job, analysis)
    ]
    cut = f" (the first {_STEPS_SHOWN} of {len(rows)})" if len(rows) > _STEPS_SHOWN else ""
    steps = Table(
        title=f"Steps{cut}",
        columns=("step", "recorded s", "predicted s", "error", "ideal s", "slowdown"),
        rows=tuple(rows[:_STEPS_SHOWN]),
    )
    slowest = [
        _named(e, row) for e, row in zip(analysis.by_worker, _worker_rows(graph, analysis), strict=True)
    ]
    return [
        steps,
        _effects("By kind of operation", analysis.by_kind),
        _effects("By stage", analysis.by_stage),
        _effects("Slowest ranks", [effect for effect, _ in slowest[:_RANKS_SHOWN]], [n for _, n in slowest]),
        _effects("If computation were spread evenly", analysis.remedies),
    ]


def sentences(graph: RecordedGraph, analysis: Analysis) -> list[str]:
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
    return lines


def write_replay(out: str, document: Mapping[str, Any], graph: RecordedGraph, analysis: Analysis) -> str:
    """Write the run directory; returns a line that says so."""
    job = graph.job
    command = shlex.join(["hdpsim", *sys.argv[1:]])
    with RunDirectory(
        out,
        title=f"Replay of {job.name}",
        command=command,
        notes=[headline(job), *sentences(graph, analysis)],
    ) as run:
        run.write_json(
            "result.json", document, "The whole result as one JSON document, as printed by --json."
        )
        run.write_csv("steps.csv", _step_rows(job, analysis), "One row per recorded step.")
        run.write_csv(
            "by_optype.csv", [_effect_row(e) for e in analysis.by_kind], "What each kind of operation costs."
        )
        run.write_csv("by_stage.csv", [_effect_row(e) for e in analysis.by_stage], "What each stage costs.")
        run.write_csv(
            "by_dp_rank.csv", [_effect_row(e) for e in analysis.by_rank], "Data-parallel ranks, worst first."
        )
        run.write_csv(
            "by_rank.csv",
            _worker_rows(graph, analysis),
            "One stage of one data-parallel rank each, worst first.",
        )
        run.write_csv(
            "remedies.csv",
            [_effect_row(e) for e in analysis.remedies],
            "What spreading the same computation evenly would save.",
        )
        run.save_figure(
            "steps",
            plot_steps(
                job.steps.tolist(), analysis.recorded_s, analysis.predicted_s, analysis.ideal_s,
                title=f"Step time of {job.name}",
            ),
            "Step times: recorded, predicted, ideal.",
        )  # fmt: skip
        run.save_figure(
            "attribution",
            plot_attribution(
                {
                    "kinds of operations": {e.name: e.saved_s for e in analysis.by_kind},
                    "stages": {e.name: e.saved_s for e in analysis.by_stage},
                    "computation evened out": {e.name: e.saved_s for e in analysis.remedies},
                },
                title=f"What would make {job.name} faster",
            ),
            "Seconds of a step saved by making each part ideal.",
        )
        run.save_figure(
            "workers",
            plot_workers(_compute_s(graph), title=f"Computation per step of every worker of {job.name}"),
            "Seconds of computation per step, by stage and data-parallel rank.",
        )
    return f"wrote {out}"


def _median_error(step_s: Floats, analysis: Analysis) -> float:
    return float(np.median(np.abs(step_s / analysis.recorded_s - 1.0)))


def _step_rows(job: RecordedJob, analysis: Analysis) -> list[dict[str, Any]]:
    return [
        {
            "step": int(step),
            "recorded_s": float(recorded),
            "predicted_s": float(predicted),
            "error": float(predicted / recorded - 1.0),
            "with_usual_transfers_s": float(usual),
            "without_host_gaps_s": float(without),
            "ideal_s": float(ideal),
            "slowdown": float(without / ideal),
        }
        for step, recorded, predicted, usual, without, ideal in zip(
            job.steps, analysis.recorded_s, analysis.predicted_s, analysis.usual_transfers_s,
            analysis.without_gaps_s, analysis.ideal_s, strict=True,
        )
    ]  # fmt: skip


def _effect_row(effect: Effect) -> dict[str, Any]:
    return {
        "name": effect.name,
        "operations": effect.operations,
        "slowdown_alone": effect.slowdown_alone,
        "saved_s": effect.saved_s,
        "share_of_slowdown": effect.share,
    }


def _worker_rows(graph: RecordedGraph, analysis: Analysis) -> list[dict[str, Any]]:
    job = graph.job
    recorded_rank = np.zeros(job.workers, dtype=np.int64)
    recorded_rank[job.worker] = job.rank
    compute_s = _compute_s(graph)
    rows = []
    for effect, (rank, stage) in zip(analysis.by_worker, analysis.worker, strict=True):
        place = {
            "rank": int(recorded_rank[rank * job.stages + stage]),
            "dp_rank": rank,
            "stage": stage,
            "compute_s": float(compute_s[stage, rank]),
        }
        row = _effect_row(effect)
        del row["name"]
        rows.append(place | row)
    return rows


def _compute_s(graph: RecordedGraph) -> Floats:
    """[stages, data-parallel ranks]: seconds of computation per step."""
    job = graph.job
    compute = is_kind(job.kind, *COMPUTE)
    seconds = np.bincount(job.worker[compute], job.duration_s[compute], job.workers) / len(job.steps)
    return seconds.reshape(job.data_parallel, job.stages).T


def _named(effect: Effect, row: Mapping[str, Any]) -> tuple[Effect, str]:
    return effect, f"rank {row['rank']} ({effect.name})"


def _effects(title: str, effects: Sequence[Effect], names: Sequence[str] | None = None) -> Table:
    rows = []
    for i, effect in enumerate(effects):
        alone = "" if effect.slowdown_alone is None else f"{effect.slowdown_alone:.3f}x"
        share = "" if effect.share is None else f"{effect.share:.1%}"
        saved = f"{effect.saved_s + 0.0:.3f}".replace("-0.000", "0.000")
        rows.append((names[i] if names else effect.name, alone, saved, share.replace("-0.0%", "0.0%")))
    return Table(title=title, columns=("", "alone", "saved s", "share"), rows=tuple(rows))
