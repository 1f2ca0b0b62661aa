"""The benchmark: which runs are judged, what a predictor may see of them, and the three questions it is asked."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hdpsim.cost_models.hardware import catalog
from hdpsim.experiments.records.columns import MEASURED_COLUMNS, read_records, shipped_records

FOLDER = Path(__file__).resolve().parent
QUESTIONS = {
    "known": "other configurations of the family were seen",
    "family": "no run of the family was seen",
    "generation": "no run on a GPU of the generation was seen",
}
NEWEST = "blackwell"
"""The generation that is left out as a whole."""
TOLD = ("source_fields", "derived_fields")
"""Columns that say how a measurement was made of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run to be predicted.

    Attributes:
        cells: what a predictor may see: every column of the file but the measured ones, as text.
        measured_step_s: the answer.
    """

    name: str
    family: str
    generation: str
    cells: Mapping[str, object]
    measured_step_s: float


def cases() -> tuple[Case, ...]:
    """Complete pretraining runs that nobody doubts, in the order of the file."""
    found = []
    for record in read_records(shipped_records()):
        step_s = record.measured.measured_step_s
        if not record.counts or step_s is None:
            continue
        hidden = {*MEASURED_COLUMNS, *TOLD}
        found.append(
            Case(
                name=record.name,
                family=record.config.family,
                generation=catalog.gpu(record.config.gpu).calibration,
                cells={name: cell for name, cell in record.columns.items() if name not in hidden},
                measured_step_s=step_s,
            )
        )
    return tuple(found)


def asked(question: str) -> Iterator[Case]:
    """The cases of a question."""
    return (case for case in cases() if question != "generation" or case.generation == NEWEST)


def read_predictions(path: Path) -> dict[str, dict[str, float]]:
    """Question -> run -> predicted seconds of a step.

    A file without a column `question` answers every question alike, as a simulator that learns nothing of runs does.

    Raises:
        ValueError: a missing column, an unknown run or question, or no positive number; the message says where.
    """
    known = {case.name for case in cases()}
    found: dict[str, dict[str, float]] = {question: {} for question in QUESTIONS}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = {"id", "step_s"} - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path}: no column {', '.join(sorted(missing))}; needed: id, step_s")
        for number, row in enumerate(reader, start=2):
            where = f"{path}, line {number}"
            if row["id"] not in known:
                raise ValueError(f"{where}: {row['id']!r} is no run of the benchmark")
            questions = [row["question"]] if row.get("question") else list(QUESTIONS)
            if not set(questions) <= QUESTIONS.keys():
                raise ValueError(f"{where}: question: {questions[0]!r} is none of {', '.join(QUESTIONS)}")
            try:
                step_s = float(row["step_s"])
            except ValueError:
                step_s = 0.0
            if not 0.0 < step_s < float("inf"):
                raise ValueError(
                    f"{where}: step_s: expected a positive number of seconds, got {row['step_s']!r}"
                )
            for question in questions:
                found[question][row["id"]] = step_s
    return found
