"""`hdpsim check`: what will not fit, what does not divide, what wastes time, and which change helps."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.common import (
    Output,
    batches_option,
    load,
    output_options,
    scenario_argument,
    set_option,
    target_option,
)
from hdpsim.experiments.cli.progress import progress


@click.command("check")
@scenario_argument
@set_option
@batches_option
@target_option
@output_options
def command(
    scenario: str,
    overrides: tuple[str, ...],
    batches: int | None,
    tokens: float | None,
    output: Output,
) -> None:
    """What is wrong with this scenario, what does it cost, and which change helps?

    Every change is simulated on the same batches; only what fits and gains is recommended.
    """
    from hdpsim.errors import InfeasibleError
    from hdpsim.experiments.planning.check import check
    from hdpsim.experiments.planning.check_document import check_document
    from hdpsim.experiments.planning.repair import explained

    with progress("checking") as shown:
        try:
            found = check(load(scenario, overrides), batches, shown)
        except InfeasibleError as error:
            raise explained(error, scenario, overrides) from None
    output.present(check_document(found, tokens))
