"""Whether predictions put layouts into the order that was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

RANKED_AT_LEAST = 5  # fewer layouts of one model and size say little about an order


def rank_correlation(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Spearman's rank correlation of throughput over layouts of the same model, GPU, size and sequence length.

    *rows*: records of a validation. Median and lowest of the sets of at least five layouts.
    """
    alike: dict[tuple[object, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        true, predicted = row.get("measured_tokens_per_s_per_gpu"), row["predicted_tokens_per_s_per_gpu"]
        if true is not None and predicted is not None:
            key = tuple(row.get(name) for name in ("model_name", "gpu", "n_gpus", "seq_len"))
            alike[key].append((true, predicted))
    found = []
    for pairs in alike.values():
        correlation = spearman(pairs)
        if correlation is not None:
            found.append(correlation)
    return {
        "groups": len(found),
        "median": float(np.median(found)) if found else None,
        "min": min(found, default=None),
    }


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation of pairs; None where there are fewer than five, or one side is all the same."""
    from scipy.stats import rankdata

    if len(pairs) < RANKED_AT_LEAST:
        return None
    ranks = [rankdata(side) for side in zip(*pairs, strict=True)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def error_of(measured: float | None, predicted: float | None) -> float | None:
    """Relative error (predicted - measured) / measured; None where one of them is missing."""
    if measured is None or predicted is None:
        return None
    return (predicted - measured) / measured


def error_summary(errors: Iterable[float | None]) -> Mapping[str, float | int | None]:
    """Count, median, mean, 90th percentile and maximum of the absolute errors that exist."""
    size = np.abs([error for error in errors if error is not None])
    known = len(size) > 0
    return {
        "count": len(size),
        "median_abs_error": float(np.median(size)) if known else None,
        "mean_abs_error": float(size.mean()) if known else None,
        "p90_abs_error": float(np.percentile(size, 90)) if known else None,
        "max_abs_error": float(size.max()) if known else None,
    }
