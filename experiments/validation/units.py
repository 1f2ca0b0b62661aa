"""Measurements that cannot be, or that are in another unit than their column: named, never judged in silence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hdpsim.experiments.validation.order import percent

BEYOND = 10.0
"""Measured over predicted, or the other way round; published step times are within 3, peaks of memory within 6."""
APART = 1.1
"""Two ways in which a record tells its rate; published ones agree to 1e-3."""
EXPLAINED = 2.0
"""So near the prediction a measurement comes in its right unit."""
SHOWN = 12
"""A whole table may be in another unit."""

Row = Mapping[str, Any]

_UNITS: Mapping[str, Mapping[str, float]] = {
    "measured_step_s": {"in milliseconds": 1e3, "in minutes": 1 / 60, "in hours": 1 / 3600},
    "measured_tokens_per_s_per_gpu": {"in thousands of tokens": 1e-3},
    "measured_tflops_per_gpu": {"in GFLOP/s": 1e3, "in PFLOP/s": 1e-3, "in FLOP/s": 1e12},
    "measured_mfu_pct": {"a share, not in percent": 1e-2},
    "peak_mem_gb": {"in MB": 1e3, "in kB": 1e6},
}
"""Column -> what a number there may be, and how much larger than in the column's unit it then is."""


def unit_lines(rows: Iterable[Row]) -> list[str]:
    """A sentence for every measurement that no GPU reaches, that is far from its prediction, or that another denies.

    Of many the first ones.
    """
    lines = [f"{row['record']}: {doubt}" for row in rows for doubt in (*_doubts(row), *_contradiction(row))]
    more = [f"and {len(lines) - SHOWN} more measurements like these"] if len(lines) > SHOWN else []
    return lines[:SHOWN] + more


def _doubts(row: Row) -> Iterator[str]:
    of_peak = row.get("measured_share_of_peak") or 0.0
    for column, (measured, predicted) in _measured(row).items():
        ratio = measured / predicted
        if of_peak > 1.0 and column == f"measured_{row['quantity']}":
            yield (
                f"{column} {measured:.4g} would be {percent(of_peak)} % of the GPU's peak for the model's FLOP alone: "
                "no run is that fast, so the measurement or the configuration is wrong"
                f"{_hint(row, column, ratio)}"
            )
        elif column == "peak_mem_gb" and measured > (row.get("gpu_memory_gb") or math.inf):
            yield (
                f"{column} {measured:.4g} is more than the {row['gpu_memory_gb']:.4g} GB that the GPU has"
                f"{_hint(row, column, ratio)}"
            )
        elif not 1 / BEYOND < ratio < BEYOND:
            yield f"{column} {measured:.4g} is {_times(ratio)} the prediction{_hint(row, column, ratio)}"


def _contradiction(row: Row) -> Iterator[str]:
    """Batch and step make a rate: global_batch_seqs x seq_len / (measured_step_s x n_gpus)."""
    column = "measured_tokens_per_s_per_gpu"
    cells = [row.get(name) for name in ("global_batch_seqs", "seq_len", "measured_step_s", "n_gpus", column)]
    if None in cells:
        return
    sequences, tokens, step_s, gpus, said = map(float, cells)  # type: ignore[arg-type]
    ratio = said * step_s * gpus / (sequences * tokens)
    if not 1 / APART < ratio < APART:
        yield (
            f"{column} {said:.4g} is {_times(ratio)} what measured_step_s and global_batch_seqs make of it"
            f"{_hint(row, column, ratio)}"
        )


_RATES = ("measured_step_s", "measured_tokens_per_s_per_gpu", "measured_tflops_per_gpu", "measured_mfu_pct")


def _measured(row: Row) -> dict[str, tuple[float, float]]:
    """Every measured column of a row that has a prediction, with that prediction."""
    pairs = {column: (row.get(column), row.get(column.replace("measured", "predicted"))) for column in _RATES}
    pairs["peak_mem_gb"] = (row.get("peak_mem_gb"), row.get("predicted_peak_mem_gb"))
    return {name: (said, predicted) for name, (said, predicted) in pairs.items() if said and predicted}


def _hint(row: Row, column: str, ratio: float) -> str:
    """What would explain that a number is *ratio* times what it should be."""
    causes = dict(_UNITS[column])
    if column != "measured_step_s":
        causes |= {
            "of all GPUs together": row["n_gpus"] or 1.0,
            "of a server": row.get("gpus_per_node") or 1.0,
        }
    elif row.get("global_batch_seqs") and row.get("seq_len"):
        causes["of a batch whose tokens, not sequences, global_batch_seqs counts"] = 1.0 / row["seq_len"]
    if column == "measured_tokens_per_s_per_gpu":
        causes["in sequences, not tokens"] = 1.0 / (row.get("seq_len") or 1.0)
        causes["tokens of a step, not of a second"] = row.get("measured_step_s") or row["predicted_step_s"]
    off, words = min((abs(math.log(ratio / factor)), words) for words, factor in causes.items())
    return f" (is it {words}?)" if off <= math.log(EXPLAINED) else ""


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 100.0 else f"{ratio:.3g} times"
