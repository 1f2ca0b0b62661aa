"""What validate shows: tables, sentences, and the files of a run directory."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hdpsim.experiments.output import plots
from hdpsim.experiments.output.run_directory import RunDirectory
from hdpsim.experiments.output.tables import Table
from hdpsim.experiments.validation.memory import MEMORY_QUANTITY, memory_lines

BEYOND_SENSE = 1e4
SOUND = "sound"
"""Of records that nobody doubts."""

Document = dict[str, Any]


def percent(share: float | None, signed: bool = False) -> str:
    """A share in %, one digit (of what is beyond all sense, the order of magnitude); - where there is none."""
    if share is None:
        return "-"
    if abs(share) >= BEYOND_SENSE:
        return f"{100 * share:{'+' if signed else ''}.1e}"
    return f"{100 * share:+.1f}" if signed else f"{100 * share:.1f}"


def group_table(groups: Sequence[Document]) -> Table:
    """Errors by source and GPU."""
    return Table(
        title="Errors by source and GPU, in % of the measurement (bias: median with its sign)",
        columns=("source", "GPU", "records", "judged", "median", "bias", "p90", "worst", "worst record"),
        rows=tuple(
            (
                *group_cells(group),
                percent(group["worst_error"], signed=True),
                group["worst_record"] or "-",
            )
            for group in groups
        ),
        left=frozenset({0, 1, 8}),
    )


def group_cells(group: Document) -> tuple[str, ...]:
    """Whose the group is, how many records it has, and its errors but for the worst."""
    return (
        group["family"],
        group["gpu"],
        str(group["records"]),
        str(group["count"]),
        percent(group["median_abs_error"]),
        percent(group["median_error"], signed=True),
        percent(group["p90_abs_error"]),
    )


def record_table(document: Document) -> Table:
    """Every record of a small file: measurement, prediction, error, and where the true step lies."""
    memory = document["kind"] == "validate-memory"
    return Table(
        title="Records",
        columns=(
            "record", "GPU", "judged by", "measured", "predicted", "error %",
            "fits" if memory else "step s, P10 to P90",
        ),
        rows=tuple(
            (
                row["record"],
                row["gpu"],
                row["quantity"],
                _number(row["measured"]),
                _number(row["predicted"]),
                percent(row["error"], signed=True),
                _verdict(row) if memory else _band(row),
            )
            for row in document["records"]
        ),
        left=frozenset({0, 1, 2}),
    )  # fmt: skip


def _verdict(row: Mapping[str, Any]) -> str:
    return "-" if row["predicted_fits"] is None else "yes" if row["predicted_fits"] else "no"


def _band(row: Mapping[str, Any]) -> str:
    return "-" if row["step_s_p10"] is None else f"{row['step_s_p10']:.4g} to {row['step_s_p90']:.4g}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def reason_table(document: Document) -> Table:
    """Why records are not predicted."""
    reasons = document["summary"]["unpredicted_reasons"]
    return Table(
        title="Not predicted",
        columns=("records", "reason"),
        rows=tuple((str(count), reason) for reason, count in reasons.items()),
        left=frozenset({1}),
    )


def summary_lines(document: Document) -> tuple[str, ...]:
    """The summary in sentences."""
    summary = document["summary"]
    lines = [
        _sentence("all records", summary),
        _sentence("complete pretraining records, none in doubt", summary["complete_pretraining"]),
    ]
    covered = summary["complete_pretraining"]["band_coverage"]
    if covered is not None:
        lines.append(f"P10-P90 bands hold {covered:.1%} of those (own configuration left out)")
    lines += _order_sentences("order of layouts", summary["rank_correlation"])
    if len(summary["by_doubt"]) > 1:
        for mark, found in summary["by_doubt"].items():
            what = "records that nobody doubts" if mark == SOUND else f"records marked {mark}"
            lines.append(_sentence(what, found))
            lines += _order_sentences(f"order of layouts, {what}", found["rank_correlation"])
    memory = summary["memory"]
    lines += memory_lines(memory)
    return tuple(lines)


def _order_sentences(what: str, ranks: Mapping[str, Any]) -> list[str]:
    if not ranks["groups"]:
        return []
    return [
        f"{what}: rank correlation of throughput {ranks['median']:.3f} in the median of {ranks['groups']} sets of "
        f"records of one model, GPU, size and sequence length; lowest {ranks['min']:.3f}"
    ]


def _sentence(what: str, errors: Mapping[str, Any]) -> str:
    if not errors["count"]:
        return f"{what}: nothing to judge, {errors['unpredicted']} not predicted"
    return (
        f"{what}: {errors['count']} judged, median error {percent(errors['median_abs_error'])} %, "
        f"mean {percent(errors['mean_abs_error'])} %, p90 {percent(errors['p90_abs_error'])} %, "
        f"worst {percent(errors['max_abs_error'])} %; {errors['unpredicted']} not predicted"
    )


def write_directory(out: str, document: Document, lines: tuple[str, ...]) -> None:
    """Write the run directory."""
    rows = document["records"]
    command = shlex.join(["hdpsim", *sys.argv[1:]])
    with RunDirectory(
        out, title="Predictions against published runs", command=command, notes=lines
    ) as directory:
        directory.write_json(
            "result.json", document, "Everything as one JSON document, as printed by --json."
        )
        directory.write_csv(
            "records.csv", [_flat(row) for row in rows], "One row per record: measurement, prediction, error."
        )
        directory.write_csv(
            "groups.csv", [_flat(group) for group in document["groups"]], "Errors by source and GPU."
        )
        for quantity, title in (
            ("step_s", "step time (s)"),
            ("tokens_per_s_per_gpu", "throughput (tokens/s per GPU)"),
            ("tflops_per_gpu", "FLOP rate (TFLOP/s per GPU, as the source counts)"),
            (MEMORY_QUANTITY, "peak memory (GB)"),
        ):
            points = _points(rows, quantity)
            if points:
                directory.save_figure(
                    f"measured_against_predicted_{quantity}",
                    plots.plot_paper_against_prediction(points, quantity=title),
                    f"Every record judged by its {title}: prediction over measurement.",
                )


def _points(rows: Sequence[Document], quantity: str) -> dict[str, tuple[list[float], list[float]]]:
    """Source -> (measured, predicted) of the rows judged by *quantity*."""
    points: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        if row["quantity"] == quantity and row["error"] is not None:
            measured, predicted = points.setdefault(row["group"][0], ([], []))
            measured.append(row["measured"])
            predicted.append(row["predicted"])
    return points


def _flat(row: Mapping[str, Any]) -> dict[str, object]:
    """A row for CSV: nothing for None, lists joined, breakdowns left to the JSON."""
    flat: dict[str, object] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            continue
        joined = "; ".join(value) if isinstance(value, list) else value
        flat[name] = "" if joined is None else joined
    return flat
