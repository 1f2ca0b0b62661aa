"""`hdpsim campaign`: a weeks-long run with its failures."""

from __future__ import annotations

from typing import Any

import click

from hdpsim.experiments.cli.options import (
    output_options,
    scenario_argument,
    set_option,
    target_option,
    whole_number,
    workers_option,
)
from hdpsim.experiments.cli.progress import progress
from hdpsim.experiments.cli.shown import Output


@click.command("campaign")
@scenario_argument
@click.option(
    "--duration", metavar="TIME", help="Wall-clock time to simulate, such as 30d; default: campaign.duration."
)
@target_option
@click.option("--seeds", type=whole_number("seeds"), metavar="N", help="Runs; default: campaign.seeds.")
@workers_option
@set_option
@output_options
def command(scenario: str, overrides: tuple[str, ...], output: Output, **options: Any) -> None:
    """How much of a weeks-long run is left after failures, restarts and checkpoints?"""
    from hdpsim.experiments.verbs.running import campaign

    output.show(campaign(scenario, overrides, progress=progress, **options))
