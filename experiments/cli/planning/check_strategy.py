"""`hdpsim check-strategy`: does a strategy of one's own keep every promise of a plan?"""

from __future__ import annotations

import click

from hdpsim.experiments.cli.options import output_options, set_option, whole_number
from hdpsim.experiments.cli.progress import progress
from hdpsim.experiments.cli.shown import Output


@click.command("check-strategy")
@click.argument("strategy", metavar="MODULE:FUNCTION")
@click.option(
    "--scenario",
    default="quickstart-8gpu",
    show_default=True,
    metavar="SCENARIO",
    help="Whose model, nodes and keys are taken; GPUs, stages, context and capacity are the cases' own.",
)
@click.option(
    "--ranks",
    type=whole_number("cp"),
    default=16_384,
    show_default=True,
    metavar="N",
    help="Cases of at most so many ranks.",
)
@set_option
@output_options
def command(strategy: str, scenario: str, ranks: int, overrides: tuple[str, ...], output: Output) -> None:
    """Does a strategy keep every promise, on every kind of batch?

    Tokens, capacity, members, order, deadlocks, the same plan every time; batches of one token to a full context, 1 to
    16,384 ranks, with and without a pipeline. What breaks is shown with the smallest batch found (exit code 3).
    """
    from hdpsim.experiments.verbs.planning import check_strategy

    output.show(check_strategy(strategy, overrides, scenario=scenario, ranks=ranks, progress=progress))
