"""Errors of the parts: measured kernels and collectives predicted one by one."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdpsim.cost_models.calibration.calibration import Calibration, load_calibration
from hdpsim.errors import HdpSimError
from hdpsim.experiments.output.document import Column, Document, Table
from hdpsim.experiments.output.files.csv import read_rows
from hdpsim.experiments.validation.errors import error_of, error_summary
from hdpsim.experiments.validation.kernel_prediction import bus_factor, flop_of, number, predicted_s
from hdpsim.experiments.validation.report import BIAS, MEDIAN, P90, Row

_SHOWN_REASONS = 10
_KEYS: tuple[Column[Row], ...] = tuple(Column(name, left=True) for name in ("kind", "gpu", "dtype"))
_ERRORS: tuple[Column[Row], ...] = (Column("count", heading="judged"), MEDIAN, BIAS, P90)


def run(path: str, calibration: str | None = None) -> Document:
    """Predict every row of a file of kernels; errors by kind and GPU.

    Raises:
        UserInputError: the file cannot be read or lacks columns that every kernel has.
    """
    own = None if calibration is None else load_calibration(calibration)
    rows = check(path, own)
    by_kind, groups = group_errors(rows, "kind"), group_errors(rows, "kind", "gpu", "dtype")
    reasons = Counter(row.reason for row in rows if row.reason).most_common()
    title = "Errors by kind, in % of the measured time"
    return Document(
        kind="validate-kernels",
        payload={
            "file": Path(path).name,
            "calibration": own and own.name,
            "records": [
                {**asdict(row), "measured": row.measured_s, "predicted": row.predicted_s} for row in rows
            ],
            "summary": {
                **error_summary(row.error for row in rows),
                "unpredicted": sum(row.error is None for row in rows),
                "by_kind": by_kind,
                "unpredicted_reasons": dict(reasons),
            },
            "groups": groups,
        },
        blocks=(
            Table(title=title, columns=(_KEYS[0], *_ERRORS), rows=by_kind),
            Table(title="By GPU and precision", columns=(*_KEYS, *_ERRORS), rows=groups),
        ),
        notes=tuple(f"not judged, {count} x: {reason}" for reason, count in reasons[:_SHOWN_REASONS]),
    )


NEEDED_COLUMNS = ("kind", "gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One measured kernel. Seconds; None where the row does not tell or cannot be predicted."""

    id: str
    kind: str
    gpu: str
    dtype: str
    source: str
    measured_s: float | None
    predicted_s: float | None
    error: float | None
    reason: str = ""


def check(path: str | Path, calibration: Calibration | None = None) -> list[KernelRow]:
    """Predict every row of a file (csv or csv.gz) with the calibration of its GPU, or a given one of its generation."""
    return [_row(record, calibration) for record in rows_of(path)]


def rows_of(path: str | Path) -> list[dict[str, str]]:
    """The rows of a file (csv or csv.gz).

    Raises:
        UserInputError: it cannot be read, or has neither rows nor the columns of kernels.
    """
    return [row for _, row in read_rows(path, NEEDED_COLUMNS, "kernels")]


def _row(record: Mapping[str, str], calibration: Calibration | None) -> KernelRow:
    measured = predicted = None
    reason = ""
    try:
        measured = measured_s(record)
        predicted = predicted_s(record, calibration)
    except HdpSimError as error:
        reason = str(error)
    if not reason and record.get("suspect"):
        reason = "its source doubts it"
    if not reason and measured is None:
        reason = "neither a time nor a rate is measured"
    return KernelRow(
        id=record.get("id", ""),
        kind=record["kind"],
        gpu=record["gpu"],
        dtype=record.get("dtype", ""),
        source=record.get("source", "").partition(":")[0],
        measured_s=measured,
        predicted_s=predicted,
        error=None if reason else error_of(measured, predicted),
        reason=reason,
    )


def measured_s(record: Mapping[str, str]) -> float | None:
    """The measured time, or what a measured rate makes of the row's work."""
    time_us, tflops, bus_gbs = (number(record, key) for key in ("time_us", "tflops", "busbw_gbs"))
    if time_us:
        return time_us * 1e-6
    if tflops:
        flop = flop_of(record)
        return flop / (tflops * 1e12) if flop else None
    size = number(record, "size_bytes")
    if bus_gbs and size:
        return size * bus_factor(record) / (bus_gbs * 1e9)
    value = number(record, "value")
    if record["kind"] in ("hbm_stream", "pcie_copy", "p2p") and value and record.get("unit") == "GB/s":
        return 1.0 / value  # of 1 GB
    return None


def group_errors(rows: Sequence[KernelRow], *keys: str) -> list[dict[str, Any]]:
    """Count, median absolute error, median error and 90th percentile by *keys* (fields of a row)."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        if row.error is not None and math.isfinite(row.error):
            groups[tuple(getattr(row, key) for key in keys)].append(row.error)
    return [
        {
            **dict(zip(keys, group, strict=True)),
            "count": len(errors),
            "median_abs_error": float(np.median(np.abs(errors))),
            "median_error": float(np.median(errors)),
            "p90_abs_error": float(np.percentile(np.abs(errors), 90)),
        }
        for group, errors in sorted(groups.items())
    ]
