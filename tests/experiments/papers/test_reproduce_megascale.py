"""MegaScale reproduced: cells, conventions, the command; and how near the predictions are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.papers import paper
from hdpsim.experiments.papers.folder import PublishedFigure
from hdpsim.experiments.papers.megascale import (
    PAPER,
    PUBLISHED,
    ablation_jobs,
    ablation_lines,
    mttf,
    startup,
)
from hdpsim.experiments.papers.megascale_steps import FOLDER, SETUP, StepJob, job_of, model_flop_per_token
from hdpsim.experiments.papers.paper import Results, reproduce, run_jobs
from hdpsim.experiments.scenario.scenario import load_scenario, scenario_names

HEADER = "system,model,gpus,global_batch,metric,measured"
MODEL = catalog.model("megascale-175b")


def cell_file(folder: Path, *rows: str, header: str = HEADER) -> str:
    path = folder / "cells.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(path)


NOTHING = Results(records=[], outcomes={})
CELLS_ALONE = replace(PAPER, sections=(PAPER.sections[0],))


def test_cells_are_read_with_what_travels_along(tmp_path: Path) -> None:
    path = cell_file(tmp_path, "megascale,megascale-175b,512,768,mfu,,guess", header=HEADER + ",note")
    (cell,) = FOLDER.read_cells(path)
    inputs = {
        "system": "megascale",
        "model": "megascale-175b",
        "gpus": 512,
        "global_batch": 768,
        "metric": "mfu",
    }
    assert cell == PublishedFigure(inputs=inputs, unit="percent", extra={"note": "guess"})


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("deepspeed,megascale-175b,256,768,step_s,1", "system: 'deepspeed' is not one of"),
        ("megascale,gpt,256,768,step_s,1", "model: 'gpt' is not one of"),
        ("megascale,megascale-175b,-8,768,step_s,1", "gpus: expected a whole number"),
        ("megascale,megascale-175b,256,x,step_s,1", "global_batch: expected a whole number"),
        ("megascale,megascale-175b,256,768,tokens,1", "metric: 'tokens' is not one of step_s, mfu"),
        ("megascale,megascale-175b,256,768,step_s,zero", "measured: expected a number from 1e-09"),
        ("megascale,megascale-175b,256,768,mfu,0.552", "measured: 0.552 is at most 1 %: is it a share"),
    ],
)
def test_bad_cells_are_refused_with_their_row(tmp_path: Path, row: str, what: str) -> None:
    with pytest.raises(UserInputError, match="row 2: " + what):
        FOLDER.read_cells(cell_file(tmp_path, row))


def test_flop_per_token_of_both_conventions() -> None:
    # the paper's own tables: 1.0766e12 in Megatron-LM's rows, 1.0653e12 in MegaScale's, rounding of MFU apart
    assert model_flop_per_token(MODEL, 2048) == pytest.approx(1.0766e12, rel=0.002)
    assert model_flop_per_token(replace(MODEL, sliding_window=768), 2048) == pytest.approx(
        1.0653e12, rel=0.002
    )
    assert model_flop_per_token(replace(MODEL, sliding_window=4096), 2048) == model_flop_per_token(
        MODEL, 2048
    )


def test_cells_of_ones_own_are_predicted_or_have_a_reason(tmp_path: Path) -> None:
    path = cell_file(
        tmp_path, "megascale,megascale-175b,104,768,step_s,1.0", "megascale,megascale-175b,256,64,mfu,60"
    )
    document = reproduce(CELLS_ALONE, path, workers=1).data()
    record, other = document["records"]
    assert other["metric"] == "mfu"
    assert other["error"] == pytest.approx(other["predicted"] / 60 - 1)
    assert record["predicted"] is None
    assert record["error"] is None
    assert "64" in record["reason"]
    assert (document["summary"]["count"], document["summary"]["unpredicted"]) == (1, 1)


def test_the_measurement_has_no_part_in_the_prediction() -> None:
    cell = FOLDER.published_cells()[0]
    assert job_of(cell) == job_of(replace(cell, measured=1.0, inputs={**cell.inputs, "metric": "mfu"}))


def check_table_2(document: dict[str, Any]) -> None:
    assert max(abs(record["error"]) for record in document["records"]) < TABLE_2_TOLERANCE
    ratio = {row["gpus"]: row["predicted"] for row in document["ratios"]}
    assert 1.28 < ratio[12288] < 1.42
    for record in document["records"]:
        assert sum(record["account_s"].values()) == pytest.approx(record["step_s"], rel=1e-9)


TABLE_2_TOLERANCE = 0.08  # the baseline on 256 GPUs is 7.7 % too slow


def test_what_is_missing_without_stragglers_is_a_fixed_time_of_a_step() -> None:
    # the law of equal GPUs that every scenario has by default, and no slow nodes
    changes = ("execution.slow_node_share=0", "execution.gpu_spread=auto")
    missing_s = {}
    for cell in FOLDER.published_cells():
        step_s = replace(job_of(cell), changes=changes).run().step_s
        assert step_s is not None
        assert cell.measured is not None
        assert abs(step_s / cell.measured - 1.0) < TABLE_2_TOLERANCE
        missing_s[cell["system"], cell["gpus"]] = cell.measured - step_s
    for system in SETUP["scenarios"]:  # data-parallel groups of 16 and of 192 ranks
        assert missing_s[system, 1024] == pytest.approx(missing_s[system, 12288], abs=0.12)
    # and the baseline lacks more than MegaScale
    assert 0.0 < missing_s["megascale", 12288] < missing_s["megatron-lm", 12288] < 0.5


def check_table_3(rows: list[dict[str, Any]]) -> None:
    assert [row["step"] for row in rows] == [step["step"] for step in PUBLISHED["ablation"]["steps"]]
    for row in rows:
        # a fixed time is missing, which three times the batch spreads
        spread = row["step"].startswith("LAMB")
        assert abs(row["mfu"] - row["paper_mfu"]) < (1.8 if spread else 1.1), row["step"]
        if row["gain"] is not None:
            assert row["gain"] > 0.3, row["step"]
            bound = 1.3 if spread else 0.6
            assert abs(row["gain"] - row["paper_gain"]) < bound, row["step"]
        assert row["mfu_full"] >= row["mfu"] * (1 - 1e-12)
    window = {row["step"]: row for row in rows}["sliding window"]
    # with full attention counted, all that it saves shows
    assert window["gain"] < window["gain_full"]


@pytest.mark.parametrize(("gain", "right"), [(0.04, 0), (-0.04, 0), (0.0, 0), (-1.0, 0), (0.06, 1), (1.0, 1)])
def test_a_gain_that_is_shown_as_nothing_has_no_sign(gain: float, right: int) -> None:
    rows = [{"mfu": 50.0, "paper_mfu": 50.0, "gain": gain, "paper_gain": 1.0}]
    (line,) = ablation_lines(rows)
    assert f"{right} of 1 gains have the right sign" in line


def test_the_last_step_of_the_ablation_is_the_shipped_scenario() -> None:
    *_, last = ablation_jobs()
    ours, shipped = (
        last.scenario(),
        replace(last, system="megascale", global_batch=768, changes=()).scenario(),
    )
    assert ours.layout == shipped.layout
    assert ours.data == shipped.data
    assert ours.cluster.fabric == shipped.cluster.fabric
    assert replace(ours.model, name="", source="") == replace(shipped.model, name="", source="")


SWITCHES = tuple(change for more in list(SETUP["ablation"].values())[1:-1] for change in more)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.sampled_from(SWITCHES)), st.sampled_from(SWITCHES))
def test_switches_work_in_any_combination_and_never_slow(on: set[str], more: str) -> None:
    job = StepJob(system="megatron-lm", model="megascale-175b", gpus=256, global_batch=64)
    before, after = (
        replace(job, changes=tuple(sorted(switches))).run() for switches in (on - {more}, on | {more})
    )
    assert before.step_s is not None
    assert after.step_s is not None
    assert after.step_s <= before.step_s * (1 + 1e-9)


def test_startup_and_time_to_failure() -> None:
    for row in startup(NOTHING).value:
        if row["error"] is not None:
            assert abs(row["error"]) < 0.2
        else:
            assert row["predicted_s"] < row["paper_below_s"]
    hours = {row["gpus"]: row["hours"] for row in mttf(NOTHING).value}
    assert hours[16384] == pytest.approx(1.8, abs=0.05)
    assert hours[131072] == pytest.approx(0.23, abs=0.01)


@pytest.mark.parametrize("name", [n for n in scenario_names() if n.startswith(("megascale", "megatron"))])
def test_shipped_scenarios_load(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.layout.parallel.ranks(scenario.cluster.gpus) > 1
    assert scenario.batches(1)[0].tolist() == [2048] * (scenario.data.batch.tokens // 2048)  # type: ignore[operator]


@pytest.mark.slow
def test_the_command_reproduces_tables_and_campaigns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdpsim.experiments.papers.megascale_steps.DRAWS", 2)  # of slow GPUs, instead of four
    monkeypatch.setitem(PUBLISHED["weak_scaling"], "gpus", PUBLISHED["weak_scaling"]["gpus"][:2])
    monkeypatch.setattr(paper, "run_jobs", lambda jobs, report, _: run_jobs(jobs, report, 1))
    out = tmp_path / "run"
    done = CliRunner().invoke(cli, ["reproduce", "megascale", "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["kind"] == "reproduce-megascale"
    assert document["summary"]["count"] == len(document["records"]) == len(FOLDER.published_cells())
    check_table_2(document)
    check_table_3(document["ablation"])
    for record in document["records"]:
        assert record["error"] == pytest.approx(record["predicted"] / record["measured"] - 1)
    for row in document["campaigns"]:
        assert row["effective"] > row["paper_effective_above"]
        assert abs(row["accounts_minus_duration_s"]) < 1e-3
    assert document["campaigns"][1]["restarts"] == pytest.approx(466, rel=0.1)
    assert json.loads((out / "result.json").read_text(encoding="utf-8")) == document
    assert {p.name for p in out.glob("*.png")} == {
        f"{name}.png"
        for name in ("paper_against_prediction", "step_times", "ablation", "weak_scaling", "startup", "mttf")
    }


def test_unusable_cells_end_in_one_message(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli, ["reproduce", "megascale", "--cells", cell_file(tmp_path, header="system,gpus")]
    )
    assert done.exit_code == 2
    assert "missing columns model, global_batch, metric, measured" in done.output
