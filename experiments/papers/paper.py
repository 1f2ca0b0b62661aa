"""How a paper is reproduced: its cells are predicted, held against what was published, and written down.

A paper is a folder experiments/data/papers/NAME (see folder.py) and a module experiments/papers/NAME.py with a `PAPER`:
how a cell is simulated, and sections for what the paper shows besides its cells.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from hdpsim.arrays import Ints
from hdpsim.errors import UserInputError
from hdpsim.experiments.bands.band import Residual
from hdpsim.experiments.bands.residuals import residual_lines, rewrite_residuals, setup_features
from hdpsim.experiments.output.document import Document, OutputFile, Table
from hdpsim.experiments.papers.figures import FIGURES, asked_figures, compared, figures_part
from hdpsim.experiments.papers.folder import PaperFolder, PublishedFigure
from hdpsim.experiments.papers.report import FigureRow, Part, record_files, records_table
from hdpsim.experiments.parallel.pool import worker_pool
from hdpsim.experiments.studies.comparing.compare import reported, silent
from hdpsim.experiments.validation.order import error_of, error_summary
from hdpsim.simulator.setup import Setup

Report = Callable[[int, int], None]

WORKERS = 2  # a simulation takes about a second: more processes start longer than they save

_STEP_ERROR_SIGN = {"tokens_per_s": -1.0, "step_s": 1.0}
"""Unit of a measurement -> what its log error says of the step's: too many tokens/s are too short a step."""


class Job(Protocol):
    """Work for a worker process. Equal jobs run once, so a job can be hashed; it holds all its outcome depends on."""

    def __hash__(self) -> int: ...

    def run(self) -> Any:
        """Simulate; the outcome is what cells and sections are made from."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a section can be made from.

    Attributes:
        records: one per cell: input columns, measured, predicted, error, and more about the prediction.
        outcomes: of all jobs.
        batches: global batches of each prediction; 1 where a paper does not average.
    """

    records: Sequence[FigureRow]
    outcomes: Mapping[Job, Any]
    batches: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A figure or table of the paper besides its cells.

    Attributes:
        name: its key in the JSON document.
        part: what it says.
        jobs: what it needs, given the number of batches.
        figure: number of the figure that it is, or is about.
    """

    name: str
    part: Callable[[Results], Part]
    jobs: Callable[[int], Iterable[Job]] = lambda batches: ()
    figure: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """How a paper is reproduced.

    Attributes:
        folder: its data.
        job: what predicts a cell, given the number of batches.
        prediction: what a record says of a cell's outcome: `predicted` (None where it cannot run), `reason`, and more.
        step: setup and sequence lengths of a cell's step: what the bands of predictions compare runs by.
        cells: what is predicted without a user's file; default: the published cells.
        tables: of the records; default: one of all.
        sections: what is shown besides the cells.
    """

    folder: PaperFolder
    job: Callable[[PublishedFigure, int], Job]
    prediction: Callable[[PublishedFigure, Any], FigureRow]
    step: Callable[[PublishedFigure, int], tuple[Setup, Ints]]
    cells: Callable[[], tuple[PublishedFigure, ...]] | None = None
    tables: Callable[[Sequence[FigureRow]], Sequence[Table[Any]]] | None = None
    sections: tuple[Section, ...] = ()


def load_paper(name: str) -> Paper:
    """The `PAPER` of the module of that name."""
    paper: Paper = import_module(f"hdpsim.experiments.papers.{name}").PAPER
    return paper


def reproduce(
    paper: Paper,
    cells: str | None = None,
    *,
    report: Report = silent,
    batches: int | None = None,
    workers: int | None = None,
    residuals: str | None = None,
    figures: Sequence[int] = (),
) -> Document:
    """Predict the cells of a paper and hold them against what it published.

    Args:
        paper: which one.
        cells: CSV of other cells than the paper's.
        report: told (done, total) after every job.
        batches: global batches of each prediction; default: as many as the paper's setup.yaml says.
        workers: processes; the result does not depend on it.
        residuals: file that takes features and log errors of the cells, instead of those it has of them.
        figures: numbers of the only figures to reproduce; default: everything.

    Raises:
        UserInputError: an unusable file of cells, a figure that is not reproduced, cells or residuals without the
            figure of the cells.
    """
    folder = paper.folder
    count = folder.setup.get("batches", 1) if batches is None else batches
    if count < 1:
        raise UserInputError(f"batches must be at least 1, got {count}")
    asked = asked_figures(folder.figures, figures, folder.setup["title"])
    with_cells = not figures or folder.main_figure in asked
    if not with_cells and (cells is not None or residuals is not None):
        raise UserInputError(
            f"--cells and --write-residuals are about {folder.setup['cells']['place']}; ask for that figure, too"
        )
    sections = [section for section in paper.sections if not figures or section.figure in asked]
    own = paper.cells or folder.published_cells
    chosen = (own() if cells is None else folder.read_cells(cells)) if with_cells else ()
    jobs = [paper.job(cell, count) for cell in chosen]
    outcomes = run_jobs(
        [*jobs, *(job for section in sections for job in section.jobs(count))], report, workers
    )
    records = [
        _record(folder, cell, paper.prediction(cell, outcomes[job]))
        for cell, job in zip(chosen, jobs, strict=True)
    ]
    results = Results(records=records, outcomes=outcomes, batches=count)
    parts = {section.name: section.part(results) for section in sections}
    if asked:
        of_cells = [_compared_cell(folder, record) for record in records if record["measured"] is not None]
        every = [*of_cells, *(row for part in parts.values() for row in part.compared)]
        parts[FIGURES] = figures_part({number: folder.figures[number] for number in asked}, every)
    written: Sequence[str] = ()
    if residuals is not None:
        cell_residuals = residuals_of(paper, chosen, records, count)
        written = residual_lines(rewrite_residuals(residuals, cell_residuals, (folder.name,)), residuals)
    return _document(
        paper, results, parts, record_files(folder, chosen, records) if with_cells else None, written
    )


def _document(
    paper: Paper,
    results: Results,
    parts: Mapping[str, Part],
    cell_files: Sequence[OutputFile] | None,
    written: Sequence[str],
) -> Document:
    """Records and parts as a document; *cell_files* are None where the cells were not asked for."""
    folder, records, summary = paper.folder, results.records, summary_of(results.records)
    notes = [note.format(batches=results.batches) for note in folder.setup["notes"]]
    tables: Sequence[Table[Any]] = ()
    if cell_files is not None:
        tables = (records_table(folder, records),) if paper.tables is None else paper.tables(records)
    files = (*(cell_files or ()), *(file for part in parts.values() for file in part.files))
    return Document(
        kind=f"reproduce-{folder.name}",
        payload={
            **({"batches": results.batches} if "batches" in folder.setup else {}),
            "records": records,
            "summary": summary,
            **{name: part.value for name, part in parts.items()},
            "notes": notes,
        },
        title=f"{folder.setup['title']} reproduced",
        blocks=(*tables, *(table for part in parts.values() for table in part.tables)),
        notes=(
            *([errors_line(summary)] if cell_files is not None else []),
            *(line for part in parts.values() for line in part.lines),
            *_reasons(folder, records),
            *notes,
            *written,
        ),
        files=tuple(sorted(files, key=lambda file: "." not in file.name)),  # figures after tables
    )


def run_jobs(jobs: Iterable[Job], report: Report, workers: int | None = None) -> dict[Job, Any]:
    """Run all jobs in worker processes; their outcomes are equal on any number of workers.

    Args:
        jobs: what to run; equal ones run once.
        report: told (done, total) after every job.
        workers: processes; 1 runs everything in this one. Default: two, or one for each processor if fewer.
    """
    different = list(dict.fromkeys(jobs))
    processes = min(workers or WORKERS, os.cpu_count() or 1, len(different))
    if processes <= 1:
        return {job: job.run() for job in reported(different, report, len(different))}
    with worker_pool(processes) as pool:
        futures = {pool.submit(job.run): job for job in different}
        finished = reported(as_completed(futures), report, len(different))
        return {futures[future]: future.result() for future in finished}


def _record(folder: PaperFolder, cell: PublishedFigure, prediction: FigureRow) -> FigureRow:
    """The input columns of a cell, measured, predicted, error, and what else a prediction says."""
    return {
        **cell.inputs,
        folder.measured_column: cell.measured,
        **cell.extra,
        "measured": cell.measured,
        "predicted": prediction["predicted"],
        "error": error_of(cell.measured, prediction["predicted"]),
        **prediction,
    }


def _compared_cell(folder: PaperFolder, record: FigureRow) -> FigureRow:
    """A cell among the values of all figures."""
    what = ", ".join(str(record[name]) for name in folder.columns)
    figures = (folder.main_figure or 0, what, folder.unit(record), record["measured"], record["predicted"])
    return compared(*figures, reason=record["reason"] or "")


def summary_of(records: Sequence[FigureRow]) -> dict[str, Any]:
    """Absolute errors over all records with a measurement, and how many could not be predicted."""
    return {
        **error_summary(record["error"] for record in records),
        "unpredicted": sum(record["predicted"] is None for record in records),
    }


def errors_line(summary: Mapping[str, Any]) -> str:
    """The errors of all cells in a sentence."""
    if not summary["count"]:
        return "No cell has both a measurement and a prediction."
    text = (
        f"{summary['count']} cells with a measurement: absolute error median {summary['median_abs_error']:.1%}, "
        f"mean {summary['mean_abs_error']:.1%}, 90 % of them below {summary['p90_abs_error']:.1%}, "
        f"largest {summary['max_abs_error']:.1%}"
    )
    return f"{text}; {summary['unpredicted']} cannot run." if summary["unpredicted"] else f"{text}."


def _reasons(folder: PaperFolder, records: Sequence[FigureRow]) -> list[str]:
    words = folder.setup["cells"]["words"]
    lines = [f"Cannot run: {words.format(**r)}: {r['reason']}" for r in records if r["reason"]]
    return list(dict.fromkeys(lines))


def residuals_of(
    paper: Paper, cells: Sequence[PublishedFigure], records: Sequence[FigureRow], batches: int
) -> list[Residual]:
    """One residual for every cell of a time or rate with an error. None counts as complete: papers leave much out."""
    residuals = []
    for cell, record in zip(cells, records, strict=True):
        sign = _STEP_ERROR_SIGN.get(cell.unit)
        if record["error"] is None or sign is None:
            continue
        features, key = setup_features(*paper.step(cell, batches))
        error = sign * math.log1p(record["error"])
        residuals.append(
            Residual(features=features, key=key, source=paper.folder.name, complete=False, log_error=error)
        )
    return residuals


def of_place(
    records: Sequence[FigureRow], place: Sequence[str], variant: str
) -> dict[tuple[Any, ...], dict[str, FigureRow]]:
    """Values of the *place* columns -> value of the *variant* column -> record."""
    by_place: dict[tuple[Any, ...], dict[str, FigureRow]] = {}
    for record in records:
        by_place.setdefault(tuple(record[name] for name in place), {})[record[variant]] = record
    return by_place


def ratio(value: float | None, base: float | None) -> float | None:
    """One figure over the other; None where either is missing or 0."""
    return value / base if value and base else None
