"""`hdpsim simulate`: how long is one step, and where does the time go?"""

from __future__ import annotations

import click

from experiments.cli_common import (
    batches_option,
    emit_json,
    json_option,
    load,
    out_option,
    progress,
    say,
    scenario_argument,
    set_option,
    show_table,
)

__all__ = ["command"]


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
@out_option
@json_option
def command(
    scenario: str,
    overrides: tuple[str, ...],
    batches: int | None,
    timeline: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """How long is one step, and where does the time go?"""
    from experiments import report
    from experiments.artefacts import check_out, write_run, write_spans
    from experiments.compare import compare
    from experiments.out_file import check_out_file

    check_out(out)
    if timeline is not None:
        check_out_file(timeline, "--timeline", (".json", ".json.gz"))
        overrides = (*overrides, "execution.executor=engine")  # the replay knows no single operations
    checked = load(scenario, overrides)
    with progress("simulating") as shown:
        result = compare(checked, (checked.strategy.name,), batches, shown, spans=timeline is not None)
    outcome = result.base
    document = report.json_document("simulate", checked, report.outcome_json(outcome))
    lines = [] if timeline is None else [write_spans(timeline, outcome, checked)]
    if out is not None:
        lines.append(write_run(out, document, result))
    if as_json:
        emit_json(document)
        return
    say(report.headline(checked))
    say()
    show_table(report.step_table(result))
    say()
    show_table(report.account_table(result.feasible))
    say()
    for line in (*report.remarks(result), *lines):
        say(line)
