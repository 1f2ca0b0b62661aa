"""Bands of runs whose software is guessed rest on runs that are predicted without what theirs says."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from made_up_residuals import RUN, some

from hdpsim.experiments.bands.band import TARGET
from hdpsim.experiments.bands.guessed_software import GuessedResiduals
from hdpsim.experiments.bands.residuals import (
    guessed_residuals,
    setup_band,
    shipped_residuals,
    write_residuals,
)
from hdpsim.experiments.records.columns import read_records, shipped_records
from hdpsim.experiments.scenario.scenario import load_scenario, resolve_scenario
from hdpsim.experiments.software.seen_columns import RunConfig
from hdpsim.experiments.validation.run import run
from hdpsim.experiments.validation.views import is_plain, plain

guesses = partial(some, guessed=True)
FAR = replace(RUN, generation="blackwell", gpu="gb200", bits=8, experts=True)


def test_bands_hold_what_they_promise_in_every_source_of_ten_runs() -> None:
    residuals = guessed_residuals()
    inside: dict[str, list[bool]] = defaultdict(list)
    for features, key, source, error in zip(
        residuals.features, residuals.keys, residuals.sources, residuals.log_error, strict=True
    ):
        band = residuals.band(features, key)
        inside[source].append(band.low <= math.exp(-error) <= band.high)
    shares = {source: sum(held) / len(held) for source, held in inside.items() if len(held) >= 10}
    assert len(shares) > 9
    assert all(0.68 <= share <= 0.96 for share in shares.values()), shares
    assert np.mean([held for source in inside.values() for held in source]) == pytest.approx(TARGET, abs=0.03)
    assert 0.75 <= residuals.coverage("source") <= 0.92


def test_what_runs_like_it_need_decides_and_what_sources_need_far_from_all() -> None:
    draw = np.random.default_rng(0)
    calm, wild = draw.normal(0.0, 0.05, 60).tolist(), draw.standard_t(1.5, 60).tolist()
    rows = guesses(calm) + guesses((0.05 * np.array(wild)).tolist(), FAR, "other")
    residuals = GuessedResiduals(rows)
    nobody = np.zeros(len(rows), dtype=bool)
    near, far = (residuals.stretch("", nobody, residuals.distances(run)) for run in (RUN, FAR))
    assert near < far
    lonely = residuals.stretch("", nobody, np.full(len(rows), 50.0))
    of_sources = np.sort(residuals.needed_new)
    assert lonely == pytest.approx(of_sources[np.searchsorted(np.arange(1, 121) / 120, TARGET)])
    # Whoever asks is no source that is known: the name changes nothing, and nobody sees what is left out.
    assert residuals.stretch("lab", nobody, residuals.distances(RUN)) == near
    assert residuals.stretch("", ~nobody, residuals.distances(RUN)) == 1.0


def test_the_file_keeps_both_and_what_guessed_rows_need(tmp_path, monkeypatch) -> None:
    path = tmp_path / "r.csv"
    stated = [replace(row, guessed=False, log_error=0.01) for row in guesses([0.0] * 6)]
    guessed = guesses([0.1, -0.1, 0.05, 0.2, -0.2, 0.0])
    paper = [replace(row, source="megascale") for row in stated[:2]]
    write_residuals(str(path), [*stated, *guessed, *paper])
    monkeypatch.setattr("hdpsim.experiments.bands.residuals.residuals_path", lambda: path)
    again = guessed_residuals.__wrapped__()
    fresh = GuessedResiduals(
        sorted([*guessed, *(replace(row, guessed=True) for row in paper)], key=lambda r: (r.source, r.key))
    )
    assert sorted(again.sources.tolist()) == ["lab"] * 6 + ["megascale"] * 2
    assert again.needed_alone == pytest.approx(fresh.needed_alone, abs=1e-3)
    assert again.band(RUN).low == pytest.approx(fresh.band(RUN).low, rel=1e-3)


def test_a_guess_makes_the_band_wider_over_all_runs() -> None:
    stated, guessed = shipped_residuals(), guessed_residuals()
    widths = [
        [math.log(band.high / band.low) for band in (kind.band(features, key) for features, key in runs)]
        for kind in (stated, guessed)
        for runs in [list(zip(stated.features, stated.keys.tolist(), strict=True))[::5]]
    ]
    assert np.median(widths[1]) > 0.9 * np.median(widths[0])
    assert np.mean(widths[1]) > np.mean(widths[0])


def test_a_scenario_says_its_software_by_a_release_or_a_switch() -> None:
    def stated(*changes: str) -> bool:
        return load_scenario("quickstart-8gpu", changes).setup().software_stated

    assert not stated()
    assert not stated("software=torchtitan")
    assert stated("software=torchtitan 2.8")
    assert stated("layout.cuda_graphs=true")
    assert not stated("layout.tp=4", "layout.recompute=full")
    written = load_scenario("quickstart-8gpu")
    assert resolve_scenario(written.document).setup() == written.setup()


def test_the_note_of_a_guess_says_so() -> None:
    setup = load_scenario("quickstart-8gpu").setup()
    lengths = np.full(8, 4096, dtype=np.int64)
    assert setup_band(setup, lengths).note.endswith("; no release of its software is stated")
    assert "not stated" not in setup_band(replace(setup, software_stated=True), lengths).note


def test_a_record_is_plain_when_nothing_but_a_name_says_its_software() -> None:
    configs = [record.config for record in read_records(shipped_records())][::20]
    assert all(is_plain(plain(config)) for config in configs)
    assert not any(is_plain(replace(config, framework="torchtitan 2.8")) for config in configs)
    mixture = RunConfig(gpu="H100", year=2026, framework="Megatron-Bridge", n_experts=8, ep=8)
    assert is_plain(mixture)
    assert is_plain(replace(mixture, notes="run 7 of the night"))
    assert not is_plain(replace(mixture, notes="CUDA graph"))
    dense = RunConfig(gpu="H100", year=2024, framework="NeMo", tp=8)
    # The framework's recipes overlap anyway.
    assert is_plain(replace(dense, notes="tp comm overlap all on"))
    assert not is_plain(replace(dense, framework="Megatron-LM", notes="tp comm overlap all on"))


def test_a_file_of_plain_records_gets_the_bands_of_guesses_whoever_they_are_from(tmp_path) -> None:
    with shipped_records().open(encoding="utf-8", newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["id"] == "bloom-0001")
    row |= {"framework": "Megatron-DeepSpeed", "notes": "", "family": "bloom"}
    path = tmp_path / "own.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)
    (own,), (plainly,) = (run(str(path), view=view).data()["records"] for view in ("published", "plain"))
    assert own["predicted"] == plainly["predicted"]
    assert own["fidelity"] == plainly["fidelity"]
    assert own["fidelity"].endswith("no release of its software is stated")
