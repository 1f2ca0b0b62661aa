"""`hdpsim replay`: a whole data set, step by step."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from hdpsim import interrupts
from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.common import (
    emit_json,
    json_option,
    load,
    out_option,
    say,
    scenario_argument,
    set_option,
    show_table,
    whole_number,
)
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario


@click.command("replay")
@scenario_argument
@click.option(
    "--trace",
    metavar="FILE",
    help="A trace file of any size, streamed in its own order, or the name of a shipped trace; default: data.trace.",
)
@click.option("--column", metavar="NAME", help="The column of FILE with the lengths.")
@click.option("--steps", default="all", metavar="all|N", help="How many steps; default: all of the data.")
@click.option(
    "--until-ci",
    metavar="SHARE",
    help="Stop as soon as the 95 % confidence interval of the mean is within this share of it, such as 1%.",
)
@click.option(
    "--workers",
    type=whole_number("workers"),
    metavar="N",
    help="Processes; default: one per processor. The result does not depend on it.",
)
@set_option
@out_option
@json_option
def command(
    scenario: str,
    trace: str | None,
    column: str | None,
    steps: str,
    until_ci: str | None,
    workers: int | None,
    overrides: tuple[str, ...],
    out: str | None,
    as_json: bool,
) -> None:
    """How fast does training go through a whole data set?

    The trace is streamed in bounded memory, cut into global batches and simulated step by step. Ctrl-C ends it with a
    valid partial result (exit code 130).
    """
    from hdpsim.experiments.cli.progress import long_progress
    from hdpsim.experiments.datasets.replay import replay_dataset
    from hdpsim.experiments.datasets.report import replay_json, replay_lines, replay_table, write_replay
    from hdpsim.experiments.parallel.engines import LocalEngine
    from hdpsim.experiments.studies import report
    from hdpsim.experiments.studies.artefacts import check_out

    check_out(out)
    most, until = _step_count(steps), None if until_ci is None else _share(until_ci)
    checked = _with_trace(scenario, trace, column, overrides)
    with long_progress("replaying", "steps") as shown:
        replay = replay_dataset(checked, LocalEngine(workers), steps=most, until=until, report=shown)
    written = None if out is None else write_replay(out, replay)
    document = replay_json(replay)
    if as_json:
        emit_json(document)
    else:
        say(report.headline(checked))
        say()
        for line in replay_lines(replay):
            say(line)
        if replay.steps:
            say()
            show_table(replay_table(replay))
            say()
            say(report.mfu_note(checked))
        if written is not None:
            say(written)
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


def _step_count(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and RANGES["steps"].holds(int(text))):
        raise UserInputError(f"--steps: expected all or a whole number of at least 1, got {quoted(text)}")
    return int(text)


def _share(text: str) -> float:
    """A share as "1%" or 0.01."""
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
