"""`hdpsim fabric`: what the network of a cluster gives its GPUs at every distance, and a drawing of it."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.options import file_option, json_option, whole_number
from hdpsim.experiments.cli.shown import Output


@click.command("fabric")
@click.argument("source", metavar="SCENARIO|CLUSTER")
@click.option("--gpus", type=whole_number("gpus"), metavar="N", help="As many GPUs of it instead of all.")
@file_option(
    "--out",
    help="Draw the fabric into a .png or .svg file: devices of every kind, how many, and their rates.",
)
@json_option
def command(source: str, gpus: int | None, out: str | None, as_json: bool) -> None:
    """What does the network give GPUs at every distance?

    SCENARIO|CLUSTER is a scenario or a cluster: a shipped name or a YAML file.
    """
    from hdpsim.experiments.verbs.network import fabric

    Output(as_json=as_json).show(fabric(source, gpus=gpus, drawing=out))
