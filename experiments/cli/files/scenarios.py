"""`hdpsim scenarios`: what is shipped, and what a scenario looks like with every default filled in."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.options import json_option, set_option
from hdpsim.experiments.cli.shown import Output, emit_json, say


@click.command("scenarios")
@click.argument("scenario", required=False, metavar="[SCENARIO]")
@set_option
@json_option
def command(scenario: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """List the shipped scenarios, or print one in full.

    With a SCENARIO: prints it with every default filled in; the output is a scenario file.
    """
    from hdpsim.errors import UserInputError
    from hdpsim.experiments.output.document import Column, Document, Table
    from hdpsim.experiments.scenario.scenario import Scenario, load_scenario, scenario_names

    if scenario is not None:
        checked = load_scenario(scenario, overrides)
        if as_json:
            emit_json(checked.document)
        else:
            say(checked.to_yaml(), nl=False)
        return
    if overrides:
        raise UserInputError("--set changes one scenario: name it")
    shipped = [load_scenario(name) for name in scenario_names()]
    columns: tuple[Column[Scenario], ...] = (
        Column("scenario", lambda shown: shown.name),
        Column("gpus", lambda shown: shown.cluster.gpus, heading="GPUs", format=","),
        Column("what", lambda shown: shown.description, left=True),
    )
    names = [{"name": shown.name, "description": shown.description} for shown in shipped]
    table = Table(columns=columns, rows=shipped)
    Output(as_json=as_json).present(Document(kind="", payload={"scenarios": names}, blocks=(table,)))
