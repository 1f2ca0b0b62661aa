"""ByteScale's evaluation as data: the cells of Figure 17, our layouts, the figures predictions are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, cast, get_args

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.reading.units import parse_quantity
from hdpsim.experiments.output.csv_files import one_of, positive, read_rows, whole
from hdpsim.simulator.setup import StrategyName

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
    return Path(str(resources.files("hdpsim.experiments") / "data"))


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
    return tuple(_cell(where, row) for where, row in read_rows(path, COLUMNS))


def _cell(where: str, row: Mapping[str, str]) -> Cell:
    measured = row["measured_tokens_per_s"]
    return Cell(
        model=one_of(where, "model", row, tuple(layouts())),
        dataset=one_of(where, "dataset", row, tuple(DATASETS)),
        gpus=whole(where, "gpus", row, "gpus"),
        context_tokens=whole(where, "context_tokens", row, "context_tokens"),
        strategy=cast("StrategyName", one_of(where, "strategy", row, STRATEGIES)),
        measured_tokens_per_s=positive(where, "measured_tokens_per_s", measured, "tokens_per_s")
        if measured
        else None,
        extra=tuple((name, value) for name, value in row.items() if name not in COLUMNS),
    )
