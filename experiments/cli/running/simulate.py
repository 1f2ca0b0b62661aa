"""`hdpsim simulate`: how long is one step, and where does the time go?"""

from __future__ import annotations

from typing import Any

import click

from hdpsim.experiments.cli.options import (
    batches_option,
    file_option,
    output_options,
    replications_option,
    scenario_argument,
    set_option,
    target_option,
    whole_number,
)
from hdpsim.experiments.cli.progress import progress
from hdpsim.experiments.cli.shown import Output


@click.command("simulate")
@scenario_argument
@set_option
@batches_option
@replications_option
@click.option(
    "--steps",
    type=whole_number("batches"),
    metavar="N",
    help="Play the first N batches one after the other on one clock: planner, loaders, checkpoints, host memory.",
)
@file_option(
    "--timeline",
    help="Write every operation of the first step as a Chrome/Perfetto trace (.json or .json.gz), and the "
    "hottest links where transfers are flows; with --steps what planner, loaders, storage, stages, offload streams and "
    "checkpoints did when.",
)
@target_option
@output_options
def command(scenario: str, overrides: tuple[str, ...], output: Output, **options: Any) -> None:
    """How long is one step, and where does the time go?"""
    from hdpsim.experiments.verbs.running import simulate

    output.show(simulate(scenario, overrides, progress=progress, **options))
