"""`hdpsim flows`: a pattern of traffic played on a cluster's links, and which of them are hottest."""

from __future__ import annotations

from typing import Any

import click

from hdpsim.experiments.cli.options import json_option, whole_number
from hdpsim.experiments.cli.shown import Output

PATTERNS = ("permutation", "ring", "all-reduce", "all-to-all", "incast")


@click.command("flows")
@click.argument("source", metavar="SCENARIO|CLUSTER")
@click.option(
    "--pattern",
    type=click.Choice(PATTERNS),
    default="permutation",
    show_default=True,
    help="Who sends to whom.",
)
@click.option(
    "--group",
    type=whole_number("gpus"),
    metavar="N",
    help="GPUs of every group, or senders of an incast. Default: all GPUs for a ring or an all-reduce, two nodes for "
    "an all-to-all, 8 senders.",
)
@click.option(
    "--size", metavar="BYTES", default="1GB", show_default=True, help="What every GPU sends, or holds."
)
@click.option(
    "--gpus", type=whole_number("gpus"), metavar="N", help="As many GPUs of the cluster instead of all."
)
@click.option(
    "--seed", type=whole_number("seed"), metavar="N", default=0, help="Of the hashes and the permutation."
)
@click.option(
    "--top",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=5,
    show_default=True,
    help="Links, and meetings, shown.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of the cluster (cluster.fabric.routing=ecmp); repeatable.",
)
@json_option
def command(source: str, overrides: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """What do flows that meet leave each other?

    SCENARIO|CLUSTER is a scenario or a cluster: a shipped name or a YAML file. All GPUs send at once.
    """
    from hdpsim.experiments.verbs.network import flows

    Output(as_json=as_json).show(flows(source, overrides, **options))
