"""Bands of predictions: what they rest on, that nobody sees its own answer, that they hold what they promise."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from made_up_residuals import RUN, some

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.errors import UserInputError
from hdpsim.experiments.bands.band import TARGET, Residual, Residuals
from hdpsim.experiments.bands.features import configuration_key, differences_in_words, features_of
from hdpsim.experiments.bands.residuals import (
    check_residuals,
    read_residuals,
    residual_lines,
    residuals_path,
    rewrite_residuals,
    setup_features,
    write_residuals,
)
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.papers.paper import load_paper, residuals_of
from hdpsim.experiments.records.columns import read_records, shipped_records
from hdpsim.experiments.records.prediction import predict
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.simulator.setup import StrategyOptions

PLAIN = {"": 1.0}
SHIPPED = partial(read_residuals, residuals_path())


@pytest.mark.parametrize("guessed", [False, True])
def test_bands_hold_what_they_promise_in_every_source_of_ten_runs(guessed: bool) -> None:
    """A source whose runs are predicted worse than others gets wider bands, without a look at the run in question."""
    residuals = SHIPPED(guessed=guessed)
    inside: dict[str, list[bool]] = defaultdict(list)
    for features, key, source, error in zip(
        residuals.features, residuals.keys, residuals.sources.tolist(), residuals.log_error, strict=True
    ):
        band = residuals.band(features, key, source)
        inside[source].append(band.low <= math.exp(-error) <= band.high)
    assert len(residuals.features) > 900
    # Each band is of the other runs, so that its share is an outcome: two standard errors of 919 runs are 0.024.
    assert np.mean([held for source in inside.values() for held in source]) == pytest.approx(
        TARGET, abs=0.024
    )
    shares = {source: np.mean(held) for source, held in inside.items() if len(held) >= 10}
    assert len(shares) > 9
    for source, share in shares.items():
        one = 1 / len(inside[source])  # whether a single run lies a thousandth within or beyond is chance
        assert (0.70 if guessed else 0.78) - one <= share <= 0.92 + one, source
    with residuals_path().open() as file:
        file.readline()
        assert "measured" not in file.readline()


def test_a_source_of_few_runs_has_nearly_the_stretch_of_all() -> None:
    draw = np.random.default_rng(0)
    wild, calm = draw.normal(0.0, 0.2, 60).tolist(), draw.normal(0.0, 0.02, 60).tolist()
    stretches = Residuals(
        some(wild, source="wild") + some(calm, source="calm") + some([0.0], source="one")
    ).stretches
    assert stretches["calm"] < stretches["one"] < stretches["wild"]


def test_a_known_run_does_not_see_its_own_residual() -> None:
    rows = some([0.0, 0.02, -0.02, 0.01, -0.01, 0.3])
    residuals = Residuals(rows, PLAIN)
    seen, unseen = residuals.band(RUN), residuals.band(RUN, rows[-1].key)
    without = Residuals(rows[:-1], PLAIN).band(RUN)
    assert seen.low < unseen.low
    assert unseen.low == pytest.approx(without.low, rel=0.01)
    record = next(r for r in read_records(shipped_records()) if r.name == "bloom-0001")
    prediction = predict(record.config)
    assert prediction.features is not None
    shipped = SHIPPED()
    assert (shipped.keys == prediction.key).any()
    kept = shipped.keys != prediction.key
    others = Residuals(
        [
            Residual(features=f, key=k, source=s, complete=q == 1.0, log_error=e)
            for f, k, s, q, e, keep in zip(
                shipped.features,
                shipped.keys,
                shipped.sources,
                shipped.quality,
                shipped.log_error,
                kept,
                strict=True,
            )
            if keep
        ],
        shipped.stretches,
    )
    mine = shipped.band(prediction.features, prediction.key, "bloom")
    theirs = others.band(prediction.features, source="bloom")
    assert mine.alike == theirs.alike
    # Only the crowding of the source differs a little.
    assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high), rel=0.05)


def test_a_band_widens_with_distance_and_says_why() -> None:
    spread = np.random.default_rng(0).normal(0.0, 0.05, 60).tolist()
    residuals = Residuals(some(spread), PLAIN)
    here = residuals.band(RUN)
    far = residuals.band(replace(RUN, generation="blackwell", gpu="b200", bits=4, experts=True))
    assert math.log(far.high / far.low) > 1.3 * math.log(here.high / here.low)
    assert here.alike == 60
    assert "60 validated runs like this one (lab)" in here.note
    assert "1 validated run like this one (lab)" in Residuals(some([0.1]), PLAIN).band(RUN).note
    nearest = "The nearest (lab: 8B parameters on 64 x h100-80gb, 8,192 tokens a sequence) has"
    assert f"{nearest} many little differences" in here.note
    assert far.alike == 0
    assert "4-bit" not in here.note
    assert f"{nearest} calibration hopper instead of blackwell" in far.note
    assert "16-bit matrix products instead of 4-bit matrix products" in far.note
    # 80 % of a normal distribution lie within 1.28 standard deviations.
    assert math.log(here.high) == pytest.approx(1.28 * 0.05, rel=0.35)


def test_a_bias_of_neighbours_shifts_the_band() -> None:
    # Predictions of such runs were 20 % too fast: the true step is longer.
    errors = (math.log(0.8) + np.random.default_rng(0).normal(0.0, 0.02, 40)).tolist()
    band = Residuals(some(errors), PLAIN).band(RUN)
    assert band.low == 1.0  # the prediction itself is never outside its own band
    assert band.middle == pytest.approx(1.25, rel=0.03)
    document = band.document(10.0, 1000.0)
    assert document["step_s_p10"] < 12.5 < document["step_s_p90"]
    assert document["tokens_per_s_p10"] < 800 < document["tokens_per_s_p90"]


def test_a_configuration_has_no_say_in_the_stretch_of_its_own_band() -> None:
    draw = np.random.default_rng(1)
    far_off = replace(RUN, parameters=RUN.parameters * 1e6)  # nobody's neighbour
    others = some(draw.normal(0.0, 0.05, 40).tolist(), source="others")
    calm = some(draw.normal(0.0, 0.05, 12).tolist(), source="mine")
    wild = [
        Residual(features=far_off, key="wild", source="mine", complete=True, log_error=e)
        for e in (1.0, -1.0) * 6
    ]
    without, with_it = Residuals(others + calm), Residuals(others + calm + wild)
    own = with_it.keys == "wild"
    assert with_it.stretches["mine"] > 1.5 * without.stretches["mine"]
    assert with_it.stretch("mine", own, far_off) <= without.stretches["mine"]


def test_nothing_known_is_said() -> None:
    band = Residuals([]).band(RUN)
    assert "no validated run" in band.note
    assert band.low < 0.7
    assert band.high > 1.4
    json.dumps(band.document(1.0), allow_nan=False)


def test_the_file_comes_back(tmp_path: Path) -> None:
    rows = some([0.0, 0.1, -0.1, 0.05]) + some([0.2, 0.1], replace(RUN, tp=8, dynamic=True), "other")
    written = write_residuals(str(tmp_path / "r.csv"), rows)
    again = read_residuals(tmp_path / "r.csv")
    assert again.stretches == pytest.approx(written.stretches, rel=1e-4)
    assert again.features == written.features
    assert again.band(RUN).low == pytest.approx(written.band(RUN).low, rel=1e-4)


def test_key_is_the_configuration_not_its_measurement_or_source() -> None:
    setup = load_scenario("quickstart-8gpu").setup()
    key = configuration_key(setup, 8, 4096, 4096)
    assert key == configuration_key(replace(setup, model=replace(setup.model, name="other")), 8, 4096, 4096)
    assert key != configuration_key(setup, 16, 4096, 4096)
    assert key != configuration_key(replace(setup, layout=setup.layout.changed(tp=4)), 8, 4096, 4096)
    assert features_of(setup, 4096.0).parameters == pytest.approx(8.03e9, rel=1e-3)


def test_simulate_and_validate_carry_bands(tmp_path: Path) -> None:
    runner = CliRunner()
    result = runner.invoke(cli, ["simulate", "quickstart-8gpu", "--batches", "1", "--json"])
    simulated = json.loads(result.stdout)["results"]
    fidelity = simulated["fidelity"]
    assert fidelity["step_s_p10"] < fidelity["step_s_p90"]
    assert fidelity["note"] in "\n".join(
        line
        for line in runner.invoke(cli, ["simulate", "quickstart-8gpu", "--batches", "1"]).stdout.splitlines()
    )
    lines = shipped_records().read_text(encoding="utf-8").splitlines()
    few = tmp_path / "few.csv"
    few.write_text(
        "\n".join([lines[0], *(line for line in lines[1:] if line.startswith("bloom-000"))]) + "\n"
    )
    document = json.loads(runner.invoke(cli, ["validate", str(few), "--json"]).stdout)
    for row in document["records"]:
        assert row["step_s_p10"] < row["step_s_p90"]
        assert row["in_band"] == (row["step_s_p10"] <= row["measured_step_s"] <= row["step_s_p90"])
        assert "P10-P90" in row["fidelity"]
    assert 0.0 <= document["summary"]["band_coverage"] <= 1.0


def test_reproduced_cells_join_the_file_and_stay_there(tmp_path: Path) -> None:
    path = str(tmp_path / "r.csv")
    rewrite_residuals(path, some([0.0, 0.1]) + some([0.3], source="megascale"))
    rewrite_residuals(path, some([0.2, 0.2], replace(RUN, dynamic=True), "bytescale"), ("bytescale",))
    assert sorted(read_residuals(Path(path)).sources.tolist()) == ["bytescale"] * 2 + ["lab"] * 2 + [
        "megascale"
    ]
    rewrite_residuals(path, some([0.5], replace(RUN, dynamic=True), "bytescale"), ("bytescale",))
    rewrite_residuals(
        path, some([0.4], source="other")
    )  # validate again, on other runs: reproduced cells stay
    again = read_residuals(Path(path))
    assert dict(zip(again.sources.tolist(), again.log_error.tolist(), strict=True)) == {
        "bytescale": 0.5,
        "megascale": 0.3,
        "other": 0.4,
    }
    (tmp_path / "no.csv").write_text("something else\n")
    with pytest.raises(UserInputError, match="no file of residuals"):
        rewrite_residuals(str(tmp_path / "no.csv"), some([0.1]))


def test_an_older_file_without_strategies_is_read(tmp_path: Path) -> None:
    write_residuals(str(tmp_path / "r.csv"), some([0.0, 0.1, -0.1]))
    lines = (tmp_path / "r.csv").read_text().splitlines()
    place = lines[1].split(",").index("strategy")
    shorter = [",".join(c for i, c in enumerate(line.split(",")) if i != place) for line in lines[1:]]
    (tmp_path / "old.csv").write_text("\n".join([lines[0], *shorter]) + "\n")
    assert read_residuals(tmp_path / "old.csv").features == [RUN] * 3


def test_dynamic_runs_learn_from_dynamic_runs() -> None:
    hdp = replace(RUN, dynamic=True, strategy="hdp-opt", gpus=128)
    errors = (math.log(1.1) + np.random.default_rng(0).normal(0.0, 0.02, 40)).tolist()
    residuals = Residuals(some(np.zeros(40).tolist()) + some(errors, hdp, "dynamic"), PLAIN)
    band = residuals.band(replace(RUN, dynamic=True, strategy="hdp-naive"))
    assert band.sources == ("dynamic",)
    assert band.middle == pytest.approx(1 / 1.1, rel=0.02)
    assert "40 validated runs like this one (dynamic)" in band.note
    assert "none of them ran hdp-naive" in band.note
    assert "none of them" not in residuals.band(hdp).note
    assert residuals.band(RUN).sources == ("lab",)


def test_setups_of_many_lengths_are_dynamic_and_leave_their_strategies_out() -> None:
    setup = load_scenario("quickstart-8gpu").setup()
    lengths = np.array([4096, 1024, 1024], dtype=np.int64)
    static, key = setup_features(replace(setup, strategy=StrategyOptions(name="static")), lengths)
    hdp, same = setup_features(replace(setup, strategy=StrategyOptions(name="hdp-opt")), lengths)
    assert (static.dynamic, static.strategy, hdp.strategy) == (True, "static", "hdp-opt")
    assert key == same
    # A token stands in a sequence of (4096^2 + 2 x 1024^2) / 6144 tokens.
    assert hdp.sequence_tokens == 3072
    uniform, other = setup_features(
        replace(setup, strategy=StrategyOptions(name="static")), np.full(4, 2048, dtype=np.int64)
    )
    assert not uniform.dynamic
    assert other != key


def test_papers_give_residuals_without_measurements() -> None:
    bytescale, megascale = load_paper("bytescale"), load_paper("megascale")
    cell = bytescale.folder.published_cells()[0]
    found = residuals_of(bytescale, [cell, cell], [{"error": 0.25}, {"error": None}], batches=1)
    assert len(found) == 1
    # 25 % too many tokens/s: a step of 1 / 1.25 of the true one.
    assert found[0].log_error == pytest.approx(math.log(0.8))
    assert found[0].features.dynamic
    assert found[0].features.strategy == cell["strategy"]
    step = megascale.folder.published_cells()[0]
    (of_step,) = residuals_of(megascale, [step], [{"error": -0.1}], batches=1)
    assert of_step.log_error == pytest.approx(math.log(0.9))
    assert not of_step.features.dynamic
    assert of_step.features.gpus == step["gpus"]


def test_a_file_of_something_else_is_refused_before_any_work(tmp_path):
    other = tmp_path / "notes.csv"
    check_residuals(str(other))
    other.write_text("hello\n")
    with pytest.raises(UserInputError, match="no file of residuals"):
        check_residuals(str(other))
    assert other.read_text() == "hello\n"


def test_no_residuals_are_said_to_be_none(tmp_path):
    path = str(tmp_path / "none.csv")
    assert (
        residual_lines(rewrite_residuals(path, []), path)[0] == "no run has an error that bands could rest on"
    )


def test_a_band_says_which_of_its_runs_had_a_part_in_the_constants() -> None:
    """For every run that the shipped bands rest on: in-sample where its source is named by a constant, else not."""
    shipped = SHIPPED()
    seen = set()
    for features, key in dict.fromkeys(zip(shipped.features, shipped.keys.tolist(), strict=True)):
        band = shipped.band(features, key)
        fitted = set(band.sources) & calibration(features.generation).fitted_on
        assert (band.in_sample > 0) == bool(fitted)
        assert ("in-sample" in band.note) == bool(fitted)
        assert band.document(1.0)["records_in_sample"] == band.in_sample <= band.alike
        seen |= {(features.generation, source) for source in fitted}
    assert ("bytescale-h20", "bytescale") in seen
    assert ("hopper", "dgxc") in seen  # 210 runs of Hopper decided small_kernel_passes
    # kernels of that source had a part, runs had none; the other calibrations' runs decided nothing
    assert all(source != "simumax" for _, source in seen)


def test_what_was_fitted_to_a_stack_is_no_property_of_its_gpu() -> None:
    for calibrations, generation in (((), "hopper"), (("calibration=bytescale-h20",), "bytescale-h20")):
        overrides = ("cluster.node=hgx-h20-96gb", *calibrations)
        scenario = load_scenario("quickstart-8gpu", overrides)
        features, _ = setup_features(scenario.setup(), np.full(8, 2048))
        assert features.generation == generation
        assert not scenario.notes  # both are made for Hoppers


def test_every_difference_has_plain_words() -> None:
    other = replace(
        RUN, gpu="a100-80gb", generation="ampere", bits=8, sharded=not RUN.sharded, experts=True, recompute="full",
        dynamic=not RUN.dynamic, missing=True, gpus=2048, parameters=7e10, sequence_tokens=131_072, tp=16, pp=16, cp=16,
        ep=16, strategy="hdp-opt", adapters=True, hybrid=True,
    )  # fmt: skip
    names = [field.name for field in fields(RUN)]
    text = differences_in_words(RUN, other)
    assert text.count(" instead of ") == len(names)
    for name in names:
        assert "_" not in text, name
        one = differences_in_words(RUN, replace(RUN, **{name: getattr(other, name)}))
        assert one in text
    assert "2,048 GPUs instead of 64" in text
    assert "70B parameters instead of 8B" in text
    assert "131,072 tokens in a typical sequence instead of 8,192" in text
    assert differences_in_words(RUN, replace(RUN, gpus=65)) == "many little differences"
