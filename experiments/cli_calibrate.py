"""`hdpsim calibrate`: the constants of a GPU generation from records of your own runs."""

from __future__ import annotations

import os
from typing import Any

import click

from experiments.cli_common import emit_json, json_option, progress, show_table, split_list

__all__ = ["command"]


@click.command("calibrate")
@click.argument("records", metavar="[RECORDS.csv]", required=False, type=click.Path())
@click.option("--gpu", required=True, metavar="NAME", help="GPU of the catalog whose generation is fitted.")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Calibration to write.",
)
@click.option(
    "--constants", "names", metavar="A,B", help="Fit these; default: all that the records determine."
)
@click.option(
    "--workers", type=click.IntRange(1, 64), metavar="N", help="Processes; default: one per core, at most 8."
)
@json_option
def command(
    records: str | None, gpu: str, output: str, names: str | None, workers: int | None, as_json: bool
) -> None:
    """Fit the constants of a GPU generation on RECORDS.csv (default: the runs shipped) and write a calibration.

    Scenarios (`calibration: FILE`) and `hdpsim validate --calibration FILE` accept it. Exit 3: the records do not
    determine the constants; the message says which kind of record would.
    """
    from experiments.calibrate import calibrate
    from experiments.out_file import check_out_file

    check_out_file(output, "--output")
    chosen = None if names is None else split_list(names, "--constants")
    with progress("fitting") as shown:
        document = calibrate(
            records,
            gpu,
            output,
            constants=chosen,
            workers=workers or min(8, os.cpu_count() or 1),
            report=shown,
        ).document
    if as_json:
        emit_json(document)
        return
    for table in _tables(dict(document)):
        show_table(table)
        click.echo()
    for line in _lines(dict(document)):
        click.echo(line)


def _tables(document: dict[str, Any]) -> list[Any]:
    from experiments.tables import Table

    fitted = Table(
        title=f"Fitted on {document['records']} records of {len(document['sources'])} sources",
        columns=("constant", "start", "fitted", "95 %", "allowed", ""),
        rows=tuple(
            (
                row["name"],
                f"{row['start']:.4g}",
                f"{row['value']:.4g}",
                f"+- {row['half_width']:.2g}",
                f"{row['low']:g} to {row['high']:g}",
                "at its bound" if row["at_bound"] else "",
            )
            for row in document["constants"]
        ),
        left=frozenset({0, 5}),
    )
    left = Table(
        title=f"Cross-validation: {document['cross_validation']}; median error in % with and without them in the fit",
        columns=("left out", "records", "with", "without", "moves others by"),
        rows=tuple(
            (
                row["left_out"],
                str(row["records"]),
                f"{100 * row['median_abs_error_fitted']:.1f}",
                f"{100 * row['median_abs_error']:.1f}",
                f"{100 * row['largest_shift']:.1f}",
            )
            for row in document["left_out_one_by_one"]
        ),
    )
    return [fitted, left]


def _lines(document: dict[str, Any]) -> list[str]:
    lines = [
        f"{words}: median {100 * document[key]['median_abs_error']:.1f} %, "
        f"p90 {100 * document[key]['p90_abs_error']:.1f} %, worst {100 * document[key]['max_abs_error']:.1f} %"
        for words, key in (
            ("at the start", "error_at_start"),
            ("fitted", "error_fitted"),
            ("cross-validated", "error_cross_validated"),
        )
    ]
    lines += [
        f"{row['first']} and {row['second']} move together: correlation {row['correlation']:+.2f}"
        for row in document["strong_correlations"]
    ]
    lines += [
        f"kept at {row['kept_at']:.4g}: {row['name']} ({row['reason']}); would be decided by {row['decided_by']}"
        for row in document["undetermined"]
    ]
    lines += [f"left out, {count} x: {reason}" for reason, count in document["left_out"].items()]
    return [*lines, f"wrote {document['written']}"]
