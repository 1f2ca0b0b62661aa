from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import Task, tasks

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.transformer.model import Model
from hdpsim.simulator.settings import CHANGES_NOTHING, with_default
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.without_effect import without_effect

MODEL = catalog.model("llama-3-8b")
CLUSTER = catalog.cluster("superpod-h100")


def named(layout: Layout, model: Model = MODEL) -> tuple[str, ...]:
    setup = Setup(
        model=model, cluster=CLUSTER, layout=layout, calibration=calibration("hopper"), context_tokens=8192
    )
    return without_effect(setup)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shard_ranks": 2, "sharding": "none"}, "shard_ranks = 2 changes nothing: sharding is none"),
        (
            {"gather_overlap": False, "sharding": "zero3"},
            "gather_overlap = false changes nothing: sharding is zero3",
        ),
        (
            {"owner_broadcasts": True, "sharding": "none"},
            "owner_broadcasts = true changes nothing: sharding is none",
        ),
        ({"gather_lists": True}, "gather_lists = true changes nothing: sharding is zero1, not zero3"),
        ({"shard_copies": "none"}, "shard_copies = none changes nothing: sharding is zero1, not zero3"),
        ({"recompute_products": 0.5}, "recompute_products = 0.5 changes nothing: recompute is none"),
        ({"recompute_attention": 0.0}, "recompute_attention = 0 changes nothing: recompute is none"),
        ({"fp8_scaling": "row"}, "fp8_scaling = row changes nothing: precision is bf16, not fp8"),
        ({"separate_scale_updates": True}, "separate_scale_updates = true changes nothing: it needs fp8"),
        ({"blocking_maxima": True}, "blocking_maxima = true changes nothing: it needs fp8"),
        (
            {"expert_padding": True, "precision": "fp8"},
            "expert_padding = true changes nothing: llama-3-8b has no",
        ),
        (
            {"bf16_parts": "latent+prediction", "precision": "fp8"},
            "bf16_parts = latent+prediction changes nothing: llama-3-8b has no such parts",
        ),
        ({"tp_batch_first": True}, "tp_batch_first = true changes nothing: tp is 1"),
        (
            {"untuned_for_arm": True},
            "untuned_for_arm = true changes nothing: the nodes' processors are not Arm's",
        ),
        (
            {"cuda_graph_scope": "iteration"},
            "cuda_graph_scope = iteration changes nothing: cuda_graphs is false",
        ),
    ],
)
def test_switches_without_effect_are_named_with_the_reason(changes: dict[str, object], why: str) -> None:
    (note,) = named(Layout().changed(**changes))
    assert why in note


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shard_ranks": 2, "gather_overlap": False, "owner_broadcasts": True, "gradient_all_reduce": True},
        {"gather_lists": True, "shard_copies": "gradients", "sharding": "zero3"},
        {"recompute": "full", "recompute_products": 0.5, "recompute_attention": 0.0},
        {"precision": "fp8", "separate_scale_updates": True},
        {"precision": "fp8", "bf16_parts": "attention+latent"},
        {"precision": "fp8", "fp8_scaling": "row", "tp": 2, "tp_batch_first": True},
        {"deferred_head_gradient": True, "pp": 4},
        {"cuda_graphs": True, "cuda_graph_scope": "iteration"},
    ],
)
def test_switches_with_an_effect_are_not(changes: dict[str, object]) -> None:
    assert named(Layout().changed(**changes)) == ()


def test_targets_without_adapters_are_named() -> None:
    aimed = replace(MODEL, adapter_targets="all")
    assert named(Layout(), aimed) == ("model.adapter_targets = all changes nothing: adapter_rank is 0",)
    assert named(Layout(), replace(aimed, adapter_rank=8)) == ()


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(tasks(), st.booleans(), st.booleans())
def test_what_is_said_to_change_nothing_changes_nothing(task: Task, dynamic: bool, padding: bool):
    """With a host link so slow that every transfer to the host shows."""
    options = replace(task.setup.strategy, activation_offload=1.0, dynamic_groups=dynamic, padding=padding)
    slow_link = replace(task.setup.calibration, host_link_efficiency=0.01)
    setup = replace(task.setup, strategy=options, calibration=slow_link)
    told = simulate_step(setup, task.lengths)
    for note in told.notes:
        key, said, _ = note.partition(" = ")
        if said and CHANGES_NOTHING in note:
            plain = simulate_step(with_default(setup, key), task.lengths)
            assert (plain.step_s, plain.memory) == (told.step_s, told.memory), note


def test_experts_with_more_copies_than_ranks_feel_shard_ranks_of_all_ranks() -> None:
    """tp 2, experts whole on every GPU: two copies a rank, which shards of all ranks do not join."""
    model = replace(catalog.model("mixtral-8x7b"), layers=4)
    ranks = CLUSTER.gpus // 2
    layout = Layout(tp=2, etp=1, shard_ranks=ranks)
    assert not any("shard_ranks" in note for note in named(layout, model))
    assert any("shard_ranks" in note for note in named(layout.changed(etp=2), model))


def test_how_packs_are_cut_matters_only_where_ranks_share_packs() -> None:
    layout = Layout(cp_sharding="pack")
    setup = Setup(
        model=MODEL, cluster=CLUSTER, layout=layout, calibration=calibration("hopper"), context_tokens=8192
    )
    assert without_effect(setup, 2) == ()
    (single,) = without_effect(setup, 2, shares_packs=False)
    assert "cp_sharding = pack changes nothing: what ranks share are single sequences" in single
    (usual,) = named(Layout(cp_sharding="adaptive"))
    assert "which does so anyway" in usual


def test_what_software_set_is_named_as_such() -> None:
    """Somebody who reads his scenario does not find the key there."""
    layout = Layout(sharding="none", owner_broadcasts=True, gather_overlap=False)
    setup = Setup(
        model=MODEL, cluster=CLUSTER, layout=layout, calibration=calibration("hopper"), context_tokens=8192
    )
    of_stack = replace(setup, set_by_software=("owner_broadcasts",))
    stated, of_software = without_effect(setup), without_effect(of_stack)
    assert [note.replace(" (set by software)", "") for note in of_software] == list(stated)
    assert [note for note in of_software if "(set by software) changes nothing" in note] == [
        note for note in of_software if "owner_broadcasts" in note
    ]
