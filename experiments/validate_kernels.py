"""Errors of the parts: measured kernels and collectives predicted one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cost_models.calibration import load_calibration
from experiments.finite import finite
from experiments.kernel_check import check, group_errors
from experiments.record_errors import error_summary
from experiments.run_directory import SCHEMA_VERSION
from experiments.tables import Table
from experiments.validate import Validation
from experiments.validate_report import percent
from hdpsim import __version__

__all__ = ["run"]

_SHOWN_REASONS = 10


def run(path: str, calibration: str | None = None) -> Validation:
    """Predict every row of a file of kernels; errors by kind and GPU.

    Raises:
        UserInputError: the file cannot be read or lacks columns that every kernel has.
    """
    own = None if calibration is None else load_calibration(calibration)
    rows = check(path, own)
    groups = group_errors(rows, "kind", "gpu", "dtype")
    reasons = Counter(row.reason for row in rows if row.reason)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "validate-kernels",
        "hdpsim_version": __version__,
        "file": Path(path).name,
        "calibration": own and own.name,
        "records": [
            {**asdict(row), "measured": row.measured_s, "predicted": row.predicted_s} for row in rows
        ],
        "summary": {
            **error_summary(row.error for row in rows),
            "unpredicted": sum(row.error is None for row in rows),
            "by_kind": group_errors(rows, "kind"),
            "unpredicted_reasons": dict(reasons.most_common()),
        },
        "groups": groups,
    }
    return Validation(
        document=finite(document),
        tables=(
            _table("Errors by kind, in % of the measured time", document["summary"]["by_kind"], ("kind",)),
            _table("By GPU and precision", groups, ("kind", "gpu", "dtype")),
        ),
        lines=tuple(
            f"not judged, {count} x: {reason}" for reason, count in reasons.most_common(_SHOWN_REASONS)
        ),
    )


def _table(title: str, groups: list[dict[str, Any]], keys: tuple[str, ...]) -> Table:
    return Table(
        title=title,
        columns=(*keys, "judged", "median", "bias", "p90"),
        rows=tuple(
            (
                *(str(group[key]) for key in keys),
                str(group["count"]),
                percent(group["median_abs_error"]),
                percent(group["median_error"], signed=True),
                percent(group["p90_abs_error"]),
            )
            for group in groups
        ),
        left=frozenset(range(len(keys))),
    )
