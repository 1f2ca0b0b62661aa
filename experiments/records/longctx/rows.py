"""Rows of a table of long-context measurements: columns, and what the metric of a row is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hdpsim.errors import InfeasibleError
from hdpsim.experiments.output.files.csv import as_number, read_rows
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES

COLUMNS = ("source", "model", "gpu", "gpus", "strategy", "metric", "measured")
"""What every row says. tp, pp, cp, dp, dataset, context_tokens, global_batch_tokens and notes may be there."""
CELL = ("source", "model", "gpu", "gpus", "dataset", "context_tokens", "metric")
"""Rows with these in common are the same experiment under several systems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRow:
    """One measurement.

    Attributes:
        where: file and row, for messages.
        columns: the row's cells.
    """

    where: str
    columns: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell, empty where the table has none."""
        return self.columns.get(column, "")

    def number(self, column: str) -> float | None:
        """A cell as a number; None where it is empty.

        Raises:
            InfeasibleError: something else stands there.
        """
        text = self.text(column)
        if not text:
            return None
        value = as_number(text)
        if not 0.0 <= value < math.inf:
            raise InfeasibleError(f"{column}: expected a number of at least 0 or nothing, got {quoted(text)}")
        return value

    def whole(self, column: str) -> int | None:
        """A cell as a whole number of at least 1; None where it is empty.

        Raises:
            InfeasibleError: something else stands there.
        """
        value = self.number(column)
        if value is None:
            return None
        if value != int(value) or not 1 <= value <= RANGES["count"].high:
            raise InfeasibleError(
                f"{column}: expected a whole number of at least 1 or nothing, got {quoted(self.text(column))}"
            )
        return int(value)

    def needed(self, column: str) -> int:
        """The same where the row cannot do without it.

        Raises:
            InfeasibleError: the cell is empty, or no whole number.
        """
        value = self.whole(column)
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
        UserInputError: it cannot be read, has no rows, or lacks columns.
    """
    return [LongRow(where=where, columns=row) for where, row in read_rows(path, COLUMNS, "measurements")]
