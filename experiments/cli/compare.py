"""`hdpsim compare`: which strategy is fastest, by how much, and why?"""

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
    from hdpsim.experiments.studies.artefacts import check_out
    from hdpsim.experiments.studies.compare import DEFAULT_STRATEGIES, compare
    from hdpsim.experiments.studies.compare_report import compare_document

    check_out(out)
    tokens = target_tokens(target)
    chosen = strategies(strategy_list, DEFAULT_STRATEGIES)
    checked = load(scenario, overrides)
    with progress("comparing") as shown:
        comparison = compare(checked, chosen, batches, shown, baseline=True)
    present(compare_document(comparison, tokens), as_json=as_json, out=out)
