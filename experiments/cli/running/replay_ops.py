"""`hdpsim replay-ops`: play the recorded operations of a real job, and ask what made it slow."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.options import output_options
from hdpsim.experiments.cli.progress import progress
from hdpsim.experiments.cli.shown import Output


@click.command("replay-ops")
@click.argument("trace", metavar="TRACE", type=click.Path())
@click.option(
    "--meta",
    required=True,
    metavar="FILE",
    type=click.Path(),
    help="YAML with trial_name, dp_size, pp_size, tp_size, dsp_size, vpp_size and world_size of the job.",
)
@output_options
def command(trace: str, meta: str, output: Output) -> None:
    """Play recorded operations of a real job: how close is the prediction, and what made the job slow?

    TRACE is a .parquet or .csv file with one row per operation (dp_rank, stage, rank, step, optype, start_ts,
    duration, seq_id, mc, mb_id, gmc; seconds).
    """
    from hdpsim.experiments.verbs.running import replay_ops

    output.show(replay_ops(trace, meta, progress=progress))
