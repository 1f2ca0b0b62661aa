"""`hdpsim compare`: which strategy is fastest, by how much, and why?"""

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
    strategies,
    strategies_option,
    target_option,
    target_tokens,
)


@click.command("compare")
@scenario_argument
@strategies_option
@set_option
@batches_option
@target_option
@out_option
@json_option
def command(
    scenario: str,
    strategy_list: str | None,
    overrides: tuple[str, ...],
    batches: int | None,
    target: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Which strategy is fastest, by how much, and why?

    All strategies see the same global batches; the first one is the base of the speed-ups. The static mesh is compared
    as the scenario has it, and with the packer and context-parallel degree that suit it best.
    """
    from hdpsim.experiments.studies import compare_report, report
    from hdpsim.experiments.studies.artefacts import check_out, write_run
    from hdpsim.experiments.studies.compare import DEFAULT_STRATEGIES, compare
    from hdpsim.experiments.studies.cost_to_target import price_of

    check_out(out)
    tokens = target_tokens(target)
    chosen = strategies(strategy_list, DEFAULT_STRATEGIES)
    checked = load(scenario, overrides)
    with progress("comparing") as shown:
        comparison = compare(checked, chosen, batches, shown, baseline=True)
    why = compare_report.explanation(comparison)
    best = comparison.best_static
    document = report.json_document(
        "compare",
        checked,
        compare_report.comparison_json(comparison, tokens),
        base=comparison.base.strategy,
        best_static=None if best is None else best.strategy,
        static_meshes_tried=[each.document() for each in comparison.baseline.tried]
        if comparison.baseline
        else [],
        batches=comparison.batches,
        data=comparison.use.document(),
        explanation=why,
    )
    written = None if out is None else write_run(out, document, comparison)
    if as_json:
        emit_json(document)
        return
    say(report.headline(checked))
    say()
    show_table(compare_report.comparison_table(comparison))
    say()
    show_table(compare_report.resources_table(comparison))
    if tokens is not None:
        say()
        show_table(compare_report.target_table(comparison, tokens))
        say(price_of(checked.cluster.gpu).note)
    say()
    say(why)
    say()
    show_table(report.account_table(comparison.feasible))
    say()
    for line in compare_report.remarks(comparison):
        say(line)
    if written is not None:
        say(written)
