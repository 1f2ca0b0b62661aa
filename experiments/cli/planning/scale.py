"""`hdpsim scale`: what do more GPUs buy?"""

from __future__ import annotations

from typing import Any

import click

from hdpsim.experiments.cli.options import (
    batches_option,
    gpu_counts,
    output_options,
    scenario_argument,
    set_option,
    strategies_option,
)
from hdpsim.experiments.cli.progress import progress
from hdpsim.experiments.cli.shown import Output


@click.command("scale")
@scenario_argument
@click.option(
    "--gpus",
    required=True,
    metavar="N,N,...",
    callback=gpu_counts,
    help="Numbers of GPUs, such as 1024,2048,4096.",
)
@click.option("--weak", is_flag=True, help="Grow the global batch with the GPUs (default: keep it).")
@strategies_option
@set_option
@batches_option
@output_options
def command(
    scenario: str, gpus: tuple[int, ...], overrides: tuple[str, ...], output: Output, **options: Any
) -> None:
    """What do more GPUs buy?

    Strong scaling by default: the global batch stays the same.
    """
    from hdpsim.experiments.verbs.planning import scale

    output.show(scale(scenario, gpus, overrides, progress=progress, **options))
