"""Verbs that hold predictions against measurements, and fit constants to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

from hdpsim.errors import UserInputError
from hdpsim.experiments.verbs.result import Result
from hdpsim.experiments.verbs.values import Names, Progress, check_whole_number, names_of, quiet
from hdpsim.quoting import did_you_mean, quoted

View = Literal["published", "plain", "unseen"]

_MOST_WORKERS = 8
"""Processes of a calibration: more start longer than they save."""


def validate(
    records: str | Path | None = None,
    *,
    memory: bool = False,
    calibration: str | Path | None = None,
    kernels: str | Path | None = None,
    steps: str | Path | None = None,
    longctx: str | Path | None = None,
    lengths: Iterable[str] | Mapping[str, str | Path] = (),
    scenario: str | Path | None = None,
    without: Iterable[str] = (),
    view: View = "published",
    residuals: str | Path | None = None,
    progress: Progress = quiet,
) -> Result:
    """How good are the predictions, on the published runs that are shipped or on your own?

        hdpsim.validate("runs.csv").to_frame()[["record", "measured", "predicted", "error"]]

    The columns are explained in docs/explanation/validation.md. A record that cannot be predicted is listed with the
    reason. It is an error if none can be.

    Args:
        records: CSV of training runs (docs/explanation/validation.md); default: the published ones shipped.
        memory: judge peak memory and out-of-memory verdicts instead of time.
        calibration: constants for the GPUs of the file's generation, such as `calibrate` writes.
        kernels: table of single kernels and collectives to predict instead of runs.
        steps: measured steps with their documents (JSON lines) to predict instead of runs.
        longctx: table of long-context and variable-length systems to predict instead of runs.
        lengths: for *longctx*, lengths of data sets that are not shipped, `{"Wikipedia": "lengths.csv"}` or
            `"Wikipedia=lengths.csv"`.
        scenario: for *steps*, how those steps were run that do not say it themselves.
        without: rules about software to leave out: a class (stated, release, inferred) or a switch of a stack, such as
            `"nemo.tp_overlap"` (docs/reference/software.md).
        view: what predictions see of a record: published (all of it), plain (what a user's own record has: a framework
            without a release, no notes) or unseen (nothing that was made with the runs of its family in view).
        residuals: file for features and log errors (no measurements) of the runs judged; bands of predictions rest on
            these.
        progress: shows how far it is.

    Raises:
        UserInputError: a file that cannot be used; the message says where.
    """
    if view not in get_args(View):
        raise UserInputError(f"--as: {quoted(str(view))} is none of {', '.join(get_args(View))}")
    names = (without,) if isinstance(without, str) else tuple(without)
    traces = _traces(lengths)
    _refuse_together(
        records=records, memory=memory, kernels=kernels, steps=steps, longctx=longctx, lengths=traces,
        scenario=scenario, without=names, residuals=residuals, view=None if view == "published" else view,
    )  # fmt: skip
    rules, constants = _left_out(names), _text(calibration)
    with progress("predicting") as shown:
        if kernels is not None:
            from hdpsim.experiments.validation import kernels as of_kernels

            return Result(document=of_kernels.run(str(kernels), constants))
        if steps is not None:
            from hdpsim.experiments.validation import steps as of_steps

            document = of_steps.run(str(steps), scenario=_text(scenario), calibration=constants, report=shown)
            return Result(document=document)
        if longctx is not None:
            from hdpsim.experiments.validation import longctx as of_tables

            document = of_tables.run(str(longctx), lengths=traces, calibration=constants, report=shown)
            return Result(document=document)
        return _validate_runs(_text(records), _text(residuals), memory, constants, rules, view, shown)


def _validate_runs(
    records: str | None,
    residuals: str | None,
    memory: bool,
    calibration: str | None,
    rules: frozenset[str],
    view: View,
    shown: Callable[..., None],
) -> Result:
    """Predict training runs; an error where none can be predicted."""
    from hdpsim.experiments.bands.residuals import check_residuals
    from hdpsim.experiments.validation import run as of_runs

    if residuals is not None:
        check_residuals(residuals)
    document = of_runs.run(
        records, memory=memory, calibration=calibration, residuals=residuals, without=rules, view=view,
        report=shown,
    )  # fmt: skip
    return Result(document=document, error=of_runs.why_none(document))


_CONTRADICTIONS = (
    ("steps", {"records", "kernels", "residuals", "memory", "without"},
     "--steps goes with --scenario, --calibration, --out and --json only"),
    ("longctx", {"records", "kernels", "steps", "scenario", "residuals", "memory", "without"},
     "--longctx goes with --lengths, --calibration, --out, --report and --json only"),
    ("kernels", {"records", "memory", "residuals"},
     "--kernels goes with --calibration, --out, --report and --json only"),
    ("without", {"kernels", "residuals"}, "--without goes with predictions of runs, and not with --write-residuals"),
    ("memory", {"residuals"}, "--write-residuals is about time, not --memory"),
    ("view", {"kernels", "steps", "residuals", "longctx"},
     "--as goes with predictions of runs, and not with --write-residuals"),
)  # fmt: skip
_NEEDED = (
    ("scenario", "steps", "--scenario goes with --steps; --scenario-of prints the scenario of a record"),
    ("lengths", "longctx", "--lengths goes with --longctx"),
)


def _refuse_together(**values: object) -> None:
    """Refuse arguments of `validate` that are about different things."""
    given = {name for name, value in values.items() if value not in (None, False, (), {})}
    for name, needed, words in _NEEDED:
        if name in given and needed not in given:
            raise UserInputError(words)
    for name, others, words in _CONTRADICTIONS:
        if name in given and given & others:
            raise UserInputError(words)


def _traces(lengths: Iterable[str] | Mapping[str, str | Path]) -> dict[str, str]:
    """Data sets and their traces, from a mapping or from texts such as Wikipedia=lengths.csv."""
    if isinstance(lengths, Mapping):
        return {name: str(path) for name, path in lengths.items()}
    paths = {}
    for text in (lengths,) if isinstance(lengths, str) else lengths:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise UserInputError(f"--lengths: expected DATASET=TRACE, got {quoted(text)}")
        paths[name] = path
    return paths


def _left_out(names: tuple[str, ...]) -> frozenset[str]:
    from hdpsim.experiments.software.rules import left_out

    return left_out(names) if names else frozenset()


def _text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)


def calibrate(
    records: str | Path | None = None,
    *,
    gpu: str,
    output: str | Path,
    kernels: Iterable[str | Path] = (),
    runs: bool = True,
    start: str | Path | None = None,
    constants: Names | None = None,
    workers: int | None = None,
    progress: Progress = quiet,
) -> Result:
    """Which constants of a GPU generation do measurements tell, and how well?

        hdpsim.calibrate("runs.csv", gpu="h100", output="mine.yaml")
        hdpsim.simulate("my_run.yaml", {"calibration": "mine.yaml"})

    They are written as a calibration, which scenarios (`calibration: FILE`) and `validate` take. With *kernels*, the
    fit on runs starts from what the kernels say.

    Args:
        records: CSV of training runs; default: the published ones shipped.
        gpu: GPU of the catalog whose generation is fitted.
        output: calibration (.yaml) to write.
        kernels: tables of measured kernels to fit on first.
        runs: whether to fit on runs; else on kernels only.
        start: calibration to begin with; default: the shipped one.
        constants: names to fit; default: all that the measurements determine.
        workers: processes; default: one per core, at most 8.
        progress: shows how far it is.

    Raises:
        UserInputError: a file that cannot be used; the message says where.
        InfeasibleError: the measurements do not determine the constants; the message says which would.
    """
    from hdpsim.experiments.calibration.file import check_calibration_file
    from hdpsim.experiments.calibration.run import calibrate as fit

    check_whole_number("workers", workers, "workers")
    check_calibration_file(str(output))
    if records is not None and not runs:
        raise UserInputError("--no-runs takes no RECORDS.csv")
    tables = [kernels] if isinstance(kernels, str | Path) else kernels
    with progress("fitting") as shown:
        document = fit(
            _text(records),
            gpu,
            str(output),
            kernels=tuple(map(str, tables)),
            runs=runs,
            start=_text(start),
            constants=None if constants is None else names_of("--constants", constants),
            workers=workers or min(_MOST_WORKERS, os.cpu_count() or 1),
            report=shown,
        )
    return Result(document=document)


def reproduce(
    paper: str,
    *,
    cells: str | Path | None = None,
    figures: Iterable[int] = (),
    batches: int | None = None,
    residuals: str | Path | None = None,
    progress: Progress = quiet,
) -> Result:
    """How close are the predictions to what a paper published?

        hdpsim.reproduce("bytescale", batches=1).to_frame()[["model", "strategy", "measured", "predicted", "error"]]

    Args:
        paper: `"bytescale"` or `"megascale"`.
        cells: CSV of other cells than the paper's.
        figures: numbers of the only figures to reproduce, where a paper's figures are; default: everything.
        batches: global batches of each prediction, where a paper averages over batches.
        residuals: file for features and log errors (no measurements) of the cells; bands of predictions rest on these.
        progress: shows how far it is.

    Raises:
        UserInputError: an unknown paper, or a file that cannot be used.
    """
    from hdpsim.experiments.bands.residuals import check_residuals
    from hdpsim.experiments.papers.folder import paper_folder, paper_names
    from hdpsim.experiments.papers.paper import load_paper
    from hdpsim.experiments.papers.paper import reproduce as reproduce_paper

    if paper not in paper_names():
        known = paper_names()
        raise UserInputError(
            f"{paper}: no such paper{did_you_mean(paper, known)}; there are {', '.join(known)}"
        )
    check_whole_number("batches", batches, "batches")
    if batches is not None and "batches" not in paper_folder(paper).setup:
        raise UserInputError(f"batches: {paper} does not average over batches")
    if residuals is not None:
        check_residuals(str(residuals))
    with progress("reproducing") as shown:
        document = reproduce_paper(
            load_paper(paper),
            _text(cells),
            figures=tuple(figures),
            batches=batches,
            residuals=_text(residuals),
            report=shown,
        )
    return Result(document=document)
