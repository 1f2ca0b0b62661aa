"""Commands on a cluster of several kinds of nodes: what they answer, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.mixed_cluster import NodeGroup, cluster_of_groups
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.hardware.prices import CostOptions
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.parallel.code_version import scenario_key
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.comparing.compare import run_setup
from hdpsim.experiments.studies.money import costs_of, mean_price
from hdpsim.experiments.sweeps.axes import load_sweep
from hdpsim.experiments.sweeps.cells import expand

pytestmark = pytest.mark.usefixtures("each_plan_once")

SCENARIO = """
model: llama-3-8b
cluster:
  name: two generations
  nodes:
    - {node: hgx-h100-80gb, count: 1}
    - {node: hgx-a100-80gb, count: 1}
layout: {tp: 2}
data: {trace: debian-code, batch: 128K tokens, context: 16K tokens}
execution: {batches: 1}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "mixed.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_compare_shows_every_kind(scenario: str):
    result = run("compare", scenario, "--strategies", "static,hdp-opt", "--tokens", "1B")
    assert result.exit_code == 0, result.output
    assert "8 x h100-80gb + 8 x a100-80gb" in result.output
    assert "no validated run mixes nodes" in result.output
    assert "by speed: " in result.output


def test_cells_of_sweeps_know_their_nodes(scenario: str, tmp_path: Path):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"base: {scenario}\ngrid: {{strategy.speed_aware: [true, false]}}\n", encoding="utf-8")
    aware, ignoring = expand(load_sweep(sweep))
    assert aware.key != ignoring.key
    other = tmp_path / "other.yaml"
    other.write_text(SCENARIO.replace("hgx-a100-80gb", "hgx-a100-40gb"), encoding="utf-8")
    assert scenario_key(load_scenario(other)) != aware.key


def test_whatif_says_what_it_buys_to_know_speeds(scenario: str):
    result = run("whatif", scenario, "--set", "strategy.speed_aware=false", "--json")
    assert result.exit_code == 0, result.output
    aware, ignoring = json.loads(result.stdout)["results"][:2]
    assert ignoring["tokens_per_s"]["mean"] < 0.8 * aware["tokens_per_s"]["mean"]


def test_the_resolved_scenario_reads_back(scenario: str, tmp_path: Path):
    shown = run("scenarios", scenario)
    assert shown.exit_code == 0, shown.output
    again = tmp_path / "again.yaml"
    again.write_text(shown.stdout, encoding="utf-8")
    steps = [
        json.loads(run("simulate", path, "--json").stdout)["results"]["step_s"]
        for path in (scenario, str(again))
    ]
    assert steps[0] == steps[1]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("explain",), 3, "mixes nodes"),
        (("campaign",), 3, "mixes nodes"),
        (("plan",), 3, "mixes nodes"),
        (("check",), 3, "mixes nodes"),
        (("scale", "--gpus", "8"), 3, "the size that its list of nodes says"),
        (("simulate", "--set", "software=megatron-core"), 3, "mixes nodes"),
        (("simulate", "--set", "gpus=8"), 3, "the size that its list of nodes says"),
        (("simulate", "--set", "cluster.node.nic=100Gbps"), 2, "must not be given together with a list"),
        (("simulate", "--set", "calibration=hopper"), 2, "takes the calibration of each GPU's generation"),
        (("simulate", "--set", "layout.pp=2"), 3, "layout.order = tp-pp-dp"),
        (("simulate", "--set", "layout.precision=fp8"), 3, "a100-80gb has no FP8"),
    ],
)
def test_what_is_not_modelled_ends_in_one_message(
    scenario: str, arguments: tuple[str, ...], code: int, words: str
):
    verb, *options = arguments
    result = run(verb, scenario, *options)
    assert result.exit_code == code, result.output
    assert words in result.output


def test_a_switch_for_mixed_nodes_changes_nothing_elsewhere():
    result = run("simulate", "quickstart-8gpu", "--set", "strategy.speed_aware=false")
    assert "strategy.speed_aware = false changes nothing: all nodes are of one kind" in result.output


def test_money_and_power_are_those_of_all_kinds():
    h100, a100 = (catalog.cluster_of(name, 16) for name in ("hgx-h100-80gb", "hgx-a100-80gb"))
    groups = [NodeGroup(node=one.node, nodes=1 + 2 * (one is a100)) for one in (h100, a100)]
    mixed = cluster_of_groups("mixed", groups)
    costs = CostOptions()
    prices = [mean_price(cluster, costs).usd_per_hour for cluster in (h100, a100, mixed)]
    assert None not in prices
    assert prices[2] == pytest.approx(0.25 * prices[0] + 0.75 * prices[1])


def test_nodes_that_are_equal_but_for_their_name_draw_the_same_power(scenario: str):
    one = load_scenario(scenario, ("strategy.speed_aware=false",)).setup()
    node = one.cluster.kinds[0].node
    twice = cluster_of_groups(
        "twice", [NodeGroup(node=node, nodes=1), NodeGroup(node=replace(node, name="other"), nodes=1)]
    )
    plain = replace(one, cluster=Cluster(name="plain", node=node, nodes=2), kind_calibrations=())
    twins = replace(one, cluster=twice, kind_calibrations=(one.calibration, one.calibration))
    lengths = [np.full(32, 4096)]
    powers = [costs_of(run_setup(setup, lengths, "hdp-opt"), CostOptions()).power for setup in (plain, twins)]
    assert powers[0] is not None
    assert powers[1] is not None
    assert powers[1].document() == pytest.approx(powers[0].document(), rel=1e-9)
