"""`hdpsim simulate`: how long is one step, and where does the time go?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.common import (
    Output,
    batches_option,
    load,
    output_options,
    replications_option,
    scenario_argument,
    set_option,
    target_option,
    whole_number,
)
from hdpsim.experiments.cli.progress import progress

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.studies.compare import Outcome


@click.command("simulate")
@scenario_argument
@set_option
@batches_option
@replications_option
@click.option(
    "--steps",
    type=whole_number("batches"),
    metavar="N",
    help="Play the first N batches one after the other on one clock: planner, loaders, checkpoints, host memory.",
)
@click.option(
    "--timeline",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write every operation of the first step as a Chrome/Perfetto trace (.json or .json.gz), and the "
    "hottest links where transfers are flows; with --steps what planner, loaders, storage, stages, offload streams and "
    "checkpoints did when.",
)
@target_option
@output_options
def command(
    scenario: str,
    overrides: tuple[str, ...],
    batches: int | None,
    replications: int | None,
    steps: int | None,
    timeline: str | None,
    tokens: float | None,
    output: Output,
) -> None:
    """How long is one step, and where does the time go?"""
    from hdpsim.experiments.output.files import check_out_file
    from hdpsim.experiments.studies.compare import compare
    from hdpsim.experiments.studies.compare_report import simulate_document, target_of
    from hdpsim.experiments.studies.replications import replicate

    if timeline is not None:
        check_out_file(timeline, "--timeline", (".json", ".json.gz"))
    if steps is not None:
        if batches is not None or tokens is not None:
            raise UserInputError(
                "--steps: give neither --batches nor --tokens with it, which speak of single steps"
            )
        _many_steps(load(scenario, overrides), steps, replications, timeline, output)
        return
    if timeline is not None:
        overrides = (*overrides, "execution.executor=engine")  # the replay knows no single operations
    checked = load(scenario, overrides)
    with progress("simulating") as shown:
        result = compare(
            checked, (checked.strategy.name,), batches, shown, spans=timeline is not None, links=True
        )
    with progress("replicating") as shown:
        again = replicate(result, replications, shown) if replications else ()
    target = target_of(result, result.base, tokens)
    lines = [] if target is None else [target.price.note]
    if timeline is not None:
        lines.append(_write_timeline(timeline, result.base, checked.name))
    output.present(simulate_document(result, target, again), lines)


def _many_steps(
    scenario: Scenario, steps: int, replications: int | None, timeline: str | None, output: Output
) -> None:
    from hdpsim.experiments.studies.many_steps import simulate_many
    from hdpsim.experiments.studies.many_steps_report import many_steps_document
    from hdpsim.experiments.studies.replications import replicate_runs, with_replications

    with progress("simulating") as shown:
        run = simulate_many(scenario, steps, shown, record=timeline is not None)
    lines = []
    if timeline is not None:
        from hdpsim.experiments.output.run_timeline import write_run_timeline

        lines.append(write_run_timeline(timeline, run.record, title=f"{scenario.name}, {run.strategy}"))
    with progress("replicating") as shown:
        again = replicate_runs(scenario, steps, replications, shown) if replications else ()
    output.present(with_replications(many_steps_document(run), again), lines)


def _write_timeline(path: str, outcome: Outcome, name: str) -> str:
    from hdpsim.experiments.output.timeline import write_timeline
    from hdpsim.experiments.studies.links_seen import SeenLinks, link_lanes

    spans = outcome.results[0].spans
    assert spans is not None  # the engine was told to record them
    seen = SeenLinks.of(outcome)
    lanes = link_lanes(seen) if seen else []
    summary = write_timeline(path, spans, title=f"{name}, {outcome.strategy}", links=lanes)
    left_out = f" ({summary.note})" if summary.note else ""
    return f"wrote {path}: {summary.slices:,} slices of {len(summary.ranks):,} ranks{left_out}" + (
        f", and {len(lanes)} links" if lanes else ""
    )
