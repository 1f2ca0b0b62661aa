"""Options that several commands have; what reads their texts is imported when one is given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hdpsim.experiments.cli.shown import Output
from hdpsim.ranges import RANGES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Callback = Callable[[click.Context, click.Parameter, Any], Any]


def read_with(reader: str, *first: str, absent: object = None) -> Callback:
    """A callback that reads an option's text with that function of experiments, `module:function`.

    *first* are its arguments before the text; an option that is not given is *absent*.
    """
    module, _, function = reader.partition(":")

    def read(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
        if text is None:
            return absent
        return getattr(import_module(f"hdpsim.experiments.{module}"), function)(*first, text)

    return read


def checked_with(check: str) -> Callback:
    """A callback that lets that function complain now, not after the simulation, about a place to write to."""
    read = read_with(check)

    def checked(context: click.Context, option: click.Parameter, path: str | None) -> str | None:
        read(context, option, path)
        return path

    return checked


def file_option(*names: str, help: str, **more: Any) -> Decorator:
    """An option that names a file."""
    return click.option(*names, **{"metavar": "FILE", "type": click.Path(dir_okay=False), **more}, help=help)


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


out_option: Decorator = click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False),
    callback=checked_with("output.files.run_directory:RunDirectory"),
    help="Write a run directory: tables (CSV), plots, JSON, and a README that explains every file.",
)


report_option: Decorator = file_option(
    "--report",
    metavar="FILE.html",
    callback=checked_with("output.page.html:check_page"),
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


variants_option: Decorator = click.option(
    "--strategies",
    metavar="A,B,C",
    callback=read_with("verbs.values:variant_names"),
    shell_complete=_strategies,
    help="Strategies, the first being the base of the speed-ups; variants as static(cp=32,packing=concatenate) with "
    "keys of layout and strategy; one's own as my_module:function.",
)

strategies_option: Decorator = click.option(
    "--strategies",
    metavar="A,B,C",
    callback=read_with("verbs.values:strategy_names", "--strategies"),
    shell_complete=_strategies,
    help="Strategies, the first being the base of the speed-ups; one's own as my_module:function.",
)


target_option: Decorator = click.option(
    "--tokens",
    metavar="N",
    callback=read_with("output.words:parse_target"),
    help="Time, GPU-hours and cost of training on so many tokens, such as 300B or 1.5T.",
)


gpu_counts: Callback = read_with("verbs.values:counts_of", "--gpus", absent=())
"""The numbers of `--gpus`; none where it is left out."""

gpu_types_option: Decorator = click.option(
    "--gpu",
    "gpu_types",
    metavar="A,B",
    callback=read_with("verbs.values:names_of", "--gpu", absent=()),
    help="GPUs of the catalog, such as h100,h200,b200.",
)


budget_option: Decorator = click.option(
    "--budget",
    metavar="TIME",
    default="60s",
    show_default=True,
    callback=read_with("verbs.values:seconds_of", "--budget"),
    help="Time after which nothing new is tried, or none.",
)


headroom_option: Decorator = click.option(
    "--headroom",
    metavar="SHARE",
    callback=read_with("planning.headroom:parse_headroom"),
    help="Memory must suffice for so much more than is predicted (3%); default: what measured peaks say.",
)


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
