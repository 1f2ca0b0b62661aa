"""ByteScale's evaluation as data: the cells of Figure 17, our layouts, the figures predictions are held against."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, cast, get_args

from cost_models.layout import Layout
from cost_models.schema import did_you_mean
from cost_models.units import parse_quantity
from hdpsim.errors import UserInputError
from simulator.setup import StrategyName

__all__ = [
    "COLUMNS",
    "CONTEXTS_TOKENS",
    "DATASETS",
    "STRATEGIES",
    "Cell",
    "ModelLayout",
    "all_cells",
    "figures",
    "layouts",
    "read_cells",
]

COLUMNS = ("model", "dataset", "gpus", "context_tokens", "strategy", "measured_tokens_per_s")
DATASETS = {"github": "bytescale-github", "byted": "bytescale-byted"}
"""Data set of the paper -> our distribution of its lengths."""
CONTEXTS_TOKENS = (2**18, 2**19, 2**20, 2**21)  # the four context lengths of Figure 17
STRATEGIES = cast("tuple[StrategyName, ...]", get_args(StrategyName))

Key = tuple[str, str, int, int, StrategyName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One bar of the figure; further columns of a user's file travel along in *extra*."""

    model: str
    dataset: str
    gpus: int
    context_tokens: int
    strategy: StrategyName
    measured_tokens_per_s: float | None = None
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> Key:
        """What the prediction depends on; the measurement is not part of it."""
        return self.model, self.dataset, self.gpus, self.context_tokens, self.strategy

    @property
    def columns(self) -> dict[str, object]:
        """The input columns."""
        return {**{name: getattr(self, name) for name in COLUMNS}, **dict(self.extra)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayout:
    """How a model is laid out, on how many GPUs the paper trains it, and why we think so."""

    gpus: int
    layout: Layout
    why: str


def _data() -> Path:
    return Path(str(resources.files("experiments") / "data"))


@cache
def _document(name: str) -> Mapping[str, Any]:
    import yaml

    document: Mapping[str, Any] = yaml.safe_load((_data() / name).read_text(encoding="utf-8"))
    return document


@cache
def layouts() -> Mapping[str, ModelLayout]:
    """Layout of every model, in the order of the figure."""
    return {
        model: ModelLayout(
            gpus=entry["gpus"],
            layout=Layout(
                tp=entry["tp"],
                pp=entry["pp"],
                ep=entry["ep"],
                dp_overlap=False,  # section 5.1: one global synchronisation after the last micro-batch
                rank_capacity_tokens=int(
                    parse_quantity(entry["rank_capacity"].removesuffix(" tokens"), "tokens")
                ),
            ),
            why=entry["why"],
        )
        for model, entry in _document("bytescale_layouts.yaml").items()
    }


def figures() -> Mapping[str, Any]:
    """Numbers of Figures 18 and 20 and of the text."""
    return _document("bytescale_figures.yaml")


def all_cells() -> tuple[Cell, ...]:
    """Every cell of Figure 17, with its measurement where the shipped copy has it."""
    measured = {cell.key: cell.measured_tokens_per_s for cell in read_cells(_data() / "bytescale_fig17.csv")}
    cells = (
        Cell(model=model, dataset=dataset, gpus=chosen.gpus, context_tokens=context, strategy=strategy)
        for (model, chosen), dataset, context, strategy in product(
            layouts().items(), DATASETS, CONTEXTS_TOKENS, STRATEGIES
        )
    )
    return tuple(replace(cell, measured_tokens_per_s=measured.get(cell.key)) for cell in cells)


def read_cells(path: str | Path) -> tuple[Cell, ...]:
    """Read a CSV with the COLUMNS (in any order, others allowed); an empty measurement means there is none.

    Raises:
        UserInputError: unreadable, no rows, missing columns, or a value that is not allowed, with its row.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except OSError as error:
        raise UserInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserInputError(f"{path}: is not a CSV file in UTF-8 ({error})") from None
    head = [name.strip() for name in rows[0]] if rows else []
    missing = [name for name in COLUMNS if name not in head]
    if missing:
        raise UserInputError(
            f"{path}: missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"needed: {', '.join(COLUMNS)}; found: {', '.join(head) or 'nothing'}"
        )
    twice = sorted({name for name in head if head.count(name) > 1})
    if twice:
        raise UserInputError(f"{path}: column {', '.join(twice)} appears more than once")
    cells = []
    for number, row in enumerate(rows[1:], start=2):
        if not any(field.strip() for field in row):
            continue
        if len(row) != len(head):
            raise UserInputError(
                f"{path}, row {number}: {len(row)} fields, but the header has {len(head)} columns"
            )
        cells.append(
            _cell(f"{path}, row {number}", dict(zip(head, (field.strip() for field in row), strict=True)))
        )
    if not cells:
        raise UserInputError(f"{path}: holds no cells below its header")
    return tuple(cells)


def _cell(where: str, row: Mapping[str, str]) -> Cell:
    measured = row["measured_tokens_per_s"]
    return Cell(
        model=_one_of(where, "model", row, tuple(layouts())),
        dataset=_one_of(where, "dataset", row, tuple(DATASETS)),
        gpus=_whole(where, "gpus", row),
        context_tokens=_whole(where, "context_tokens", row),
        strategy=cast("StrategyName", _one_of(where, "strategy", row, STRATEGIES)),
        measured_tokens_per_s=_positive(where, "measured_tokens_per_s", measured) if measured else None,
        extra=tuple((name, value) for name, value in row.items() if name not in COLUMNS),
    )


def _one_of(where: str, column: str, row: Mapping[str, str], known: tuple[str, ...]) -> str:
    value = row[column]
    if value not in known:
        hint = did_you_mean(value, known)
        raise UserInputError(f"{where}: {column}: {value!r} is not one of {', '.join(known)}{hint}")
    return value


def _whole(where: str, column: str, row: Mapping[str, str]) -> int:
    value = row[column]
    if not (value.isascii() and value.isdigit() and 0 < len(value) <= len(str(2**53)) and int(value) > 0):
        raise UserInputError(f"{where}: {column}: expected a whole number of at least 1, got {value!r}")
    return int(value)


def _positive(where: str, column: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise UserInputError(f"{where}: {column}: expected a positive number or nothing, got {value!r}")
    return number
