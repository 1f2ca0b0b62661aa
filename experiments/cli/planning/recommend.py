"""`hdpsim recommend`: which GPUs, and how many, train so many tokens by a date?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hdpsim.experiments.cli.options import (
    batches_option,
    budget_option,
    gpu_types_option,
    output_options,
    scenario_argument,
    set_option,
)
from hdpsim.experiments.cli.progress import long_progress
from hdpsim.experiments.cli.shown import Output

if TYPE_CHECKING:
    from hdpsim.experiments.planning.recommending.goal import Goal


def _goal(_context: click.Context, _option: click.Parameter, text: str) -> Goal:
    from hdpsim.experiments.planning.recommending.goal import parse_goal

    return parse_goal(text)


@click.command("recommend")
@scenario_argument
@click.option(
    "--target",
    "goal",
    required=True,
    metavar="TEXT",
    callback=_goal,
    help='What has to be done by when, such as "300B tokens in 30 days".',
)
@gpu_types_option
@click.option(
    "--objective",
    type=click.Choice(("gpus", "usd")),
    default="gpus",
    show_default=True,
    help="The fewest GPUs, or the cheapest.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.01, 0.99),
    metavar="P",
    default=0.8,
    show_default=True,
    help="Probability with which the date has to be met; 0.5: an even bet.",
)
@click.option("--keep-layout", is_flag=True, help="Only data parallelism grows; no layout is searched.")
@budget_option
@set_option
@batches_option
@output_options
def command(scenario: str, goal: Goal, overrides: tuple[str, ...], output: Output, **options: Any) -> None:
    """Which GPUs, and how many, train so many tokens by a date?

    Failures, restarts and checkpoints are those of the scenario's campaign.
    """
    from hdpsim.experiments.verbs.planning import recommend

    output.show(recommend(scenario, goal, overrides, progress=long_progress, **options))
