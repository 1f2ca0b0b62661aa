"""`hdpsim whatif`: what does each change buy, alone and together?"""

from __future__ import annotations

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.common import Output, batches_option, json_option, load, scenario_argument
from hdpsim.experiments.cli.progress import progress


@click.command("whatif")
@scenario_argument
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="A change to try; repeatable.")
@batches_option
@json_option
def command(scenario: str, changes: tuple[str, ...], batches: int | None, as_json: bool) -> None:
    """What does each change buy, alone and together?

    Simulates the scenario as it is, with each --set alone, and with all of them.
    """
    from hdpsim.experiments.studies.whatif import best_of_base, whatif, whatif_document

    if not changes:
        raise UserInputError("whatif needs at least one change: --set key=value")
    checked = load(scenario)
    with progress("simulating") as shown:
        variants = whatif(checked, changes, batches, shown)
        best = best_of_base(variants)
    Output(as_json=as_json).present(whatif_document(checked, variants, best))
