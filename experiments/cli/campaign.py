"""`hdpsim campaign`: a weeks-long run with its failures."""

from __future__ import annotations

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.common import (
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
    whole_number,
)


@click.command("campaign")
@scenario_argument
@click.option(
    "--duration", metavar="TIME", help="Wall-clock time to simulate, such as 30d; default: campaign.duration."
)
@target_option
@click.option("--seeds", type=whole_number("seeds"), metavar="N", help="Runs; default: campaign.seeds.")
@click.option(
    "--workers",
    type=whole_number("workers"),
    metavar="N",
    help="Processes; default: one per processor. The result does not depend on it.",
)
@set_option
@out_option
@json_option
def command(
    scenario: str,
    duration: str | None,
    target: str | None,
    seeds: int | None,
    workers: int | None,
    overrides: tuple[str, ...],
    out: str | None,
    as_json: bool,
) -> None:
    """How much of a weeks-long run is left after failures, restarts and checkpoints?"""
    from hdpsim.experiments.campaigns import report as campaign_report
    from hdpsim.experiments.campaigns.run import run_campaign
    from hdpsim.experiments.scenario.scenario import scenario_path
    from hdpsim.experiments.studies import report
    from hdpsim.experiments.studies.artefacts import check_out

    check_out(out)
    tokens = target_tokens(target)
    if duration is not None and tokens is not None:
        raise UserInputError("give either --duration or --tokens: so many tokens take as long as they take")
    if duration is not None:
        overrides = (*overrides, f"campaign.duration={duration}")
    if seeds is not None:
        overrides = (*overrides, f"campaign.seeds={seeds}")
    checked = load(scenario, overrides)
    with progress("simulating runs") as shown:
        study = run_campaign(
            checked, folder=scenario_path(scenario).parent, workers=workers, tokens=tokens, report=shown
        )
    document = report.json_document("campaign", checked, campaign_report.campaign_json(study))
    written = None if out is None else campaign_report.write_campaign(out, document, study)
    if as_json:
        emit_json(document)
        return
    say(report.headline(checked))
    for table in (
        campaign_report.summary_table(study),
        campaign_report.account_table(study),
        campaign_report.cause_table(study),
    ):
        say()
        show_table(table)
    say()
    for line in (*campaign_report.campaign_remarks(study), *((written,) if written else ())):
        say(line)
