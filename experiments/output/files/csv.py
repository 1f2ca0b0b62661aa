"""CSV files of cells, records and kernels, with every problem named by its row and column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hdpsim.cost_models.reading.values import read_at
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.quoting import LONGEST_NAME, did_you_mean, quoted, shortened
from hdpsim.reading import read_bytes

_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def read_csv(path: str | Path) -> list[list[str]]:
    """All rows of a CSV, plain or compressed with gzip (whatever its name says), header included.

    Raises:
        UserInputError: unreadable, or no CSV in UTF-8.
    """
    try:
        text = read_bytes(path, "table_bytes", unpack=True).decode("utf-8-sig")
        return list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserInputError(f"{path}: is not a CSV file in UTF-8 ({error})") from None


def _missing_columns(
    path: str | Path, missing: list[str], needed: tuple[str, ...], head: list[str]
) -> UserInputError:
    """The message for a header that lacks columns."""
    separator = next((mark for mark in _OTHER_SEPARATORS if len(head) == 1 and head[0].count(mark) > 1), None)
    if separator is not None:
        return UserInputError(
            f"{path}: its columns are separated by {_OTHER_SEPARATORS[separator]}; expected commas"
        )
    near = ((name, did_you_mean(name, missing, 0.85)) for name in head if name not in needed)
    hints = "".join(f"{quoted(name)} is not read{hint}; " for name, hint in near if hint)
    others = "" if len(missing) == len(needed) else f"needed: {', '.join(needed)}; "
    return UserInputError(
        f"{path}: missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; {hints}{others}"
        f"found: {shortened(', '.join(head), LONGEST_NAME) or 'nothing'}"
    )


def read_rows(
    path: str | Path,
    columns: tuple[str, ...],
    what: str = "cells",
    other: Callable[[set[str]], str] = lambda head: "",
) -> list[tuple[str, dict[str, str]]]:
    """Rows of a CSV with these *columns* (in any order, others allowed), each with the words for where it is.

    Where columns are missing, *other* may know what the file is instead.

    Raises:
        UserInputError: unreadable, no rows, missing columns, with the row.
    """
    rows = read_csv(path)
    head = [name.strip() for name in rows[0]] if rows else []
    missing = [name for name in columns if name not in head]
    if missing and (words := other(set(head))):
        raise UserInputError(f"{path}: {words}")
    if missing:
        raise _missing_columns(path, missing, columns, head)
    twice = sorted({name for name in head if head.count(name) > 1})
    if twice:
        raise UserInputError(f"{path}: column {', '.join(twice)} appears more than once")
    located_rows = []
    for number, row in enumerate(rows[1:], start=2):
        if not any(field.strip() for field in row):
            continue
        if len(row) != len(head):
            raise UserInputError(
                f"{path}, row {number}: {len(row)} fields, but the header has {len(head)} columns"
            )
        fields = (field.strip() for field in row)
        located_rows.append((f"{path}, row {number}", dict(zip(head, fields, strict=True))))
    if not located_rows:
        raise UserInputError(f"{path}: holds no {what} below its header")
    return located_rows


def read_cell(where: str, column: str, text: str, parse: Callable[[object], Any]) -> Any:
    """What a cell says, which *parse* takes as a number where it is one; raises UserInputError with its place."""
    number = as_number(text)
    return read_at(f"{where}: {column}", text if math.isnan(number) else number, parse)


def as_number(text: str) -> float:
    """A cell as a number; nan when it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def stated_number(column: str, text: str) -> float | None:
    """A cell as a number; None where it is empty.

    Raises:
        InfeasibleError: something else stands there, for which this row alone cannot be predicted.
    """
    if not text:
        return None
    value = as_number(text)
    if not 0.0 <= value < math.inf:
        raise InfeasibleError(f"{column}: expected a number of at least 0 or nothing, got {quoted(text)}")
    return value
