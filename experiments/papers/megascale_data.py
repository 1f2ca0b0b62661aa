"""MegaScale's evaluation as data: cells of Table 2, facts of the rest, how the paper counts FLOP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from hdpsim.cost_models.transformer.model import Model
from hdpsim.experiments.output.csv_files import one_of, positive, read_rows, whole

COLUMNS = ("system", "model", "gpus", "global_batch", "metric", "measured")
SYSTEMS = ("megatron-lm", "megascale")
MODELS = ("megascale-175b", "megascale-530b")
METRICS = ("step_s", "mfu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One figure of a table; further columns of a user's file travel along in *extra*.

    Attributes:
        metric: step_s (seconds) or mfu (%, as the paper prints it).
    """

    system: str
    model: str
    gpus: int
    global_batch: int
    metric: str = "step_s"
    measured: float | None = None
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What the prediction depends on; the measurement is not part of it."""
        return self.system, self.model, self.gpus, self.global_batch

    @property
    def columns(self) -> dict[str, object]:
        """The input columns."""
        return {**{name: getattr(self, name) for name in COLUMNS}, **dict(self.extra)}


def _data() -> Path:
    return Path(str(resources.files("hdpsim.experiments") / "data"))


@cache
def facts() -> Mapping[str, Any]:
    """What the papers report besides Table 2."""
    import yaml

    document: Mapping[str, Any] = yaml.safe_load((_data() / "megascale.yaml").read_text(encoding="utf-8"))
    return document


def table_2() -> tuple[Cell, ...]:
    """The iteration times of Table 2."""
    return read_cells(_data() / "records" / "megascale.csv")


def read_cells(path: str | Path) -> tuple[Cell, ...]:
    """Read a CSV with the COLUMNS (in any order, others allowed); an empty measurement means there is none.

    Raises:
        UserInputError: unreadable, no rows, missing columns, or a value that is not allowed, with its row.
    """
    return tuple(_cell(where, row) for where, row in read_rows(path, COLUMNS))


def _cell(where: str, row: Mapping[str, str]) -> Cell:
    measured, metric = row["measured"], one_of(where, "metric", row, METRICS)
    return Cell(
        system=one_of(where, "system", row, SYSTEMS),
        model=one_of(where, "model", row, MODELS),
        gpus=whole(where, "gpus", row, "gpus"),
        global_batch=whole(where, "global_batch", row, "batch_sequences"),
        metric=metric,
        measured=positive(where, "measured", measured, "percent" if metric == "mfu" else metric)
        if measured
        else None,
        extra=tuple((name, value) for name, value in row.items() if name not in COLUMNS),
    )


def model_flop_per_token(model: Model, context_tokens: int) -> float:
    """FLOP per token behind the paper's MFU.

        72 l h^2 (1 + r s / 6h + V / 12 l h),   r = 2 (w / s) - (w / s)^2 with a window of w < s tokens, else 1

    Counted: full attention (both triangles), of which a window keeps the share r; vocabulary; no recomputation.
    Source: Table 2 of arXiv 2402.15627. MFU x GPUs x 312 TFLOP/s x seconds / tokens is 1.0766e12 in Megatron-LM's rows,
        this formula with r = 1 (1.0774e12), and 1.0653e12 in MegaScale's, where r is 0.6.
    """
    share = 1.0
    if model.sliding_window is not None and model.sliding_window < context_tokens:
        reach = model.sliding_window / context_tokens
        share = 2.0 * reach - reach * reach
    layers, hidden = model.layers, model.hidden
    attention = share * context_tokens / (6.0 * hidden)
    return 72.0 * layers * hidden**2 * (1.0 + attention + model.vocab / (12.0 * layers * hidden))
