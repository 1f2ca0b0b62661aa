"""A layout that cripples static meshes is no proof of HDP: compare names the mesh of another degree that is faster."""

from __future__ import annotations

import json
import math
from typing import get_args

import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hdpsim.errors import InfeasibleError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.experiments.studies.comparing.compare import Comparison, compare
from hdpsim.experiments.studies.comparing.other_degrees import WORTH_A_WORD
from hdpsim.experiments.studies.comparing.report import explanation
from hdpsim.simulator.setup import Packing

pytestmark = pytest.mark.usefixtures("lean_studies", "each_plan_once")

TWO_NODES = {
    "model": "llama-3-8b",
    "cluster": {"node": "hgx-h100-80gb", "gpus": 16},
    "data": {"distribution": "bytescale-github", "batch": "1M tokens", "context": "128K tokens"},
    "execution": {"batches": 1},
}
HELD_BACK = ("layout.tp=1", "layout.sharding=zero3", "layout.rank_capacity=8K tokens")
HELD = "This layout holds static meshes back"


def compared(*changes: str) -> Comparison:
    """Static against HDP."""
    return compare(load_scenario(TWO_NODES, changes), ("static", "hdp-opt"), baseline=True)


def fastest_static_s(scenario: Scenario) -> float:
    """Seconds of the first batch of the fastest packer, one scenario each."""
    steps = []
    for packing in get_args(Packing):
        own = scenario.with_changes((f"strategy.packing={packing}", "strategy.name=static"))
        try:
            steps.append(compare(own, ("static",)).base.results[0].step_s)
        except InfeasibleError:
            continue
    return min(steps, default=math.inf)


@settings(derandomize=True, max_examples=5, deadline=None)
@given(
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from(("8K tokens", "32K tokens", "auto")),
    st.sampled_from(("zero1", "zero3")),
    st.integers(0, 3),
)
def test_what_is_named_is_what_that_scenario_takes_and_nothing_faster_is_left_out(
    tp: int, capacity: str, sharding: str, seed: int
) -> None:
    changes = (f"layout.tp={tp}", f"layout.rank_capacity={capacity}", f"layout.sharding={sharding}")
    try:
        comparison = compared(*changes, f"data.seed={seed}")
    except InfeasibleError:
        assume(False)
    best = comparison.best_static
    assume(best is not None)
    assert best is not None
    steps = {}
    for degree in (1, 2, 4, 8):
        if degree != tp:
            free = (f"layout.tp={degree}", "layout.rank_capacity=auto", "layout.cp=auto")
            steps[degree] = fastest_static_s(comparison.scenario.with_changes(free))
    quickest = min(steps, key=lambda degree: steps[degree])
    gain = best.results[0].step_s / steps[quickest]
    other = comparison.other_degree
    assert (other is None) == (gain < 1.0 + WORTH_A_WORD)
    assert (HELD in explanation(comparison)) == (other is not None)
    if other is not None:
        assert other.tp == quickest
        assert other.faster_than(best) == pytest.approx(gain)


def test_the_sentence_and_the_document_hold_the_fastest_strategy_against_it() -> None:
    comparison = compared(*HELD_BACK)
    other, best = comparison.other_degree, comparison.best_static
    assert other is not None
    assert best is not None
    hdp = comparison.feasible[-1]
    ratio = other.tried.outcome.results[0].step_s / hdp.results[0].step_s
    text = explanation(comparison)
    assert f"hdp-opt is {ratio:.2f} times as fast as that one" in text
    assert ratio < hdp.speed_up(best).mean
    arguments = ["compare", "quickstart-8gpu", "--batches", "1", "--json", "--set", "layout.tp=1"]
    arguments += ["--set", "layout.sharding=zero3", "--set", "layout.rank_capacity=8K"]
    document = json.loads(CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout)
    named = document["static_mesh_of_another_degree"]
    assert (named is not None) == (HELD in document["explanation"])


def test_one_strategy_alone_asks_for_no_other_layout() -> None:
    assert compare(load_scenario(TWO_NODES, HELD_BACK), ("static",), baseline=True).other_degree is None
