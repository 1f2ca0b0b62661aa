"""`hdpsim trace`: look at sequence lengths, check a file, draw a synthetic trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.groups import Commands
from hdpsim.experiments.cli.options import file_option, json_option, number_option
from hdpsim.experiments.cli.printing import Output, emit_json, say
from hdpsim.ranges import RANGES

if TYPE_CHECKING:
    from hdpsim.traces import TraceStatistics


_column_option = click.option(
    "--column", metavar="NAME", help="Column that holds the lengths; default: tokens, length and the like."
)


@click.group("trace", cls=Commands)
def trace() -> None:
    """Sequence lengths: statistics, synthesis, checks. FILE may be the name of a shipped trace."""


@trace.command("stats")
@click.argument("file")
@_column_option
@click.option("--plot", metavar="STEM", type=click.Path(), help="Also draw STEM.png and STEM.svg.")
@json_option
def stats(file: str, column: str | None, plot: str | None, as_json: bool) -> None:
    """Who holds the sequences, and who holds the tokens?"""
    from hdpsim.experiments.output.document import Column, Document, Table
    from hdpsim.traces import load_trace, statistics

    summary = statistics(load_trace(file, column=column))
    lines = () if plot is None else (_plot(summary, plot),)
    columns: tuple[Column[dict[str, Any]], ...] = (
        Column("", lambda row: f"up to {row['bucket']}", heading="tokens"),
        Column("samples", heading="sequences", format=","),
        Column("sample_share", heading="share", format=".2%"),
        Column("tokens", heading="tokens held", format=","),
        Column("token_share", heading="share", format=".2%"),
    )
    document = Document(
        kind="",
        head="\n".join(f"{_label(key):<20}{_amount(key, value)}" for key, value in summary.summary().items()),
        blocks=(Table(columns=columns, rows=summary.rows()),),
        payload={**summary.summary(), "buckets": summary.rows()},
    )
    Output(as_json=as_json).present(document, lines)


def _label(key: str) -> str:
    return key.removesuffix("_tokens").replace("_", " ")


def _amount(key: str, value: str | float) -> str:
    number = value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return f"{number} tokens" if key.endswith("_tokens") else number


@trace.command("synth")
@click.option(
    "--distribution", required=True, metavar="NAME", help="A shipped distribution or a YAML file of one."
)
@number_option("drawn_sequences", "--count", help="Sequences to draw.")
@click.option("--tokens", metavar="T", help="Tokens to draw (such as 32M), the last sequence cut to fit.")
@number_option("seed", "--seed", default=0, show_default=True, metavar="S")
@file_option("-o", "--output", required=True, help=".csv, .parquet, .npy, ...")
@json_option
def synth(
    distribution: str, count: int | None, tokens: str | None, seed: int, output: str, as_json: bool
) -> None:
    """Draw a trace from a published distribution of sequence lengths."""
    from hdpsim.traces import load_distribution, synthesize, synthesize_tokens, write_trace

    if (count is None) == (tokens is None):
        raise UserInputError("give either --count (sequences) or --tokens")
    source = load_distribution(distribution)
    if tokens is not None:
        drawn = synthesize_tokens(source, _tokens(tokens), seed)
    else:
        drawn = synthesize(source, count or 1, seed)
    write_trace(drawn, output)
    if as_json:
        emit_json({"file": output, "sequences": len(drawn), "tokens": drawn.tokens, "seed": seed})
    else:
        say(f"wrote {output}: {len(drawn):,} sequences, {drawn.tokens:,} tokens (seed {seed})")


@trace.command("check")
@click.argument("file")
@_column_option
@json_option
def check(file: str, column: str | None, as_json: bool) -> None:
    """Is every length of the file usable? Names the first bad row if not."""
    from hdpsim.traces import load_trace

    lengths = load_trace(file, column=column)
    if as_json:
        emit_json({"file": file, "ok": True, "sequences": len(lengths), "tokens": lengths.tokens})
    else:
        say(f"{file}: fine; {len(lengths):,} sequences, {lengths.tokens:,} tokens")


def _tokens(text: str) -> int:
    from hdpsim.cost_models.reading.units import parse_quantity

    tokens, allowed = parse_quantity(text, "tokens"), RANGES["drawn_tokens"]
    if not allowed.holds(int(tokens)):
        raise UserInputError(f"--tokens: {allowed.complaint(text)}")
    return int(tokens)


def _plot(summary: TraceStatistics, stem: str) -> str:
    from pathlib import Path

    from hdpsim.experiments.output.plots.runs import plot_length_distribution
    from hdpsim.experiments.output.plots.style import save_figure

    rows = summary.rows()
    figure = plot_length_distribution(
        [row["upper_edge_tokens"] for row in rows],
        [row["sample_share"] for row in rows],
        [row["token_share"] for row in rows],
        title=f"Sequence lengths of {summary.name}",
    )
    return f"wrote {' and '.join(str(path) for path in save_figure(figure, Path(stem)))}"
