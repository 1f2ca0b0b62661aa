"""ByteScale (arXiv 2502.21231) reproduced: Figure 17 cell by cell, the ablation of Figure 20, the case of Figure 18."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdpsim import __version__
from hdpsim.errors import UserInputError
from hdpsim.experiments.bands.residuals import residual_lines, rewrite_residuals
from hdpsim.experiments.output import plots
from hdpsim.experiments.output.finite import finite
from hdpsim.experiments.output.run_directory import SCHEMA_VERSION, RunDirectory
from hdpsim.experiments.output.tables import Table
from hdpsim.experiments.papers import bytescale_plots
from hdpsim.experiments.papers.bytescale_case import case_document, case_job, heaviest_busy_s
from hdpsim.experiments.papers.bytescale_data import Cell, all_cells, read_cells
from hdpsim.experiments.papers.bytescale_simulation import (
    CALIBRATION,
    DEFAULT_BATCHES,
    Job,
    Outcome,
    run_jobs,
)
from hdpsim.experiments.papers.bytescale_summary import (
    ABLATION,
    ablation_document,
    decline_document,
    order_document,
    records_of,
    records_summary,
    speedups_document,
)
from hdpsim.experiments.papers.bytescale_tables import lines_of, tables_of
from hdpsim.experiments.papers.residuals import bytescale_residuals
from hdpsim.experiments.studies.artefacts import check_out
from hdpsim.experiments.studies.compare import silent
from hdpsim.simulator.setup import StrategyName, StrategyOptions

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """One JSON document, and the same for people."""

    document: Mapping[str, Any]
    tables: tuple[Table, ...]
    lines: tuple[str, ...]


def run(
    cells: str | None = None,
    out: str | None = None,
    *,
    report: Callable[[int, int], None] = silent,
    batches: int | None = None,
    workers: int | None = None,
    residuals: str | None = None,
) -> Reproduction:
    """Predict ByteScale's cells and hold them against the paper.

    Args:
        cells: CSV of cells; None: all 144 of Figure 17, of which 60 have a published figure here.
        out: run directory to write.
        report: told (done, total) after every configuration.
        batches: global batches of each prediction.
        workers: processes; the result does not depend on it.
        residuals: file that takes features and log errors of the cells, instead of those it has of them.

    Raises:
        UserInputError: an unusable file of cells or place for the run directory.
    """
    check_out(out)
    count = DEFAULT_BATCHES if batches is None else batches
    if count < 1:
        raise UserInputError(f"batches must be at least 1, got {count}")
    chosen = all_cells() if cells is None else read_cells(cells)
    jobs = [_job(cell, count) for cell in chosen]
    outcomes = run_jobs(
        [
            *jobs,
            *(case_job(options, count) for options in ABLATION.values()),
            case_job(StrategyOptions(name="hdp-naive"), count),
        ],
        report,
        workers,
    )
    of_cells, of_steps, naive = outcomes[: len(chosen)], outcomes[len(chosen) : -1], outcomes[-1]
    case: dict[StrategyName, Outcome] = {
        "static": of_steps[0],
        "hdp-naive": naive,
        "hdp-balance": of_steps[-1],
    }
    records = records_of(chosen, of_cells)
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "reproduce-bytescale",
        "hdpsim_version": __version__,
        "batches": count,
        "records": records,
        "summary": records_summary(records),
        "speedups": speedups_document(records),
        "order": order_document(records),
        "decline_per_doubling": decline_document(records),
        "ablation": ablation_document(of_steps),
        "case_study": case_document(case, count),
        "notes": _notes(count),
    }
    lines = lines_of(document)
    if residuals is not None:
        written = rewrite_residuals(residuals, bytescale_residuals(chosen, jobs, records), ("bytescale",))
        lines = (*lines, *residual_lines(written, residuals))
    if out is not None:
        _write(out, document, lines, heaviest_busy_s(case, count))
        lines = (*lines, f"wrote {out}")
    return Reproduction(document=finite(document), tables=tables_of(document), lines=lines)


def _job(cell: Cell, batches: int) -> Job:
    """What a prediction may know of a cell: not its measurement."""
    model, dataset, gpus, context_tokens, strategy = cell.key
    return Job(
        model=model,
        dataset=dataset,
        gpus=gpus,
        context_tokens=context_tokens,
        options=StrategyOptions(name=strategy),
        batches=batches,
    )


def _notes(batches: int) -> tuple[str, ...]:
    return (
        f"Means over {batches} global batches of 32M tokens, the same for every model and strategy.",
        "GPU type, network and layouts are inferred (docs/explanation/bytescale.md). "
        f"Calibration {CALIBRATION} was fitted on the 60 published cells shipped with hdpsim, all together; "
        "no other cell had a part in it.",
    )


def _write(
    out: str, document: Mapping[str, Any], lines: tuple[str, ...], busy_s: Mapping[str, Floats]
) -> None:
    """Write the run directory."""
    records, case = document["records"], document["case_study"]
    command = shlex.join(["hdpsim", *sys.argv[1:]])
    with RunDirectory(out, title="ByteScale reproduced", command=command, notes=lines) as directory:
        directory.write_json(
            "result.json", document, "Everything as one JSON document, as printed by --json."
        )
        directory.write_csv(
            "records.csv", _same_columns(records), "One row per cell: paper, prediction, error."
        )
        directory.write_csv(
            "speedups.csv",
            document["speedups"]["records"],
            "Speed-ups over the static mesh: paper, prediction.",
        )
        directory.write_csv("ablation.csv", document["ablation"], "Figure 20: what each part adds.")
        ranks = [
            {"strategy": name, "rank": rank, "busy_s": seconds}
            for name, row in busy_s.items()
            for rank, seconds in enumerate(row.tolist())
        ]
        directory.write_csv(
            "ranks.csv", ranks, "Figure 18c: seconds of forward and backward of every rank, heaviest batch."
        )
        points = bytescale_plots.measured_and_predicted(records)
        if points:
            directory.save_figure(
                "paper_against_prediction",
                plots.plot_paper_against_prediction(points, title="ByteScale, Figure 17"),
                "Every cell with a measurement: prediction over measurement.",
            )
        ran = [record for record in records if record["predicted"] is not None]
        for model, gpus in dict.fromkeys((record["model"], record["gpus"]) for record in ran):
            directory.save_figure(
                f"throughput_{model}_{gpus}",
                bytescale_plots.plot_model(model, gpus, ran),
                f"Throughput of {model} on {gpus:,} GPUs against context length, prediction and paper.",
            )
        steps, speed_up, published = bytescale_plots.ablation_columns(document["ablation"])
        directory.save_figure(
            "ablation",
            plots.plot_ablation(
                steps, speed_up, published, title="What each part adds (ByteScale, Figure 20)"
            ),
            "Figure 20: cumulative speed-up after each step.",
        )
        directory.save_figure(
            "rank_times",
            bytescale_plots.plot_ranks(busy_s, case["busy_s"], "Time of every rank (ByteScale, Figure 18c)"),
            "Figure 18c: forward and backward time of every rank in the heaviest batch, and the paper's range.",
        )


def _same_columns(records: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The records, None written as nothing."""
    return [{name: "" if value is None else value for name, value in record.items()} for record in records]
