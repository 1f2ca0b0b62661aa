"""`hdpsim scale`: what do more GPUs buy?"""

from __future__ import annotations

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.common import (
    Output,
    batches_option,
    load,
    output_options,
    scenario_argument,
    set_option,
    strategies_option,
)
from hdpsim.experiments.cli.progress import progress
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES


def _gpu_counts(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    allowed = RANGES["gpus"]
    longest = len(str(allowed.high))
    if not all(
        part.isascii() and part.isdecimal() and len(part) <= longest and allowed.holds(int(part))
        for part in parts
    ):
        raise UserInputError(
            f"--gpus: expected whole numbers from {allowed} separated by commas (1024,2048), got {quoted(text)}"
        )
    counts = tuple(int(part) for part in parts)
    twice = [count for index, count in enumerate(counts) if count in counts[:index]]
    if twice:
        raise UserInputError(f"--gpus: {twice[0]} is given more than once in {quoted(text)}")
    return counts


@click.command("scale")
@scenario_argument
@click.option(
    "--gpus",
    required=True,
    metavar="N,N,...",
    callback=_gpu_counts,
    help="Numbers of GPUs, such as 1024,2048,4096.",
)
@click.option("--weak", is_flag=True, help="Grow the global batch with the GPUs (default: keep it).")
@strategies_option
@set_option
@batches_option
@output_options
def command(
    scenario: str,
    gpus: tuple[int, ...],
    weak: bool,
    strategies: tuple[str, ...] | None,
    overrides: tuple[str, ...],
    batches: int | None,
    output: Output,
) -> None:
    """What do more GPUs buy?

    Strong scaling by default: the global batch stays the same.
    """
    from hdpsim.experiments.studies.scale import scale, scaling_document

    checked = load(scenario, overrides)
    chosen = strategies or (checked.strategy.name,)
    with progress("scaling") as shown:
        scaling = scale(checked, gpus, chosen, weak=weak, batches=batches, report=shown, baseline=True)
    output.present(scaling_document(scaling, checked))
