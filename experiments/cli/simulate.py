"""`hdpsim simulate`: how long is one step, and where does the time go?"""

from __future__ import annotations

import click

from hdpsim.experiments.cli.common import (
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
    from hdpsim.experiments.studies import compare_report, report
    from hdpsim.experiments.studies.artefacts import check_out, write_run, write_spans
    from hdpsim.experiments.studies.compare import compare
    from hdpsim.experiments.studies.cost_to_target import price_of

    check_out(out)
    tokens = target_tokens(target)
    if timeline is not None:
        check_out_file(timeline, "--timeline", (".json", ".json.gz"))
        overrides = (*overrides, "execution.executor=engine")  # the replay knows no single operations
    checked = load(scenario, overrides)
    with progress("simulating") as shown:
        result = compare(checked, (checked.strategy.name,), batches, shown, spans=timeline is not None)
    outcome = result.base
    goal = compare_report.target_of(result, outcome, tokens)
    document = report.json_document(
        "simulate", checked, report.outcome_json(outcome, target=goal), data=result.use.document()
    )
    lines = [] if timeline is None else [write_spans(timeline, outcome, checked)]
    if out is not None:
        lines.append(write_run(out, document, result))
    if as_json:
        emit_json(document)
        return
    prices = [] if goal is None else [price_of(checked.cluster.gpu).note]
    say(report.headline(checked))
    say()
    show_table(report.step_table(result, goal))
    say()
    show_table(report.account_table(result.feasible))
    say()
    for line in (*compare_report.remarks(result), *prices, *lines):
        say(line)
