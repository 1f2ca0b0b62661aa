"""Steps that we timed ourselves on one H100, on which no constant was fitted."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from hdpsim.experiments.records.columns import shipped_records
from hdpsim.experiments.validation.run import run


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run(str(shipped_records().parent / "h100_steps.csv")).data()["records"]
    return found


def test_times_and_peaks_are_near(records: list[dict[str, Any]]) -> None:
    assert len(records) == 14
    assert median(abs(row["error"]) for row in records) < 0.10
    assert median(abs(row["peak_mem_error"]) for row in records) < 0.07
    assert max(abs(row["peak_mem_error"]) for row in records) < 0.15


def test_longer_and_repeated_steps_are_told_apart(records: list[dict[str, Any]]) -> None:
    """Of two steps of one model whose times differ by a quarter, the longer is predicted to be the longer."""
    for one in records:
        for other in records:
            if one["layers"] == other["layers"] and one["measured"] > 1.25 * other["measured"]:
                assert one["predicted"] > other["predicted"]
