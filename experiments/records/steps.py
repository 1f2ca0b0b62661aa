"""Measured steps as data: a strict reader of JSON lines, each a step with the documents in it.

A step has two halves that never meet before an error is computed: what was run and what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdpsim.cost_models.reading.values import boolean, integer, read_at
from hdpsim.errors import UserInputError
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES
from hdpsim.reading import loads_json, read_bytes

Packs = tuple[tuple[int, ...], ...]

DOCUMENTS = ("packs", "lengths")
TIMES = {"step_s": 1.0, "duration_ms": 1e-3}
"""Columns of the measured time, each with its unit in seconds."""
NAMES = ("id", "sample_id", "step")
"""Columns that tell the steps of a group apart, the first that there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One line of a file.

    Attributes:
        where: file and line, for messages.
        packs: document lengths of every pack; one pack where the line has `lengths`.
        packed: whether the line says in which pack a document was.
        measured_s: seconds of the step.
        clean: nobody doubts the measurement.
        columns: all other columns as they were read.
    """

    where: str
    packs: Packs
    packed: bool
    measured_s: float
    clean: bool
    columns: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What tells it from the others of its group, or its line."""
        number = next((str(self.columns[name]) for name in NAMES if self.columns.get(name) is not None), "")
        file = str(self.columns.get("file") or "")
        return " ".join(part for part in (file, number) if part) or self.where.rpartition(", ")[2]

    @property
    def lengths(self) -> tuple[int, ...]:
        """All documents in the order of their packs."""
        return tuple(length for pack in self.packs for length in pack)

    def whole_number(self, column: str, default: int | None = None) -> int:
        """A column that must be a whole number of at least 1; *default* where the line does not say.

        Raises:
            UserInputError: it is something else, or is missing and has no default.
        """
        value = self.columns.get(column)
        if value is None and default is not None:
            return default
        number: int = read_at(f"{self.where}: {column}", value, integer(RANGES["count"].from_least(1)))
        return number


def read_steps(path: str | Path) -> tuple[MeasuredStep, ...]:
    """Read a file of JSON lines (gzip too); empty lines are passed over.

    Raises:
        UserInputError: unreadable, no steps, or a value that is not allowed, with file and line.
    """
    try:
        text = read_bytes(path, "table_bytes", unpack=True).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserInputError(f"{path}: is not a file of JSON lines in UTF-8 ({error})") from None
    steps = tuple(
        _step(f"{path}, line {number}", line)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    )
    if not steps:
        raise UserInputError(f"{path}: holds no steps")
    return steps


def _step(where: str, line: str) -> MeasuredStep:
    values = loads_json(line, where)
    if not isinstance(values, dict):
        raise UserInputError(f"{where}: expected an object of columns, got {quoted(values)}")
    packs, packed = _documents(where, values)
    return MeasuredStep(
        where=where,
        packs=packs,
        packed=packed,
        measured_s=_time_s(where, values),
        clean=read_at(f"{where}: clean", values.get("clean", True), boolean),
        columns={name: value for name, value in values.items() if name not in DOCUMENTS},
    )


def _documents(where: str, values: Mapping[str, Any]) -> tuple[Packs, bool]:
    given = _one_of(where, values, DOCUMENTS, "give the documents as packs (lists of lengths) or as lengths")
    packed = given == "packs"
    packs = values["packs"] if packed else [values["lengths"]]
    if not isinstance(packs, list) or not packs or not all(isinstance(pack, list) and pack for pack in packs):
        what = "a list of lists of lengths, none empty" if packed else "a list of lengths, not empty"
        raise UserInputError(f"{where}: {given}: expected {what}")
    allowed = RANGES["context_tokens"]
    for length in (length for pack in packs for length in pack):
        if not allowed.holds(length):
            raise UserInputError(f"{where}: {given}: a length {allowed.complaint(length)}")
    return tuple(tuple(pack) for pack in packs), packed


def _time_s(where: str, values: Mapping[str, Any]) -> float:
    given = _one_of(where, values, TIMES, "give the measured time as step_s or as duration_ms")
    value, allowed = values[given], RANGES["step_s"]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not allowed.holds(float(value * TIMES[given])):
        raise UserInputError(f"{where}: {given}: {allowed.complaint(value)}")
    return float(value * TIMES[given])


def _one_of(where: str, values: Mapping[str, Any], names: Iterable[str], wanted: str) -> str:
    """Which of two columns is given."""
    given = [name for name in names if values.get(name) is not None]
    if len(given) != 1:
        raise UserInputError(f"{where}: {wanted}; {'both are given' if given else 'neither is given'}")
    return given[0]
