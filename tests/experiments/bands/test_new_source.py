"""Bands of runs of sources that nobody has validated, and of runs whose software is guessed."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_residuals import RUN, some

from hdpsim.experiments.bands.band import Residuals
from hdpsim.experiments.bands.new_source import KINDS, NewSource, kind_of
from hdpsim.experiments.bands.residuals import (
    bands_of,
    first_errors,
    read_residuals,
    residuals_path,
    setup_band,
    write_residuals,
)
from hdpsim.experiments.records.columns import read_records, shipped_records
from hdpsim.experiments.scenario.scenario import load_scenario, resolve_scenario
from hdpsim.experiments.software.run_config import RunConfig
from hdpsim.experiments.validation.run import run
from hdpsim.experiments.validation.views import is_plain, plain

FAR = replace(RUN, generation="blackwell", gpu="gb200", bits=8, experts=True)


@pytest.mark.parametrize("view", ["published", "plain"])
def test_bands_hold_first_errors_of_sources_left_out(view: str) -> None:
    """Sources that were predicted before anybody had looked, each without a look at its own errors."""
    residuals = bands_of("", guessed=view == "plain", unseen=True)
    inside: dict[str, list[bool]] = {}
    for row in first_errors():
        if row.view == view:
            band = residuals.band(row.features, row.key, row.source)
            inside.setdefault(row.source, []).append(band.low <= math.exp(-row.log_error) <= band.high)
    assert len(inside) == 51
    assert 0.7 <= np.mean([held for source in inside.values() for held in source]) <= 0.92
    assert 0.75 <= np.mean([np.mean(held) for held in inside.values()]) <= 0.95


@pytest.mark.parametrize("view", ["published", "plain"])
def test_every_kind_of_runs_has_bands_that_hold_its_first_errors(view: str) -> None:
    """Mixtures and small models are off further, which is known before they run; the others' bands are narrower."""
    residuals = bands_of("", guessed=view == "plain", unseen=True)
    inside: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for row in first_errors():
        if row.view == view:
            band = residuals.band(row.features, row.key, row.source)
            inside[kind_of(row.features)].append(band.low <= math.exp(-row.log_error) <= band.high)
    assert all(0.75 <= np.mean(held) <= 0.95 for held in inside.values()), inside
    assert residuals.stretches[""] < min(residuals.stretches["small"], residuals.stretches["mixture"])


def test_a_kind_that_no_first_errors_are_of_has_the_stretch_of_all() -> None:
    usual, mixtures = some([0.2, -0.1] * 5, source="a"), some([0.5, -0.5] * 5, FAR, source="b")
    assert NewSource([], usual).stretches["mixture"] == NewSource([], usual).stretches[""]
    both = NewSource([], [*usual, *mixtures])
    assert kind_of(RUN) == "" != kind_of(FAR) == "mixture"
    assert kind_of(replace(RUN, parameters=2.9e9)) == "small"
    assert both.stretches["small"] >= both.stretches[""]


@given(st.lists(st.integers(1, 20), min_size=2, max_size=6), st.integers(1, 6))
def test_sources_weigh_alike_however_many_records_they_have(counts: list[int], own: int) -> None:
    rows = [row for place, count in enumerate(counts) for row in some([0.1] * count, source=f"s{place}")]
    residuals = NewSource(rows, some([0.2] * own, source="first"), {"": 1.0})
    weight = residuals.quantiles(RUN)[4]
    of_sources = [weight[residuals.sources == source].sum() for source in np.unique(residuals.sources)]
    assert of_sources == pytest.approx([of_sources[0]] * (len(counts) + 1))


def test_first_errors_alone_decide_the_stretch_and_nobody_sees_its_own_source() -> None:
    draw = np.random.default_rng(0)
    seen = [row for name in "abcde" for row in some(draw.normal(0.0, 0.02, 12).tolist(), source=name)]
    first = [row for name, bias in zip("vwxyz", (-0.2, 0.1, 0.2, 0.1, -0.1), strict=True)
             for row in some((bias + draw.normal(0.0, 0.02, 6)).tolist(), source=name)]  # fmt: skip
    shown, new = NewSource(seen, []), NewSource(seen, first)
    assert new.stretches[""] > 1.3 * shown.stretches[""]
    assert new.band(RUN).high / new.band(RUN).low > 1.3 > shown.band(RUN).high / shown.band(RUN).low
    wild = some([3.0, -3.0] * 3, source="wild")
    assert NewSource(seen, [*first, *wild]).band(RUN, source="wild").high == pytest.approx(
        new.band(RUN, source="wild").high, rel=0.15
    )
    # Known sources keep the band of their own runs.
    known = Residuals(seen).band(RUN, source="a")
    assert new.band(RUN).low < known.low < 1.0 < known.high < new.band(RUN).high


def test_who_is_known_keeps_the_narrow_band_and_all_others_get_that_of_a_new_source() -> None:
    features = read_residuals(residuals_path()).features[::40]
    for guessed in (False, True):
        own, nobodys = bands_of("dgxc", guessed=guessed), bands_of("my cluster", guessed=guessed)
        assert bands_of("dgxc", guessed=guessed, unseen=True) is nobodys is bands_of("", guessed=guessed)
        widths = [
            [math.log(band.high / band.low) for band in (kind.band(run, source="dgxc") for run in features)]
            for kind in (own, nobodys)
        ]
        assert np.median(widths[1]) > 1.5 * np.median(widths[0])
        assert "No validated run is of the same source" in nobodys.band(features[0]).note
        assert "No validated run is of the same source" not in own.band(features[0]).note


def test_the_file_keeps_all_views(tmp_path) -> None:
    path = tmp_path / "r.csv"
    rows = some([0.01] * 6) + some([0.1, -0.1, 0.05], view="plain") + some([0.3, -0.3], FAR, view="unseen")
    paper = some([0.0, 0.0], source="megascale")
    write_residuals(str(path), [*rows, *paper])
    for kind, guessed, errors in (
        ("known", False, [0.01] * 6), ("known", True, [0.1, -0.1, 0.05]), ("new", False, [0.3, -0.3]),
        ("new", True, [0.1, -0.1, 0.05]),
    ):  # fmt: skip
        again = read_residuals(path, kind, guessed=guessed)
        first = [r.log_error for r in first_errors() if r.view == ("plain" if guessed else "published")]
        expected = [*errors, 0.0, 0.0, *(first if kind == "new" else [])]
        assert sorted(again.log_error.tolist()) == pytest.approx(sorted(expected))
        assert again.stretches == pytest.approx(again.found_stretches(), rel=1e-3)


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
    assert setup_band(setup, lengths).note.endswith(". No release of the software is stated")
    assert "not stated" not in setup_band(replace(setup, software_stated=True), lengths).note


def test_a_record_is_plain_when_nothing_but_a_name_says_its_software() -> None:
    configs = [record.config for record in read_records(shipped_records())][::20]
    assert all(is_plain(plain(config)) for config in configs)
    assert not any(is_plain(replace(config, framework="torchtitan 2.8")) for config in configs)
    mixture = RunConfig(gpu="H100", year=2026, framework="Megatron-Bridge", n_experts=8, ep=8)
    assert is_plain(mixture)
    assert is_plain(replace(mixture, notes="run 7 of the night"))
    assert not is_plain(replace(mixture, notes="CUDA graph"))
    assert is_plain(replace(mixture, switches=(("node", "hgx-h100-80gb"),)))
    assert not is_plain(replace(mixture, switches=(("node", "hgx-h100-80gb"), ("tp_overlap", True))))
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
    assert own["fidelity"].endswith("No release of the software is stated")
