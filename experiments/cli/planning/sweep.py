"""`hdpsim sweep`: every combination of many changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from hdpsim.experiments.cli.options import engine_option, output_options, set_option, workers_option
from hdpsim.experiments.cli.progress import long_progress
from hdpsim.experiments.cli.shown import Output, end_interrupted, say

if TYPE_CHECKING:
    from hdpsim.experiments.sweeps.run import SweepRun


@click.command("sweep")
@click.argument("sweep_file", metavar="SWEEP")
@click.option("--dry-run", is_flag=True, help="Say how many simulations it would be, and about how long.")
@workers_option
@engine_option
@click.option(
    "--store",
    envvar="HDPSIM_STORE",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Where results are kept; default: hdpsim/results in your cache folder.",
)
@set_option
@output_options
def command(sweep_file: str, overrides: tuple[str, ...], output: Output, **options: Any) -> None:
    """Which of many combinations is best, and how do they compare?

    SWEEP is a YAML file (docs/how-to/sweeps.md) or the name of a shipped sweep: a base scenario and axes (grid, zip,
    list) of values for its keys. Finished results are kept: a sweep that was interrupted goes on where it stopped.
    """
    from hdpsim.experiments.sweeps.store import default_store
    from hdpsim.experiments.verbs.planning import sweep

    result = sweep(sweep_file, overrides, progress=long_progress, **options)
    if options["dry_run"]:
        Output(as_json=output.as_json).show(result)
        return
    output.present(result.document, result.lines)
    run = cast("SweepRun", result.found)
    if run.interrupted:
        kept_in = options["store"] or default_store()
        end_interrupted(f"what is finished is kept in {kept_in}; run the same command again to go on")
    if run.count("failed"):
        say(f"{run.count('failed')} cells failed; the same command tries them again", err=True)
        raise click.exceptions.Exit(1)
    if result.error is not None:
        raise result.error
