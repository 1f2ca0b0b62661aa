"""`hdpsim explain`: a predicted step taken apart, one number traced to its roots."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.options import json_option, scenario_argument, set_option
from hdpsim.experiments.cli.shown import Output


@click.command("explain")
@scenario_argument
@set_option
@click.option(
    "--term",
    metavar="NAME",
    help="One term, such as tp_communication, or one part of it, such as tp_all_gather or gemm_qkv.",
)
@json_option
def command(scenario: str, overrides: tuple[str, ...], term: str | None, as_json: bool) -> None:
    """Where does every second of the predicted step come from?

    Takes the step of the scenario's first global batch apart: each term with its seconds; with --term its formula,
    the numbers that went in, the constants and where they come from.
    """
    from hdpsim.experiments.verbs.running import explain

    Output(as_json=as_json).show(explain(scenario, overrides, term=term))
