"""CSV files of cells: the shape `reproduce` reads, with every problem named by its row and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from cost_models.schema import did_you_mean
from hdpsim.errors import UserInputError

__all__ = ["one_of", "positive", "read_csv", "read_rows", "whole"]


def read_csv(path: str | Path) -> list[list[str]]:
    """All rows of a CSV, header included.

    Raises:
        UserInputError: unreadable, or no CSV in UTF-8.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return list(csv.reader(file, strict=True))
    except OSError as error:
        raise UserInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserInputError(f"{path}: is not a CSV file in UTF-8 ({error})") from None


def read_rows(path: str | Path, columns: tuple[str, ...]) -> list[tuple[str, dict[str, str]]]:
    """Rows of a CSV with these *columns* (in any order, others allowed), each with the words for where it is.

    Raises:
        UserInputError: unreadable, no rows, missing columns, with the row.
    """
    rows = read_csv(path)
    head = [name.strip() for name in rows[0]] if rows else []
    missing = [name for name in columns if name not in head]
    if missing:
        raise UserInputError(
            f"{path}: missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"needed: {', '.join(columns)}; found: {', '.join(head) or 'nothing'}"
        )
    twice = sorted({name for name in head if head.count(name) > 1})
    if twice:
        raise UserInputError(f"{path}: column {', '.join(twice)} appears more than once")
    found = []
    for number, row in enumerate(rows[1:], start=2):
        if not any(field.strip() for field in row):
            continue
        if len(row) != len(head):
            raise UserInputError(
                f"{path}, row {number}: {len(row)} fields, but the header has {len(head)} columns"
            )
        fields = (field.strip() for field in row)
        found.append((f"{path}, row {number}", dict(zip(head, fields, strict=True))))
    if not found:
        raise UserInputError(f"{path}: holds no cells below its header")
    return found


def one_of(where: str, column: str, row: Mapping[str, str], known: tuple[str, ...]) -> str:
    """One of the *known* words."""
    value = row[column]
    if value not in known:
        hint = did_you_mean(value, known)
        raise UserInputError(f"{where}: {column}: {value!r} is not one of {', '.join(known)}{hint}")
    return value


def whole(where: str, column: str, row: Mapping[str, str]) -> int:
    """A whole number of at least 1."""
    value = row[column]
    if not (value.isascii() and value.isdigit() and 0 < len(value) <= len(str(2**53)) and int(value) > 0):
        raise UserInputError(f"{where}: {column}: expected a whole number of at least 1, got {value!r}")
    return int(value)


def positive(where: str, column: str, value: str) -> float:
    """A positive number."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise UserInputError(f"{where}: {column}: expected a positive number or nothing, got {value!r}")
    return number
