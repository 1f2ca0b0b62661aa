"""What simulate and compare say of links that transfers share."""

from __future__ import annotations

import pytest

from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.comparing.compare import compare
from hdpsim.experiments.studies.comparing.report import compare_document, simulate_document
from hdpsim.simulator.step import simulate_step

SMALL = (
    "gpus=32",
    "model.layers=4",
    "layout.pp=2",
    "layout.rank_capacity=4K",
    "data.batch=512K tokens",
    "data.context=32K",
)


def test_flows_stand_beside_the_independent_step() -> None:
    independent = compare(load_scenario("quickstart-8gpu", SMALL), ("hdp-opt",), 2)
    flows = compare(load_scenario("quickstart-8gpu", (*SMALL, "execution.network=flows")), ("hdp-opt",), 2)
    result = simulate_document(flows).data()["results"]
    network = result["network"]
    assert network["independent_step_s"] == pytest.approx(independent.base.step_s.mean)
    assert result["step_s"]["mean"] == pytest.approx(network["alone_step_s"] * (1.0 + network["contention"]))
    assert network["contention"] >= 0.0
    assert set(network["contention_s"]) <= set(result["account_s"])
    said = [note for note in compare_document(flows).notes if "contention costs" in note]
    assert len(said) == 1
    assert f"{network['independent_step_s']:.3f} s with execution.network = independent" in said[0]
    assert "network" not in simulate_document(independent).data()["results"]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "most_s"), [("hdp-opt", 20.0), ("static", 60.0)])
def test_a_step_of_12_288_gpus_is_played_as_flows_in_seconds(strategy: str, most_s: float) -> None:
    scenario = load_scenario("demo-8x22b-12k", ("execution.network=flows",))
    step = simulate_step(scenario.setup(strategy), scenario.batches(1)[0])
    assert step.execution_wall_s < most_s
    assert step.network is not None
    # a fabric that never blocks, a NIC for every GPU: rings meet transfers between stages and hidden gathers and sums
    assert 0.0 < step.network.contention(step.step_s) < 0.03
