"""One inventory of a layer's matrices: what reads it agrees with it, and so with each other."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layer.host_launches import forward_launches, small_kernels
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.transformer.flop import forward_flop
from hdpsim.cost_models.transformer.layers import layer_matrices, layer_shards, layer_tensors
from hdpsim.cost_models.transformer.model import LatentAttention, Model
from hdpsim.cost_models.transformer.parameters import layer_parameters, layer_shard, parameters

LATENT = LatentAttention(
    q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6
)
SMALL = Model(
    name="small",
    layers=3,
    hidden=32,
    heads=8,
    kv_heads=4,
    head_dim=4,
    ffn_hidden=64,
    vocab=100,
    experts=8,
    top_k=2,
    shared_expert_ffn=16,
    dense_layers=1,
    dense_ffn_hidden=128,
)

models = st.builds(
    replace,
    st.just(SMALL),
    kv_heads=st.sampled_from([4, 8]),
    gated_mlp=st.booleans(),
    shared_expert_ffn=st.sampled_from([0, 16]),
    latent_attention=st.sampled_from([None, LATENT, replace(LATENT, q_lora_rank=0)]),
)


def shapes(model: Model, *, moe: bool) -> dict[str, tuple[int, int]]:
    return {matrix.name: (matrix.inputs, matrix.outputs) for matrix in layer_matrices(model, moe=moe)}


def test_the_matrices_of_a_layer_by_hand() -> None:
    assert shapes(SMALL, moe=False) == {
        "qkv": (32, 32 + 2 * 16),
        "attention_out": (32, 32),
        "mlp_up": (32, 2 * 128),
        "mlp_down": (128, 32),
    }
    latent = replace(SMALL, latent_attention=LATENT, gated_mlp=False)
    assert shapes(latent, moe=True) == {
        "query_down": (32, 24),
        "query_up": (24, 8 * 12),
        "kv_down": (32, 16 + 4),
        "kv_up": (16, 8 * (8 + 6)),
        "attention_out": (8 * 6, 32),
        "expert_mlp_up": (32, 64),
        "expert_mlp_down": (64, 32),
        "shared_mlp_up": (32, 16),
        "shared_mlp_down": (16, 32),
        "router": (32, 8),
    }


@given(models, st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_shards_hold_every_weight(model: Model, tp: int, ep: int) -> None:
    layout = Layout(tp=tp, ep=ep)
    for moe in (False, True):
        weights = parameters_of_experts = 0
        for shard in layer_shards(model, layout, moe=moe):
            matrix = shard.matrix
            holders = (
                layout.parallel.expert_gpus
                if matrix.block == "experts"
                else tp
                if matrix.cut != "none"
                else 1
            )
            assert shard.weights * holders == matrix.experts * matrix.weights
            weights += shard.weights
            parameters_of_experts += shard.weights if matrix.block == "experts" else 0
        counted = layer_shard(model, layout, moe=moe)
        assert (counted.total - counted.norms, counted.experts) == (weights, parameters_of_experts)


@given(models)
def test_a_token_costs_two_flop_of_every_weight_that_it_meets(model: Model) -> None:
    met = {
        moe: sum(m.inputs * m.outputs * m.experts_per_token for m in layer_matrices(model, moe=moe))
        for moe in (False, True)
    }
    assert forward_flop(model).linear == 2 * (met[False] + 2 * met[True])


@given(models, st.booleans())
def test_a_layer_launches_one_product_for_each_matrix(model: Model, moe: bool) -> None:
    one = Layout(expert_kernels="grouped")
    others = small_kernels(model, one, moe=moe)
    assert (
        forward_launches(model, one, moe=moe) - others == len(layer_matrices(model, moe=moe)) + 1
    )  # attention


def test_what_adapters_and_stacks_see() -> None:
    lora = replace(SMALL, adapter_rank=4)
    for targets, names in {
        "qkv": ["qkv"],
        "attention": ["qkv", "attention_out"],
        "all": ["qkv", "attention_out", "mlp_up", "mlp_down"],
    }.items():
        matrices = layer_matrices(replace(lora, adapter_targets=targets), moe=False)
        assert [matrix.name for matrix in matrices if matrix.adapter_rank] == names
    assert layer_tensors(SMALL, Layout(), moe=False) == 5  # queries, keys and values are one
    assert layer_tensors(SMALL, Layout(ep=4), moe=True) == 2 + 2 * 3 + 3 + 1


@pytest.mark.parametrize("name", ["llama-3-70b", "deepseek-v3", "mixtral-8x7b", "gpt-3-175b"])
def test_parameters_are_the_inventory_and_norms(name: str) -> None:
    model = catalog.model(name)
    dense = model.dense_layers if model.experts else model.layers
    counts = {False: dense, True: model.layers - dense}
    total = sum(
        count
        * (sum(m.parameters for m in layer_matrices(model, moe=moe)) + layer_parameters(model, moe=moe).norms)
        for moe, count in counts.items()
        if count
    )
    outside = parameters(model)
    total += outside.embedding + outside.head + outside.positions
    assert outside.total - total == model.hidden * (2 if model.norm == "layer" else 1)  # the final norm


def test_gpus_beyond_the_key_and_value_heads_hold_copies_of_them() -> None:
    qkv = {tp: layer_shards(SMALL, Layout(tp=tp), moe=False)[0].outputs for tp in (1, 4, 8)}
    assert qkv == {1: 32 + 2 * 16, 4: 8 + 2 * 4, 8: 4 + 2 * 4}


def test_a_bias_behind_the_sum_over_gpus_is_on_each_of_them() -> None:
    plain, biased = (
        layer_shard(replace(SMALL, biases=biases), Layout(tp=8), moe=False).dense for biases in (False, True)
    )
    assert biased - plain == (4 + 2 * 4) + 32 + 2 * 128 // 8 + 32
    experts = layer_parameters(replace(SMALL, expert_biases=True), moe=True).experts
    assert experts - layer_parameters(SMALL, moe=True).experts == 8 * (2 * 64 + 32)
