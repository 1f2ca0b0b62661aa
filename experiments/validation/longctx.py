"""Predictions held against published tables of long-context training: errors by system, ratios, verdicts of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from hdpsim.cost_models.calibration.calibration import load_calibration
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.output.document import Column, Document, Table, files_of
from hdpsim.experiments.output.files.csv import stated_number
from hdpsim.experiments.records.longctx.prediction import LongPrediction, LongPredictor
from hdpsim.experiments.records.longctx.rows import VERDICT, LongRow, read_long_rows
from hdpsim.experiments.studies.comparing.compare import reported, silent
from hdpsim.experiments.validation.memory import FITS, memory_lines, memory_summary
from hdpsim.experiments.validation.order import error_of, error_summary, grouped, percent, signed_summary
from hdpsim.experiments.validation.report import BIAS, MEDIAN, P90, share_column

RAN = ("seconds_per_iteration", "ms_per_iteration", "tokens_per_s_per_gpu", "tokens_per_s_total", VERDICT)
"""Rows of these metrics are of a step that ran, or did not."""
UNNAMED = "not stated"
"""A GPU that a source does not name: one was assumed, so ratios of its rows count and rows do not."""
_SHOWN_REASONS = 10

Row = dict[str, Any]


def run(
    path: str,
    *,
    lengths: Mapping[str, str] | None = None,
    calibration: str | None = None,
    report: Callable[[int, int], None] = silent,
) -> Document:
    """Predict every row of a table of long-context measurements.

    Args:
        path: CSV, see docs/how-to/long_context.md.
        lengths: the column dataset -> a trace, for sources whose lengths are not shipped.
        calibration: file of constants for the GPUs of its generation, instead of the shipped ones.
        report: told (done, total) after every row.

    Raises:
        UserInputError: an unusable file.
        InfeasibleError: no row can be predicted; it says why.
    """
    rows = read_long_rows(path)
    own = None if calibration is None else load_calibration(calibration)
    predictor = LongPredictor(lengths or {}, own)
    records = [_record(row, predictor.predict(row)) for row in reported(rows, report, len(rows))]
    reasons = Counter(record["reason"] for record in records if record["reason"]).most_common()
    if all(record["predicted"] is None for record in records):
        why = "\n".join(f"  {count} x {reason}" for reason, count in reasons[:_SHOWN_REASONS])
        raise InfeasibleError(f"{path}: none of {len(rows)} rows can be predicted:\n{why}")
    groups = _groups(records)
    ratios = {**_ratio_errors(records), "by_source": _ratios_by_source(records)}
    memory = memory_summary(records)
    summary = {
        **error_summary(record["error"] for record in records),
        "unpredicted": sum(record["predicted"] is None for record in records),
        "unpredicted_reasons": dict(reasons),
        "memory": memory,
        "ratios": ratios,
    }
    lines = _sentences(summary)
    of_ratios = "Ratios of two systems in the same experiment, errors in %"
    tables: list[Table[Row]] = [
        Table(title="Errors by system, in % of the measurement", columns=_GROUP, rows=groups),
        Table(title=of_ratios, columns=_RATIO, rows=ratios["by_source"]),
    ]
    if fits := _fits(records):
        tables.append(Table(title="Out of memory or not", columns=_FITS, rows=fits))
    return Document(
        kind="validate-longctx",
        payload={
            "file": Path(path).name,
            "calibration": own and own.name,
            "records": records,
            "summary": summary,
            "groups": groups,
        },
        blocks=tuple(tables),
        notes=(*lines, *(f"not predicted, {n} x: {reason}" for reason, n in reasons[:_SHOWN_REASONS])),
        title="Predictions against tables of long-context training",
        readme=lines,
        files=files_of("validate-longctx", {"rows.csv": lambda: records}),
    )


def _record(row: LongRow, prediction: LongPrediction) -> Row:
    """A row's columns, its prediction and its error."""
    reason, measured = prediction.reason, None
    try:
        measured = stated_number("measured", row.text("measured"))
    except InfeasibleError as error:
        reason = reason or str(error)
    metric = row.text("metric")
    ran = None
    if measured is not None and metric.removesuffix("_mean").removesuffix("_trimmed") in RAN:
        ran = bool(measured) if metric == VERDICT else True
    judged = metric != VERDICT and measured and row.text("gpu") != UNNAMED
    off = error_of(measured, prediction.value) if judged else None
    return {
        **row.columns,
        "record": row.where.rpartition(", ")[2],
        "group": prediction.source,
        "system": prediction.system or row.text("strategy"),
        "cell": row.cell,
        "group_gpus": row.group_gpus,
        "measured": measured,
        "predicted": prediction.value,
        "error": off,
        "settings": prediction.settings,
        "predicted_step_s": prediction.step_s,
        "ran": ran,
        "predicted_fits": prediction.fits,
        "predicted_peak_mem_gb": prediction.peak_mem_gb,
        "peak_mem_error": off if metric == "peak_mem_gb" else None,
        "reason": reason or None,
    }


def _groups(rows: Sequence[Row]) -> list[Row]:
    """Errors by source, system and metric."""
    judged = (row for row in rows if row["error"] is not None)
    by_group = grouped(judged, lambda row: (row["group"], row["gpu"], row["system"], row["metric"]))
    return [
        {
            **dict(zip(("source_name", "gpu", "system", "metric"), names, strict=True)),
            **signed_summary(row["error"] for row in members),
        }
        for names, members in sorted(by_group.items())
    ]


def _ratios_by_source(rows: Sequence[Row]) -> list[Row]:
    by_source = grouped((row for row in rows if row["group"]), lambda row: str(row["group"]))
    by_source_rows = [{"source_name": name, **_ratio_errors(members)} for name, members in by_source.items()]
    return [row for row in by_source_rows if row["pairs"]]


def _ratio_errors(rows: Sequence[Row]) -> Row:
    """Of two systems in one cell, on groups of one size: error of their ratio, and whether the better one is named."""
    judged = (row for row in rows if row["measured"] and row["predicted"])
    times = (row for row in judged if row["metric"] not in (VERDICT, "speedup_x"))
    errors, right = [], []
    for members in grouped(times, lambda row: tuple(row["cell"])).values():
        for one, other in combinations(members, 2):
            sizes = {row["group_gpus"] for row in (one, other)} - {None}
            if one["system"] == other["system"] or len(sizes) > 1:
                continue
            measured, predicted = (one[key] / other[key] for key in ("measured", "predicted"))
            errors.append(predicted / measured - 1.0)
            right.append((measured < 1.0) == (predicted < 1.0))
    return {**error_summary(errors), "named_right": sum(right), "pairs": len(right)}


def _fits(rows: Sequence[Row]) -> list[Row]:
    """What ran and what did not against the prediction, by source and system where something ran out of memory."""
    judged = (row for row in rows if None not in (row["ran"], row["predicted_fits"]) and row["group"])
    by_system = grouped(judged, lambda row: (row["group"], row["system"]))
    return [
        {"source_name": source, "system": system, **memory_summary(members)}
        for (source, system), members in sorted(by_system.items())
        if any(row["ran"] is False for row in members)
    ]


_GROUP: tuple[Column[Any], ...] = (
    Column("source_name", heading="source"),
    Column("gpu", heading="GPU", left=True),
    Column("system", left=True),
    Column("metric", left=True),
    Column("count", heading="rows"),
    MEDIAN,
    BIAS,
    P90,
    share_column("max_abs_error", "largest"),
)
_RATIO: tuple[Column[Any], ...] = (
    Column("source_name", heading="source"),
    Column("pairs"),
    Column("named_right", heading="named right"),
    MEDIAN,
    P90,
    share_column("max_abs_error", "largest"),
)
_FITS: tuple[Column[Any], ...] = (
    Column("source_name", heading="source"),
    Column("system", left=True),
    *FITS[1:],
)


def _sentences(summary: Row) -> tuple[str, ...]:
    lines = []
    if summary["count"]:
        lines.append(
            f"{summary['count']} rows judged, {summary['unpredicted']} not predicted; median error "
            f"{percent(summary['median_abs_error'])} %, p90 {percent(summary['p90_abs_error'])} %, "
            f"largest {percent(summary['max_abs_error'])} %"
        )
    ratios = summary["ratios"]
    if ratios["pairs"]:
        lines.append(
            f"the better of two systems in the same experiment is named right {ratios['named_right']} of "
            f"{ratios['pairs']} times; their ratio is off by {percent(ratios['median_abs_error'])} % in the median"
        )
    return (*lines, *memory_lines(summary["memory"]))
