"""What the verbs share: options, the scenario, and how a result is shown."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hdpsim import interrupts
from hdpsim.quoting import printable
from hdpsim.ranges import RANGES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hdpsim.experiments.output.document import Document, Table
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.verbs.result import Result


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def whole_number(kind: str) -> click.IntRange:
    """The type of an option: a whole number in the range of that *kind* (see `hdpsim.ranges`)."""
    allowed = RANGES[kind]
    return click.IntRange(int(allowed.low), int(allowed.high))


def _scenarios(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Shipped scenarios, and files."""
    from click.shell_completion import CompletionItem

    from hdpsim.experiments.scenario.scenario import scenario_names

    names = [CompletionItem(name) for name in scenario_names() if name.startswith(typed)]
    return [CompletionItem(typed, type="file"), *names]  # bash forgets what comes before the word for files


def completed_keys(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Keys of scenarios, each with the = after it."""
    from hdpsim.experiments.scenario.schema import KEYS

    return [f"{key}=" for key in KEYS if key.startswith(typed)]


def _strategies(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Strategies, behind those that are there."""
    from typing import get_args

    from hdpsim.simulator.setup import StrategyName

    before, comma, begun = typed.rpartition(",")
    known = (
        name for name in get_args(StrategyName) if name.startswith(begun) and name not in before.split(",")
    )
    return [f"{before}{comma}{name}" for name in known]


scenario_argument: Decorator = click.argument("scenario", metavar="SCENARIO", shell_complete=_scenarios)

set_option: Decorator = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=completed_keys,
    help="Change one key of the scenario (dotted, such as layout.tp=4); repeatable.",
)

json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else there."
)


def _checked_out(_context: click.Context, _option: click.Parameter, out: str | None) -> str | None:
    """Complain now, not after the simulation, about a place where no run directory can be written."""
    if out is not None:
        from hdpsim.experiments.output.files.run_directory import RunDirectory

        RunDirectory(out)
    return out


out_option: Decorator = click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False),
    callback=_checked_out,
    help="Write a run directory: tables (CSV), plots, JSON, and a README that explains every file.",
)


def checked_page(_context: click.Context, _option: click.Parameter, path: str | None) -> str | None:
    """Complain now, not after the simulation, about a place where no page can be written."""
    if path is not None:
        from hdpsim.experiments.output.page.html import check_page

        check_page(path)
    return path


report_option: Decorator = click.option(
    "--report",
    metavar="FILE.html",
    type=click.Path(dir_okay=False),
    callback=checked_page,
    help="Write one page to forward: the answer, charts and figures in a file that needs no network.",
)

batches_option: Decorator = click.option(
    "--batches",
    type=whole_number("batches"),
    metavar="N",
    help="Global batches to average over; default: execution.batches of the scenario (8 unless it says otherwise).",
)

replications_option: Decorator = click.option(
    "--replications",
    type=whole_number("replications"),
    metavar="N",
    help="Play the same plans N times with other machines and moments: how far what is drawn at random moves them.",
)

workers_option: Decorator = click.option(
    "--workers",
    type=whole_number("workers"),
    metavar="N",
    help="Processes; default: one per processor. The result does not depend on it.",
)


engine_option: Decorator = click.option(
    "--engine",
    metavar="local|dask://HOST:PORT",
    help="Where simulations run: here, or on the workers of a Dask cluster. Default: local.",
)


def _checked_strategies(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[str, ...] | None:
    """The strategies of `--strategies`, checked against those that exist."""
    if text is None:
        return None
    from hdpsim.experiments.verbs.values import strategy_names

    return strategy_names("--strategies", text)


def _checked_variants(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[str, ...] | None:
    """The same with variants, each under the name of its row."""
    if text is None:
        return None
    from hdpsim.experiments.verbs.values import variant_names

    return variant_names(text)


variants_option: Decorator = click.option(
    "--strategies",
    metavar="A,B,C",
    callback=_checked_variants,
    shell_complete=_strategies,
    help="Strategies, the first being the base of the speed-ups; variants as static(cp=32,packing=concatenate) with "
    "keys of layout and strategy; one's own as my_module:function.",
)


strategies_option: Decorator = click.option(
    "--strategies",
    metavar="A,B,C",
    callback=_checked_strategies,
    shell_complete=_strategies,
    help="Strategies, the first being the base of the speed-ups; one's own as my_module:function.",
)


def _target_tokens(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    from hdpsim.experiments.output.words import parse_target

    return None if text is None else parse_target(text)


target_option: Decorator = click.option(
    "--tokens",
    metavar="N",
    callback=_target_tokens,
    help="Time, GPU-hours and cost of training on so many tokens, such as 300B or 1.5T.",
)


def gpu_counts(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """The numbers of `--gpus`; none where it is left out."""
    if text is None:
        return ()
    from hdpsim.experiments.verbs.values import counts_of

    return counts_of("--gpus", text)


def _gpu_names(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    from hdpsim.experiments.verbs.values import names_of

    return names_of("--gpu", text)


gpu_types_option: Decorator = click.option(
    "--gpu",
    "gpu_types",
    metavar="A,B",
    callback=_gpu_names,
    help="GPUs of the catalog, such as h100,h200,b200.",
)


def _budget(_context: click.Context, _option: click.Parameter, text: str) -> float | None:
    from hdpsim.experiments.verbs.values import seconds_of

    return seconds_of("--budget", text.strip())


budget_option: Decorator = click.option(
    "--budget",
    metavar="TIME",
    default="60s",
    show_default=True,
    callback=_budget,
    help="Time after which nothing new is tried, or none.",
)


def _headroom(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    from hdpsim.experiments.planning.headroom import parse_headroom

    return parse_headroom(text)


headroom_option: Decorator = click.option(
    "--headroom",
    metavar="SHARE",
    callback=_headroom,
    help="Memory must suffice for so much more than is predicted (3%); default: what measured peaks say.",
)


def load(scenario: str, overrides: tuple[str, ...] = ()) -> Scenario:
    """The checked scenario of that name or path, with the `--set` changes."""
    from hdpsim.experiments.scenario.scenario import load_scenario

    return load_scenario(scenario, overrides)


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines on stdout (or stderr), whatever is in them: names of others' files may hold what a terminal obeys."""
    click.echo(printable(text), err=err, nl=nl)


def emit_json(document: object) -> None:
    """Print *document* as the one JSON document on stdout."""
    from hdpsim.experiments.output.finite import finite

    click.echo(json.dumps(finite(document), indent=2, allow_nan=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a result goes: to stdout as text or JSON, and into a run directory when one was asked for."""

    as_json: bool
    out: str | None = None
    report: str | None = None

    def present(self, document: Document, lines: Sequence[str] = ()) -> None:
        """Show what a verb found; *lines* close the text."""
        if self.out is not None:
            from hdpsim.experiments.output.files.run_directory import write_document

            lines = (*lines, write_document(self.out, document))
        if self.report is not None:
            from hdpsim.experiments.output.document import command_line
            from hdpsim.experiments.output.page.html import write_page
            from hdpsim.experiments.output.page.view import view_of

            lines = (*lines, write_page(self.report, view_of(document, command_line())))
        data = document.data()  # first of all: it refuses figures that are nan or infinite
        if self.as_json:
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

    def show(self, result: Result) -> None:
        """Show what a verb returned; what is wrong with it ends the command, and so does what was interrupted."""
        self.present(result.document, result.lines)
        if result.error is not None:
            raise result.error
        if result.interrupted:
            say(f"{interrupts.message()}: the result is partial", err=True)
            raise click.exceptions.Exit(interrupts.exit_code())


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--out`, `--report` and `--json`, which the command gets as one `output`."""

    @out_option
    @report_option
    @json_option
    @functools.wraps(command)
    def with_output(
        *arguments: Any, out: str | None, report: str | None, as_json: bool, **options: Any
    ) -> Any:
        return command(*arguments, output=Output(as_json=as_json, out=out, report=report), **options)

    return with_output


def show_table(table: Table[Any]) -> None:
    """Print a table: with lines and bold heads on a terminal, plain text otherwise; and the lines below it."""
    from hdpsim.experiments.output.tables import plain_text, print_rich

    drawn = table.drawn()
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        print_rich(drawn)
    else:
        say(plain_text(drawn))
    for line in table.notes:
        say(line)
