"""Runs that were collected later: nothing that predicts may know them."""

from __future__ import annotations

import csv

from hdpsim.experiments.bands.residuals import residuals_path
from hdpsim.experiments.records.columns import shipped_records


def test_no_source_of_them_is_known_to_a_band_or_among_the_published_runs() -> None:
    with (shipped_records().parent / "collected_later.csv").open() as file:
        later = list(csv.DictReader(file))
    with shipped_records().open() as file:
        published = {row["family"] for row in csv.DictReader(file)}
    residuals = {line.split(",")[0] for line in residuals_path().read_text().splitlines()}
    assert len({row["id"] for row in later}) == len(later) == 62
    assert not {row["family"] for row in later} & (published | residuals)
