"""Every switch of a scenario with every other: it runs with sane numbers, or says why it cannot."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from experiments.scenario import load_scenario
from experiments.scenario_schema import KEYS
from hdpsim.errors import InfeasibleError, ScenarioError
from simulator.simulate import StepResult, simulate_step

Switches = dict[str, str]

SECTIONS = ("layout.", "data.", "strategy.", "execution.")
VALUES: dict[str, tuple[str, ...]] = {
    name: ("true", "false")
    for name, key in KEYS.items()
    if name.startswith(SECTIONS) and isinstance(key.default, bool)
} | {
    "layout.tp": ("1", "2", "4", "8"),
    "layout.pp": ("1", "2", "3", "4"),
    "layout.vpp": ("1", "2"),
    "layout.schedule": ("1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe"),
    "layout.stage_balance": ("layers", "flop"),
    "layout.cp": ("auto", "1", "2", "4"),
    "layout.cp_kind": ("ring", "all-gather", "gathered-ring", "ulysses"),
    "layout.ep": ("1", "2", "4"),
    "layout.etp": ("auto", "1", "2"),
    "layout.expert_kernels": ("grouped", "separate", "modules", "fused"),
    "layout.expert_imbalance": ("auto", "1", "1.5"),
    "layout.bucket_parameters": ("auto", "1000000"),
    "layout.expert_dispatch": ("all-to-all", "fused"),
    "layout.cuda_graph_scope": ("layers", "iteration"),
    "layout.sharding": ("none", "zero1", "zero2", "zero3"),
    "layout.shard_ranks": ("all", "1", "2"),
    "layout.gradient_bytes": ("2", "4"),
    "layout.gradient_accumulation": ("fused", "separate", "cast"),
    "layout.shard_copies": ("both", "gradients", "none"),
    "layout.recompute": ("none", "selective", "full"),
    "layout.recompute_share": ("0", "0.5"),
    "layout.recompute_products": ("rest", "0.3"),
    "layout.recompute_attention": ("rest", "0"),
    "layout.recompute_collectives": ("rest", "0.5"),
    "layout.precision": ("bf16", "fp8", "mxfp8"),
    "layout.fp8_scaling": ("delayed", "tensor", "row"),
    "layout.tp_batch_first": ("false", "true"),
    "layout.attention_kernel": ("flash", "flash1", "flash2", "unfused"),
    "layout.tp_exchange": ("none", "gathers", "mlp"),
    "layout.order": ("tp-dp-pp", "tp-pp-dp"),
    "layout.rank_capacity": ("auto", "4K"),
    "data.loader": ("shared", "redundant"),
    "strategy.name": ("static", "hdp-naive", "hdp-balance"),
    "strategy.packing": ("in-order", "first-fit", "best-fit", "concatenate"),
    "execution.jitter": ("0", "0.1"),
    "execution.slow_node_share": ("0", "0.5"),
    "execution.gpu_spread": ("auto", "0", "0.02"),
    "execution.gc_pause": ("0s", "100ms"),
}
FASTER = (
    ("layout.tp_overlap", "false", "true"),
    ("layout.ep_overlap", "false", "true"),
    ("layout.pp_overlap", "false", "true"),
    ("layout.dp_overlap", "false", "true"),
    ("layout.prefetch_gather", "false", "true"),
    ("layout.gather_overlap", "false", "true"),
    ("layout.fused_kernels", "false", "true"),
    ("layout.cuda_graphs", "false", "true"),
    ("layout.launch_blocking", "true", "false"),
    ("layout.gather_lists", "true", "false"),
    ("layout.shard_copies", "both", "gradients"),
    ("layout.shard_copies", "gradients", "none"),
    ("layout.checked_collectives", "true", "false"),
    ("layout.cuda_graph_experts", "false", "true"),
    ("layout.cuda_graph_scope", "layers", "iteration"),
    ("layout.fused_loss", "false", "true"),
    ("layout.tp_asynchronous", "false", "true"),
    ("layout.tp_exchange", "none", "gathers"),
    ("layout.tp_exchange", "gathers", "mlp"),
    ("layout.attention_kernel", "unfused", "flash"),
    ("layout.gradient_accumulation", "cast", "separate"),
    ("layout.gradient_accumulation", "separate", "fused"),
    ("layout.expert_imbalance", "2", "1"),
    ("data.asynchronous_loading", "false", "true"),
    ("data.loader", "redundant", "shared"),
)
"""Switch, the value that cannot be faster, the one that cannot be slower."""
SMALL = ("cluster.node=hgx-b200-180gb", "gpus=16", "data.batch=128K tokens", "data.context=8K",
         "layout.rank_capacity=auto")  # fmt: skip
MODELS = {
    "dense": ("model.layers=8",),
    "experts": ("model=mistral-8x7b", "model.layers=8"),
    "latent": ("model=deepseek-v3", "model.layers=5"),
}


@st.composite
def switches(draw: st.DrawFn) -> tuple[str, Switches]:
    """A model and some of the switches; schedules get the chunks and stages they need."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=2, max_size=12, unique=True))
    chosen = {name: draw(st.sampled_from(VALUES[name])) for name in names}
    schedule = chosen.get("layout.schedule", "1f1b")
    if schedule != "1f1b":
        chosen |= {"layout.pp": draw(st.sampled_from(("2", "4"))), "layout.pp_overlap": "true"}
    chosen["layout.vpp"] = "2" if schedule in ("interleaved", "zb-v") else "1"
    return draw(st.sampled_from(sorted(MODELS))), chosen


def step(model: str, chosen: Switches, executor: str = "replay") -> StepResult:
    changes = (*SMALL, *MODELS[model], *(f"{key}={value}" for key, value in chosen.items()))
    scenario = load_scenario("quickstart-8gpu", (*changes, f"execution.executor={executor}"))
    return simulate_step(scenario.setup(), scenario.batches(1)[0])


@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(switches())
@example(("dense", {"layout.cp_kind": "ulysses"}))
@example(("dense", {"layout.cp_kind": "all-gather", "strategy.name": "hdp-naive"}))
def test_any_combination_runs_the_same_in_both_executors_or_says_why_not(case: tuple[str, Switches]) -> None:
    try:
        replay, engine = step(*case), step(*case, "engine")
    except (InfeasibleError, ScenarioError):
        return
    assert 0.0 < replay.step_s < np.inf
    assert 0.0 < replay.mfu < 1.0
    assert np.isfinite(replay.account_s).all()
    assert (replay.account_s >= -1e-12).all()
    assert replay.account_s.sum(axis=0) == pytest.approx(replay.step_s, rel=1e-9)
    assert engine.step_s == pytest.approx(replay.step_s, rel=1e-9)


@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(switches(), st.sampled_from(FASTER))
def test_overlap_and_fusion_never_slow_the_static_mesh(
    case: tuple[str, Switches], change: tuple[str, str, str]
) -> None:
    """Of HDP the planner may decide otherwise; of the static mesh the plan is the same, if memory allows it.

    Packs are padded: of a gather the shortest first micro-batch tells what is hidden, so that ranks of different work
    may wait longer when the shortest gets faster.
    """
    model, chosen = case
    key, slower, faster = change
    if key == "layout.ep_overlap":  # costs launches, which may be what bounds a layer
        chosen["layout.cuda_graphs"] = "true"
    chosen |= {"strategy.name": "static", "strategy.padding": "true", "execution.jitter": "0"}
    try:
        before, after = (step(model, {**chosen, key: value}) for value in (slower, faster))
    except (InfeasibleError, ScenarioError):
        return
    if after.rank_capacity_tokens == before.rank_capacity_tokens:
        assert after.step_s <= before.step_s * (1 + 1e-9)


def test_all_keys_are_combined() -> None:
    left_out = {"execution.executor", "execution.seed", "execution.batches", "execution.slow_node_factor",
                "execution.gc_period_steps", "data.trace", "data.distribution", "data.batch", "data.context",
                "data.policy", "data.seed"}  # fmt: skip
    missing = {name for name in KEYS if name.startswith(SECTIONS)} - left_out - set(VALUES)
    assert not missing, "a switch that is not true or false needs its values above"
