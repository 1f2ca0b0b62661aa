"""`hdpsim campaign`: a weeks-long run with its failures."""

from __future__ import annotations

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.common import (
    Output,
    load,
    output_options,
    scenario_argument,
    set_option,
    target_option,
    whole_number,
    workers_option,
)
from hdpsim.experiments.cli.progress import progress


@click.command("campaign")
@scenario_argument
@click.option(
    "--duration", metavar="TIME", help="Wall-clock time to simulate, such as 30d; default: campaign.duration."
)
@target_option
@click.option("--seeds", type=whole_number("seeds"), metavar="N", help="Runs; default: campaign.seeds.")
@workers_option
@set_option
@output_options
def command(
    scenario: str,
    duration: str | None,
    tokens: float | None,
    seeds: int | None,
    workers: int | None,
    overrides: tuple[str, ...],
    output: Output,
) -> None:
    """How much of a weeks-long run is left after failures, restarts and checkpoints?"""
    from hdpsim.experiments.campaigns.report import campaign_document
    from hdpsim.experiments.campaigns.run import run_campaign
    from hdpsim.experiments.scenario.scenario import scenario_path

    if duration is not None and tokens is not None:
        raise UserInputError("give either --duration or --tokens: so many tokens take as long as they take")
    if duration is not None:
        overrides = (*overrides, f"campaign.duration={duration}")
    if seeds is not None:
        overrides = (*overrides, f"campaign.seeds={seeds}")
    checked = load(scenario, overrides)
    folder = scenario_path(scenario).parent
    with progress("simulating runs") as shown:
        study = run_campaign(checked, folder=folder, workers=workers, tokens=tokens, report=shown)
    output.present(campaign_document(checked, study))
