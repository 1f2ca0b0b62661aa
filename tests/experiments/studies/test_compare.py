from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.hardware.prices import CostOptions
from hdpsim.errors import InfeasibleError, NotFiniteError
from hdpsim.experiments.output.files.run_directory import write_document
from hdpsim.experiments.output.json_data import plain
from hdpsim.experiments.output.plots.style import readable_name
from hdpsim.experiments.output.statistics import estimate, with_interval
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.experiments.studies.comparing.compare import Outcome, compare
from hdpsim.experiments.studies.comparing.report import (
    compare_document,
    comparison_table,
    explanation,
    resources_table,
    saved_words,
)
from hdpsim.experiments.studies.scale import scale, scaling_json, scaling_table
from hdpsim.experiments.studies.step_report import account_table, outcome_json

pytestmark = pytest.mark.usefixtures("fake_simulator")


@pytest.fixture
def scenario() -> Scenario:
    return load_scenario("quickstart-8gpu", ("execution.batches=3",))


def test_the_interval_is_students() -> None:
    # mean 2, s = 1, n = 3, t(0.975, 2) = 4.302653: half width 4.302653 / sqrt(3) = 2.484138
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(2.484138, rel=1e-6)


def test_too_few_values_have_a_range_and_no_interval() -> None:
    assert estimate([5.0]).half_width is None
    two = estimate([4.0, 6.0])
    assert (two.mean, two.half_width, two.lowest, two.highest) == (5.0, None, 4.0, 6.0)
    assert with_interval(two, digits=1) == "5.0 (4.0 to 6.0)"


def test_strategies_see_the_same_batches_and_speed_ups_are_paired(scenario: Scenario) -> None:
    comparison = compare(scenario, ("static", "hdp-opt"))
    static, balance = comparison.outcomes
    assert [r.tokens for r in static.results] == [r.tokens for r in balance.results]
    # Steps of 1M tokens on 8 GPUs: static 1 + 3 + 1 = 5 s, balance 1 + 0.5 + 0.25 = 1.75 s.
    assert static.step_s.mean == pytest.approx(5.0)
    assert balance.speed_up(static).mean == pytest.approx(5.0 / 1.75)
    assert balance.speed_up(static).half_width == pytest.approx(0.0, abs=1e-12)


def test_accounts_sum_to_the_step(scenario: Scenario) -> None:
    outcome = compare(scenario, ("hdp-naive",)).base
    assert math.fsum(outcome.account_s().values()) == pytest.approx(outcome.step_s.mean, rel=1e-12)


def test_the_explanation_names_the_fastest_the_ratio_and_the_accounts(scenario: Scenario) -> None:
    text = explanation(compare(scenario))
    assert "hdp-opt is 2.86" in text  # 5 / 1.75
    assert "times as fast as static" in text
    assert "2.500 s less in CP ring" in text
    assert "0.750 s less in wait group" in text


def test_the_explanation_is_about_the_fastest_even_when_it_comes_first(scenario: Scenario) -> None:
    text = explanation(compare(scenario, ("hdp-opt", "static")))
    assert "hdp-opt is 2.86" in text


def test_equals_are_called_equal(scenario: Scenario) -> None:
    comparison = compare(scenario, ("static", "static"))
    assert "equally fast" in explanation(comparison)


def test_the_tables_give_packing_bound_and_memory(scenario: Scenario) -> None:
    comparison = compare(scenario)
    row = comparison_table(comparison).drawn().rows[0]
    assert (row[0], row[4]) == ("static", "40.0%")
    # 8 GPUs of TP 2: four ranks, and groups of four of them.
    row = resources_table(comparison).drawn().rows[0]
    memory = "activations 40.0, weights 8.0"
    assert row[:5] == ("static", "in-order, padded, CP 4", "+4.0%", "60.0 of 80.0 GiB", memory)
    assert re.fullmatch(r"[\d.]+ USD \([\d.]+ to [\d.]+\)", row[5])
    assert float(row[6]) > 0


def test_the_account_table_ends_with_the_step(scenario: Scenario) -> None:
    table = account_table(compare(scenario, ("static",)).feasible).drawn()
    assert table.rows[0] == ("CP ring", "3.000", "60.0%")
    assert table.rows[-1] == ("step", "5.000", "100.0%")


def test_documents_are_equal_from_run_to_run_and_hold_no_nan(scenario: Scenario) -> None:
    def document() -> str:
        return json.dumps(compare_document(compare(scenario)).data(), allow_nan=False)

    assert document() == document()
    assert "wall" not in document()
    for value in (math.nan, math.inf, -math.inf, np.float64("nan"), np.array([1.0, math.inf])):
        with pytest.raises(NotFiniteError, match=r"results\.step_s of the result is"):
            plain({"results": {"step_s": value}})


def test_a_strategy_that_cannot_run_is_reported_beside_the_others(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hdpsim.experiments.studies.comparing import compare as module

    real = module.simulate_step

    def picky(setup: object, lengths: object, **_: object) -> object:
        if setup.strategy.name == "static":  # type: ignore[attr-defined]
            raise InfeasibleError("out of memory")
        return real(setup, lengths)

    monkeypatch.setattr(module, "simulate_step", picky)
    comparison = compare(scenario)
    assert comparison.outcomes[0] == Outcome(strategy="static", reason="out of memory")
    assert comparison.base.strategy == "hdp-naive"
    assert comparison_table(comparison).drawn().rows[0][1] == "cannot run"
    assert outcome_json(comparison.outcomes[0], comparison.base)["reason"] == "out of memory"


def test_when_nothing_can_run_all_reasons_are_given() -> None:
    scenario = load_scenario("quickstart-8gpu", ("gpus=16", "layout.tp=16"))
    with pytest.raises(InfeasibleError, match=r"static: .*needs(.|\n)*hdp-opt: needs 90 GiB"):
        compare(scenario)


def test_the_run_directory_explains_every_file(scenario: Scenario, tmp_path: Path) -> None:
    comparison = compare(scenario)
    write_document(str(tmp_path / "run"), compare_document(comparison))
    files = {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")}
    expected = {"summary.csv", "batches.csv", "accounts.csv", "ranks.csv", "scenario.yaml", "result.json"}
    assert expected <= files
    assert {"time_breakdown.svg", "rank_step_time.png", "length_distribution.png", "throughput.png"} <= files
    readme = (tmp_path / "run" / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in files - {"README.md"})
    assert load_scenario(tmp_path / "run" / "scenario.yaml") == scenario


def test_ranks_csv_rows_sum_to_the_step(scenario: Scenario, tmp_path: Path) -> None:
    import pandas as pd

    comparison = compare(scenario, ("static",))
    write_document(str(tmp_path / "run"), compare_document(comparison))
    table = pd.read_csv(tmp_path / "run" / "ranks.csv")
    assert len(table) == 4  # 8 GPUs / TP 2, one stage
    assert table.drop(columns=["strategy", "rank", "stage"]).sum(axis=1).tolist() == pytest.approx([5.0] * 4)


def test_strong_scaling_keeps_the_batch_and_weak_scaling_grows_it(scenario: Scenario) -> None:
    strong = scale(scenario, (16, 8), ("static",))
    assert strong.gpus == (8, 16)
    assert [point.outcome.results[0].tokens for point in strong.points] == [2**20, 2**20]
    assert [point.own_start and point.own_start.mean for point in strong.points] == pytest.approx([1.0, 1.0])
    weak = scale(scenario, (8, 16), ("static",), weak=True)
    assert [point.outcome.results[0].tokens for point in weak.points] == [2**20, 2**21]


def test_points_that_cannot_run_are_listed(scenario: Scenario) -> None:
    scaling = scale(scenario, (8, 12), ("static", "hdp-opt"))
    assert scaling.series(lambda point: point.outcome.mfu)["static"][1] is None
    assert "whole number of" in scaling_table(scaling).drawn().rows[1][-1]
    assert [point["feasible"] for point in scaling_json(scaling, CostOptions())] == [True, False, True, False]


def test_when_no_point_can_run_it_is_infeasible(scenario: Scenario) -> None:
    with pytest.raises(InfeasibleError, match=r"12 GPUs(.|\n)*20 GPUs"):
        scale(scenario, (12, 20), ("static",))


SECONDS = st.dictionaries(
    st.sampled_from(("gemm", "attention", "ring_wait", "optimizer", "host")), st.floats(0.0, 50.0)
)


@given(SECONDS, SECONDS)
def test_words_of_a_difference_have_its_sign_and_are_worth_reading(
    mine: dict[str, float], its: dict[str, float]
) -> None:
    total_s, words = saved_words(mine, its)
    assert total_s == pytest.approx(sum(its.values()) - sum(mine.values()))
    for amount, kind, name in re.findall(r"(-?[\d.]+) s (less|more) in ([\w ]+?)(?: \(| and |,|;|$)", words):
        assert float(amount) > 0.0, words
        key = next(key for key in {**mine, **its} if readable_name(key) == name)
        less_s = its.get(key, 0.0) - mine.get(key, 0.0)
        assert float(amount) == pytest.approx(less_s if kind == "less" else -less_s, abs=6e-4)
    if not words:
        differences = (abs(its.get(key, 0.0) - mine.get(key, 0.0)) for key in {**mine, **its})
        assert all(each < max(6e-4, 0.02 * abs(total_s)) for each in differences)
