"""Replications: paired by common random numbers, and as many as asked for."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.comparing.compare import compare
from hdpsim.experiments.studies.many_steps.replications import replicate, replicate_runs
from hdpsim.experiments.studies.many_steps.run import simulate_many

SMALL = ("data.batch=256K tokens", "data.context=16K", "gpus=16")
NOISE = ("execution.node_jitter=0.05", "execution.step_jitter=0.05")


def test_pairs_are_tighter_than_what_chance_does_to_both() -> None:
    scenario = load_scenario("quickstart-8gpu", (*SMALL, *NOISE))
    comparison = compare(scenario, ("static", "hdp-opt"), 2)
    rows = replicate(comparison, 12)
    assert [row.strategy for row in rows] == ["static", "hdp-opt"]
    for row, outcome in zip(rows, comparison.outcomes, strict=True):
        assert len(row.seconds) == 12
        assert row.seconds[0] == pytest.approx(
            outcome.step_s.mean, rel=1e-12
        )  # the first is what was compared
        assert len(set(row.seconds)) == 12
    ratio = rows[1].speed_up
    unpaired = np.std(rows[0].seconds) / np.mean(rows[0].seconds)
    assert ratio.half_width is not None
    assert ratio.half_width < unpaired * ratio.mean  # the factor of a step cancels out
    assert rows[0].speed_up.mean == 1.0
    assert rows[0].saved_s.highest == 0.0


def test_batches_of_a_run_meet_other_moments() -> None:
    lengths = ("data.lengths=4K", *SMALL)
    steps = [
        [
            result.step_s
            for result in compare(
                load_scenario("quickstart-8gpu", (*lengths, *more)), ("static",), 3
            ).base.results
        ]
        for more in ((), ("execution.step_jitter=0.1",), ("execution.gpu_spread=0.1",))
    ]
    assert [len(set(found)) for found in steps] == [
        1,
        3,
        1,
    ]  # equal batches: only what changes in time differs


def test_nothing_drawn_is_said() -> None:
    comparison = compare(load_scenario("quickstart-8gpu", SMALL), ("static",), 1)
    with pytest.raises(UserInputError, match="nothing is drawn at random"):
        replicate(comparison, 3)


def test_runs_that_drift_vary_more_than_their_steps_say() -> None:
    drift = ("execution.node_jitter=0.05", "execution.node_jitter_steps=50", "data.lengths=4K")
    scenario = load_scenario("quickstart-8gpu", (*SMALL, *drift))
    (row,) = replicate_runs(scenario, 6, 8)
    run = simulate_many(scenario, 6)
    assert row.seconds[0] == run.period_s.mean
    assert run.period_s.half_width is not None
    assert row.step_s.half_width is not None
    # a node's pace hardly changes in 6 steps of 50: what 6 steps of one run say about another is too sure
    assert row.step_s.highest - row.step_s.lowest > 2 * run.period_s.half_width


def test_the_command_shows_them() -> None:
    changes = [part for change in (*SMALL, *NOISE) for part in ("--set", change)]
    shown = CliRunner().invoke(
        cli, ["simulate", "quickstart-8gpu", "--batches", "1", "--replications", "3", *changes]
    )
    assert shown.exit_code == 0, shown.output
    assert "3 replications with other machines and moments" in shown.output
