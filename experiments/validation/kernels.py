"""Errors of the parts: measured kernels and collectives predicted one by one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.calibration.calibration import Calibration, load_calibration
from hdpsim.errors import HdpSimError, InfeasibleError
from hdpsim.experiments.output.document import Column, Document, Table, files_of
from hdpsim.experiments.output.files.csv import read_rows
from hdpsim.experiments.output.plots import runs as plots
from hdpsim.experiments.validation.kernel_prediction import bus_factor, flop_of, number, predicted_s
from hdpsim.experiments.validation.order import error_of, error_summary, grouped, signed_summary
from hdpsim.experiments.validation.report import BIAS, MEDIAN, P90, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BEYOND = 100.0
_SHOWN_REASONS = 10
_KEYS: tuple[Column[Row], ...] = tuple(Column(name, left=True) for name in ("kind", "gpu", "dtype"))
_ERRORS: tuple[Column[Row], ...] = (Column("count", heading="judged"), MEDIAN, BIAS, P90)


def run(path: str, calibration: str | None = None) -> Document:
    """Predict every row of a file of kernels; errors by kind and GPU.

    Raises:
        UserInputError: the file cannot be read or lacks columns that every kernel has.
        InfeasibleError: no kernel can be judged; it says why.
    """
    constants = None if calibration is None else load_calibration(calibration)
    rows = check(path, constants)
    if all(row.error is None for row in rows):
        why = Counter(row.reason for row in rows).most_common(_SHOWN_REASONS)
        raise InfeasibleError(
            f"{path}: none of {len(rows)} kernels can be judged (docs/how-to/measured.md has the columns):\n"
            + "\n".join(f"  {count} x {reason}" for reason, count in why)
        )
    by_kind, groups = group_errors(rows, "kind"), group_errors(rows, "kind", "gpu", "dtype")
    reasons = Counter(row.reason for row in rows if row.reason).most_common()
    title = "Errors by kind, in % of the measured time"
    records = [{**asdict(row), "measured": row.measured_s, "predicted": row.predicted_s} for row in rows]
    return Document(
        kind="validate-kernels",
        payload={
            "file": Path(path).name,
            "calibration": constants and constants.name,
            "records": records,
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
        notes=(
            *_other_units(rows),
            *(f"not judged, {count} x: {reason}" for reason, count in reasons[:_SHOWN_REASONS]),
        ),
        title="Predictions against measured kernels",
        files=files_of(
            "validate-kernels",
            {
                "kernels.csv": lambda: [asdict(row) for row in rows],
                "groups.csv": lambda: groups,
                "measured_against_predicted": partial(_scatter, rows),
            },
        ),
    )


def _other_units(rows: Sequence[KernelRow]) -> list[str]:
    """What no kernel is off by: its time, rate or size is in another unit; measured collectives are within 30."""
    far = [
        (row.id or row.kind, row.measured_s / row.predicted_s)
        for row in rows
        if row.measured_s and row.predicted_s and not 1 / _BEYOND < row.measured_s / row.predicted_s < _BEYOND
    ]
    said = ", ".join(f"{name} {ratio:.3g} times" for name, ratio in far[:_SHOWN_REASONS])
    return [f"{len(far)} x measured over predicted beyond all sense (another unit?): {said}"] if far else []


def _scatter(rows: Sequence[KernelRow]) -> Figure:
    by_kind = grouped((row for row in rows if row.error is not None), lambda row: row.kind)
    points = {
        kind: (
            [1e6 * (row.measured_s or 0.0) for row in members],
            [1e6 * (row.predicted_s or 0.0) for row in members],
        )
        for kind, members in by_kind.items()
    }
    return plots.plot_paper_against_prediction(points, quantity="time (us)")


NEEDED_COLUMNS = ("kind", "gpu")
_PRODUCT = ("kind", "gpu", "dtype", "m", "n", "k", "groups", "direction", "source")


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
    """The rows of a file (csv or csv.gz), each with how many before it are of the same product (`listed_before`).

    Raises:
        UserInputError: it cannot be read, or has neither rows nor the columns of kernels.
    """
    rows = [row for _, row in read_rows(path, NEEDED_COLUMNS, "kernels")]
    listed: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        product = tuple(row.get(column, "") for column in _PRODUCT)
        row["listed_before"] = str(listed[product])
        listed[product] += 1
    return rows


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
        reason = "neither time_us, tflops nor busbw_gbs is stated"
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
    judged = (row for row in rows if row.error is not None and math.isfinite(row.error))
    groups = grouped(judged, lambda row: tuple(getattr(row, key) for key in keys))
    rows_of_groups = []
    for group, members in sorted(groups.items()):
        summary = signed_summary(row.error for row in members)
        figures = ("count", "median_abs_error", "median_error", "p90_abs_error")
        rows_of_groups.append(
            {**dict(zip(keys, group, strict=True)), **{name: summary[name] for name in figures}}
        )
    return rows_of_groups
