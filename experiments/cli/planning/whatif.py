"""`hdpsim whatif`: what does each change buy, alone and together, and which inputs matter?"""

from __future__ import annotations

from typing import Any

import click

from hdpsim.experiments.cli.options import (
    batches_option,
    completed_keys,
    output_options,
    scenario_argument,
    strategies_option,
)
from hdpsim.experiments.cli.progress import progress
from hdpsim.experiments.cli.shown import Output


def _share(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """The share of `--tornado 10%`."""
    if text is None:
        return None
    from hdpsim.experiments.studies.changes.tornado import parse_share

    return parse_share(text)


@click.command("whatif")
@scenario_argument
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE[,KEY=VALUE...]",
    shell_complete=completed_keys,
    help="A change to try, of one key or of several; repeatable.",
)
@strategies_option
@click.option(
    "--tornado",
    "tornado",
    is_flag=False,
    flag_value="10%",
    metavar="[10%]",
    callback=_share,
    help="Move every numeric input down and up by this share instead, on one batch unless --batches says more.",
)
@batches_option
@output_options
def command(scenario: str, changes: tuple[str, ...], output: Output, **options: Any) -> None:
    """What does each change buy, alone and together?

    Simulates the scenario as it is, with each --set alone, with the first ones together, and with all of them.
    """
    from hdpsim.experiments.verbs.planning import whatif

    output.show(whatif(scenario, changes, progress=progress, **options))
