"""hdpsim explain takes apart the very step that hdpsim simulate shows: every second of it, whatever is switched on."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hdpsim import cost_models
from hdpsim.cost_models.kernels.gemm import gemm_s
from hdpsim.cost_models.layer import gemms as layer_gemms
from hdpsim.cost_models.network.algorithms import CollectiveTime
from hdpsim.cost_models.tracing import KeptByReads
from hdpsim.errors import HdpSimError
from hdpsim.experiments.explaining.explain import explain
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.experiments.studies.comparing.compare import run_batches
from hdpsim.simulator.step import StepResult, simulate_step

pytestmark = pytest.mark.usefixtures("lean_studies")

SMALL = ("data.batch=128K tokens", "data.context=8K", "layout.rank_capacity=8K")
MODELS = {
    "dense": ("model.layers=8",),
    "experts": ("model=mistral-8x7b", "model.layers=8"),
    "latent attention": ("model=deepseek-v2-lite", "model.layers=8"),
    "adapters": ("model.layers=8", "model.adapter_rank=16"),
    "parallel block": ("model=gpt-neox-20b", "model.layers=8"),
}
CHOICES: dict[str, tuple[object, ...]] = {
    "gpus": (8, 16, 64),
    "layout.tp": (1, 2, 4),
    "layout.pp": (1, 1, 2, 4),
    "layout.cp": ("auto", 1, 2),
    "layout.cp_kind": (
        "ring", "ring", "all-gather", "gathered-ring", "double-ring", "ulysses", "hybrid", "disaggregated",
    ),
    "layout.ep": (1, 1, 2, 4),
    "layout.etp": ("auto", "auto", 1, 2),
    "layout.schedule": ("1f1b", "1f1b", "zb-h1", "zb-h2"),
    "layout.sharding": ("none", "zero1", "zero1", "zero2", "zero3"),
    "layout.shard_ranks": ("all", "all", 2),
    "layout.recompute": ("none", "selective", "full", "full"),
    "layout.precision": ("bf16", "bf16", "fp8"),
    "layout.fp8_scaling": ("delayed", "tensor", "row", "block"),
    "layout.bf16_layers": (0.0, 0.25),
    "layout.bf16_parts": ("none", "attention", "prediction"),
    "layout.gradient_accumulation": ("fused", "separate", "cast"),
    "layout.expert_dispatch": ("all-to-all", "fused"),
    "layout.expert_kernels": ("grouped", "separate", "modules", "indexed", "fused"),
    "layout.expert_weights": ("outputs", "activations"),
    "layout.attention_kernel": ("flash", "flash", "flash1", "unfused"),
    "layout.tp_exchange": ("none", "none", "gathers", "mlp"),
    "layout.tp_chunks": ("streams", "sequence"),
    "layout.order": ("tp-dp-pp", "tp-pp-dp"),
    "strategy.name": ("static", "hdp-naive", "hdp-opt"),
    "memory.host_run_ahead": (True, False),
    "strategy.activation_offload": (0, 0.5),
    "execution.gpu_spread": ("auto", "auto", 0.02),
    "execution.executor": ("replay", "engine"),
    "data.asynchronous_loading": (True, False),
    "strategy.remote_data_loading": (True, False),
    **{
        f"layout.{switch}": (False, True)
        for switch in (
            "sequence_parallel", "pp_overlap", "dp_overlap", "prefetch_gather", "gather_overlap", "owner_broadcasts",
            "gradient_overlap", "gradient_all_reduce", "gather_lists", "module_hooks", "deferred_head_gradient",
            "optimizer_offload", "tp_overlap", "sum_every_micro_batch", "whole_gradients", "gathered_logits",
            "tp_batch_first", "tp_asynchronous", "ep_overlap", "expert_padding", "fused_kernels", "fused_loss",
            "cuda_graphs", "launch_blocking", "checked_collectives", "blocking_maxima", "separate_scale_updates",
            "recompute_small_kernels", "embedding_layers", "untuned_for_arm",
        )
    },
}  # fmt: skip
"""Values that a key takes; what goes together is left to the scenario's own checks."""

SWITCHES = st.fixed_dictionaries(
    {"model": st.sampled_from(sorted(MODELS))},
    optional={key: st.sampled_from(values) for key, values in CHOICES.items()},
)


def simulated(scenario: Scenario) -> StepResult:
    return simulate_step(scenario.setup(), scenario.batches(1)[0])


def assert_same_step(scenario: Scenario, step: StepResult | None = None) -> None:
    step = step or simulated(scenario)
    explained = explain(scenario)
    assert explained["step_s"] == step.step_s
    seconds = {
        name: float(of_account.mean()) for name, of_account in zip(step.accounts, step.account_s, strict=True)
    }
    assert {term["term"]: term["seconds"] for term in explained["terms"]} == seconds


@settings(max_examples=10)
@given(switches=SWITCHES)
def test_every_switch_leaves_the_explained_step_the_simulated_one(switches: dict[str, object]) -> None:
    model = MODELS[str(switches.pop("model"))]
    changes = (*model, *SMALL, *(f"{key}={str(value).lower()}" for key, value in switches.items()))
    try:
        scenario = load_scenario("quickstart-8gpu", changes)
        step = simulated(scenario)
    except HdpSimError:
        assume(False)
    assert_same_step(scenario, step)


@pytest.mark.parametrize("schedule", ["interleaved", "zb-v", "dualpipe"])
def test_schedules_of_several_chunks(schedule: str) -> None:
    chunks = "layout.vpp=2" if schedule != "dualpipe" else "layout.vpp=1"
    changes = ("model.layers=8", *SMALL, "layout.pp=2", chunks, f"layout.schedule={schedule}")
    assert_same_step(load_scenario("quickstart-8gpu", (*changes, "strategy.name=static", "layout.cp=1")))


@pytest.mark.parametrize("kind", ["ring", "all-gather"])
def test_packs_of_which_it_is_chosen_how_they_are_cut(kind: str) -> None:
    changes = ("strategy.name=wlb-llm", "layout.tp=1", "layout.cp=4", f"layout.cp_kind={kind}")
    assert_same_step(load_scenario("quickstart-8gpu", (*SMALL, *changes)))


def test_documents_that_wait_for_a_later_batch_are_not_explained() -> None:
    long = (
        "execution.batches=2",
        "data.batch=512K tokens",
        "data.context=16K",
        "layout.rank_capacity=16K",
        "model.layers=8",
    )
    waits = ("strategy.name=wlb-llm", "strategy.outlier_queues=2")
    scenario = load_scenario("quickstart-8gpu", (*long, *waits))
    simulated = run_batches(scenario, scenario.batches()).results[0]
    assert simulated.tokens < scenario.batches(1)[0].sum()
    assert explain(scenario)["step_s"] == pytest.approx(simulated.step_s, rel=1e-12)


def test_the_same_arithmetic_is_called_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and collectives that are slower the more of them are priced in one go: nobody may split the calls."""
    seconds = CollectiveTime.seconds

    def slower(self: CollectiveTime, bytes_total: np.ndarray) -> np.ndarray:
        time_s = seconds(self, bytes_total)
        return time_s * (1.0 + time_s.ndim)

    def slower_gemm_s(*sizes: object, **options: object) -> np.ndarray:
        time_s = gemm_s(*sizes, **options)  # type: ignore[arg-type]
        return np.asarray(time_s * (1.0 + time_s.size))

    monkeypatch.setattr(CollectiveTime, "seconds", slower)
    monkeypatch.setattr(layer_gemms, "gemm_s", slower_gemm_s)
    monkeypatch.setattr(layer_gemms, "_kept_products", KeptByReads(keys=1, values=1))
    names = (
        "model.name=slower",
        "cluster.name=slower",
    )  # nothing of them was priced before, nor will be again
    assert_same_step(load_scenario("quickstart-8gpu", (*SMALL, *names, "model.layers=8", "layout.pp=2")))


def test_no_cost_model_knows_whether_somebody_listens() -> None:
    """Only `tracing` looks; what it does for a listener alone (`aside`, `note`) is a statement without a value."""
    for path in Path(cost_models.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "hdpsim.cost_models.tracing"
            for alias in node.names
        }
        known = {"KeptByReads", "Latest", "aside", "note", "priced", "remembered", "shared", "unheard"}
        assert imported <= known, path.name
        statements = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ]
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("aside", "note")
            ):
                assert path.name == "tracing.py" or node in statements, f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("name", ["llama-3-70b-h100", "llama-7b-1k-byted", "megatron-175b-12k"])
def test_shipped_scenarios(name: str) -> None:
    assert_same_step(load_scenario(name))
