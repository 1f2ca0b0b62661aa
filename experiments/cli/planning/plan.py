"""`hdpsim plan`: which layout and strategy is best on these GPUs?"""

from __future__ import annotations

from typing import Any

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.options import (
    Decorator,
    batches_option,
    budget_option,
    engine_option,
    file_option,
    gpu_counts,
    gpu_types_option,
    headroom_option,
    output_options,
    scenario_argument,
    set_option,
    target_option,
    workers_option,
)
from hdpsim.experiments.cli.progress import long_progress
from hdpsim.experiments.cli.shown import Output, end_interrupted, say

TOOLS = {"megatron": "megatron-core", "bridge": "megatron-bridge", "torchtitan": "torchtitan"}


def _flags_option(name: str, tool: str) -> Decorator:
    return file_option(
        name,
        type=click.Path(dir_okay=False, allow_dash=True),
        help=f"Write the best one as options of {tool} (- prints them after the report).",
    )


@click.command("plan")
@scenario_argument
@click.option(
    "--gpus", metavar="N,N,...", callback=gpu_counts, help="Numbers of GPUs; default: the scenario's."
)
@gpu_types_option
@click.option(
    "--objective",
    type=click.Choice(("tokens_per_s", "usd_per_token", "time_to_train", "energy")),
    default="tokens_per_s",
    show_default=True,
    help="What is best; time_to_train needs --tokens.",
)
@budget_option
@headroom_option
@click.option(
    "--search",
    "searched",
    multiple=True,
    metavar="KEY=A,B",
    help="Values that are tried of a key, instead of what is usual; repeatable.",
)
@click.option(
    "--top", type=click.IntRange(1, 100), default=5, show_default=True, help="How many of the best are shown."
)
@file_option("-o", "scenario_file", help="Write the best one as a scenario (.yaml).")
@_flags_option("--megatron", "Megatron-Core")
@_flags_option("--bridge", "Megatron-Bridge")
@_flags_option("--torchtitan", "torchtitan")
@set_option
@batches_option
@target_option
@workers_option
@engine_option
@output_options
def command(
    scenario: str,
    overrides: tuple[str, ...],
    scenario_file: str | None,
    megatron: str | None,
    bridge: str | None,
    torchtitan: str | None,
    output: Output,
    **options: Any,
) -> None:
    """Which layout and strategy is best on these GPUs, and why?

    Tries every layout that divides and every strategy on it, on the same global batches. Keys that --set changes stay
    as they are set, and so does what the scenario's software stack decides.
    """
    from hdpsim.experiments.exchange.exporter import export_scenario
    from hdpsim.experiments.output.files.out_file import check_out_file, write_whole
    from hdpsim.experiments.planning.plan import write_flags
    from hdpsim.experiments.verbs.planning import plan

    if scenario_file is not None:
        check_out_file(scenario_file, "-o", (".yaml", ".yml"))
    paths = {"megatron": megatron, "bridge": bridge, "torchtitan": torchtitan}
    asked = {tool: path for tool, path in paths.items() if path is not None}
    for tool, path in asked.items():
        if path == "-" and output.as_json:
            raise UserInputError(
                "--json prints one document: give --megatron, --bridge or --torchtitan a file"
            )
        if path != "-":
            check_out_file(path, f"--{tool}")
    result = plan(scenario, overrides, progress=long_progress, **options)
    best = result.scenario
    assert best is not None
    exported = {tool: export_scenario(best, TOOLS[tool]) for tool in asked}
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
