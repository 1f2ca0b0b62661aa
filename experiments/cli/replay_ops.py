"""`hdpsim replay-ops`: play the recorded operations of a real job, and ask what made it slow."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.common import emit_json, json_option, out_option, progress, say, show_table


@click.command("replay-ops")
@click.argument("trace", metavar="TRACE", type=click.Path())
@click.option(
    "--meta",
    required=True,
    metavar="FILE",
    type=click.Path(),
    help="YAML with trial_name, dp_size, pp_size, tp_size, dsp_size, vpp_size and world_size of the job.",
)
@out_option
@json_option
def command(trace: str, meta: str, out: str | None, as_json: bool) -> None:
    """Play recorded operations of a real job: how close is the prediction, and what made the job slow?

    TRACE is a .parquet or .csv file with one row per operation (dp_rank, stage, rank, step, optype, start_ts,
    duration, seq_id, mc, mb_id, gmc; seconds).
    """
    from hdpsim.experiments.jobs import report as recorded_report
    from hdpsim.experiments.jobs.trace import read_recorded_job
    from hdpsim.experiments.output.finite import finite
    from hdpsim.experiments.studies.artefacts import check_out
    from hdpsim.simulator.recorded.graph import link_operations
    from hdpsim.simulator.recorded.whatif import analyse

    check_out(out)
    graph = link_operations(read_recorded_job(trace, meta))
    with progress("replaying") as shown:
        analysis = analyse(graph, shown)
    document = finite(recorded_report.document_of(graph, analysis))
    written = None if out is None else recorded_report.write_replay(out, document, graph, analysis)
    if as_json:
        emit_json(document)
        return
    say(recorded_report.headline(graph.job))
    for table in recorded_report.tables(graph, analysis):
        say()
        show_table(table)
    say()
    for line in recorded_report.sentences(graph, analysis):
        say(line)
    if written is not None:
        say(written)
