"""Verbs that answer what to run, on what, and what a change would buy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.options import (
    OUTPUT,
    SCENARIO,
    batches_option,
    budget_option,
    completed_keys,
    engine_option,
    file_option,
    gpu_types_option,
    number_option,
    scenario_argument,
    set_option,
    strategies_option,
    target_option,
    workers_option,
)
from hdpsim.experiments.cli.shown import Output, end_interrupted, say
from hdpsim.experiments.cli.verb import verb

if TYPE_CHECKING:
    from hdpsim.experiments.sweeps.run import SweepRun
    from hdpsim.experiments.verbs.result import Result

_TOOLS = {"megatron": "megatron-core", "bridge": "megatron-bridge", "torchtitan": "torchtitan"}


def _write_plan(
    run: Callable[..., Result], output: Output, /, *, scenario_file: str | None = None, **options: Any
) -> None:
    """Show the best layout, and write it as a scenario or as options of other tools."""
    from hdpsim.experiments.exchange.exporter import export_scenario
    from hdpsim.experiments.output.files.out_file import check_out_file, write_whole
    from hdpsim.experiments.planning.plan import write_flags

    if scenario_file is not None:
        check_out_file(scenario_file, "-o", (".yaml", ".yml"))
    asked = {tool: options.pop(tool) for tool in _TOOLS if tool in options}
    for tool, path in asked.items():
        if path == "-" and output.as_json:
            raise UserInputError(
                "--json prints one document: give --megatron, --bridge or --torchtitan a file"
            )
        if path != "-":
            check_out_file(path, f"--{tool}")
    result = run(**options)
    best = result.scenario
    assert best is not None
    exported = {tool: export_scenario(best, _TOOLS[tool]) for tool in asked}
    lines = []
    if scenario_file is not None:
        write_whole(scenario_file, best.to_yaml(), "scenario")
        lines.append(f"wrote {scenario_file}")
    lines += [write_flags(exported[tool], path) for tool, path in asked.items() if path != "-"]
    output.present(result.document, lines)
    for tool, path in asked.items():
        if path == "-":
            say(f"\n{exported[tool].text}")
    if result.interrupted:
        end_interrupted("the result is partial")


plan = verb(
    "planning",
    "plan",
    *SCENARIO,
    click.option("--gpus", metavar="N,N,..."),
    gpu_types_option,
    click.option("--objective"),
    budget_option,
    click.option("--headroom", metavar="SHARE"),
    click.option("--search", "searched", multiple=True, metavar="KEY=A,B"),
    click.option("--top", type=click.IntRange(1, 100)),
    file_option("-o", "scenario_file", help="Write the best one as a scenario (.yaml)."),
    *(
        file_option(
            f"--{tool}",
            type=click.Path(dir_okay=False, allow_dash=True),
            help=f"Write the best one as options of {name} (- prints them after the report).",
        )
        for tool, name in (
            ("megatron", "Megatron-Core"), ("bridge", "Megatron-Bridge"), ("torchtitan", "torchtitan"),
        )
    ),
    batches_option,
    target_option,
    workers_option,
    engine_option,
    *OUTPUT,
    shown=_write_plan,
)  # fmt: skip

recommend = verb(
    "planning",
    "recommend",
    *SCENARIO,
    click.option("--target", required=True, metavar="TEXT"),
    gpu_types_option,
    click.option("--objective"),
    click.option("--confidence", type=click.FloatRange(0.01, 0.99), metavar="P"),
    click.option("--keep-layout", is_flag=True),
    budget_option,
    batches_option,
    *OUTPUT,
)

check = verb("planning", "check", *SCENARIO, batches_option, target_option, *OUTPUT)

check_strategy = verb(
    "planning",
    "check_strategy",
    click.argument("strategy", metavar="MODULE:FUNCTION"),
    click.option("--scenario", metavar="SCENARIO"),
    number_option("cp", "--ranks"),
    set_option,
    *OUTPUT,
)

scale = verb(
    "planning",
    "scale",
    *SCENARIO,
    click.option("--gpus", required=True, metavar="N,N,..."),
    click.option("--weak", is_flag=True),
    strategies_option,
    batches_option,
    *OUTPUT,
)

whatif = verb(
    "planning",
    "whatif",
    scenario_argument,
    click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="KEY=VALUE[,KEY=VALUE...]",
        shell_complete=completed_keys,
        help="A change to try, of one key or of several; repeatable.",
    ),
    strategies_option,
    click.option("--tornado", is_flag=False, flag_value="10%", metavar="[10%]"),
    batches_option,
    *OUTPUT,
)


def _show_sweep(run: Callable[..., Result], output: Output, /, *, dry_run: bool, **options: Any) -> None:
    """Show a sweep; one that was interrupted, or whose cells failed, goes on with the same command."""
    from hdpsim.experiments.sweeps.store import default_store

    result = run(dry_run=dry_run, **options)
    if dry_run:
        Output(as_json=output.as_json).show(result)
        return
    output.present(result.document, result.lines)
    swept = cast("SweepRun", result.found)
    if swept.interrupted:
        kept_in = options.get("store") or default_store()
        end_interrupted(f"what is finished is kept in {kept_in}; run the same command again to go on")
    if swept.count("failed"):
        say(f"{swept.count('failed')} cells failed; the same command tries them again", err=True)
        raise click.exceptions.Exit(1)
    if result.error is not None:
        raise result.error


sweep = verb(
    "planning",
    "sweep",
    click.argument("sweep", metavar="SWEEP"),
    click.option("--dry-run", is_flag=True),
    workers_option,
    engine_option,
    click.option("--store", envvar="HDPSIM_STORE", metavar="DIR", type=click.Path(file_okay=False)),
    set_option,
    *OUTPUT,
    shown=_show_sweep,
)
