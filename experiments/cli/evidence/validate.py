"""`hdpsim validate`: how good are the predictions, on published runs or on a user's own?"""

from __future__ import annotations

from importlib import import_module

import click

from hdpsim.experiments.cli.options import file_option, output_options
from hdpsim.experiments.cli.progress import progress
from hdpsim.experiments.cli.shown import Output, say


def _print_template(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        say(import_module("hdpsim.experiments.records.table").template(), nl=False)
        context.exit()


@click.command("validate")
@click.argument("records", metavar="[RECORDS.csv]", required=False, type=click.Path())
@click.option("--memory", is_flag=True, help="Judge peak memory and out-of-memory verdicts instead of time.")
@file_option(
    "--calibration",
    help="Constants for the GPUs of the file's generation, such as `hdpsim calibrate` writes.",
)
@file_option("--kernels", help="Predict single kernels and collectives (csv or csv.gz) instead of runs.")
@file_option(
    "--steps", help="Predict single measured steps with their documents (JSON lines) instead of runs."
)
@click.option(
    "--scenario", metavar="SCENARIO", help="With --steps: how steps were run that do not say it themselves."
)
@file_option(
    "--longctx", help="Predict a table of long-context and variable-length systems (csv) instead of runs."
)
@click.option(
    "--lengths",
    metavar="DATASET=TRACE",
    multiple=True,
    help="With --longctx: the lengths of a data set that is not shipped; may be given again.",
)
@file_option(
    "--write-residuals",
    "residuals",
    help="Write features and log errors (no measurements) of the runs judged: what bands of predictions rest on.",
)
@click.option(
    "--without",
    metavar="RULES",
    multiple=True,
    help="Leave rules about software out: a class (stated, release, inferred) or a switch of a stack such as "
    "nemo.tp_overlap (docs/reference/software.md); may be given again.",
)
@click.option(
    "--as",
    "view",
    default="published",
    show_default=True,
    type=click.Choice(("published", "plain", "unseen")),
    help="What predictions see of a record: all of it; what a user's own has (a framework without release, no notes); "
    "or nothing that was made with the runs of its family in view.",
)
@click.option(
    "--scenario-of",
    "scenario_of",
    metavar="ID",
    help="Print the scenario of one record, which `hdpsim simulate` times as it is predicted here.",
)
@file_option("-o", "scenario_file", help="With --scenario-of: write it to a .yaml file instead.")
@click.option(
    "--template",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_template,
    help="Print a RECORDS.csv to fill in: its columns, and a published run as an example.",
)
@click.option("--markdown", is_flag=True, help="Print tables and summary as Markdown.")
@output_options
def command(
    records: str | None,
    memory: bool,
    calibration: str | None,
    kernels: str | None,
    steps: str | None,
    longctx: str | None,
    lengths: tuple[str, ...],
    scenario: str | None,
    residuals: str | None,
    without: tuple[str, ...],
    view: str,
    scenario_of: str | None,
    scenario_file: str | None,
    markdown: bool,
    output: Output,
) -> None:
    """Predict the training runs of RECORDS.csv (default: the published ones shipped) and show the errors.

    The columns are explained in docs/explanation/validation.md. A record that cannot be predicted is listed with the
    reason.
    """
    others = (records, memory, kernels, residuals, without, scenario_of, scenario_file, markdown)
    if longctx is not None and (any(others) or steps or scenario or view != "published"):
        raise click.UsageError(
            "--longctx goes with --lengths, --calibration, --out, --report and --json only"
        )
    if view != "published" and (kernels or steps or residuals or scenario_of):
        raise click.UsageError("--as goes with predictions of runs, and not with --write-residuals")
    if steps is not None and any(others):
        raise click.UsageError("--steps goes with --scenario, --calibration, --out and --json only")
    if scenario is not None and steps is None:
        raise click.UsageError("--scenario goes with --steps; --scenario-of prints the scenario of a record")
    if scenario_of is not None:
        if memory or kernels or residuals or markdown or output.out or output.as_json:
            raise click.UsageError(
                "--scenario-of goes with RECORDS.csv, --calibration, --without and -o only"
            )
        _write_scenario(scenario_of, records, calibration, without, scenario_file)
        return
    if scenario_file is not None:
        raise click.UsageError("-o goes with --scenario-of; a run directory is --out")
    if kernels is not None and (records is not None or memory or residuals is not None or markdown):
        raise click.UsageError("--kernels goes with --calibration, --out, --report and --json only")
    if without and (kernels is not None or residuals is not None):
        raise click.UsageError("--without goes with predictions of runs, and not with --write-residuals")
    if markdown and output.as_json:
        raise click.UsageError("--markdown and --json: choose one")
    if memory and residuals is not None:
        raise click.UsageError("--write-residuals is about time, not --memory")
    result = import_module("hdpsim.experiments.verbs.evidence").validate(
        records,
        memory=memory,
        calibration=calibration,
        kernels=kernels,
        steps=steps,
        longctx=longctx,
        lengths=lengths,
        scenario=scenario,
        without=without,
        view=view,
        residuals=residuals,
        progress=progress,
    )
    if markdown:
        say(import_module("hdpsim.experiments.validation.report").markdown(result.document.payload))
        return
    output.show(result)


def _write_scenario(
    name: str, records: str | None, calibration: str | None, without: tuple[str, ...], target: str | None
) -> None:
    """Print or write the scenario of a record."""
    files = import_module("hdpsim.experiments.output.files.out_file")
    if target is not None:
        files.check_out_file(target, "-o", (".yaml", ".yml"))
    rules = import_module("hdpsim.experiments.software.rules").left_out(without) if without else frozenset()
    text = import_module("hdpsim.experiments.records.scenario").record_scenario(
        name, records, calibration, rules
    )
    if target is None:
        say(text, nl=False)
        return
    files.write_whole(target, text, "scenario")
    say(f"wrote {target}")
