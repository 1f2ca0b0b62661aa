"""`simulate --steps`: what it prints, its files, its steady state, its timeline; `replay` on the same clock."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner
from simulator_runs import a_step, played

from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.parallel.pool import worker_pool
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.comparing.compare import run_batches
from hdpsim.experiments.studies.many_steps.report import steps_table
from hdpsim.experiments.studies.many_steps.run import ManySteps, simulate_many
from hdpsim.simulator.play.execution import SharedLinks

pytestmark = pytest.mark.usefixtures("each_plan_once", "one_process")

SMALL = ("data.batch=128K tokens", "data.context=16K")


def asked(*arguments: str) -> dict[str, Any]:
    sets = [part for change in SMALL for part in ("--set", change)]
    done = CliRunner().invoke(cli, [*arguments, *sets, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_every_step_has_what_sharing_links_and_flaps_cost_it() -> None:
    shared = SharedLinks(independent_s=9.0, alone_s=9.0, contention_s=np.zeros(1), flaps_s=0.4)
    rows = tuple(played([a_step(5.0), replace(a_step(10.0), network=shared)]))
    scenario = SimpleNamespace(run=SimpleNamespace(storage_bytes_per_s=1e9))
    run = SimpleNamespace(steps=rows, warm_up=0, links=None, scenario=scenario)
    table = steps_table(cast(ManySteps, run))
    assert [row["sharing_s"] for row in table.records()] == pytest.approx([0.0, 0.6])
    assert [row["flaps_s"] for row in table.records()] == [0.0, 0.4]
    assert {"+0.600", "+0.400"} <= set(table.drawn().rows[1])


@pytest.mark.slow
def test_with_nothing_slow_steps_are_those_of_single_batches() -> None:
    scenario = load_scenario("quickstart-8gpu", SMALL)
    run = simulate_many(scenario, 6)
    single = run_batches(scenario, scenario.batches(6))
    assert [row.step_s for row in run.steps] == [step.step_s for step in single.results]
    assert [row.period_s for row in run.steps[1:]] == [step.step_s for step in single.results[1:]]
    assert run.steps[0].waited_s > 0
    assert run.warm_up == 2
    assert run.period_s.mean == pytest.approx(run.alone_s, rel=1e-12)
    assert sum(run.account_s().values()) == pytest.approx(run.period_s.mean, rel=1e-9)
    assert run.mfu == pytest.approx(
        sum(step.model_flop for step in single.results[2:])
        / (scenario.cluster.bf16_flop_per_s * sum(step.step_s for step in single.results[2:]))
    )


def test_json_and_files(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    slow = ("--set", "run.planning_time=1min", "--set", "campaign.storage_bandwidth=1MB/s")
    found = asked("simulate", "quickstart-8gpu", "--steps", "8", *slow, "--out", str(folder))
    assert found["kind"] == "run"
    results = found["results"]
    assert results["steps"] == len(results["per_step"]) == 8
    assert results["wait_s"]["plan"] > 0
    first = results["per_step"][0]  # its batch passes an idle storage, of 4 B a token
    assert first["loading_s"] == pytest.approx(128 * 1024 * 4 / 1e6)
    assert first["start_s"] == pytest.approx(first["loading_s"] + first["planning_s"])
    assert results["period_s"]["mean"] >= 60.0
    assert results["planner_busy_share"] > 0.8
    assert results["band"]["step_s_p10"] < results["period_s"]["mean"] < results["band"]["step_s_p90"]
    assert (folder / "steps.png").is_file()
    with (folder / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["end_s"]) for row in rows] == [row["end_s"] for row in results["per_step"]]
    assert [row["warm_up"] for row in rows] == ["True"] * 2 + ["False"] * 6


def test_a_timeline_has_a_lane_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    asked(
        "simulate",
        "quickstart-8gpu",
        "--steps",
        "3",
        "--set",
        "run.checkpoint_steps=1",
        "--timeline",
        str(path),
    )
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"planner", "loaders", "checkpoint", "stage 0"} <= set(lanes.values())
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert {"storage (B/s)", "host memory taken (B)", "batches ready"} <= counters
    for lane in ("planner", "loaders", "stage 0"):  # nobody does two things at once
        spans = sorted(
            (e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and lanes[e["tid"]] == lane
        )
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairwise(spans))


def test_steps_and_batches_are_two_questions() -> None:
    done = CliRunner().invoke(cli, ["simulate", "quickstart-8gpu", "--steps", "3", "--batches", "2"])
    assert done.exit_code == 2
    assert "--steps: give neither --batches nor --tokens" in done.output


@pytest.mark.slow
def test_a_data_set_waits_for_its_planner_too() -> None:
    quick = asked("replay", "quickstart-8gpu", "--steps", "4", "--workers", "1")["results"]
    slow = asked(
        "replay", "quickstart-8gpu", "--steps", "4", "--workers", "1", "--set", "run.planning_time=1min"
    )["results"]
    assert quick["waited_s"] == 0.0
    assert 0.0 < quick["startup_s"] < 1.0
    assert slow["startup_s"] > 60.0
    steps = zip(
        slow["per_step"]["step_s"], slow["per_step"]["waited_s"], quick["per_step"]["step_s"], strict=True
    )
    for period_s, waited_s, step_s in steps:
        assert period_s == pytest.approx(step_s + waited_s)
    # One step ahead: planning of the next batch begins with the step, so every period is the longer of the two.
    assert slow["per_step"]["step_s"][1:] == pytest.approx(
        [max(60.0, before) + step - before for before, step in pairwise(quick["per_step"]["step_s"])],
        rel=0.01,
    )


def test_the_steady_state_has_whole_rounds_of_steps_and_checkpoints() -> None:
    changes = (*SMALL, "run.checkpoint_steps=3", "campaign.checkpoint_block=5s")
    run = simulate_many(load_scenario("quickstart-8gpu", changes), 12)
    assert run.warm_up == 3  # the least is 2, which would leave 10 steps
    assert run.wait_s("checkpoint") == pytest.approx(5.0 / 3.0)
    assert [row.number for row in run.steps if row.wait_checkpoint_s] == [4, 7, 10]


@pytest.mark.slow
def test_steps_that_processes_prepare_are_those_that_are_prepared_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = load_scenario("quickstart-8gpu", SMALL)
    here = simulate_many(scenario, 5)
    monkeypatch.setattr("hdpsim.experiments.studies.many_steps.run.FEWEST_IN_PARALLEL", 1)
    monkeypatch.setattr("hdpsim.experiments.parallel.engines.worker_pool", worker_pool)
    elsewhere = simulate_many(scenario, 5)
    assert [row.end_s for row in elsewhere.steps] == [row.end_s for row in here.steps]
