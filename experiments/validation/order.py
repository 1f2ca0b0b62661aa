"""How far off predictions are, and whether they put layouts into the order that was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Row = TypeVar("Row")
Key = TypeVar("Key")

RANKED_AT_LEAST = 5  # fewer layouts of one model and size say little about an order
BEYOND_SENSE = 1e4

_ALIKE = ("model_name", "gpu", "n_gpus", "seq_len")


def rank_correlation(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Spearman's rank correlation of throughput over layouts of the same model, GPU, size and sequence length.

    *rows*: records of a validation. Median and lowest of the sets of at least five layouts.
    """
    rates = ("measured_tokens_per_s_per_gpu", "predicted_tokens_per_s_per_gpu")
    judged = (row for row in rows if all(row.get(rate) is not None for rate in rates))
    alike = grouped(judged, lambda row: tuple(map(row.get, _ALIKE)))
    ranks = (spearman([(row[rates[0]], row[rates[1]]) for row in members]) for members in alike.values())
    correlations = [correlation for correlation in ranks if correlation is not None]
    return {
        "groups": len(correlations),
        "median": median(correlations),
        "min": min(correlations, default=None),
    }


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation of pairs; None where there are fewer than five, or one side is all the same."""
    if len(pairs) < RANKED_AT_LEAST:
        return None
    ranks: list[Any] = [_ranks([pair[side] for pair in pairs]) for side in (0, 1)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks from 1; equals share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Rows by what *key* says of them, in the order in which keys appear."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def median(values: Iterable[float]) -> float | None:
    """The middle one; None of none."""
    known = list(values)
    return float(np.median(known)) if known else None


def error_of(measured: float | None, predicted: float | None) -> float | None:
    """Relative error (predicted - measured) / measured; None where one of them is missing."""
    if measured is None or predicted is None:
        return None
    return (predicted - measured) / measured


def error_summary(errors: Iterable[float | None]) -> Mapping[str, float | int | None]:
    """Count, median, mean, 90th percentile and maximum of the absolute errors that exist."""
    size = np.abs([error for error in errors if error is not None])
    names = ("median_abs_error", "mean_abs_error", "p90_abs_error", "max_abs_error")
    if not len(size):
        return {"count": 0, **dict.fromkeys(names)}
    figures = (np.median(size), size.mean(), np.percentile(size, 90), size.max())
    return {"count": len(size), **dict(zip(names, map(float, figures), strict=True))}


def signed_summary(errors: Iterable[float | None]) -> dict[str, Any]:
    """The summary, and the median of the errors with their signs."""
    known = [error for error in errors if error is not None]
    return {**error_summary(known), "median_error": median(known)}


def percent(share: float) -> str:
    """A share in %, one digit; of what is beyond all sense, the order of magnitude."""
    return f"{100 * share:.1e}" if abs(share) >= BEYOND_SENSE else f"{100 * share:.1f}"
