"""`hdpsim validate`: how good are the predictions, on published runs or on a user's own?"""

from __future__ import annotations

from importlib import import_module

import click

from experiments.cli_common import emit_json, json_option, out_option, progress, show_table

__all__ = ["command"]


@click.command("validate")
@click.argument("records", metavar="[RECORDS.csv]", required=False, type=click.Path())
@click.option(
    "--memory",
    is_flag=True,
    help="Judge peak memory and out-of-memory verdicts instead of time.",
)
@out_option
@json_option
def command(records: str | None, memory: bool, out: str | None, as_json: bool) -> None:
    """Predict the training runs of RECORDS.csv (default: the published ones shipped) and show the errors.

    The columns are explained in docs/validation.md. A record that cannot be predicted is listed with the reason.
    """
    with progress("predicting") as shown:
        module = import_module("experiments.validate")
        validation = module.run(records, out, memory=memory, report=shown)
    if as_json:
        emit_json(validation.document)
        return
    for table in validation.tables:
        show_table(table)
        click.echo()
    for line in validation.lines:
        click.echo(line)
