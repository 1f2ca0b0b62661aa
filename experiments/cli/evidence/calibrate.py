"""`hdpsim calibrate`: the constants of a GPU generation from records of your own runs."""

from __future__ import annotations

from typing import Any

import click

from hdpsim.experiments.cli.options import file_option, output_options
from hdpsim.experiments.cli.progress import progress
from hdpsim.experiments.cli.shown import Output


@click.command("calibrate")
@click.argument("records", metavar="[RECORDS.csv]", required=False, type=click.Path())
@click.option("--gpu", required=True, metavar="NAME", help="GPU of the catalog whose generation is fitted.")
@file_option("-o", "--output", "file", required=True, help="Calibration to write.")
@click.option(
    "--constants", "names", metavar="A,B", help="Fit these; default: all that the records determine."
)
@click.option(
    "--kernels",
    multiple=True,
    metavar="FILE",
    type=click.Path(),
    help="Table of measured kernels (csv, csv.gz) to fit on first; may be given several times.",
)
@click.option("--no-runs", is_flag=True, help="Fit on kernels only.")
@file_option("--start", help="Calibration to begin with; default: the shipped one.")
@click.option(
    "--workers", type=click.IntRange(1, 64), metavar="N", help="Processes; default: one per core, at most 8."
)
@output_options
def command(
    records: str | None,
    names: str | None,
    kernels: tuple[str, ...],
    no_runs: bool,
    file: str,
    output: Output,
    **options: Any,
) -> None:
    """Fit the constants of a GPU generation on RECORDS.csv (default: the runs shipped) and write a calibration.

    With --kernels on measured kernels first; what they say is then known before the runs are asked.

    Scenarios (`calibration: FILE`) and `hdpsim validate --calibration FILE` accept it. Exit 3: the records do not
    determine the constants; the message says which kind of record would.
    """
    from hdpsim.experiments.verbs.evidence import calibrate

    if records is not None and no_runs:
        raise click.UsageError("--no-runs takes no RECORDS.csv")
    result = calibrate(
        records,
        output=file,
        runs=not no_runs,
        constants=names,
        kernels=kernels,
        progress=progress,
        **options,
    )
    output.show(result)
