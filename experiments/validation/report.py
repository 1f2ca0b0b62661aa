"""What validate shows: columns of its tables, sentences, files, and the accuracy that README and docs show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hdpsim.experiments.output.document import Column, OutputFile, Table, files_of, flat_rows
from hdpsim.experiments.output.plots import runs as plots
from hdpsim.experiments.validation.computed_step_times import computed_lines
from hdpsim.experiments.validation.memory import FITS, MEMORY_QUANTITY, fit_rows, memory_lines
from hdpsim.experiments.validation.order import grouped, median, percent, signed_summary
from hdpsim.experiments.validation.units import unit_lines

Row = Mapping[str, Any]

SOUND = "sound"
"""Of records that nobody doubts."""
ENOUGH_RECORDS = 10  # of a source, to speak of the share that its bands hold


def signed(share: float) -> str:
    """A share in % with its sign."""
    return ("+" if share >= 0.0 else "") + percent(share)


def share_column(name: str, heading: str) -> Column[Row]:
    """A column of absolute errors."""
    return Column(name, heading=heading, format=percent)


def signed_column(name: str, heading: str) -> Column[Row]:
    """A column of errors with their sign."""
    return Column(name, heading=heading, format=signed)


MEDIAN, BIAS, P90 = (
    share_column("median_abs_error", "median"),
    signed_column("median_error", "bias"),
    share_column("p90_abs_error", "p90"),
)
GROUP: tuple[Column[Row], ...] = (
    Column("family", heading="source"),
    Column("gpu", heading="GPU", left=True),
    Column("records"),
    Column("count", heading="judged"),
    MEDIAN,
    BIAS,
    P90,
    signed_column("worst_error", "worst"),
    Column("worst_record", left=True),
)
INSIDE = share_column("band_coverage", "in band")
FAMILY: tuple[Column[Row], ...] = (
    Column("family", heading="source"),
    Column("count", heading="runs"),
    MEDIAN,
    BIAS,
    P90,
    INSIDE,
    share_column("band_width", "width"),
)
_BAND: Column[Row] = Column(
    "band",
    lambda row: None if row["step_s_p10"] is None else f"{row['step_s_p10']:.4g} to {row['step_s_p90']:.4g}",
    heading="step s, P10 to P90",
)
_GAUGE: Column[Row] = Column("memory_gauge", heading="peak is", left=True)
_FITS: Column[Row] = Column("predicted_fits", heading="fits", format=lambda fits: "yes" if fits else "no")
RECORD: tuple[Column[Row], ...] = (
    Column("record"),
    Column("gpu", heading="GPU", left=True),
    Column("quantity", heading="judged by", left=True),
    Column("measured", format=".4g"),
    Column("predicted", format=".4g"),
    signed_column("error", "error %"),
)
_REASON: tuple[Column[tuple[str, int, str]], ...] = (
    Column("records", lambda reason: reason[1]),
    Column("first", lambda reason: reason[2], left=True),
    Column("reason", lambda reason: reason[0], left=True),
)


def blocks(payload: Row, few: int) -> tuple[Table[Any], ...]:
    """The tables of a validation: single records where they are *few*, groups, memory, reasons."""
    memory = payload["kind"] == "validate-memory"
    tables: list[Table[Any]] = []
    if len(payload["records"]) <= few:
        columns = (*RECORD, *((_GAUGE, _FITS) if memory else (_BAND,)))
        tables.append(Table(title="Records", columns=columns, rows=payload["records"]))
    # Memory is measured in few sources; in time mode a source of which nothing can be judged is news.
    groups = [group for group in payload["groups"] if group["count"] or not memory]
    if groups:
        title = "Errors by source and GPU, in % of the measurement (bias: median with its sign)"
        tables.append(Table(title=title, columns=GROUP, rows=groups))
    if payload["families"] and not memory:
        title = "Complete pretraining runs, none in doubt, by source: errors and P10-P90 bands, in %"
        tables.append(Table(title=title, columns=FAMILY, rows=payload["families"]))
    if memory:
        tables.append(Table(title="Does it fit?", columns=FITS, rows=fit_rows(payload)))
    reasons = payload["summary"]["unpredicted_reasons"]
    if reasons:
        first = {row["reason"]: row["record"] for row in reversed(payload["records"]) if row["reason"]}
        rows = tuple((reason, count, first[reason]) for reason, count in reasons.items())
        tables.append(Table(title="Not predicted", columns=_REASON, rows=rows))
    return tuple(tables)


def summary_lines(payload: Row) -> tuple[str, ...]:
    """The summary in sentences."""
    summary = payload["summary"]
    lines = [
        _sentence("all records", summary),
        _sentence("complete pretraining records, none in doubt", summary["complete_pretraining"]),
    ]
    covered = summary["complete_pretraining"]["band_coverage"]
    if covered is not None and summary["complete_pretraining"]["count"] >= ENOUGH_RECORDS:
        lines.append(f"P10-P90 bands hold {covered:.1%} of those (own configuration left out)")
    by_source = summary["band_coverage_by_source"]
    if len(by_source) > 1:
        least, most = min(by_source, key=by_source.__getitem__), max(by_source, key=by_source.__getitem__)
        lines.append(
            f"of the {len(by_source)} sources with {ENOUGH_RECORDS} records or more, bands hold {by_source[least]:.1%} "
            f"({least}) to {by_source[most]:.1%} ({most})"
        )
    lines += unit_lines(payload["records"])
    lines += computed_lines(payload["records"])
    lines += _order_sentences("order of layouts", summary["rank_correlation"])
    if len(summary["by_doubt"]) > 1:
        for mark, of_mark in summary["by_doubt"].items():
            what = "records that nobody doubts" if mark == SOUND else f"records marked {mark}"
            lines.append(_sentence(what, of_mark))
            lines += _order_sentences(f"order of layouts, {what}", of_mark["rank_correlation"])
    return (*lines, *memory_lines(summary["memory"]))


def _order_sentences(what: str, ranks: Row) -> list[str]:
    if not ranks["groups"]:
        return []
    return [
        f"{what}: rank correlation of throughput {ranks['median']:.3f} in the median of {ranks['groups']} sets of "
        f"records of one model, GPU, size and sequence length; lowest {ranks['min']:.3f}"
    ]


def _sentence(what: str, errors: Row) -> str:
    if not errors["count"]:
        return f"{what}: nothing to judge, {errors['unpredicted']} not predicted"
    return (
        f"{what}: {errors['count']} judged, median error {percent(errors['median_abs_error'])} %, "
        f"mean {percent(errors['mean_abs_error'])} %, p90 {percent(errors['p90_abs_error'])} %, "
        f"worst {percent(errors['max_abs_error'])} %; {errors['unpredicted']} not predicted"
    )


def files(payload: Row) -> tuple[OutputFile, ...]:
    """The files of a run directory: records, groups, and a figure of every quantity that was measured."""
    rows = payload["records"]
    tables = {"records.csv": lambda: flat_rows(rows), "groups.csv": lambda: flat_rows(payload["groups"])}
    all_files = list(files_of("validate", tables))
    for quantity, title in (
        ("step_s", "step time (s)"),
        ("tokens_per_s_per_gpu", "throughput (tokens/s per GPU)"),
        ("tflops_per_gpu", "FLOP rate (TFLOP/s per GPU, as the source counts)"),
        (MEMORY_QUANTITY, "peak memory (GB)"),
    ):
        points = _points(rows, quantity)
        if points:
            all_files.append(
                OutputFile(
                    f"measured_against_predicted_{quantity}",
                    partial(plots.plot_paper_against_prediction, points, quantity=title),
                    f"Every record judged by its {title}: prediction over measurement.",
                )
            )
    return tuple(all_files)


def _points(rows: Sequence[Row], quantity: str) -> dict[str, tuple[list[float], list[float]]]:
    """Source -> (measured, predicted) of the rows judged by *quantity*."""
    judged = (row for row in rows if row["quantity"] == quantity and row["error"] is not None)
    return {
        source: ([row["measured"] for row in members], [row["predicted"] for row in members])
        for source, members in grouped(judged, lambda row: str(row["group"][0])).items()
    }


# -- the accuracy that README and docs show between markers (tools/accuracy.py) ------------------------------------


def markdown(payload: Row) -> str:
    """Write a validation as Markdown, without its single records: groups, sentences, reasons."""
    heads = ("Source", "GPU", "Records", "Judged", "Median", "Bias", "p90")
    named = [replace(column, heading=head) for column, head in zip(GROUP, heads, strict=False)]
    worst: Column[Row] = Column(
        "worst", lambda row: f"{signed(row['worst_error'])} ({row['worst_record']})" if row["count"] else None,
        heading="Worst", left=True,
    )  # fmt: skip
    reasons = payload["summary"]["unpredicted_reasons"]
    of_reasons = (replace(_REASON[0], heading="Not predicted"), replace(_REASON[2], heading="Reason"))
    parts = [
        Table(columns=(*named, worst), rows=payload["groups"]).markdown(),
        "\n".join(f"* {line}" for line in summary_lines(payload)),
        *([Table(columns=of_reasons, rows=tuple(reasons.items())).markdown()] if reasons else []),
    ]
    return "\n\n".join(parts)


def short_markdown(payload: Row) -> str:
    """Complete pretraining runs that nobody doubts, one row per source; all of them below."""
    rows = [
        {**row, "gpus": ", ".join(sorted({gpu.split("-")[0] for gpu in row["gpus"]}))}
        for row in payload["families"]
    ]
    judged = [row for row in payload["records"] if row["counts"] and row["error"] is not None]
    every = {
        **payload["summary"]["complete_pretraining"],
        "family": "**all**",
        "gpus": ", ".join(sorted({row["group"][1].split("-")[0] for row in judged})),
        "median_error": median(row["error"] for row in judged),
    }
    columns: tuple[Column[Row], ...] = (
        Column("family", heading="Source"), Column("gpus", heading="GPU", left=True), Column("count", heading="Runs"),
        replace(MEDIAN, heading="Median error"), replace(BIAS, heading="Bias"), P90,
        share_column("max_abs_error", "Largest"), replace(INSIDE, heading="In P10-P90 band"),
    )  # fmt: skip
    return Table(columns=columns, rows=[*rows, every]).markdown()


_VIEWS = {
    "published": "as published",
    "plain": "plain: framework without release, no notes",
    "unseen": "unseen: rules and residuals of its family left out",
}


def views_markdown(documents: Mapping[str, Row]) -> str:
    """Complete pretraining runs that nobody doubts, a row per view of them (hdpsim.experiments.validation.views)."""
    rows = []
    for view, payload in documents.items():
        judged = [row for row in payload["records"] if row["counts"] and row["error"] is not None]
        inside = [row["in_band"] for row in judged if row["in_band"] is not None]
        errors = signed_summary(row["error"] for row in judged)
        said = {"Runs are seen": _VIEWS[view], "Runs": len(judged)}
        rows.append({**said, **errors, "inside": sum(inside) / len(inside)})
    columns: tuple[Column[Row], ...] = (
        Column("Runs are seen"), Column("Runs"), replace(MEDIAN, heading="Median error"),
        replace(BIAS, heading="Bias"), P90, share_column("max_abs_error", "Largest"),
        share_column("inside", "In P10-P90 band"),
    )  # fmt: skip
    return Table(columns=columns, rows=rows).markdown()


def families_markdown(documents: Mapping[str, Row]) -> str:
    """Write the runs by source as Markdown: median error, p90 and share in the band in every view."""
    figures = {"median_abs_error": "median", "p90_abs_error": "p90", "band_coverage": "in band"}
    rows: dict[str, dict[str, Any]] = {}
    for view, payload in documents.items():
        for family in payload["families"]:
            row = rows.setdefault(family["family"], {"Source": family["family"], "Runs": family["count"]})
            row |= {f"{view} {word}": family[name] for name, word in figures.items()}
    shares = [
        share_column(f"{view} {word}", f"{view} {word}".capitalize())
        for view in documents
        for word in figures.values()
    ]
    return Table(columns=(Column("Source"), Column("Runs"), *shares), rows=list(rows.values())).markdown()


def records_markdown(payload: Row) -> str:
    """Every record: what was measured, what is predicted, the error or the reason why there is none."""
    columns: tuple[Column[Row], ...] = (
        Column("record", heading="Record"),
        Column("gpu", lambda row: row["group"][1], heading="GPU", left=True),
        Column("n_gpus", lambda row: row.get("n_gpus"), heading="GPUs", format=_figure),
        Column("model", lambda row: row.get("model_name") or "-", heading="Model", left=True),
        Column("quantity", heading="Judged by", left=True),
        Column("measured", heading="Measured", format=_figure),
        Column("predicted", heading="Predicted", format=_figure),
        signed_column("error", "Error %"),
        Column("counts", heading="Counts", format=lambda counts: "yes" if counts else ""),
        Column("in_band", heading="Band", format=lambda inside: "in" if inside else "out", missing=""),
    )
    return Table(columns=columns, rows=payload["records"]).markdown()


def bytescale_markdown(payload: Row) -> str:
    """The cells of ByteScale's Figure 17 by model and strategy, and what dynamic meshes gain."""
    cells = [cell for cell in payload["records"] if cell["error"] is not None]
    groups = grouped(cells, lambda cell: (f"{cell['model']}, {cell['gpus']:,} GPUs", str(cell["strategy"])))
    rows = []
    for (model, strategy), own in {**groups, ("**all**", ""): cells}.items():
        errors = [cell["error"] for cell in own]
        figures = {**signed_summary(errors), "mean_error": float(np.mean(errors))}
        rows.append({"Model": model, "Strategy": strategy, "Cells": len(own), **figures})
    columns: tuple[Column[Row], ...] = (
        Column("Model"), Column("Strategy", left=True), Column("Cells"), replace(MEDIAN, heading="Median error"),
        signed_column("mean_error", "Bias"), share_column("max_abs_error", "Largest"),
    )  # fmt: skip
    return Table(columns=columns, rows=rows).markdown()


def _figure(value: float) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
