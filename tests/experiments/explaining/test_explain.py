"""hdpsim explain: the parts of a step sum to it, are those of simulate, and lead back to constants and sources."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.explaining.explain import explain, find_term, term_names
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.comparing.compare import compare

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")

UNIFORM = ("strategy.name=static", "layout.tp=2", "layout.pp=2", "data.context=4K")


@pytest.fixture(scope="module")
def uniform() -> dict[str, Any]:
    """Equal micro-batches of 16K tokens: everything happens layers x micro-batches times."""
    return explain(load_scenario("quickstart-8gpu", UNIFORM))


def test_terms_sum_to_the_step_and_are_those_of_simulate(uniform: dict[str, Any]) -> None:
    assert sum(term["seconds"] for term in uniform["terms"]) == pytest.approx(uniform["step_s"], rel=1e-9)
    assert sum(term["share"] for term in uniform["terms"]) == pytest.approx(1.0, rel=1e-9)
    outcome = compare(load_scenario("quickstart-8gpu", UNIFORM), ("static",), 1).base
    simulated = outcome.account_s()
    for term in uniform["terms"]:
        assert term["seconds"] == pytest.approx(simulated[term["term"]], rel=1e-12, abs=1e-15), term["term"]


def of(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(term for term in document["terms"] if term["term"] == name)


def test_one_layer_times_layers_times_micro_batches_is_the_term(uniform: dict[str, Any]) -> None:
    # Padding gives every micro-batch of the static mesh the same shape.
    counts = uniform["counts"]
    times = counts["layers_per_stage"] * counts["micro_batches_per_rank"]
    gemm = of(uniform, "gemm")
    (both,) = gemm["calls"]  # priced together: forward, backward
    assert times * sum(both["result"]) == pytest.approx(gemm["seconds"])
    assert times * sum(row["seconds_per_layer"] for row in gemm["products"]) == pytest.approx(gemm["seconds"])
    tp = of(uniform, "tp_communication")
    (call,) = tp["calls"]
    assert times * sum(call["result"]) == pytest.approx(tp["seconds"])
    # Sequence parallel: two pairs of all-gather and reduce-scatter, one more gather each in the backward.
    gather, scatter = (inner["result"] for inner in call["calls"])
    assert call["result"] == pytest.approx([2 * (gather + scatter), 2 * (2 * gather + scatter)])


@pytest.mark.parametrize(
    ("switches", "term", "name"),
    [
        (("layout.precision=fp8", "layout.blocking_maxima=true"), "tp_communication", "maxima_s"),
        (("layout.gradient_accumulation=separate",), "small_kernels", "accumulation_s"),
        (("layout.loss_average=micro-batch",), "logits", "loss_average_s"),
    ],
)
def test_what_a_pass_takes_whatever_its_tokens_is_listed(
    switches: tuple[str, ...], term: str, name: str
) -> None:
    calls = of(explain(load_scenario("quickstart-8gpu", (*UNIFORM, *switches))), term)["calls"]
    (listed,) = [call for call in calls if call["name"] == name]
    assert listed["formula"]
    assert listed["source"]
    assert listed["result"] > 0.0


def test_a_number_leads_back_to_constants_and_their_sources(uniform: dict[str, Any]) -> None:
    found = find_term(uniform, "tp_all_gather")
    (part,) = found["parts"]
    assert found["term"]["term"] == "tp_communication"
    # 4,096 tokens of 4,096 numbers of 2 bytes
    assert part["inputs"]["bytes_total"] == 2 * 4096 * 4096
    efficiency = part["constants"]["network.nvlink_efficiency"]
    assert efficiency["value"] == calibration("hopper").network.nvlink_efficiency
    assert "NCCL topo.h" in efficiency["source"]
    assert "18 NVLink4 links" in part["constants"]["gpu.nvlink_bytes_per_s"]["source"]
    assert part["calls"][0]["result"] == part["result"]
    assert part["calls"][0]["formula"].startswith("t = ring latency")


def test_products_have_their_shapes(uniform: dict[str, Any]) -> None:
    rows = {(row["product"], row["side"]): row for row in of(uniform, "gemm")["products"]}
    # Llama-3 8B on tp 2: qkv (32 + 2 x 8) x 128 / 2 columns of 4,096 inner
    qkv = rows["qkv", "forward"]
    assert (qkv["m"], qkv["n"], qkv["k"]) == (4096, 3072, 4096)
    weight = rows["mlp_up", "weight gradient"]
    assert (weight["m"], weight["n"], weight["k"]) == (4096, 14336, 4096)
    assert 0 < qkv["flop_per_s"] < 989e12
    assert find_term(uniform, "gemm_qkv")["parts"][0] == qkv


def test_every_account_has_words_and_priced_ones_have_calls(uniform: dict[str, Any]) -> None:
    for term in uniform["terms"]:
        assert term["meaning"]
    for name in ("gemm", "attention", "small_kernels", "tp_communication", "logits", "host", "optimizer"):
        assert of(uniform, name)["calls"], name
    json.dumps(uniform, allow_nan=False)


def test_settings_without_effect_are_named() -> None:
    changes = (*UNIFORM, "layout.vpp=1", "data.loader=redundant", "layout.tp_exchange=mlp")
    notes = explain(load_scenario("quickstart-8gpu", changes))["notes"]
    assert {note.partition(" = ")[0] for note in notes if "changes nothing" in note} >= {
        "data.loader",
        "layout.tp_exchange",
    }


def test_dynamic_groups_are_explained_too() -> None:
    document = explain(load_scenario("quickstart-8gpu"))
    assert sum(term["seconds"] for term in document["terms"]) == pytest.approx(document["step_s"], rel=1e-9)
    assert set(term_names(document)) >= {"ring_wait", "ring_merge", "optimizer", "gemm_mlp_down"}


KINDS = {
    "experts": ("model=mistral-8x7b", "model.layers=4", "layout.ep=2"),
    "latent attention": ("model=deepseek-v2-lite", "model.layers=4", "layout.precision=fp8"),
    "adapters": ("model.adapter_rank=16", "layout.precision=fp8"),
    "parallel block, overlapped": ("model=gpt-neox-20b", "model.layers=4", "layout.tp_overlap=true"),
    "FSDP": ("layout.sharding=zero3", "strategy.name=static", "layout.tp=1"),
    "Ulysses": ("strategy.name=static", "layout.cp_kind=ulysses", "layout.cp=2"),
    "zero bubble": ("model.layers=8", "layout.pp=2", "layout.schedule=zb-h1"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_and_layout_is_explained(kind: str) -> None:
    """Products are summed up by precision and kind of kernel; every side of each is there and they are all of gemm."""
    changes = ("data.batch=128K tokens", "data.context=8K", "layout.rank_capacity=8K", *KINDS[kind])
    document = explain(load_scenario("quickstart-8gpu", changes))
    json.dumps(document, allow_nan=False)
    assert sum(term["seconds"] for term in document["terms"]) == pytest.approx(document["step_s"], rel=1e-9)
    gemm = of(document, "gemm")
    assert gemm["products"]
    own = [
        row for row in gemm["products"] if not row["product"].endswith(("_a", "_b"))
    ]  # adapters' are trained
    frozen = {"weight gradient"} if kind == "adapters" else set()
    assert {row["side"] for row in own} == {"forward", "input gradient", "weight gradient"} - frozen


def test_products_of_experts_are_with_their_own_kernels() -> None:
    """One size of micro-batch: what the products of a layer take is what the layer's call says."""
    changes = ("strategy.name=static", "data.batch=128K tokens", "data.context=4K", *KINDS["experts"])
    gemm = of(explain(load_scenario("quickstart-8gpu", changes)), "gemm")
    rows = {(row["product"], row["side"]): row for row in gemm["products"]}
    assert rows["expert_mlp_up", "forward"]["groups"] == 4  # 8 experts on 2 GPUs
    assert rows["qkv", "forward"]["groups"] == rows["router", "forward"]["groups"] == 1
    (call,) = gemm["calls"]
    for result, sides in zip(
        call["result"], (("forward",), ("input gradient", "weight gradient")), strict=True
    ):
        taken = sum(row["seconds_per_layer"] for (_, side), row in rows.items() if side in sides)
        assert taken == pytest.approx(result)


def test_imbalance_is_shown_with_its_source() -> None:
    changes = ("strategy.name=static", "data.batch=128K tokens", "data.context=4K", *KINDS["experts"])
    for more, name in (
        ((), "calibration.expert_load_spread"),
        (("layout.expert_imbalance=2",), "layout.expert_imbalance"),
    ):
        term = of(explain(load_scenario("quickstart-8gpu", (*changes, *more))), "expert_all_to_all")
        assert name in term["calls"][0]["constants"]


def test_an_unknown_term_is_refused_with_a_suggestion(uniform: dict[str, Any]) -> None:
    with pytest.raises(UserInputError, match="did you mean 'optimizer'"):
        find_term(uniform, "optimiser")
    result = CliRunner().invoke(cli, ["explain", "quickstart-8gpu", "--term", "gem"])
    assert result.exit_code == 2
    assert "did you mean 'gemm'" in result.output


def test_the_command_prints_the_step_or_one_term() -> None:
    runner = CliRunner()
    whole = runner.invoke(cli, ["explain", "quickstart-8gpu"])
    assert whole.exit_code == 0, whole.output
    assert "Where the step goes" in whole.stdout
    one = runner.invoke(
        cli, ["explain", "quickstart-8gpu", "--set", "layout.tp=2", "--term", "tp_reduce_scatter"]
    )
    assert one.exit_code == 0, one.output
    assert "network.nvlink_efficiency = 0.824" in one.stdout
    gemm = runner.invoke(cli, ["explain", "quickstart-8gpu", "--term", "gemm"])
    assert "weight gradient" in gemm.stdout
    data = runner.invoke(cli, ["explain", "quickstart-8gpu", "--term", "gemm", "--json"])
    assert [term["term"] for term in json.loads(data.stdout)["terms"]] == ["gemm"]
