"""`hdpsim check`: what will not fit, what does not divide, what wastes time, and which change helps."""

from __future__ import annotations

from typing import Any

import click

from hdpsim.experiments.cli.options import (
    batches_option,
    output_options,
    scenario_argument,
    set_option,
    target_option,
)
from hdpsim.experiments.cli.progress import progress
from hdpsim.experiments.cli.shown import Output


@click.command("check")
@scenario_argument
@set_option
@batches_option
@target_option
@output_options
def command(scenario: str, overrides: tuple[str, ...], output: Output, **options: Any) -> None:
    """What is wrong with this scenario, what does it cost, and which change helps?

    Every change is simulated on the same batches; only what fits and gains is recommended.
    """
    from hdpsim.experiments.verbs.planning import check

    output.show(check(scenario, overrides, progress=progress, **options))
