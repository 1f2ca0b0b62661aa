"""Verbs that hold predictions against measurements, and fit constants to them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hdpsim.experiments.cli.command_from_verb import verb
from hdpsim.experiments.cli.groups import Commands
from hdpsim.experiments.cli.options import SCENARIO_FILES, Decorator, number_option, written_option
from hdpsim.experiments.cli.printing import Output, say

if TYPE_CHECKING:
    from hdpsim.experiments.verbs.result import Result


def _print_template(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        say(import_module("hdpsim.experiments.records.columns").template(), nl=False)
        context.exit()


def _show_validation(
    run: Callable[..., Result],
    output: Output,
    /,
    *,
    scenario_of: str | None = None,
    scenario_file: str | None = None,
    markdown: bool,
    **options: Any,
) -> None:
    """Show the errors, as Markdown if asked for, or the scenario of a single record."""
    others = {name for name, value in options.items() if value not in (False, "published")}
    places = output.out or output.report or output.as_json
    if scenario_of is not None:
        if others - {"records", "calibration", "without"} or markdown or places:
            raise click.UsageError(
                "--scenario-of goes with RECORDS.csv, --calibration, --without and -o only"
            )
        _write_scenario(scenario_of, scenario_file, **options)
        return
    if scenario_file is not None:
        raise click.UsageError("-o goes with --scenario-of; a run directory is --out")
    if markdown and (places or others & {"kernels", "steps", "longctx"}):
        raise click.UsageError(
            "--markdown goes with predictions of runs, and not with --json, --out or --report"
        )
    result = run(**options)
    if markdown:
        say(import_module("hdpsim.experiments.validation.report").markdown(result.document.payload))
    else:
        output.show(result)


def _write_scenario(
    name: str,
    target: str | None,
    *,
    records: str | None = None,
    calibration: str | None = None,
    without: tuple[str, ...] = (),
    **_options: object,
) -> None:
    """Print or write the scenario of a record."""
    rules = import_module("hdpsim.experiments.software.rules").left_out(without) if without else frozenset()
    text = import_module("hdpsim.experiments.records.scenario").record_scenario(
        name, records, calibration, rules
    )
    if target is None:
        say(text, nl=False)
        return
    import_module("hdpsim.experiments.output.files.out_file").write_whole(target, text, "scenario")
    say(f"wrote {target}")


validate = verb(
    "measurements",
    "validate",
    click.option(
        "--scenario-of",
        metavar="ID",
        help="Print the scenario of one record, which `hdpsim simulate` times as it is predicted here.",
    ),
    written_option(
        "-o",
        "scenario_file",
        endings=SCENARIO_FILES,
        help="With --scenario-of: write it to a .yaml file instead.",
    ),
    click.option(
        "--template",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_print_template,
        help="Print a RECORDS.csv to fill in: its columns, and a published run as an example.",
    ),
    click.option("--markdown", is_flag=True, help="Print tables and summary as Markdown."),
    shown=_show_validation,
)

calibrate = verb("measurements", "calibrate")


class _Papers(Commands):
    """A command for every paper whose data are in experiments/data/papers."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all papers."""
        from hdpsim.experiments.papers.folder import paper_names

        return list(paper_names())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command that reproduces a paper."""
        return _reproducing(cmd_name) if cmd_name in self.list_commands(ctx) else None


@click.group("reproduce", cls=_Papers)
def reproduce() -> None:
    """How close are the predictions to published measurements?"""


def _reproducing(paper: str) -> click.Command:
    from hdpsim.experiments.papers.folder import paper_folder

    folder = paper_folder(paper)
    options: list[Decorator] = [
        click.option("--cells", metavar="FILE", type=click.Path(), help=folder.cells_help)
    ]
    if folder.figures:
        only = f"Only this figure ({', '.join(map(str, folder.figures))}); repeatable."
        options.append(click.option("--figure", "figures", type=int, multiple=True, metavar="N", help=only))
    if "batches" in folder.setup:
        usual = f"Global batches of each prediction; default: {folder.setup['batches']}."
        options.append(number_option("batches", "--batches", help=usual))

    def shown(run: Callable[..., Result], output: Output, /, **given: Any) -> None:
        output.show(run(paper=paper, **given))

    return verb("measurements", "reproduce", *options, shown=shown, about=folder.setup["about"])
