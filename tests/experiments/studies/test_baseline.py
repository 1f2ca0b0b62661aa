"""The verdict is about the best static mesh, whatever packer the scenario names."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario.data_use import Drawn
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.experiments.studies.comparing.baseline import best_static
from hdpsim.experiments.studies.comparing.compare import BEST_STATIC, Comparison, compare
from hdpsim.experiments.studies.comparing.report import comparison_table, explanation, resources_table
from hdpsim.simulator.setup import Packing
from hdpsim.simulator.step import simulate_step

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")


def uneven(seed: int, count: int = 60) -> np.ndarray[Any, np.dtype[np.int64]]:
    rng = np.random.default_rng(seed)
    return np.minimum(rng.lognormal(8.5, 1.3, count).astype(np.int64) + 1, 128 * 1024)


@settings(derandomize=True, max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(get_args(Packing)))
def test_no_packer_beats_the_best_static_mesh(seed: int, own: str) -> None:
    scenario = load_scenario("quickstart-8gpu", (f"strategy.packing={own}", "strategy.name=static"))
    lengths = uneven(seed)
    found = compare_of(scenario, (lengths,)).baseline
    assert found is not None
    for packing in get_args(Packing):
        setup = load_scenario("quickstart-8gpu", (f"strategy.packing={packing}",)).setup("static")
        assert simulate_step(setup, lengths).tokens_per_s <= found.best.tokens_per_s.mean * (1 + 1e-3)
    assert found.best_whole is not None
    assert found.best_whole.work_left_out == 0.0


def compare_of(scenario: Scenario, batches: tuple[Any, ...]) -> Comparison:
    """A comparison on given batches."""
    from hdpsim.experiments.studies.comparing.compare import run_batches

    outcome = run_batches(scenario, batches, "static")
    found = best_static(scenario, batches, outcome, independent=True)
    drawn = Drawn(lengths=batches, use=scenario.draw(1).use)
    return Comparison(scenario=scenario, outcomes=(outcome,), drawn=drawn, baseline=found)


def test_rows_name_packer_padding_and_degree_and_the_last_word_is_about_the_best() -> None:
    scenario = load_scenario("quickstart-8gpu", ("execution.batches=4",))
    comparison = compare(scenario, baseline=True)
    assert [o.strategy for o in comparison.outcomes] == [
        "static", BEST_STATIC, "hdp-naive", "hdp-balance", "hdp-opt"
    ]  # fmt: skip
    best = comparison.best_static
    assert best is not None
    assert best.mesh is not None
    assert best.tokens_per_s.mean > comparison.base.tokens_per_s.mean
    shown = {row[0]: row[1] for row in resources_table(comparison).drawn().rows}
    assert shown["static"] == "in-order, padded, CP 4"
    assert shown[BEST_STATIC] == best.mesh.words.replace(" packing", "")
    assert comparison_table(comparison).drawn().columns[-1] == "over best"
    text = explanation(comparison)
    first = text.partition(":")[0]
    assert f"{BEST_STATIC} ({best.mesh.words})" in first
    assert "static as the scenario has it (in-order packing, padded, CP 4)" in text
    if best.work_left_out > 0:
        assert "less work than whole sequences need" in text
        assert "keeps sequences whole" in text


def test_a_packer_that_splits_sequences_does_less_work_and_its_utilisation_counts_what_it_does() -> None:
    lengths = np.full(6, 100_000, dtype=np.int64)
    found = {}
    for packing in ("in-order", "concatenate"):
        setup = load_scenario("quickstart-8gpu", (f"strategy.packing={packing}",)).setup("static")
        found[packing] = simulate_step(setup, lengths)
    whole, split = found["in-order"], found["concatenate"]
    assert whole.work_left_out == 0.0
    assert 0.0 < split.work_left_out < 1.0
    assert split.model_flop == pytest.approx(whole.model_flop * (1 - split.work_left_out))
    assert split.model_flop_full < whole.model_flop_full
    assert split.tokens == whole.tokens


def test_the_documents_have_meshes_memory_and_what_was_tried() -> None:
    command = ["compare", "quickstart-8gpu", "--batches", "3", "--tokens", "300B", "--json"]
    document = json.loads(CliRunner().invoke(cli, command, catch_exceptions=False).stdout)
    rows = {row["strategy"]: row for row in document["results"]}
    assert document["best_static"] == BEST_STATIC
    assert {each["packing"] for each in document["static_meshes_tried"]} == set(get_args(Packing))
    assert rows["static"]["static_mesh"] == {"packing": "in-order", "padding": True, "cp": 4}
    assert rows[BEST_STATIC]["speed_up_vs_best_static"]["mean"] == 1.0
    for row in rows.values():
        memory = row["memory"]
        assert sum(memory["parts"].values()) == pytest.approx(memory["total_bytes"])
        assert sum(row["share_of_step"].values()) == pytest.approx(1.0)
        target = row["target"]
        assert target["gpu_hours"] == pytest.approx(target["seconds"]["mean"] / 3600 * 8)
        assert target["usd"] == pytest.approx(target["gpu_hours"] * 2.95)


def test_reproductions_keep_the_packer_of_the_paper() -> None:
    comparison = compare(load_scenario("quickstart-8gpu"), ("static",), 1)
    assert comparison.baseline is None
    assert comparison.base.mesh is not None
    assert comparison.base.mesh.packing == "in-order"
