"""Errors of predictions against measurements, summed up the same way for every set of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

__all__ = ["error_of", "error_summary"]


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
