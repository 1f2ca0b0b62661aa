"""`hdpsim whatif`: what does each change buy, alone and together?"""

from __future__ import annotations

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.common import (
    batches_option,
    emit_json,
    json_option,
    load,
    progress,
    say,
    scenario_argument,
    show_table,
)


@click.command("whatif")
@scenario_argument
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="A change to try; repeatable.")
@batches_option
@json_option
def command(scenario: str, changes: tuple[str, ...], batches: int | None, as_json: bool) -> None:
    """What does each change buy, alone and together?

    Simulates the scenario as it is, with each --set alone, and with all of them.
    """
    from hdpsim.experiments.studies import report
    from hdpsim.experiments.studies.whatif import (
        best_of_base,
        whatif,
        whatif_json,
        whatif_lines,
        whatif_table,
    )

    if not changes:
        raise UserInputError("whatif needs at least one change: --set key=value")
    checked = load(scenario, ())
    with progress("simulating") as shown:
        variants = whatif(checked, changes, batches, shown)
        best = best_of_base(variants)
    if as_json:
        remarks = list(whatif_lines(variants, best))
        emit_json(report.json_document("whatif", checked, whatif_json(variants, best), remarks=remarks))
        return
    say(report.headline(checked))
    say()
    show_table(whatif_table(variants, best))
    say()
    ran = [variant.scenario for variant in variants if variant.feasible and variant.scenario is not None]
    for line in (*whatif_lines(variants, best), report.mfu_note(*ran)):
        say(line)
