"""The folder of a paper: what it is about, the cells of its main figure, what predictions take, what was published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.cost_models.reading.values import Parser, choice, integer, number
from hdpsim.errors import UserInputError
from hdpsim.experiments.output.files.csv import read_cell, read_rows
from hdpsim.ranges import RANGES
from hdpsim.yaml_loader import load_yaml

_NEEDED = {
    "": ("title", "about", "notes", "cells", "figure"),
    "cells.": ("place", "default", "words", "columns", "measured", "unit"),
    "figure.": ("unit", "x", "series", "name", "title", "panel"),
}
"""What every setup.yaml has; the shipped ones say what each is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """One figure of a paper and what it depends on.

    Attributes:
        inputs: column -> value: all that a prediction may look at.
        measured: None where the paper has no figure.
        unit: of the measurement: tokens_per_s, step_s (seconds) or percent.
        extra: further columns of a user's file, which travel along.
    """

    inputs: Mapping[str, Any]
    measured: float | None = None
    unit: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, column: str) -> Any:
        return self.inputs[column]


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutFigure:
    """What is said of a figure that is compared value by value.

    Attributes:
        shows: what it shows.
        basis: what predictions of it rest on, as setup.yaml explains it.
        why_off: why those values are off that are; empty where none is by much.
    """

    shows: str
    basis: str
    why_off: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFolder:
    """What a paper is reproduced from. Its file cells.csv holds the published cells.

    Attributes:
        path: its last part is the name of the paper.
        setup: setup.yaml: words about the paper, the columns of its cells, and what predictions take.
        published: published.yaml: what the paper reports besides its cells. No prediction reads a measurement of it.
    """

    path: Path
    setup: Mapping[str, Any]
    published: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name by which `hdpsim reproduce` calls the paper."""
        return self.path.name

    @property
    def figures(self) -> Mapping[int, AboutFigure]:
        """By number, the figures that are compared value by value."""
        return {
            int(number): AboutFigure(**about) for number, about in (self.setup.get("figures") or {}).items()
        }

    @property
    def main_figure(self) -> int | None:
        """The number of the cells' figure, if it is one of these."""
        number: int | None = self.setup.get("main_figure")
        return number

    @property
    def columns(self) -> Mapping[str, tuple[str, ...] | str]:
        """Input column of cells -> the words that it may hold, or the kind of its numbers (see hdpsim.ranges)."""
        columns = {}
        for name, allowed in self.setup["cells"]["columns"].items():
            words = self.setup.get(allowed) if isinstance(allowed, str) else allowed
            columns[name] = allowed if words is None else tuple(words)
        return columns

    @property
    def cells_help(self) -> str:
        """What a user's file of cells holds."""
        words = {
            name: f" ({', '.join(allowed)})" if not isinstance(allowed, str) and len(allowed) < 4 else ""
            for name, allowed in self.columns.items()
        }
        columns = ", ".join([*(f"{name}{choice}" for name, choice in words.items()), self.measured_column])
        return f"CSV with {columns}; default: {self.setup['cells']['default']}."

    @property
    def measured_column(self) -> str:
        """The column of the measurement."""
        return str(self.setup["cells"]["measured"])

    def unit(self, inputs: Mapping[str, Any]) -> str:
        """The unit of a cell's measurement, which a column may decide."""
        unit = self.setup["cells"]["unit"]
        if isinstance(unit, str):
            return unit
        ((column, units),) = unit.items()
        return str(units[inputs[column]])

    def published_cells(self) -> tuple[PublishedFigure, ...]:
        """The cells that the paper has a figure for."""
        return self.read_cells(self.path / "cells.csv")

    def read_cells(self, path: str | Path) -> tuple[PublishedFigure, ...]:
        """Read a CSV with the columns (in any order, others allowed); an empty measurement means there is none.

        Raises:
            UserInputError: unreadable, no rows, missing columns, or a value that is not allowed, with its row.
        """
        rows = read_rows(path, (*self.columns, self.measured_column))
        return tuple(self._cell(where, row) for where, row in rows)

    @property
    def _parsers(self) -> dict[str, Parser]:
        """How every column is read: as a whole number in a range, or as one of some words."""
        return {
            name: integer(RANGES[allowed]) if isinstance(allowed, str) else choice(allowed)
            for name, allowed in self.columns.items()
        }

    def _cell(self, where: str, row: Mapping[str, str]) -> PublishedFigure:
        inputs = {name: read_cell(where, name, row[name], parse) for name, parse in self._parsers.items()}
        column, unit = self.measured_column, self.unit(inputs)
        measured = read_cell(where, column, row[column], number(RANGES[unit])) if row[column] else None
        if unit == "percent" and measured is not None and measured <= 1.0:
            raise UserInputError(
                f"{where}: {column}: {row[column]} is at most 1 %: is it a share? Give it in %, such as "
                f"{100 * measured:.4g}"
            )
        return PublishedFigure(
            inputs=inputs,
            measured=measured,
            unit=unit,
            extra={name: text for name, text in row.items() if name not in inputs and name != column},
        )


def read_folder(path: Path) -> PaperFolder:
    """Read the folder of a paper.

    Raises:
        UserInputError: a file is missing or unreadable, or setup.yaml lacks what every paper needs.
    """
    setup = load_yaml(path / "setup.yaml")
    parts = {"": setup, **{f"{part}.": setup.get(part) or {} for part in ("cells", "figure")}}
    missing = [f"{part}{key}" for part, keys in _NEEDED.items() for key in keys if key not in parts[part]]
    if missing:
        raise UserInputError(f"{path / 'setup.yaml'}: missing {', '.join(missing)}")
    return PaperFolder(path=path, setup=setup, published=load_yaml(path / "published.yaml"))


_SHIPPED = shipped("experiments/data/papers")


def paper_names() -> tuple[str, ...]:
    """The papers that hdpsim reproduces: one for every folder of experiments/data/papers."""
    return tuple(sorted(path.parent.name for path in _SHIPPED.glob("*/setup.yaml")))


@cache
def paper_folder(name: str) -> PaperFolder:
    """The shipped folder of a paper."""
    return read_folder(_SHIPPED / name)
