"""Verbs that answer what to run, on what, and what a change would buy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.command_from_verb import verb
from hdpsim.experiments.cli.options import SCENARIO_FILES, file_option, written_option
from hdpsim.experiments.cli.printing import Output, end_interrupted, say

if TYPE_CHECKING:
    from hdpsim.experiments.sweeps.run import SweepRun
    from hdpsim.experiments.verbs.result import Result

_TOOLS = {"megatron": "megatron-core", "bridge": "megatron-bridge", "torchtitan": "torchtitan"}


def _write_plan(
    run: Callable[..., Result], output: Output, /, *, scenario_file: str | None = None, **options: Any
) -> None:
    """Show the best layout, and write it as a scenario or as options of other tools."""
    from hdpsim.experiments.other_tools.exporter import export_scenario
    from hdpsim.experiments.output.files.out_file import check_out_file, write_whole
    from hdpsim.experiments.planning.plan import write_flags

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
    written_option("-o", "scenario_file", endings=SCENARIO_FILES, help="Write the best one as a scenario (.yaml)."),
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
    shown=_write_plan,
)  # fmt: skip

recommend = verb("planning", "recommend")

check = verb("planning", "check")

check_strategy = verb("planning", "check_strategy")

scale = verb("planning", "scale")

whatif = verb("planning", "whatif")


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


sweep = verb("planning", "sweep", shown=_show_sweep)
