"""`hdpsim reproduce`: predictions beside the measurements a paper published."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from hdpsim.experiments.cli.common import (
    emit_json,
    json_option,
    out_option,
    progress,
    say,
    show_table,
    whole_number,
)

residuals_option = click.option(
    "--write-residuals",
    "residuals",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Put features and log errors (no measurements) of the cells into the file that bands of predictions rest on.",
)


@click.group("reproduce")
def command() -> None:
    """How close are the predictions to published measurements?"""


@command.command("bytescale")
@click.option(
    "--cells",
    metavar="FILE",
    type=click.Path(),
    help="CSV with model, dataset, gpus, context_tokens, strategy, measured_tokens_per_s; default: all of Figure 17.",
)
@click.option(
    "--batches",
    type=whole_number("batches"),
    metavar="N",
    help="Global batches of each prediction; default: 16.",
)
@residuals_option
@out_option
@json_option
def bytescale(
    cells: str | None, batches: int | None, residuals: str | None, out: str | None, as_json: bool
) -> None:
    """ByteScale (arXiv 2502.21231): Figure 17 cell by cell, the ablation of Figure 20, the case of Figure 18."""
    _check(residuals)
    with progress("reproducing") as shown:
        module = import_module("hdpsim.experiments.papers.bytescale")
        reproduction = module.run(cells, out, report=shown, batches=batches, residuals=residuals)
    _show(reproduction, as_json)


@command.command("megascale")
@click.option(
    "--cells",
    metavar="FILE",
    type=click.Path(),
    help="CSV with system, model, gpus, global_batch, metric (step_s or mfu), measured; default: Table 2.",
)
@residuals_option
@out_option
@json_option
def megascale(cells: str | None, residuals: str | None, out: str | None, as_json: bool) -> None:
    """MegaScale (arXiv 2402.15627): Tables 2 and 3, weak scaling, start-up; whole runs of MegaScale and Llama 3."""
    _check(residuals)
    with progress("reproducing") as shown:
        module = import_module("hdpsim.experiments.papers.megascale")
        reproduction = module.run(cells, out, report=shown, residuals=residuals)
    _show(reproduction, as_json)


def _check(residuals: str | None) -> None:
    """The file of residuals can be written, and holds nothing else."""
    if residuals is not None:
        import_module("hdpsim.experiments.bands.residuals").check_residuals(residuals, "--write-residuals")


def _show(reproduction: Any, as_json: bool) -> None:
    """The document as JSON, or its tables and lines."""
    if as_json:
        emit_json(reproduction.document)
        return
    for table in reproduction.tables:
        show_table(table)
        say()
    for line in reproduction.lines:
        say(line)
