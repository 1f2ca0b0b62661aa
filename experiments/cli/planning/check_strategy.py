"""`hdpsim check-strategy`: does a strategy of one's own keep every promise of a plan?"""

from __future__ import annotations

import click

from hdpsim.experiments.cli.common import Output, load, output_options, set_option, whole_number
from hdpsim.experiments.cli.progress import progress


@click.command("check-strategy")
@click.argument("strategy", metavar="MODULE:FUNCTION")
@click.option(
    "--scenario",
    default="quickstart-8gpu",
    show_default=True,
    metavar="SCENARIO",
    help="Whose model, nodes and keys are taken; GPUs, stages, context and capacity are the cases' own.",
)
@click.option(
    "--ranks",
    type=whole_number("cp"),
    default=16_384,
    show_default=True,
    metavar="N",
    help="Cases of at most so many ranks.",
)
@set_option
@output_options
def command(strategy: str, scenario: str, ranks: int, overrides: tuple[str, ...], output: Output) -> None:
    """Does a strategy keep every promise, on every kind of batch?

    Tokens, capacity, members, order, deadlocks, the same plan every time; batches of one token to a full context, 1 to
    16,384 ranks, with and without a pipeline. What breaks is shown with the smallest batch found (exit code 3).
    """
    from hdpsim.errors import InfeasibleError, OwnPlanError, ScenarioError
    from hdpsim.experiments.scenario.schema import strategy_name
    from hdpsim.experiments.studies.strategy_check import check_strategy
    from hdpsim.experiments.studies.strategy_check_document import strategy_check_document

    try:
        strategy_name(strategy)
    except ValueError as error:
        raise ScenarioError((("", str(error)),), "MODULE:FUNCTION") from None
    checked = load(scenario, overrides)
    with progress("checking") as shown:
        found = check_strategy(checked, strategy, most_ranks=ranks, report=shown)
    output.present(strategy_check_document(found, checked.name))
    if not found.broken and not found.kept["runs"]:
        reasons = "\n".join(f"  {reason}" for reason in list(found.refused)[:5])
        raise InfeasibleError(f"strategy {strategy} refuses every case, so nothing was checked:\n{reasons}")
    if found.broken:
        names = ", ".join(one.promise for one in found.broken)
        raise OwnPlanError(f"strategy {strategy} breaks what plans promise: {names}")
