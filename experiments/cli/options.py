"""Options that several commands have. What the options of a verb mean, its function says (command_from_verb.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hdpsim.ranges import RANGES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
SCENARIO_FILES = (".yaml", ".yml")
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


def written_option(*names: str, endings: tuple[str, ...] = (), **more: Any) -> Decorator:
    """An option that names a file to write; a place where none can be written is refused before any work."""

    def checked(_context: click.Context, option: click.Parameter, path: str | None) -> str | None:
        if path is not None:
            check = import_module("hdpsim.experiments.output.files.out_file").check_out_file
            check(path, option.opts[-1], endings)
        return path

    return file_option(*names, callback=checked, **more)


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

PARAMETERS: Mapping[str, Decorator | str | None] = {
    "scenario": scenario_argument,
    "overrides": set_option,
    "batches": number_option("batches", "--batches"),
    "replications": number_option("replications", "--replications"),
    "timeline": file_option("--timeline"),
    "tokens": "N",
    "strategies": click.option("--strategies", metavar="A,B,C", shell_complete=_strategies),
    "workers": number_option("workers", "--workers"),
    "engine": "local|dask://HOST:PORT",
    "gpu_types": click.option("--gpu", "gpu_types", metavar="A,B"),
    "gpus": "N,N,...",
    "budget": "WORK|TIME",
    "calibration": file_option("--calibration"),
    "residuals": file_option("--write-residuals", "residuals"),
    "records": click.argument("records", metavar="[RECORDS.csv]", required=False, type=click.Path()),
    "source": click.argument("source", metavar="SCENARIO|CLUSTER"),
    "simulate.steps": number_option("batches", "--steps"),
    "explain.term": "NAME",
    "replay.trace": "FILE",
    "replay.column": "NAME",
    "replay.steps": "all|N",
    "replay.until": click.option("--until-ci", "until", metavar="SHARE"),
    "replay_ops.trace": click.argument("trace", metavar="TRACE", type=click.Path()),
    "replay_ops.meta": click.option("--meta", required=True, metavar="FILE", type=click.Path()),
    "campaign.duration": "TIME",
    "campaign.seeds": number_option("seeds", "--seeds"),
    "plan.headroom": "SHARE",
    "plan.searched": click.option("--search", "searched", multiple=True, metavar="KEY=A,B"),
    "plan.top": click.option("--top", type=click.IntRange(1, 100)),
    "recommend.target": click.option("--target", required=True, metavar="TEXT"),
    "recommend.confidence": click.option("--confidence", type=click.FloatRange(0.01, 0.99), metavar="P"),
    "recommend.max_gpus": number_option("gpus", "--max-gpus"),
    "check_strategy.strategy": click.argument("strategy", metavar="MODULE:FUNCTION"),
    "check_strategy.scenario": "SCENARIO",
    "check_strategy.ranks": number_option("cp", "--ranks"),
    "scale.gpus": click.option("--gpus", required=True, metavar="N,N,..."),
    "whatif.changes": click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="KEY=VALUE[,KEY=VALUE...]",
        shell_complete=completed_keys,
        help="A change to try, of one key or of several; repeatable.",
    ),
    "whatif.tornado": click.option("--tornado", is_flag=False, flag_value="10%", metavar="[10%]"),
    "sweep.sweep": click.argument("sweep", metavar="SWEEP"),
    "sweep.store": click.option(
        "--store", envvar="HDPSIM_STORE", metavar="DIR", type=click.Path(file_okay=False)
    ),
    "fabric.overrides": None,
    "fabric.gpus": number_option("gpus", "--gpus"),
    "fabric.drawing": file_option("--out", "drawing"),
    "flows.overrides": click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change a key of the cluster (cluster.fabric.routing=ecmp); repeatable.",
    ),
    "flows.group": number_option("gpus", "--group"),
    "flows.size": "BYTES",
    "flows.gpus": number_option("gpus", "--gpus"),
    "flows.seed": number_option("seed", "--seed"),
    "flows.top": click.option("--top", type=click.IntRange(1, 1000), metavar="N"),
    "validate.kernels": file_option("--kernels"),
    "validate.steps": file_option("--steps"),
    "validate.longctx": file_option("--longctx"),
    "validate.lengths": click.option("--lengths", metavar="DATASET=TRACE", multiple=True),
    "validate.scenario": "SCENARIO",
    "validate.without": click.option("--without", metavar="RULES", multiple=True),
    "validate.view": click.option("--as", "view"),
    "calibrate.gpu": click.option("--gpu", required=True, metavar="NAME"),
    "calibrate.output": file_option("-o", "--output", required=True),
    "calibrate.kernels": click.option("--kernels", multiple=True, metavar="FILE", type=click.Path()),
    "calibrate.runs": click.option(
        "--no-runs", "runs", flag_value=False, default=True, help="Fit on kernels only."
    ),
    "calibrate.start": file_option("--start"),
    "calibrate.constants": "A,B",
    "calibrate.workers": click.option("--workers", type=click.IntRange(1, 64), metavar="N"),
    **dict.fromkeys(f"reproduce.{name}" for name in ("paper", "cells", "figures", "batches")),
}
"""How the parameters of verbs are spelled on a command line, some of a single verb (`verb.parameter`).

A text is the metavar of an option that is called as the parameter. What is not here is such an option, too: a flag, or
one whose choices the function says. None: no option.
"""


def option_of(verb: str, parameter: str, *, is_flag: bool) -> Decorator | None:
    """How a parameter of a verb is spelled."""
    own = f"{verb}.{parameter}"
    spelling = PARAMETERS.get(own if own in PARAMETERS else parameter, "")
    if isinstance(spelling, str):
        spelled = f"--{parameter.replace('_', '-')}"
        return (
            click.option(spelled, is_flag=True)
            if is_flag
            else click.option(spelled, metavar=spelling or None)
        )
    return spelling
