"""`hdpsim whatif`: what does each change buy, alone and together, and which inputs matter?"""

from __future__ import annotations

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.common import (
    Output,
    batches_option,
    load,
    output_options,
    scenario_argument,
    strategies_option,
)
from hdpsim.experiments.cli.progress import progress


def _share(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """The share of `--tornado 10%`."""
    if text is None:
        return None
    from hdpsim.experiments.studies.tornado import parse_share

    return parse_share(text)


@click.command("whatif")
@scenario_argument
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE[,KEY=VALUE...]",
    help="A change to try, of one key or of several; repeatable.",
)
@strategies_option
@click.option(
    "--tornado",
    "share",
    is_flag=False,
    flag_value="10%",
    metavar="[10%]",
    callback=_share,
    help="Move every numeric input down and up by this share instead, on one batch.",
)
@batches_option
@output_options
def command(
    scenario: str,
    changes: tuple[str, ...],
    strategies: tuple[str, ...] | None,
    share: float | None,
    batches: int | None,
    output: Output,
) -> None:
    """What does each change buy, alone and together?

    Simulates the scenario as it is, with each --set alone, with the first ones together, and with all of them.
    """
    from hdpsim.experiments.studies.tornado import tornado, tornado_document
    from hdpsim.experiments.studies.whatif import best_of_base, whatif, whatif_document

    if share is not None:
        if changes or strategies or batches:
            raise UserInputError(
                "--tornado goes without --set, --strategies and --batches: it moves every input of "
                "the scenario on one batch"
            )
        checked = load(scenario)
        with progress("simulating") as shown:
            study = tornado(checked, share, shown)
        output.present(tornado_document(checked, study))
        return
    if not changes:
        raise UserInputError("whatif needs at least one change: --set key=value, or --tornado")
    checked = load(scenario)
    with progress("simulating") as shown:
        variants = whatif(checked, changes, batches, shown, strategies or ())
        best = best_of_base(variants)
    output.present(whatif_document(checked, variants, best))
