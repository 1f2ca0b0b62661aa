"""Money, energy and CO2: the hand calculation of the docs, measured nodes, and what scenarios may say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.prices import CostOptions
from hdpsim.cost_models.kernels.power import GpuWork, gpu_w
from hdpsim.experiments.campaigns.run import run_campaign
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.output.statistics import fixed
from hdpsim.experiments.scenario.scenario import load_scenario, resolve_scenario
from hdpsim.experiments.studies.comparing.compare import run_batches
from hdpsim.experiments.studies.money import Costs, costs_of, price_of
from hdpsim.experiments.studies.power import cluster_power, waiting_power

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "costs.md"


def by_hand() -> dict[str, float]:
    """The numbers of the page's calculation, each as it says."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, float] = {}
    exec(block, {"min": min}, found)
    for name, written in re.findall(r"^(\w+) = .*  # ([\d.]+) ", block, re.MULTILINE):
        assert found[name] == pytest.approx(float(written), rel=5e-4), name
    return found


def test_the_hand_calculation_of_the_docs() -> None:
    page, options = by_hand(), CostOptions()
    work = GpuWork(
        matrix_s=6.0,
        memory_s=1.0,
        communication_s=2.0,
        waiting_s=1.0,
        product_flop=2.4e15,
        attention_flop=0.3e15,
    )
    cluster = catalog.cluster_of("hgx-h100-80gb", 1024)
    drawn = gpu_w(work, cluster.gpu, calibration("hopper"), "bf16")
    power = cluster_power(cluster, drawn, options)
    costs = Costs(price=price_of(cluster.gpu, options), power=power, gpus=1024, tokens_per_s=500_000.0)
    usd = costs.usd(1e6)
    assert usd is not None
    assert drawn == pytest.approx(page["gpu_w"])
    assert power.node_w == pytest.approx(page["node_w"])
    assert power.facility_w == pytest.approx(page["facility_w"])
    assert costs.kwh(1e6) == pytest.approx(page["kwh"])
    assert usd["typical"] == pytest.approx(page["usd"])


def node(model: Any, gpus: int, sequences: int, length: str, **layout: Any) -> float:
    """kW of a node of H100 that trains with equal sequences."""
    scenario = resolve_scenario(
        {
            "model": model,
            "cluster": {"node": "hgx-h100-80gb", "gpus": gpus},
            "layout": {"sharding": "zero1", **layout},
            "data": {"lengths": length, "batch": f"{sequences} sequences", "context": length},
            "strategy": {"name": "static"},
            "memory": {"must_fit": False},
            "execution": {"batches": 1},
        }
    )
    power = costs_of(run_batches(scenario, scenario.batches()), scenario.costs).power
    assert power is not None
    return power.node_w / 1e3


def test_measured_nodes_that_nothing_was_fitted_to() -> None:
    rated_share = node("llama-2-13b", 8, 64, "4K", tp=2, cp=1)
    assert rated_share / (0.76 * 10.2) - 1 == pytest.approx(-0.05, abs=0.02)
    lora = {"like": "llama-2-70b", "adapter_rank": 16}
    shape = {"tp": 4, "precision": "fp8", "rank_capacity": "8K"}
    small = node(lora, 8, 8, "8K", cp=1, **shape)
    middle = node(lora, 64, 8, "8K", cp=2, **shape)
    large = node(lora, 1024, 64, "8K", cp=4, **shape)
    errors = [small / 6.74 - 1, middle / 5.85 - 1, large / 4.75 - 1]
    assert errors == pytest.approx([0.00, 0.12, 0.25], abs=0.03)
    assert small > middle > large


def test_money_energy_and_co2_follow_their_keys() -> None:
    changes = ("costs.price=2USD/h", "costs.pue=1.2", "costs.co2=400g/kWh", "costs.network_power=50W")
    scenario = load_scenario("llama-3-70b-h100", (*changes, "execution.batches=1", "strategy.name=static"))
    costs = costs_of(run_batches(scenario, scenario.batches()), scenario.costs)
    usd, kwh, power = costs.usd(1e6), costs.kwh(1e6), costs.power
    assert usd is not None
    assert kwh is not None
    assert power is not None
    assert list(usd.values()) == pytest.approx([2.0 * 1024 / 3600 * 1e6 / costs.tokens_per_s] * 3)
    assert power.network_w == 50 * 1024
    assert power.facility_w == pytest.approx(1.2 * (128 * power.node_w + power.network_w))
    assert costs.co2_kg(1e6) == pytest.approx(0.4 * kwh)
    document = costs.document()
    assert document["tokens_per_usd"] * usd["typical"] == pytest.approx(1e6)
    assert document["tokens_per_kwh"] * kwh == pytest.approx(1e6)
    assert "kg CO2" in costs.words


def test_whose_price_counts() -> None:
    both = load_scenario("quickstart-8gpu", ("cluster.node.gpu.price=7USD/h", "costs.price=2USD/h"))
    own = load_scenario("quickstart-8gpu", ("cluster.node.gpu.price=7USD/h",))
    listed = load_scenario("quickstart-8gpu", ("costs.provider=reserved",))
    found = [price_of(each.cluster.gpu, each.costs) for each in (both, own, listed)]
    assert [price.usd_per_hour for price in found] == [2.0, 7.0, 2.35]
    assert "as the scenario says" in found[0].note
    assert "1.70 to 3.50" in found[2].note
    assert "SemiAnalysis" in found[2].note
    changed = load_scenario("quickstart-8gpu", ("cluster.node.gpu.tdp=500W",))
    assert price_of(changed.cluster.gpu, changed.costs).usd_per_hour == 2.95
    replaced = price_of(catalog.gpu("h800-80gb"), CostOptions())
    assert "nothing is known of on-demand" in replaced.note
    unknown = price_of(catalog.gpu("h20-96gb"), CostOptions())
    assert unknown.usd_per_hour is None
    assert "unknown" in unknown.note


def test_a_target_costs_what_its_time_costs() -> None:
    cluster = catalog.cluster_of("hgx-h100-80gb", 8)
    power = cluster_power(cluster, 500.0, CostOptions(pue=1.0))
    costs = Costs(price=price_of(cluster.gpu, CostOptions()), power=power, gpus=8, tokens_per_s=1.0)
    target = costs.target(1e9, fixed(7200.0))
    assert power.network_w == 0  # within one node
    assert target.kwh == pytest.approx(power.node_w * 2 / 1e3)
    assert target.usd == pytest.approx(8 * 2 * 2.95)
    assert target.document()["usd_range"] == pytest.approx({"low": 31.84, "typical": 47.2, "high": 80.0})


def test_a_campaign_pays_for_gpus_that_wait() -> None:
    scenario = load_scenario("campaign-llama3-16k", ("campaign.seeds=1", "execution.batches=1"))
    study = run_campaign(scenario, workers=1)
    costs, step = study.costs, study.plan.undisturbed.power
    assert costs.power is not None
    assert step is not None
    idle = waiting_power(scenario.cluster, scenario.costs)
    assert idle.facility_w < costs.power.facility_w < step.facility_w
    usd = costs.usd(study.tokens.mean)
    assert usd is not None
    hours = study.plan.setup.duration_s / 3600
    assert usd["typical"] == pytest.approx(2.95 * 16_384 * hours)
    fixed_step = load_scenario("campaign-llama3-16k", ("campaign.seeds=1", "campaign.step=6s"))
    assert run_campaign(fixed_step, workers=1).costs.document()["kwh_per_million_tokens"] is None


def test_the_document_and_the_text_have_them() -> None:
    command = ["simulate", "quickstart-8gpu", "--batches", "1", "--tokens", "300B"]
    run = CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False)
    results = json.loads(run.stdout)["results"]
    costs, target = results["costs"], results["target"]
    assert list(costs["usd_per_million_tokens"]) == ["low", "typical", "high"]
    assert target["usd_range"]["typical"] == pytest.approx(target["usd"])
    assert target["kwh"] == pytest.approx(costs["kwh_per_million_tokens"] * 3e5)
    assert target["co2_kg"] is None
    band, share = results["fidelity"], target["seconds"]["mean"] / results["step_s"]["mean"]
    assert target["seconds_p10"] == pytest.approx(band["step_s_p10"] * share)
    assert target["seconds_p90"] == pytest.approx(band["step_s_p90"] * share)
    assert costs["price"]["source"]
    text = CliRunner().invoke(cli, command, catch_exceptions=False).output
    assert "per million tokens" in text
    assert "PUE 1.54" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("costs.pue=0.9", "costs.pue"),
        ("costs.co2=0.4", "expected a text with a unit"),
        ("costs.provider=cloud", "is not one of on-demand"),
        ("costs.prices=2020", "costs.prices"),
        ("costs.prices=no.yaml", "costs.prices"),
        ("cluster.node.server_ratio=0.5", "server_ratio"),
    ],
)
def test_wrong_keys_are_named(change: str, words: str) -> None:
    run = CliRunner().invoke(cli, ["simulate", "quickstart-8gpu", "--set", change])
    assert run.exit_code == 2
    assert words in run.output
