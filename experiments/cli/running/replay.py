"""`hdpsim replay`: a whole data set, step by step."""

from __future__ import annotations

from typing import Any

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.options import output_options, scenario_argument, set_option, workers_option
from hdpsim.experiments.cli.progress import long_progress
from hdpsim.experiments.cli.shown import Output
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES


def _step_count(_context: click.Context, _option: click.Parameter, text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and RANGES["steps"].holds(int(text))):
        raise UserInputError(f"--steps: expected all or a whole number of at least 1, got {quoted(text)}")
    return int(text)


def _share(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """A share as "1%" or 0.01."""
    from hdpsim.experiments.verbs.values import share_of

    return share_of("--until-ci", text)


@click.command("replay")
@scenario_argument
@click.option(
    "--trace",
    metavar="FILE",
    help="A trace file of any size, streamed in its own order, or the name of a shipped trace; default: data.trace.",
)
@click.option("--column", metavar="NAME", help="The column of FILE with the lengths.")
@click.option(
    "--steps",
    default="all",
    metavar="all|N",
    callback=_step_count,
    help="How many steps; default: all of the data.",
)
@click.option(
    "--until-ci",
    "until",
    metavar="SHARE",
    callback=_share,
    help="Stop as soon as the 95 % confidence interval of the mean is within this share of it, such as 1%.",
)
@workers_option
@set_option
@output_options
def command(scenario: str, overrides: tuple[str, ...], output: Output, **options: Any) -> None:
    """How fast does training go through a whole data set?

    The trace is streamed in bounded memory, cut into global batches and simulated step by step. Ctrl-C ends it with a
    valid partial result (exit code 130).
    """
    from hdpsim.experiments.verbs.running import replay

    output.show(replay(scenario, overrides, progress=long_progress, **options))
