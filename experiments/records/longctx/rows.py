"""Rows of a table of long-context measurements: columns, and what the metric of a row is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.output.files.csv import as_number, read_rows, stated_number
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES

COLUMNS = ("source", "model", "gpu", "gpus", "strategy", "metric", "measured")
"""What every row says. tp, pp, cp, dp, dataset, context_tokens, global_batch_tokens and notes may be there."""
CELL = ("source", "model", "gpu", "gpus", "dataset", "context_tokens", "metric")
"""Rows with these in common are the same experiment under several systems."""
VERDICT = "fits_in_memory"
_WHOLE = {
    **{name: name for name in ("gpus", "tp", "pp", "cp", "dp", "context_tokens")},
    "global_batch_tokens": "batch_tokens",
}
"""Columns of whole numbers, and the ranges that they lie in."""
_MEASURED = (
    ("seconds_per_iteration", "step_s"), ("ms_per_iteration", "number"), ("tokens_per_s", "tokens_per_s"),
    ("tflops", "tflops"), ("attention_", "number"), ("peak_mem_gb", "memory_gb"), ("speedup_x", "ratio"),
)  # fmt: skip
"""How metrics begin that are predicted, and the ranges that what was measured lies in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRow:
    """One row of a table: one measurement.

    Attributes:
        where: file and row, for messages.
        columns: the row's cells.
    """

    where: str
    columns: Mapping[str, str]

    def text(self, column: str) -> str:
        """The text of a cell, empty where the table has none."""
        return self.columns.get(column, "")

    def whole_number(self, column: str) -> int | None:
        """A cell as a whole number of at least 1; None where it is empty.

        Raises:
            InfeasibleError: something else stands there.
        """
        value = stated_number(column, self.text(column))
        if value is None:
            return None
        if value != int(value) or not 1 <= value <= RANGES["count"].high:
            raise InfeasibleError(
                f"{column}: expected a whole number of at least 1 or nothing, got {quoted(self.text(column))}"
            )
        return int(value)

    def needed_number(self, column: str) -> int:
        """The number of a column that the row cannot do without.

        Raises:
            InfeasibleError: the cell is empty, or no whole number.
        """
        value = self.whole_number(column)
        if value is None:
            raise InfeasibleError(f"{column} is not stated")
        return value

    @property
    def group_gpus(self) -> int | None:
        """GPUs that share a sequence; None where the row does not say."""
        cp = self.text("cp")
        return round(as_number(self.text("tp") or "1") * as_number(cp)) if cp else None

    @property
    def cell(self) -> tuple[str, ...]:
        """What rows of the same experiment have in common."""
        return tuple(self.text(column) for column in CELL)


def read_long_rows(path: str | Path) -> list[LongRow]:
    """All rows of a table (csv or csv.gz).

    Raises:
        UserInputError: it cannot be read, has no rows, lacks columns, or holds a number that cannot be meant.
    """
    rows = [LongRow(where=where, columns=row) for where, row in read_rows(path, COLUMNS, "measurements")]
    for row in rows:
        _check_numbers(row)
    return rows


def _check_numbers(row: LongRow) -> None:
    """Refuse numbers out of their range. Words ("64-512") are what a source says: the row cannot be predicted.

    Raises:
        UserInputError: with row, column and what is allowed.
    """
    for column, kind in _WHOLE.items():
        allowed = RANGES[kind]
        text, value = row.text(column), _as_written(row.text(column))
        is_whole = value is not None and math.isfinite(value) and value == int(value)
        number: object = int(value or 0) if is_whole else text
        if value is not None and not allowed.holds(number):
            raise UserInputError(f"{row.where}: {column}: {allowed.complaint(number)}; empty: not stated")
    value, metric = _as_written(row.text("measured")), row.text("metric")
    if value is None:
        return
    words = _measured_complaint(metric, value, row.text("measured"))
    if words:
        raise UserInputError(f"{row.where}: measured: {words}; empty: not measured")


def _measured_complaint(metric: str, value: float, text: str) -> str:
    """What is wrong with a measured number of that metric; empty: nothing."""
    if metric == VERDICT:
        words = f"{metric} must be 1 (it ran) or 0 (it did not), got {quoted(text)}"
        return "" if value in (0.0, 1.0) else words
    kind = next((kind for begins, kind in _MEASURED if metric.startswith(begins)), None)
    if kind is None:
        return "" if math.isfinite(value) else f"{metric} must be a number, got {quoted(text)}"
    allowed = RANGES[kind]
    if allowed.holds(value) and value > 0.0:
        return ""
    more = "" if allowed.low else ", more than 0"
    return f"{metric} {allowed.complaint(text)}{more}"


def _as_written(text: str) -> float | None:
    """A cell as a number, nan and infinity too; None where there is none: nothing, or words."""
    try:
        return float(text)
    except ValueError:
        return None
