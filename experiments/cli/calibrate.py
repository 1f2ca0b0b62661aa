"""`hdpsim calibrate`: the constants of a GPU generation from records of your own runs."""

from __future__ import annotations

import os
from typing import Any

import click

from hdpsim.experiments.cli.common import emit_json, json_option, say, show_table, split_list
from hdpsim.experiments.cli.progress import progress


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
    "--kernels",
    multiple=True,
    metavar="FILE",
    type=click.Path(),
    help="Table of measured kernels (csv, csv.gz) to fit on first; may be given several times.",
)
@click.option("--no-runs", is_flag=True, help="Fit on kernels only.")
@click.option(
    "--start",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Calibration to begin with; default: the shipped one.",
)
@click.option(
    "--workers", type=click.IntRange(1, 64), metavar="N", help="Processes; default: one per core, at most 8."
)
@json_option
def command(
    records: str | None,
    gpu: str,
    output: str,
    names: str | None,
    kernels: tuple[str, ...],
    no_runs: bool,
    start: str | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Fit the constants of a GPU generation on RECORDS.csv (default: the runs shipped) and write a calibration.

    With --kernels on measured kernels first; what they say is then known before the runs are asked.

    Scenarios (`calibration: FILE`) and `hdpsim validate --calibration FILE` accept it. Exit 3: the records do not
    determine the constants; the message says which kind of record would.
    """
    from hdpsim.experiments.calibration.file import check_calibration_file
    from hdpsim.experiments.calibration.run import calibrate

    check_calibration_file(output, "--output")
    if records is not None and no_runs:
        raise click.UsageError("--no-runs takes no RECORDS.csv")
    chosen = None if names is None else split_list(names, "--constants")
    with progress("fitting") as shown:
        found = calibrate(
            records,
            gpu,
            output,
            kernels=kernels,
            runs=not no_runs,
            start=start,
            constants=chosen,
            workers=workers or min(8, os.cpu_count() or 1),
            report=shown,
        )
    document = dict(found.document)
    if as_json:
        emit_json(document)
        return
    stages = [document["kernels"], document] if document["kernels"] else [document]
    for stage in stages if document["fitted_on"] == "runs" else stages[:1]:
        for table in _tables(stage):
            show_table(table)
            say()
        for line in _lines(stage):
            say(line)
        say()
    say(f"wrote {document['written']}")


def _tables(stage: dict[str, Any]) -> list[Any]:
    from hdpsim.experiments.output.tables import TextTable

    noun = "records" if stage["fitted_on"] == "runs" else "kernels"
    fitted = TextTable(
        title=f"Fitted on {stage['records']} {noun} of {_counted(len(stage['sources']), 'source')}",
        columns=("constant", "start", "known before", "fitted", "95 %", "allowed", ""),
        rows=tuple(
            (
                row["name"],
                f"{row['start']:.4g}",
                "" if row["doubt"] is None else f"{row['prior']:.3g} +- {1.96 * row['doubt']:.2g}",
                f"{row['fitted']:.4g}",
                f"+- {row['half_width']:.2g}",
                f"{row['low']:g} to {row['high']:g}",
                "at its bound" if row["at_bound"] else "",
            )
            for row in stage["constants"]
        ),
        left=frozenset({0, 6}),
    )
    left = TextTable(
        title=f"Cross-validation: {stage['cross_validation']}; median error in %",
        columns=("left out", noun, "start", "fitted", "left out of the fit", "moves another by", ""),
        rows=tuple(
            (
                row["left_out"],
                str(row["records"]),
                f"{100 * row['median_abs_error_at_start']:.1f}",
                f"{100 * row['median_abs_error_fitted']:.1f}",
                f"{100 * row['median_abs_error']:.1f}",
                f"{100 * row['largest_shift']:.1f}",
                row["shifted"],
            )
            for row in stage["left_out_one_by_one"]
        ),
        left=frozenset({0, 6}),
    )
    return [fitted, left]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _lines(stage: dict[str, Any]) -> list[str]:
    lines = [
        f"{words}: median {100 * stage[key]['median_abs_error']:.1f} %, "
        f"p90 {100 * stage[key]['p90_abs_error']:.1f} %, worst {100 * stage[key]['max_abs_error']:.1f} %"
        for words, key in (
            ("at the start", "error_at_start"),
            ("fitted", "error_fitted"),
            ("cross-validated", "error_cross_validated"),
        )
    ]
    if stage["constants"] and not stage["taken"]:
        lines.append(
            "not taken: sources left out of the fit come out no better than at the start, which stays"
        )
    lines += [
        f"{row['first']} and {row['second']} move together: correlation {row['correlation']:+.2f}"
        for row in stage["strong_correlations"]
    ]
    lines += [
        f"kept at {row['kept_at']:.4g}: {row['name']} ({row['reason']}); would be decided by {row['decided_by']}"
        for row in stage["undetermined"]
    ]
    return [*lines, *(f"left out, {count} x: {reason}" for reason, count in stage["left_out"].items())]
