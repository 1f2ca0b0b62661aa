"""`hdpsim compare`: which strategy is fastest, by how much, and why?"""

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
    variants_option,
)
from hdpsim.experiments.cli.progress import progress
from hdpsim.experiments.cli.shown import Output


@click.command("compare")
@scenario_argument
@variants_option
@set_option
@batches_option
@replications_option
@file_option(
    "--timeline",
    help="Write every operation of the first step as a Chrome/Perfetto trace (.json or .json.gz), a file for each "
    "strategy: FILE-STRATEGY.json.",
)
@target_option
@output_options
def command(scenario: str, overrides: tuple[str, ...], output: Output, **options: Any) -> None:
    """Which strategy is fastest, by how much, and why?

    All strategies see the same global batches; the first one is the base of the speed-ups. The static mesh is compared
    as the scenario has it, and with the packer and context-parallel degree that suit it best.
    """
    from hdpsim.experiments.verbs.running import compare

    output.show(compare(scenario, overrides, progress=progress, **options))
