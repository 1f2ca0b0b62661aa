"""`hdpsim compare`: which strategy is fastest, by how much, and why?"""

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
    strategies,
    strategies_option,
)

__all__ = ["command"]


@click.command("compare")
@scenario_argument
@strategies_option
@set_option
@batches_option
@out_option
@json_option
def command(
    scenario: str,
    strategy_list: str | None,
    overrides: tuple[str, ...],
    batches: int | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Which strategy is fastest, by how much, and why?

    All strategies see the same global batches; the first one is the base of the speed-ups.
    """
    from experiments import report
    from experiments.artefacts import check_out, write_run
    from experiments.compare import DEFAULT_STRATEGIES, compare

    check_out(out)
    chosen = strategies(strategy_list, DEFAULT_STRATEGIES)
    checked = load(scenario, overrides)
    with progress("comparing") as shown:
        comparison = compare(checked, chosen, batches, shown)
    results = [report.outcome_json(outcome, comparison.base) for outcome in comparison.outcomes]
    why = report.explanation(comparison)
    document = report.json_document(
        "compare",
        checked,
        results,
        base=comparison.base.strategy,
        batches=comparison.batches,
        explanation=why,
    )
    written = None if out is None else write_run(out, document, comparison)
    if as_json:
        emit_json(document)
        return
    say(report.headline(checked))
    say()
    show_table(report.comparison_table(comparison))
    say()
    say(why)
    say()
    show_table(report.account_table(comparison.feasible))
    say()
    for line in report.remarks(comparison):
        say(line)
    if written is not None:
        say(written)
