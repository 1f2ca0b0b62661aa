import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.activations import head_activation_bytes_per_token, layer_activations
from hdpsim.cost_models.memory.peak import (
    MemoryOverheads,
    activation_bytes_per_token_layer,
    kept_share,
    memory_report,
    rank_capacity_tokens,
    state_bytes,
)
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import parameters, parameters_per_gpu
from hdpsim.cost_models.transformer.stages import in_flight_passes
from hdpsim.errors import InfeasibleError, OutOfMemoryError

GPT = Model(
    name="gpt", layers=8, hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn_hidden=4096, vocab=32000,
    gated_mlp=False, norm="layer", biases=True,
)  # fmt: skip
A100 = catalog.cluster("megascale")


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_gpt_with_dropout_is_the_published_34_sbh(tp: int) -> None:
    # Korthikanti et al., table 2: 34 s b h / t with sequence parallelism; s b h (10 + 24 / t) without; the log-sum-exp
    # of flash attention, 4 B per head, was not known
    whole = layer_activations(GPT, Layout(tp=tp), moe=False, dropout=True)
    assert whole.total - 4 * 16 / tp == pytest.approx(34 * 1024 / tp)
    without = layer_activations(GPT, Layout(tp=tp, sequence_parallel=False), moe=False, dropout=True)
    assert without.total - 4 * 16 / tp == pytest.approx(1024 * (10 + 24 / tp))


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3-8b", "llama-3-405b", "llama-13b"])
def test_gated_grouped_layers_keep_12_plus_4g_plus_6f(name: str) -> None:
    model, tp = catalog.model(name), 8
    groups, width = model.kv_heads / model.heads, model.ffn_hidden / model.hidden
    expected = model.hidden * (12 + 4 * groups + 6 * width) / tp
    kept = layer_activations(model, Layout(tp=tp), moe=False)
    log_sum_exp = 4 * model.heads / tp  # less than 1 %
    assert kept.total - log_sum_exp == pytest.approx(expected)
    assert activation_bytes_per_token_layer(model, Layout(tp=tp)) == pytest.approx(expected, rel=0.01)


def test_megascales_layer_is_107_mb_a_micro_batch() -> None:
    # 34 x 2048 x 12288 / 8 = 107.0e6 with dropout masks; 32 without
    model = catalog.model("megascale-175b")
    assert 2048 * activation_bytes_per_token_layer(model, Layout(tp=8)) == pytest.approx(
        107.0e6 * 32 / 34, rel=0.01
    )


def test_recomputation() -> None:
    model = catalog.model("llama-3-8b")
    assert activation_bytes_per_token_layer(model, Layout(tp=4), "full") == 2 * 4096 / 4
    assert activation_bytes_per_token_layer(model, Layout(tp=4, sequence_parallel=False), "full") == 2 * 4096
    plain = activation_bytes_per_token_layer(model, Layout(tp=4))
    assert activation_bytes_per_token_layer(model, Layout(tp=4), "selective") == plain
    assert activation_bytes_per_token_layer(model, Layout(tp=4, recompute="full")) == 2 * 4096 / 4


def test_kv_heads_fewer_than_tp_are_repeated() -> None:
    model = catalog.model("llama-3-8b")  # 8 KV heads of 128
    kept = layer_activations(model, Layout(tp=16), moe=False)
    assert kept.queries_keys_values == 2 * (2 * 128 + 2 * 1 * 128)  # 2 query heads, 1 KV head on each GPU


def test_mixtral_experts_by_hand() -> None:
    model = catalog.model("mixtral-8x7b")  # h 4096, top 2, f 14336
    for layout, spread in ((Layout(tp=4), 1), (Layout(tp=4, ep=4), 4), (Layout(tp=2, ep=8), 2)):
        kept = layer_activations(model, layout, moe=True)
        dispatched = 2 * 4096 * (2 + 2) / spread  # two copies of each token, input and output of its expert
        inner = 2 * 14336 * 6 / layout.parallel.tp  # gate, up and product, 2 B each
        assert kept.experts == pytest.approx(dispatched + inner + 2 * 4 * 8 / layout.parallel.tp)
        assert kept.mlp == 0


def test_outputs_of_experts_are_not_kept_where_scores_weigh_activations() -> None:
    model = catalog.model("mixtral-8x7b")  # h 4096, top 2
    for layout, spread in ((Layout(tp=4), 1), (Layout(tp=4, ep=4), 4), (Layout(ep=8), 1)):
        stacks = [layout, layout.changed(expert_weights="activations")]
        kept, less = (activation_bytes_per_token_layer(model, stack) for stack in stacks)
        assert kept - less == pytest.approx(2 * 2 * 4096 / spread)
        dense, same = (activation_bytes_per_token_layer(model, stack, moe=False) for stack in stacks)
        assert dense == same


@pytest.mark.parametrize("tp", [1, 4])
def test_norms_and_activation_functions_that_run_again_keep_no_outputs(tp: int) -> None:
    again = Layout(tp=tp, recompute="selective", recompute_small_kernels=True)
    once = again.changed(recompute_small_kernels=False)

    def spared(model: Model, **more: object) -> float:
        kept = [activation_bytes_per_token_layer(model, layout.changed(**more)) for layout in (once, again)]
        return kept[0] - kept[1]

    # inputs of attention and MLP, 2 x 2 h; the product of gate and up, 2 f, of both experts of a token 2 x 2 f
    assert spared(catalog.model("llama-3-8b")) == pytest.approx((4 * 4096 + 2 * 14336) / tp)
    assert spared(catalog.model("mixtral-8x7b")) == pytest.approx((4 * 4096 + 2 * 2 * 14336) / tp)
    # in 8 bits the products keep casts, which nobody makes again
    assert spared(catalog.model("llama-3-8b"), precision="fp8") == 0.0


def test_fp8_keeps_smaller_gemm_inputs() -> None:
    model = catalog.model("llama-3-8b")
    bf16 = activation_bytes_per_token_layer(model, Layout())
    fp8 = activation_bytes_per_token_layer(model, Layout(precision="fp8"))
    # - 2 h (inputs of attention and MLP) - f (product) + h (8-bit copy of the attention output)
    assert bf16 - fp8 == pytest.approx(2 * 4096 + 14336 - 4096)


def test_latent_attention_by_hand() -> None:
    model = catalog.model("deepseek-v3")
    kept = layer_activations(model, Layout(), moe=False)
    assert kept.queries_keys_values == 128 * 2 * (2 * 192 + 128)
    assert kept.latents == 4 * (1536 + 512) + 2 * 64
    assert kept.attention_output == 2 * 128 * 128 + 4 * 128


def test_logits_on_the_last_stage() -> None:
    # published: 4 s b h (1 + V / h) / t with fp32 logits
    assert head_activation_bytes_per_token(GPT, Layout(tp=8), 4.0) == pytest.approx(
        4 * 1024 * (1 + 32000 / 1024) / 8
    )
    # 256K tokens, 128K vocabulary, tp 8: 16 GiB of fp32 logits (ByteScale, figure 16)
    big = replace(GPT, vocab=128 * 1024)
    assert head_activation_bytes_per_token(big, Layout(tp=8), 4.0) * 2**18 == pytest.approx(
        16 * 2**30, rel=0.01
    )


@pytest.mark.parametrize(
    ("sharding", "per_parameter"),
    [("none", 18.0), ("zero1", 6 + 12 / 64), ("zero2", 2 + 16 / 64), ("zero3", 18 / 64)],
)
def test_states_per_parameter(sharding: str, per_parameter: float) -> None:
    model = catalog.model("llama-2-7b")
    layout = Layout(sharding=sharding)  # type: ignore[arg-type]
    states = state_bytes(model, layout, 64, 0)
    count = parameters(model).total
    assert states.total - states.gathered == pytest.approx(per_parameter * count)
    if sharding == "zero3":
        layer = parameters_per_gpu(model, layout, 0).largest_unit
        assert states.gathered == pytest.approx((2 * 2 + 4) * layer * 63 / 64)


def test_shards_inside_a_node_take_more() -> None:
    model, layout = catalog.model("llama-2-7b"), Layout(sharding="zero3", shard_ranks=8)
    states = state_bytes(model, layout, 64, 0)
    assert states.total - states.gathered == pytest.approx(18 / 8 * parameters(model).total)


def test_gradients_that_add_up_whole_take_their_bytes_beside_the_shards() -> None:
    model, layout = catalog.model("llama-2-7b"), Layout(sharding="zero3", whole_gradients=True)
    states = state_bytes(model, layout, 64, 0)
    assert states.total - states.gathered == pytest.approx((4 + 18 / 64) * parameters(model).total)
    one, several, usual = (
        memory_report(model, each, A100, 64, 4096, micro_batches=count)
        for each, count in ((layout, 1), (layout, 2), (layout.changed(whole_gradients=False), 1))
    )
    assert one == usual  # a single micro-batch has nothing to add up
    assert several.gradients - one.gradients == pytest.approx(4 * parameters(model).total)


def test_whole_gradients_of_one_rank_are_those_of_its_shard() -> None:
    model, layout = catalog.model("llama-2-7b"), Layout(sharding="zero3", whole_gradients=True)
    assert state_bytes(model, layout, 1, 0) == state_bytes(model, Layout(sharding="zero3"), 1, 0)


@pytest.mark.parametrize(("summed_bytes", "optimizer", "of_shards"), [(4, 12, 4), (2, 12, 4), (4, 4, 2)])
def test_gradients_of_freed_shards_come_when_whole_ones_go(
    summed_bytes: int, optimizer: int, of_shards: int
) -> None:
    model, stack = (
        catalog.model("llama-2-7b"),
        MemoryOverheads(sixteen_bit_shards=False, gradients_freed=True),
    )
    layout = Layout(sharding="zero3", gradient_bytes=summed_bytes, optimizer_bytes=optimizer)  # type: ignore[arg-type]
    count = parameters(model).total
    added = state_bytes(model, layout.changed(whole_gradients=True), 64, 0, stack)
    assert added.gradients == pytest.approx(summed_bytes * count)
    assert state_bytes(model, layout, 64, 0, stack).gradients == pytest.approx(of_shards / 64 * count)


def test_optimizer_states_on_the_host_and_gradients_of_16_bits() -> None:
    model, layout = catalog.model("llama-2-7b"), Layout(optimizer_offload=True, gradient_bytes=2)
    states = state_bytes(model, layout, 64, 0)
    count = parameters(model).total
    assert states.total == pytest.approx((2 + 2) * count)
    assert states.on_host == pytest.approx(12 / 64 * count)


@pytest.mark.parametrize(
    ("per_parameter", "beside", "weights"), [(4, True, 2), (8, True, 2), (4, False, 2), (8, False, 0)]
)
def test_optimizer_states_in_16_bits(per_parameter: float, beside: bool, weights: float) -> None:
    # Shards in 32 bits are the optimizer's own weights, which moments alone do not hold.
    model, overheads = catalog.model("llama-2-7b"), MemoryOverheads(sixteen_bit_shards=beside)
    states = state_bytes(model, Layout(sharding="zero3", optimizer_bytes=per_parameter), 64, 0, overheads)
    kept = (
        weights + (4 if beside or per_parameter > 4 else 2) + per_parameter
    )  # gradients of shards are as these
    assert states.total - states.gathered == pytest.approx(kept / 64 * parameters(model).total)


def test_experts_are_sharded_over_fewer_copies() -> None:
    model = catalog.model("mixtral-8x7b")
    layout = Layout(tp=2, ep=8)
    shard = parameters_per_gpu(model, layout, 0)
    states = state_bytes(model, layout, 64, 0)  # 64 ranks x tp 2 = 128 GPUs = 16 copies of every expert
    assert states.optimizer == pytest.approx(12 * (shard.dense / 64 + shard.experts / 16))


@pytest.mark.parametrize(
    ("pp", "vpp", "stage", "batches", "counts"),
    [
        (1, 1, 0, None, (1,)),
        (4, 1, 0, None, (4,)),
        (4, 1, 3, None, (1,)),
        (4, 1, 0, 2, (2,)),
        (4, 2, 0, None, (7, 4)),  # 2 x 3 + 4 + 1 = 11 passes: 4 of chunk 0, 4 of chunk 1, 3 of chunk 0
        (4, 2, 3, None, (4, 1)),
        (4, 2, 0, 4, (4, 4)),
    ],
)
def test_micro_batches_in_flight(
    pp: int, vpp: int, stage: int, batches: int | None, counts: tuple[int, ...]
) -> None:
    assert in_flight_passes(Layout(pp=pp, vpp=vpp), stage, batches) == counts


@given(st.integers(2, 16), st.integers(2, 8))
def test_interleaving_holds_the_published_factor(p: int, v: int) -> None:
    # layers / p x (1 + (p - 1) / (p v)), in chunk passes of layers / (p v)
    assert sum(in_flight_passes(Layout(pp=p, vpp=v), 0)) == pytest.approx(p * v * (1 + (p - 1) / (p * v)))


def test_offload_keeps_first_and_last_layer() -> None:
    assert kept_share(32, 0.0) == 1.0
    assert kept_share(32, 1.0) == 2 / 32
    assert kept_share(32, 0.5) == pytest.approx((2 + 0.5 * 30) / 32)
    assert kept_share(2, 1.0) == kept_share(1, 1.0) == 1.0
    model, layout = catalog.model("llama-7b"), Layout(tp=2)
    plain = memory_report(model, layout, A100, 512, 8192)
    moved = memory_report(model, layout, A100, 512, 8192, offload_ratio=1.0)
    assert moved.activations == pytest.approx(plain.activations * 2 / 32)
    assert moved.activations + moved.host_bytes == pytest.approx(plain.activations)


def test_a_report_adds_up_and_capacity_is_exact() -> None:
    model, layout = catalog.model("llama-70b"), Layout(tp=8, pp=4)
    ranks = layout.parallel.ranks(8192)
    capacity = rank_capacity_tokens(model, layout, A100, ranks)
    assert capacity % (128 * 8) == 0
    at = memory_report(model, layout, A100, ranks, capacity)
    beyond = memory_report(model, layout, A100, ranks, capacity + 1024)
    assert at.fits
    assert not beyond.fits
    assert at.total_bytes == pytest.approx(sum(at.parts.values()))
    assert at.stage == max(
        range(4), key=lambda s: memory_report(model, layout, A100, ranks, capacity, stage=s).total_bytes
    )


def test_bytescales_setups_hold_their_8k_tokens() -> None:
    # the paper's 7B runs hold 8K tokens per rank on 80 GB GPUs, tp 2
    assert rank_capacity_tokens(catalog.model("llama-7b"), Layout(tp=2), A100, 512) >= 8192


def test_the_host_memory_limits_offloading() -> None:
    model, layout = catalog.model("llama-7b"), Layout(tp=2)
    node = replace(A100.node, host_memory_bytes=8e9)
    small = replace(A100, node=node)
    assert rank_capacity_tokens(model, layout, small, 512, offload_ratio=1.0) < rank_capacity_tokens(
        model, layout, A100, 512, offload_ratio=1.0
    )


def test_what_does_not_fit_says_why() -> None:
    with pytest.raises(OutOfMemoryError, match=r"stage 0 needs .* GiB .* gradients") as caught:
        rank_capacity_tokens(catalog.model("llama-2-70b"), Layout(), A100, 8)
    assert caught.value.needed_bytes > caught.value.available_bytes
    starved = replace(A100, node=replace(A100.node, host_memory_bytes=1e6))
    with pytest.raises(OutOfMemoryError, match="host memory"):
        rank_capacity_tokens(catalog.model("llama-7b"), Layout(tp=2), starved, 512, offload_ratio=1.0)


@pytest.mark.parametrize("arguments", [{"offload_ratio": 1.5}, {"offload_ratio": float("nan")}, {"stage": 9}])
def test_impossible_requests_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(InfeasibleError):
        memory_report(catalog.model("llama-7b"), Layout(), A100, 8, 128, **arguments)  # type: ignore[arg-type]


layouts = st.builds(
    Layout,
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(["none", "full"]),
    sharding=st.sampled_from(["none", "zero1", "zero2", "zero3"]),
    precision=st.sampled_from(["bf16", "fp8"]),
    sequence_parallel=st.booleans(),
)
models = st.sampled_from(["llama-7b", "llama-3-8b", "mixtral-8x7b", "gpt3-175b"]).map(catalog.model)
ranks = st.sampled_from([1, 2, 8, 64])


def _total(model: Model, layout: Layout, count: int, tokens: int, **more: float) -> float:
    return memory_report(model, layout, A100, count, tokens, **more).total_bytes  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(models, layouts, ranks, st.integers(0, 50_000), st.integers(1, 50_000), st.floats(0, 1))
def test_more_tokens_never_need_less_and_offload_never_needs_more(
    model: Model, layout: Layout, count: int, tokens: int, more: int, ratio: float
) -> None:
    base = _total(model, layout, count, tokens)
    assert _total(model, layout, count, tokens + more) > base
    assert _total(model, layout, count, tokens, offload_ratio=ratio) <= base * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(models, layouts, ranks, st.integers(1, 50_000))
def test_sharding_more_and_recomputing_never_need_more(
    model: Model, layout: Layout, count: int, tokens: int
) -> None:
    layout = layout.changed(precision="bf16")
    steps = [
        _total(model, layout.changed(sharding=s), count, tokens) for s in ("none", "zero1", "zero2", "zero3")
    ]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(steps))
    kept = [activation_bytes_per_token_layer(model, layout, r) for r in ("none", "selective", "full")]
    assert kept[0] >= kept[1] >= kept[2]
    assert _total(model, layout, 2 * count, tokens) <= _total(model, layout, count, tokens) or count == 1


shares = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@settings(max_examples=100, deadline=None)
@given(
    models,
    layouts,
    st.sampled_from(["selective", "full"]),
    st.tuples(shares, shares, shares, shares),
    st.data(),
)
def test_what_time_does_not_repeat_is_kept(
    model: Model, layout: Layout, mode: str, drawn: tuple[float, ...], data: st.DataObject
) -> None:
    """Repeating less of anything never keeps less; repeating nothing keeps what no recomputation keeps."""
    names = ("recompute_share", "recompute_products", "recompute_attention", "recompute_collectives")
    layout = layout.changed(recompute=mode)

    def kept(values: tuple[float, ...]) -> float:
        of_each = dict(zip(names, values, strict=True))
        return activation_bytes_per_token_layer(model, layout.changed(**of_each))

    less = tuple(
        data.draw(st.sampled_from([s for s in (0.0, 0.25, 0.5, 1.0) if s <= share])) for share in drawn
    )
    assert kept(less) >= kept(drawn) * (1 - 1e-12)
    layer_input = activation_bytes_per_token_layer(model, layout, "full" if mode == "selective" else None)
    assert kept((1.0, 1.0, 1.0, 1.0)) == pytest.approx(layer_input)
    whole = activation_bytes_per_token_layer(model, layout, "none")
    if mode == "selective":
        assert kept((0.0, 0.0, 0.0, 0.0)) == pytest.approx(whole)
        every_other = layout.changed(recompute_share=0.5)
        expected = pytest.approx((whole + layer_input) / 2)
        assert activation_bytes_per_token_layer(model, every_other) == expected
    else:
        assert layer_input < kept((1.0, 0.0, 0.0, 0.0)) < whole
    again, nothing = (
        _total(model, layout.changed(**dict.fromkeys(names, share)), 8, 4096) for share in (1.0, 0.0)
    )
    assert again <= nothing


@settings(max_examples=40, deadline=None)
@given(models, layouts, ranks, st.floats(40, 300))
def test_a_bigger_gpu_never_holds_fewer_tokens(model: Model, layout: Layout, count: int, gib: float) -> None:
    def capacity(hbm_gib: float) -> int:
        gpu = replace(A100.gpu, hbm_bytes=hbm_gib * 2**30)
        cluster: Cluster = replace(A100, node=replace(A100.node, gpu=gpu))
        try:
            return rank_capacity_tokens(model, layout, cluster, count)
        except OutOfMemoryError:
            return 0

    assert capacity(gib) <= capacity(gib * 1.5)


def test_overheads_are_open_to_change() -> None:
    model, layout = catalog.model("llama-7b"), Layout(tp=2)
    lean = MemoryOverheads(fragmentation_share=0.0, nccl_bytes_per_group=0.0)
    assert rank_capacity_tokens(model, layout, A100, 512, overheads=lean) > rank_capacity_tokens(
        model, layout, A100, 512
    )
