"""What the verbs share: options, tables, JSON, progress."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from hdpsim.errors import ScenarioError, UserInputError
from hdpsim.quoting import printable, quoted
from hdpsim.ranges import RANGES

if TYPE_CHECKING:
    from hdpsim.experiments.output.document import Document, Table
    from hdpsim.experiments.output.tables import TextTable
    from hdpsim.experiments.scenario.scenario import Scenario


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PROGRESS_AFTER_S = 2.0
"""Work that ends sooner shows no progress bar."""


def whole_number(kind: str) -> click.IntRange:
    """The type of an option: a whole number in the range of that *kind* (see `hdpsim.ranges`)."""
    allowed = RANGES[kind]
    return click.IntRange(int(allowed.low), int(allowed.high))


scenario_argument: Decorator = click.argument("scenario", metavar="SCENARIO")

set_option: Decorator = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one key of the scenario (dotted, such as layout.tp=4); repeatable.",
)

json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else there."
)

out_option: Decorator = click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Write a run directory: tables (CSV), plots, JSON, and a README that explains every file.",
)

batches_option: Decorator = click.option(
    "--batches",
    type=whole_number("batches"),
    metavar="N",
    help="Global batches to average over; default: execution.batches of the scenario (8 unless it says otherwise).",
)

strategies_option: Decorator = click.option(
    "--strategies",
    "strategy_list",
    metavar="A,B,C",
    help="Strategies, the first being the base of the speed-ups.",
)

target_option: Decorator = click.option(
    "--tokens",
    "target",
    metavar="N",
    help="Time, GPU-hours and cost of training on so many tokens, such as 300B or 1.5T.",
)


def target_tokens(text: str | None) -> float | None:
    """The tokens of `--tokens`."""
    from hdpsim.experiments.output.words import parse_target

    return None if text is None else parse_target(text)


def load(scenario: str, overrides: tuple[str, ...]) -> Scenario:
    """The checked scenario of that name or path, with the `--set` changes."""
    from hdpsim.experiments.scenario.scenario import load_scenario

    return load_scenario(scenario, overrides)


def split_list(text: str, option: str) -> tuple[str, ...]:
    """The parts of a comma-separated option; empty or repeated ones are an error."""
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts) or len(set(parts)) != len(parts):
        raise UserInputError(f"{option}: expected different names separated by commas, got {quoted(text)}")
    return parts


def strategies(text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """The strategies of `--strategies`, checked against those that exist."""
    from hdpsim.cost_models.reading.fields import did_you_mean
    from hdpsim.experiments.scenario.schema import strategy_names

    if text is None:
        return default
    names = split_list(text, "--strategies")
    problems = tuple(
        (
            "",
            f"{quoted(name)} is not one of {', '.join(strategy_names())}{did_you_mean(name, strategy_names())}",
        )
        for name in names
        if name not in strategy_names()
    )
    if problems:
        raise ScenarioError(problems, "--strategies")
    return names


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines on stdout (or stderr), whatever is in them: names of others' files may hold what a terminal obeys."""
    click.echo(printable(text), err=err, nl=nl)


def emit_json(document: object) -> None:
    """Print *document* as the one JSON document on stdout."""
    from hdpsim.experiments.output.finite import finite

    click.echo(json.dumps(finite(document), indent=2, allow_nan=False))


def present(document: Document, *, as_json: bool, out: str | None = None, lines: Sequence[str] = ()) -> None:
    """Show what a verb found: as JSON, or as text, closed by *lines*; with *out* as a run directory, too."""
    if out is not None:
        from hdpsim.experiments.output.run_directory import write_document

        lines = (*lines, write_document(out, document))
    data = document.data()  # first of all: it refuses figures that are nan or infinite
    if as_json:
        emit_json(data)
        return
    for number, part in enumerate(document.parts()):
        if number:
            say()
        if isinstance(part, str):
            say(part)
        else:
            show_table(part)
    for line in lines:
        say(line)


def show_table(table: Table[Any] | TextTable) -> None:
    """Print a table: with lines and bold heads on a terminal, plain text otherwise; and the lines below it."""
    from hdpsim.experiments.output.tables import TextTable, plain_text, print_rich

    drawn = table if isinstance(table, TextTable) else table.drawn()
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        print_rich(drawn)
    else:
        say(plain_text(drawn))
    for line in () if isinstance(table, TextTable) else table.notes:
        say(line)


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr; yields `report(done, total)`.

    It appears only on a terminal and only once the work has taken PROGRESS_AFTER_S.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(label, total=None)
    timer = threading.Timer(PROGRESS_AFTER_S, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, total: bar.update(task, completed=done, total=total)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
