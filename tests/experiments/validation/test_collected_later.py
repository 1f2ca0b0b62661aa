"""Runs that were collected later: nothing that predicts may know them, and pages say how far off they were."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from hdpsim.experiments.bands.residuals import first_errors, residuals_path
from hdpsim.experiments.records.columns import shipped_records

ROOT = Path(__file__).resolve().parents[3]


def test_no_source_of_them_is_known_to_a_band_or_among_the_published_runs() -> None:
    with (shipped_records().parent / "collected_later.csv").open() as file:
        later = list(csv.DictReader(file))
    with shipped_records().open() as file:
        published = {row["family"] for row in csv.DictReader(file)}
    residuals = {line.split(",")[0] for line in residuals_path().read_text().splitlines()}
    assert len({row["id"] for row in later}) == len(later) == 276
    assert not {row["family"] for row in later} & (published | residuals)
    looked_at_before = {"internevo-table"}  # its rules are older than its rows
    held = {row.source for row in first_errors()}
    assert {row["family"] for row in later} - looked_at_before == held


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/limits.md"])
def test_pages_say_how_far_off_first_predictions_were(page: str) -> None:
    first = [row for row in first_errors() if row.view == "published"]
    off = [100 * abs(math.exp(row.log_error) - 1) for row in first]
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert f"first predictions of {len(first)} runs" in text
    assert f"{len({row.source for row in first})} sources" in text
    assert f"{np.median(off):.0f} % off in the median" in text
    assert f"within {np.quantile(off, 0.9):.0f} %" in text
