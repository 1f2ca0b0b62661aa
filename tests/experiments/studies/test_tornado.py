"""Inputs moved one at a time: each row is what `simulate` says of the same change."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario, resolve_scenario
from hdpsim.experiments.studies.changes.tornado import (
    Input,
    Tornado,
    inputs_of,
    tornado,
    tornado_document,
)
from hdpsim.experiments.studies.comparing.compare import Lengths, Outcome, run_batches, run_setup
from hdpsim.simulator.setup import Setup


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    changes = ("data.lengths=4K", "data.batch=64 sequences", "data.context=4K", "strategy.name=static")
    return load_scenario("quickstart-8gpu", (*changes, "execution.batches=1"))


@pytest.fixture(scope="module")
def simulated() -> list[str]:
    """The strategy of everything that `study` simulated."""
    return []


@pytest.fixture(scope="module")
def study(scenario: Scenario, simulated: list[str]) -> Tornado:
    def counted(setup: Setup, batches: Sequence[Lengths], name: str, *report: Callable[[], None]) -> Outcome:
        simulated.append(name)
        return run_setup(setup, batches, name, *report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hdpsim.experiments.studies.changes.tornado.run_setup", counted)
        return tornado(scenario, 0.1)


@pytest.mark.parametrize(
    ("key", "lower", "higher"),
    [
        ("cluster.node.gpu.bf16", "890100GFLOP/s", "1087900GFLOP/s"),
        ("cluster.node.gpu.hbm_bandwidth", "3015GB/s", "3685GB/s"),
        ("cluster.node.gpu.nvlink", "405GB/s", "495GB/s"),
        ("cluster.node.gpu.tdp", "630W", "770W"),
        ("data.batch", "58 sequences", "70 sequences"),
    ],
)
def test_rows_are_what_simulate_says(
    scenario: Scenario, study: Tornado, key: str, lower: str, higher: str
) -> None:
    (row,) = (one for one in study.moved if one.input.key == key)
    for end, text in ((row.lower, lower), (row.higher, higher)):
        changed = scenario.with_changes((f"{key}={text}",))
        (result,) = run_batches(changed, changed.batches()).results
        assert end.tokens_per_s == pytest.approx(result.tokens_per_s, rel=1e-12)
        assert end.change == pytest.approx(result.tokens_per_s / study.tokens_per_s - 1.0)


def test_constants_move_too(scenario: Scenario, study: Tornado) -> None:
    (row,) = (one for one in study.moved if one.input.key == "calibration.gemm_efficiency")
    cal = replace(scenario.calibration, gemm_efficiency=0.9 * scenario.calibration.gemm_efficiency)
    (result,) = run_batches(replace(scenario, calibration=cal), scenario.batches()).results
    assert row.lower.tokens_per_s == pytest.approx(result.tokens_per_s, rel=1e-12)


def test_sorted_by_effect_and_those_without_counted(scenario: Scenario, study: Tornado) -> None:
    effects = [one.effect for one in study.moved]
    assert effects == sorted(effects, reverse=True)
    data = tornado_document(scenario, study).data()
    assert len(data["results"]) == len(inputs_of(scenario)) == len(study.moved)
    assert data["without_effect"] == sum(effect == 0.0 for effect in effects) - sum(
        bool(one.reasons) and one.effect == 0.0 for one in study.moved
    )
    keys = {one.input.key for one in study.moved}
    assert {"cluster.node.nic", "data.context", "calibration.network.nvlink_efficiency"} <= keys
    assert not any(key.startswith("costs") or key.endswith(".price") for key in keys)


def test_an_end_that_cannot_be_has_its_reason(study: Tornado) -> None:
    (row,) = (one for one in study.moved if one.input.key == "data.context")
    assert row.lower.change is None
    assert "data.lengths" in row.reasons


def test_faster_parts_make_no_step_slower(study: Tornado) -> None:
    for one in study.moved:
        # a GPU at its power limit is slower with more of it
        energy = one.input.key.endswith(".matrix_energy")
        if one.input.key.startswith("cluster.node") and one.effect > 1e-6 and not energy:
            assert (one.lower.change or 0.0) <= (one.higher.change or 0.0), one.input.key


def test_the_command_takes_no_changes_beside_it() -> None:
    run = CliRunner().invoke(cli, ["whatif", "quickstart-8gpu", "--tornado", "--set", "layout.tp=4"])
    assert run.exit_code == 2
    assert "--tornado goes without" in run.output


def test_the_command_writes_table_and_plot(scenario: Scenario, tmp_path: Path) -> None:
    file, out = tmp_path / "mesh.yaml", tmp_path / "out"
    file.write_text(scenario.to_yaml())
    command = ["whatif", str(file), "--json", "--out", str(out), "--tornado"]
    run = CliRunner().invoke(cli, command, catch_exceptions=False)
    data = json.loads(run.stdout)
    assert data["tornado"] == 0.1
    assert data["results"][0]["effect"] >= data["results"][1]["effect"]
    assert {"tornado.csv", "tornado.png", "result.json"} <= {path.name for path in out.iterdir()}


def of_unequal_lengths(batches: int) -> Scenario:
    return resolve_scenario({
        "model": "llama-3-8b",
        "cluster": {"node": "hgx-h100-80gb", "gpus": 8},
        "layout": {"tp": 2},
        "data": {"lengths": ["4K", "1K", "1K", "2K", "3K", "512"], "batch": "64 sequences", "context": "4K tokens"},
        "strategy": {"name": "static"},
        "execution": {"batches": batches},
    })  # fmt: skip


def moving(monkeypatch: pytest.MonkeyPatch, *beginnings: str) -> None:
    """Only inputs whose keys begin so are moved: all of them take as long as the rest of these tests together."""

    def few(scenario: Scenario) -> tuple[Input, ...]:
        return tuple(one for one in inputs_of(scenario) if one.key.startswith(beginnings))

    monkeypatch.setattr("hdpsim.experiments.studies.changes.tornado.inputs_of", few)


def test_inputs_of_the_data_are_means_over_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one batch a little more or less of it tells what it happens to hold."""
    moving(monkeypatch, "data.", "cluster.node.gpu.")
    uneven = of_unequal_lengths(6)
    study = tornado(uneven, 0.1)
    assert study.tokens_per_s == run_batches(uneven, uneven.batches(1)).tokens_per_s.mean
    (row,) = (one for one in study.moved if one.input.key == "data.batch")
    base = run_batches(uneven, uneven.batches(6)).tokens_per_s.mean
    more = uneven.with_changes(("data.batch=70 sequences",))
    expected = run_batches(more, more.batches(6)).tokens_per_s.mean / base - 1.0
    assert row.batches == 6
    assert row.higher.change == pytest.approx(expected, rel=1e-12)
    assert {one.batches for one in study.moved if one.input.key.startswith("cluster")} == {1}
    shown = {row["input"]: row.get("remark") for row in tornado_document(uneven, study).blocks[0].records()}  # type: ignore[union-attr]
    assert "means over 6" in shown["data.batch"]
    assert not shown["cluster.node.gpu.bf16"]


def test_more_batches_are_the_mean_of_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    moving(monkeypatch, "data.", "cluster.node.gpu.", "calibration.gemm")
    uneven = of_unequal_lengths(1)
    study = tornado(uneven, 0.1, 2)
    assert study.tokens_per_s == run_batches(uneven, uneven.batches(2)).tokens_per_s.mean
    assert {one.batches for one in study.moved} <= {0, 2}


def test_what_the_base_never_reads_is_not_simulated_and_would_change_nothing(
    scenario: Scenario, study: Tornado, simulated: list[str]
) -> None:
    idle = [one for one in study.moved if one.lower.change == 0.0 and one.higher.change == 0.0]
    assert len(idle) > 40
    for one in idle[::6]:
        changed = one.input.set_in(scenario, one.higher.value)
        assert run_batches(changed, scenario.batches()).tokens_per_s.mean == study.tokens_per_s
    assert len(simulated) < 1.4 * len(study.moved)  # of two for each input
