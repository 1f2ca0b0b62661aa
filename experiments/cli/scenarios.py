"""`hdpsim scenarios`: what is shipped, and what a scenario looks like with every default filled in."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.common import emit_json, json_option, load, say, set_option, show_table


@click.command("scenarios")
@click.argument("scenario", required=False, metavar="[SCENARIO]")
@set_option
@json_option
def command(scenario: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """List the shipped scenarios, or print one in full.

    With a SCENARIO: prints it with every default filled in; the output is a scenario file.
    """
    from hdpsim.errors import UserInputError
    from hdpsim.experiments.output.tables import Table
    from hdpsim.experiments.scenario.scenario import scenario_names

    if scenario is not None:
        checked = load(scenario, overrides)
        if as_json:
            emit_json(checked.document)
        else:
            say(checked.to_yaml(), nl=False)
        return
    if overrides:
        raise UserInputError("--set changes one scenario: name it")
    shipped = [load(name, ()) for name in scenario_names()]
    if as_json:
        emit_json({"scenarios": [{"name": s.name, "description": s.description} for s in shipped]})
        return
    rows = tuple((s.name, f"{s.cluster.gpus:,}", s.description) for s in shipped)
    show_table(Table(title="", columns=("scenario", "GPUs", "what"), rows=rows, left=frozenset({0, 2})))
