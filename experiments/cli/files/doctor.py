"""`hdpsim doctor`: what is installed, and does it work?"""

from __future__ import annotations

import click

from hdpsim.experiments.cli.options import json_option
from hdpsim.experiments.cli.shown import Output


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Is this installation sound: versions, processors, catalog, a step checked against itself?

    The self-check takes about a second: both executors play the same step, which must not be below its lower bound.
    """
    from hdpsim.experiments.verbs.doctor import doctor

    Output(as_json=as_json).show(doctor())
