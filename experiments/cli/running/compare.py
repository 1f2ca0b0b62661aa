"""`hdpsim compare`: which strategy is fastest, by how much, and why?"""

from __future__ import annotations

import click

from hdpsim.experiments.cli.common import (
    Output,
    batches_option,
    load,
    output_options,
    replications_option,
    scenario_argument,
    set_option,
    target_option,
    variants_option,
)
from hdpsim.experiments.cli.progress import progress


@click.command("compare")
@scenario_argument
@variants_option
@set_option
@batches_option
@replications_option
@target_option
@output_options
def command(
    scenario: str,
    strategies: tuple[str, ...] | None,
    overrides: tuple[str, ...],
    batches: int | None,
    replications: int | None,
    tokens: float | None,
    output: Output,
) -> None:
    """Which strategy is fastest, by how much, and why?

    All strategies see the same global batches; the first one is the base of the speed-ups. The static mesh is compared
    as the scenario has it, and with the packer and context-parallel degree that suit it best.
    """
    from hdpsim.experiments.studies.compare import DEFAULT_STRATEGIES, compare
    from hdpsim.experiments.studies.compare_report import compare_document
    from hdpsim.experiments.studies.replications import replicate

    checked = load(scenario, overrides)
    with progress("comparing") as shown:
        comparison = compare(
            checked, strategies or DEFAULT_STRATEGIES, batches, shown, links=True, baseline=True
        )
    with progress("replicating") as shown:
        again = replicate(comparison, replications, shown) if replications else ()
    output.present(compare_document(comparison, tokens, again))
