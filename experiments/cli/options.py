"""Options that several commands have. Of verbs that are functions, what options mean stands there; see `verb`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hdpsim.ranges import RANGES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Callback = Callable[[click.Context, click.Parameter, Any], Any]


def checked_with(check: str) -> Callback:
    """A callback that lets a function of experiments, `module:function`, complain of a place to write to.

    It does so now, and not after the simulation.
    """
    module, _, function = check.partition(":")

    def checked(_context: click.Context, _option: click.Parameter, path: str | None) -> str | None:
        if path is not None:
            getattr(import_module(f"hdpsim.experiments.{module}"), function)(path)
        return path

    return checked


def file_option(*names: str, **more: Any) -> Decorator:
    """An option that names a file."""
    return click.option(*names, **{"metavar": "FILE", "type": click.Path(dir_okay=False), **more})


def number_option(kind: str, *names: str, **more: Any) -> Decorator:
    """An option that is a whole number in the range of that *kind* (see `hdpsim.ranges`)."""
    allowed = RANGES[kind]
    return click.option(
        *names, type=click.IntRange(int(allowed.low), int(allowed.high)), **{"metavar": "N", **more}
    )


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

OUTPUT: tuple[Decorator, ...] = (
    click.option(
        "--out",
        metavar="DIR",
        type=click.Path(file_okay=False),
        callback=checked_with("output.files.run_directory:RunDirectory"),
        help="Write a run directory: tables (CSV), plots, JSON, and a README that explains every file.",
    ),
    file_option(
        "--report",
        metavar="FILE.html",
        callback=checked_with("output.page.html:check_page"),
        help="Write one page to forward: the answer, charts and figures in a file that needs no network.",
    ),
    json_option,
)
"""Where the result of a verb goes."""

SCENARIO = (scenario_argument, set_option)

batches_option = number_option("batches", "--batches")

replications_option = number_option("replications", "--replications")

workers_option = number_option("workers", "--workers")

engine_option: Decorator = click.option("--engine", metavar="local|dask://HOST:PORT")

strategies_option: Decorator = click.option("--strategies", metavar="A,B,C", shell_complete=_strategies)

target_option: Decorator = click.option("--tokens", metavar="N")

gpu_types_option: Decorator = click.option("--gpu", "gpu_types", metavar="A,B")

budget_option: Decorator = click.option("--budget", metavar="TIME")
