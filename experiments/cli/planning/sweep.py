"""`hdpsim sweep`: every combination of many changes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hdpsim import interrupts
from hdpsim.experiments.cli.common import (
    Output,
    engine_option,
    output_options,
    say,
    set_option,
    workers_option,
)

if TYPE_CHECKING:
    from hdpsim.experiments.parallel.engines import Engine
    from hdpsim.experiments.sweeps.cells import Cell
    from hdpsim.experiments.sweeps.file import Sweep
    from hdpsim.experiments.sweeps.store import ResultStore


def default_store() -> str:
    """Where results are kept unless --store says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "hdpsim", "results")


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
def command(
    sweep_file: str,
    dry_run: bool,
    workers: int | None,
    engine: str | None,
    store: str | None,
    overrides: tuple[str, ...],
    output: Output,
) -> None:
    """Which of many combinations is best, and how do they compare?

    SWEEP is a YAML file (docs/how-to/sweeps.md) or the name of a shipped sweep: a base scenario and axes (grid, zip,
    list) of values for its keys. Finished results are kept: a sweep that was interrupted goes on where it stopped.
    """
    from hdpsim.experiments.parallel.engines import engine_of
    from hdpsim.experiments.sweeps.cells import expand
    from hdpsim.experiments.sweeps.file import load_sweep
    from hdpsim.experiments.sweeps.report import estimate_document
    from hdpsim.experiments.sweeps.run import estimate_sweep
    from hdpsim.experiments.sweeps.store import ResultStore

    sweep = load_sweep(sweep_file)
    cells = expand(sweep, overrides)
    kept = ResultStore(store or default_store())
    chosen = engine_of(engine, workers)
    if not dry_run:
        _run(sweep, cells, kept, chosen, output)
        return
    with chosen:
        estimate = estimate_sweep(cells, kept, chosen.slots)
    Output(as_json=output.as_json).present(estimate_document(sweep.name, estimate))


def _run(sweep: Sweep, cells: Sequence[Cell], kept: ResultStore, engine: Engine, output: Output) -> None:
    from hdpsim.errors import InfeasibleError, OwnPlanError, StrategyError
    from hdpsim.experiments.cli.progress import long_progress
    from hdpsim.experiments.studies.report import one_line
    from hdpsim.experiments.sweeps.report import sweep_document
    from hdpsim.experiments.sweeps.run import run_sweep

    with long_progress("sweeping", "simulations") as report:
        run = run_sweep(sweep, cells, kept, engine, report)
    output.present(sweep_document(run, str(Path(kept.folder).absolute())))
    if run.interrupted:
        say(
            f"{interrupts.message()}: what is finished is kept in {kept.folder}; run the same command again to go on",
            err=True,
        )
        raise click.exceptions.Exit(interrupts.exit_code())
    if run.count("failed"):
        say(f"{run.count('failed')} cells failed; the same command tries them again", err=True)
        raise click.exceptions.Exit(1)
    for status, kind in (("bad strategy", StrategyError), ("bad plan", OwnPlanError)):
        reasons = dict.fromkeys(one_line(result.reason) for result in run.results if result.status == status)
        if reasons:
            raise kind("\n".join(list(reasons)[:10]))
    if not run.count("ok"):
        reasons = dict.fromkeys(one_line(result.reason) for result in run.results)
        raise InfeasibleError(
            "no cell can run:\n" + "\n".join(f"  {reason}" for reason in list(reasons)[:10])
        )
