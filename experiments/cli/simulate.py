"""`hdpsim simulate`: how long is one step, and where does the time go?"""

from __future__ import annotations

import click

from hdpsim.experiments.cli.common import (
    batches_option,
    json_option,
    load,
    out_option,
    present,
    progress,
    scenario_argument,
    set_option,
    target_option,
    target_tokens,
)


@click.command("simulate")
@scenario_argument
@set_option
@batches_option
@click.option(
    "--timeline",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write every operation of the first step as a Chrome/Perfetto trace (.json or .json.gz).",
)
@target_option
@out_option
@json_option
def command(
    scenario: str,
    overrides: tuple[str, ...],
    batches: int | None,
    timeline: str | None,
    target: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """How long is one step, and where does the time go?"""
    from hdpsim.experiments.output.files import check_out_file
    from hdpsim.experiments.studies.artefacts import check_out, write_spans
    from hdpsim.experiments.studies.compare import compare
    from hdpsim.experiments.studies.compare_report import simulate_document, target_of

    check_out(out)
    tokens = target_tokens(target)
    if timeline is not None:
        check_out_file(timeline, "--timeline", (".json", ".json.gz"))
        overrides = (*overrides, "execution.executor=engine")  # the replay knows no single operations
    checked = load(scenario, overrides)
    with progress("simulating") as shown:
        result = compare(checked, (checked.strategy.name,), batches, shown, spans=timeline is not None)
    goal = target_of(result, result.base, tokens)
    lines = [] if goal is None else [goal.price.note]
    if timeline is not None:
        lines.append(write_spans(timeline, result.base, checked))
    present(simulate_document(result, goal), as_json=as_json, out=out, lines=lines)
