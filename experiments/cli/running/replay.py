"""`hdpsim replay`: a whole data set, step by step."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from hdpsim import interrupts
from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.common import (
    Output,
    load,
    output_options,
    say,
    scenario_argument,
    set_option,
    workers_option,
)
from hdpsim.experiments.cli.progress import long_progress
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario


def _step_count(_context: click.Context, _option: click.Parameter, text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and RANGES["steps"].holds(int(text))):
        raise UserInputError(f"--steps: expected all or a whole number of at least 1, got {quoted(text)}")
    return int(text)


def _share(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """A share as "1%" or 0.01."""
    if text is None:
        return None
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100.0 if text.strip().endswith("%") else 1.0)
    except ValueError:
        share = 0.0
    if not 0.0 < share < 1.0:
        raise UserInputError(
            f"--until-ci: expected a share between 0 and 100 % such as 1% or 0.01, got {quoted(text)}"
        )
    return share


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
def command(
    scenario: str,
    trace: str | None,
    column: str | None,
    steps: int | None,
    until: float | None,
    workers: int | None,
    overrides: tuple[str, ...],
    output: Output,
) -> None:
    """How fast does training go through a whole data set?

    The trace is streamed in bounded memory, cut into global batches and simulated step by step. Ctrl-C ends it with a
    valid partial result (exit code 130).
    """
    from hdpsim.experiments.datasets.replay import replay_dataset
    from hdpsim.experiments.datasets.report import replay_document
    from hdpsim.experiments.parallel.engines import LocalEngine

    checked = _with_trace(scenario, trace, column, overrides)
    with long_progress("replaying", "steps") as shown:
        replay = replay_dataset(checked, LocalEngine(workers), steps=steps, until=until, report=shown)
    output.present(replay_document(replay))
    if replay.error is not None:
        raise replay.error
    if replay.stopped == "interrupted":
        say(f"{interrupts.message()}: the result is partial", err=True)
        raise click.exceptions.Exit(interrupts.exit_code())


def _with_trace(scenario: str, trace: str | None, column: str | None, overrides: tuple[str, ...]) -> Scenario:
    """The scenario with another trace; relative paths start in the current directory."""
    if trace is None:
        if column is not None:
            raise UserInputError("--column names a column of --trace FILE: give both")
        return load(scenario, overrides)
    name = os.path.abspath(trace) if os.path.isfile(trace) else trace
    changes = [f"data.trace={json.dumps(name, ensure_ascii=False)}"]
    if column is not None:
        changes.append(f"data.trace.column={json.dumps(column, ensure_ascii=False)}")
    return load(scenario, (*changes, *overrides))
