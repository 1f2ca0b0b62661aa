"""The accuracy of predictions as Markdown: what README and docs show between markers (tools/accuracy.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hdpsim.experiments.validation.report import group_cells, percent, summary_lines

Document = Mapping[str, Any]


def markdown(document: Document) -> str:
    """All of a validation but its single records: groups, sentences, reasons."""
    reasons = document["summary"]["unpredicted_reasons"]
    parts = [groups_markdown(document), summary_markdown(document)]
    if reasons:
        rows = [(str(count), reason) for reason, count in reasons.items()]
        parts.append(_table(("Not predicted", "Reason"), rows, left={1}))
    return "\n\n".join(parts)


def groups_markdown(document: Document) -> str:
    """Errors by source and GPU in %."""
    rows = [
        (
            *group_cells(group),
            f"{percent(group['worst_error'], signed=True)} ({group['worst_record']})"
            if group["count"]
            else "-",
        )
        for group in document["groups"]
    ]
    head = ("Source", "GPU", "Records", "Judged", "Median", "Bias", "p90", "Worst")
    return _table(head, rows, left={0, 1, 7})


def summary_markdown(document: Document) -> str:
    """The summary's sentences as a list."""
    return "\n".join(f"* {line}" for line in summary_lines(dict(document)))


def short_markdown(document: Document) -> str:
    """Complete pretraining runs that nobody doubts, one row per source; all of them below."""
    judged = [row for row in document["records"] if row["counts"] and row["error"] is not None]
    names = sorted({row["group"][0] for row in judged})
    rows = []
    for name in [*names, None]:
        members = [row for row in judged if name in (None, row["group"][0])]
        errors = np.array([row["error"] for row in members])
        inside = [row["in_band"] for row in members if row["in_band"] is not None]
        gpus = sorted({row["group"][1].split("-")[0] for row in members})
        rows.append(
            (
                name or "**all**",
                ", ".join(gpus),
                str(len(members)),
                percent(float(np.median(np.abs(errors)))),
                percent(float(np.median(errors)), signed=True),
                percent(float(np.percentile(np.abs(errors), 90))),
                percent(float(np.abs(errors).max())),
                percent(sum(inside) / len(inside)) if inside else "-",
            )
        )
    head = ("Source", "GPU", "Runs", "Median error", "Bias", "p90", "Largest", "In P10-P90 band")
    return _table(head, rows, left={0, 1})


def records_markdown(document: Document) -> str:
    """Every record: what was measured, what is predicted, the error or the reason why there is none."""
    rows = [
        (
            row["record"],
            row["group"][1],
            _number(row.get("n_gpus")),
            str(row.get("model_name") or "-"),
            row["quantity"],
            _number(row["measured"]),
            _number(row["predicted"]),
            percent(row["error"], signed=True),
            "yes" if row["counts"] else "",
            {True: "in", False: "out", None: ""}[row["in_band"]],
        )
        for row in document["records"]
    ]
    head = (
        "Record",
        "GPU",
        "GPUs",
        "Model",
        "Judged by",
        "Measured",
        "Predicted",
        "Error %",
        "Counts",
        "Band",
    )
    return _table(head, rows, left={0, 1, 3, 4})


def bytescale_markdown(document: Document) -> str:
    """The cells of ByteScale's Figure 17 by model and strategy, and what dynamic meshes gain."""
    cells = [cell for cell in document["records"] if cell["error"] is not None]
    groups: dict[tuple[str, int, str], list[float]] = {}
    for cell in cells:
        groups.setdefault((cell["model"], cell["gpus"], cell["strategy"]), []).append(cell["error"])
    rows = [
        (
            f"{model}, {gpus:,} GPUs",
            strategy,
            str(len(errors)),
            percent(float(np.median(np.abs(errors)))),
            percent(float(np.mean(errors)), signed=True),
            percent(float(np.abs(errors).max())),
        )
        for (model, gpus, strategy), errors in groups.items()
    ]
    every = np.array([cell["error"] for cell in cells])
    rows.append(
        (
            "**all**",
            "",
            str(len(every)),
            percent(float(np.median(np.abs(every)))),
            percent(float(np.mean(every)), signed=True),
            percent(float(np.abs(every).max())),
        )
    )
    return _table(("Model", "Strategy", "Cells", "Median error", "Bias", "Largest"), rows, left={0, 1})


def _number(value: object) -> str:
    return "-" if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: set[int]) -> str:
    rule = "|".join("---" if place in left else "--:" for place in range(len(head)))
    lines = [f"| {' | '.join(head)} |", f"|{rule}|"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines)
