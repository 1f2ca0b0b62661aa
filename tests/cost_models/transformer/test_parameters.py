from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.layout_checks import check_layout
from hdpsim.cost_models.transformer.flop import (
    attention_pairs,
    forward_flop,
    model_flop_per_token,
    sequence_flop,
    sequence_model_flop,
)
from hdpsim.cost_models.transformer.layers import LayerKind
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import (
    active_parameters,
    layer_parameters,
    parameters,
    parameters_per_gpu,
    stage_contents,
    stage_layers,
)
from hdpsim.errors import InfeasibleError

DENSE = catalog.model("llama-2-7b")

PUBLISHED = {  # name: (parameters, source)
    "llama-2-7b": (6.738e9, "meta-llama/Llama-2-7b-hf model card"),
    "llama-2-13b": (13.016e9, "meta-llama/Llama-2-13b-hf model card"),
    "llama-2-70b": (68.977e9, "meta-llama/Llama-2-70b-hf model card"),
    "llama-3-8b": (8.03e9, "meta-llama/Meta-Llama-3-8B model card"),
    "llama-3-70b": (70.55e9, "meta-llama/Meta-Llama-3-70B model card"),
    "llama-3-405b": (405.9e9, "meta-llama/Llama-3.1-405B model card"),
    "gpt3-175b": (175e9, "arXiv 2005.14165 table 2.1"),
    "megascale-175b": (175e9, "arXiv 2402.15627 table 1"),
    "megascale-530b": (530e9, "arXiv 2402.15627 table 1"),
    "mixtral-8x7b": (46.7e9, "mistralai/Mixtral-8x7B-v0.1"),
    "mixtral-8x22b": (140.6e9, "mistralai/Mixtral-8x22B-v0.1"),
    "mistral-8x7b": (47e9, "arXiv 2502.21231 section 7"),
    "mistral-8x22b": (141e9, "arXiv 2502.21231 section 7"),
    "deepseek-v3": (671e9, "arXiv 2412.19437"),
    "llama-70b": (68.977e9, "as Llama 2 70B, which has 8 KV groups too"),
    "bloom-176b": (176.2e9, "arXiv 2211.05100 table 3"),
    "dbrx": (132e9, "databricks/dbrx-base model card"),
    "deepseek-v2": (236e9, "arXiv 2405.04434"),
    "deepseek-v2-lite": (15.7e9, "arXiv 2405.04434 appendix B"),
    "gpt-neox-20b": (20.55e9, "EleutherAI/gpt-neox-20b model card"),
    "gpt-oss-20b": (20.9e9, "arXiv 2508.10925 table 1"),
    "grok-1": (314e9, "xai-org/grok-1 README"),
    "internlm-7b": (7.3e9, "internlm/internlm-7b"),
    "kimi-k2": (1026e9, "moonshotai/Kimi-K2-Base weights"),
    "llama-65b": (65.2e9, "arXiv 2302.13971 table 2"),
    "mistral-7b": (7.24e9, "mistralai/Mistral-7B-v0.1 weights"),
    "moonlight-16b-a3b": (15.96e9, "moonshotai/Moonlight-16B-A3B weights"),
    "mt-nlg-530b": (530e9, "arXiv 2201.11990"),
    "nemotron-4-15b": (15.7e9, "arXiv 2402.16819: 3.2 billion of embeddings, 12.5 billion others"),
    "nemotron-4-340b": (341e9, "arXiv 2406.11704: 9.4 billion of embeddings, 331.6 billion others"),
    "opt-175b": (175e9, "arXiv 2205.01068 table 1"),
    "llama-3.2-1b": (1.23e9, "meta-llama/Llama-3.2-1B model card"),
    "llama-3.2-3b": (3.21e9, "meta-llama/Llama-3.2-3B model card"),
    "mistral-large-123b": (123e9, "mistralai/Mistral-Large-Instruct-2407 model card"),
    "mistral-nemo-12b": (12.2e9, "mistralai/Mistral-Nemo-Base-2407 weights"),
    "qwen2.5-3b": (3.09e9, "Qwen/Qwen2.5-3B model card"),
    "qwen2.5-7b": (7.62e9, "Qwen/Qwen2.5-7B model card"),
    "qwen2.5-14b": (14.7e9, "Qwen/Qwen2.5-14B model card"),
    "qwen2.5-32b": (32.8e9, "Qwen/Qwen2.5-32B weights"),
    "qwen2.5-72b": (72.7e9, "Qwen/Qwen2.5-72B model card"),
    "qwen3-1.7b": (1.72e9, "Qwen/Qwen3-1.7B weights"),
    "qwen3-4b": (4.02e9, "Qwen/Qwen3-4B weights"),
    "qwen3-8b": (8.2e9, "Qwen/Qwen3-8B model card"),
    "qwen3-14b": (14.8e9, "Qwen/Qwen3-14B model card"),
    "qwen3-32b": (32.8e9, "Qwen/Qwen3-32B model card"),
}
ACTIVE = {"mixtral-8x7b": 12.9e9, "mixtral-8x22b": 39e9, "mistral-8x22b": 39e9}


@pytest.mark.parametrize(("name", "published"), [(name, count) for name, (count, _) in PUBLISHED.items()])
def test_counts_agree_with_the_published_ones_to_one_percent(name: str, published: float) -> None:
    assert parameters(catalog.model(name)).total == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(("name", "published"), ACTIVE.items())
def test_active_counts_agree_to_one_percent(name: str, published: float) -> None:
    assert active_parameters(catalog.model(name)) == pytest.approx(published, rel=0.01)


def test_deepseek_v3_part_by_part() -> None:
    model = catalog.model("deepseek-v3")
    # README_WEIGHTS: 36.6B active "including 0.9B for the output Head" (so without the embedding table);
    # 11.5B unique parameters of multi-token prediction
    assert active_parameters(model) - parameters(model).embedding == pytest.approx(36.6e9, rel=0.01)
    assert parameters_per_gpu(model, Layout(), 0).total - parameters(model).total == pytest.approx(
        11.5e9, rel=0.01
    )
    # The files have 684.53B: the prediction layer there has its own copies of the embedding and the head.
    vocabulary = 2 * 129280 * 7168
    assert parameters_per_gpu(model, Layout(), 0).total + vocabulary == pytest.approx(684.53e9, rel=0.0005)


@pytest.mark.parametrize(
    ("name", "full_attention_published"),
    [("llama-7b", 6.738e9), ("llama-13b", 13.016e9)],
)
def test_bytescales_llamas_are_the_original_ones_less_the_grouped_keys_and_values(
    name: str, full_attention_published: float
) -> None:
    model = catalog.model(name)
    saved = 2 * model.layers * model.hidden * (model.heads - model.kv_heads) * model.head_dim
    assert parameters(model).total + saved == pytest.approx(full_attention_published, rel=0.01)


def test_llama_30b_has_heads_that_kernels_can_run() -> None:
    model = catalog.model("llama-30b")
    assert (model.heads, model.head_dim, model.kv_heads) == (56, 128, 8)
    # q, o: 2 x 6656 x 7168; k, v: 2 x 6656 x 1024; MLP: 3 x 6656 x 17920; x 60; embedding and head 2 x 32000 x 6656
    by_hand = 60 * (2 * 6656 * 7168 + 2 * 6656 * 1024 + 3 * 6656 * 17920 + 2 * 6656) + 2 * 32000 * 6656 + 6656
    assert parameters(model).total == by_hand


def test_a_small_layer_by_hand() -> None:
    model = Model(
        name="tiny",
        layers=2,
        hidden=8,
        heads=4,
        kv_heads=2,
        head_dim=2,
        ffn_hidden=16,
        vocab=10,
        experts=4,
        top_k=2,
    )
    layer = layer_parameters(model, moe=True)
    assert layer.attention == 8 * (4 + 2 * 2) * 2 + 4 * 2 * 8  # 128 + 64
    assert layer.experts == 4 * 3 * 8 * 16
    assert layer.router == 8 * 4
    assert layer.norms == 2 * 8
    assert parameters(model).total == 2 * layer.total + 2 * 10 * 8 + 8
    assert (
        active_parameters(model) == parameters(model).total - 2 * 2 * 3 * 8 * 16
    )  # two of four experts idle
    with pytest.raises(InfeasibleError):
        layer_parameters(catalog.model("llama-7b"), moe=True)


def test_extra_layers_sit_in_the_middle() -> None:
    # Llama 3 405B, section 3.3: one layer less on the first and on the last of 16 stages
    assert stage_layers(catalog.model("llama-3-405b"), Layout(tp=8, pp=16)) == ((7,), *((8,),) * 14, (7,))
    # 96 = 8 stages x 6 chunks x 2
    assert stage_layers(catalog.model("megascale-175b"), Layout(tp=8, pp=8, vpp=6)) == ((2,) * 6,) * 8


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 60))
def test_no_layer_is_ever_lost(pp: int, vpp: int, more: int) -> None:
    vpp = vpp if pp > 1 else 1
    layout = Layout(pp=pp, vpp=vpp)
    model = Model(
        name="m", layers=pp * vpp + more, hidden=8, heads=2, kv_heads=2, head_dim=4, ffn_hidden=8, vocab=9,
        experts=4, top_k=1, dense_layers=min(3, pp * vpp), dense_ffn_hidden=8,
    )  # fmt: skip
    counts = stage_layers(model, layout)
    assert sum(map(sum, counts)) == model.layers
    totals = [sum(chunks) for chunks in counts]
    assert max(totals) - min(totals) <= 1
    assert min(totals) == totals[0] or min(totals) == totals[-1]
    contents = stage_contents(model, layout)
    assert (
        sum(dict(part.by_kind).get(LayerKind.DENSE, 0) for stage in contents for part in stage)
        == model.dense_layers
    )
    assert [part.embedding for stage in contents for part in stage].count(True) == 1
    assert contents[-1][-1].head


@pytest.mark.parametrize("name", ["llama-2-13b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize(("tp", "pp", "ep"), [(1, 1, 1), (1, 4, 1), (2, 4, 1), (4, 2, 4), (2, 2, 8)])
def test_the_shards_add_up_to_the_model(name: str, tp: int, pp: int, ep: int) -> None:
    model = catalog.model(name)
    layout = Layout(tp=tp, pp=pp, ep=ep if model.experts else 1)
    shards = [parameters_per_gpu(model, layout, stage) for stage in range(pp)]
    whole = parameters_per_gpu(model, Layout(), 0)
    copies = model.vocab * model.hidden * (pp > 1) * (model.tied_embeddings + model.mtp_layers)
    experts = sum(shard.experts for shard in shards) * max(tp, layout.parallel.ep)
    assert experts == whole.experts
    dense = sum(shard.dense for shard in shards) * tp
    replicated = dense - (whole.total - whole.experts) - copies
    assert 0 <= replicated <= 0.25 * (tp - 1) * (whole.total - whole.experts)
    assert replicated == 0 or tp > 1


@pytest.mark.parametrize(("name", "pp"), [("deepseek-v3", 1), ("deepseek-v3", 4), ("llama-2-13b", 2)])
def test_matrices_are_all_but_norms_embedding_and_head(name: str, pp: int) -> None:
    model = replace(catalog.model(name), mtp_layers=0)
    found = sum(parameters_per_gpu(model, Layout(pp=pp), stage).matrices for stage in range(pp))
    whole = parameters(model)
    assert found == whole.total - whole.norms - whole.embedding - whole.positions - whole.head


def test_megascales_shard_by_hand() -> None:
    # stage 0 of tp 8, pp 8: 12 layers of 12 h^2 (+ small) / 8, and 64000 / 8 rows of embedding
    shard = parameters_per_gpu(catalog.model("megascale-175b"), Layout(tp=8, pp=8, vpp=6), 0)
    assert shard.total == pytest.approx(12 * 12 * 12288**2 / 8 + 8000 * 12288 + 2048 * 12288, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("llama-7b", Layout(tp=3), "32 attention heads .* do not divide by tp = 3"),
        ("llama-7b", Layout(pp=33), "stages are more than the"),
        ("llama-7b", Layout(pp=8, vpp=5), "stages are more than the"),
        ("llama-7b", Layout(vpp=2), "needs a pipeline"),
        ("llama-7b", Layout(ep=2), "has no experts"),
        ("llama-30b", Layout(tp=7), "8 key/value heads of llama-30b can neither"),
        ("llama-70b", Layout(tp=64, pp=81), "stages are more than the"),
        ("mixtral-8x7b", Layout(ep=3), "8 experts of mixtral-8x7b do not divide by ep = 3"),
        ("deepseek-v3", Layout(tp=4, ep=32, pp=64), "stages are more than the"),
    ],
)
def test_impossible_degrees_are_named(name: str, layout: Layout, words: str) -> None:
    with pytest.raises(InfeasibleError, match=words):
        check_layout(catalog.model(name), layout)


def test_experts_across_ranks_need_enough_ranks() -> None:
    model = catalog.model("deepseek-v3")
    check_layout(model, Layout(tp=2, ep=64), ranks=32)
    with pytest.raises(InfeasibleError, match="the 62 GPUs of a pipeline stage do not divide by ep = 64"):
        check_layout(model, Layout(tp=2, ep=64), ranks=31)


def test_megascales_flop_per_token_is_the_papers_formula() -> None:
    # 72 l h^2 (1 + s / 6 h + V / 12 l h), full attention: arXiv 2104.04473; 1.0766e12 follows from the MFU column
    hidden, layers, length, vocab = 12288, 96, 2048, 64000
    expected = 72 * layers * hidden**2 * (1 + length / (6 * hidden) + vocab / (12 * layers * hidden))
    flop = model_flop_per_token(catalog.model("megascale-175b"), length, causal=False).total
    assert flop == pytest.approx(expected, rel=1e-12)
    assert flop == pytest.approx(1.0766e12, rel=2e-3)


def test_recomputation_is_hardware_flop() -> None:
    model = catalog.model("llama-3-8b")
    plain = model_flop_per_token(model, 8192)
    full = model_flop_per_token(model, 8192, recompute="full")
    selective = model_flop_per_token(model, 8192, recompute="selective")
    assert full.linear == pytest.approx(plain.linear * 4 / 3)
    assert full.head == plain.head
    assert selective.linear == plain.linear
    assert selective.attention == pytest.approx(plain.attention * 4 / 3)


def test_sequences_cost_six_n_s_and_the_quadratic_part() -> None:
    model = catalog.model("llama-2-7b")
    weights = (
        parameters(model).total - model.vocab * model.hidden - (2 * 32 + 1) * 4096
    )  # no embedding, no norms
    lengths = [1000, 4096, 100_000]
    expected = sum(6 * weights * s + 6 * 32 * 32 * 128 * s**2 for s in lengths)
    assert sequence_model_flop(model, lengths) == pytest.approx(expected, rel=1e-12)
    assert sequence_flop(model, lengths).shape == (3,)
    full = sequence_model_flop(model, lengths, causal=False)
    assert full - expected == pytest.approx(sum(6 * 32 * 32 * 128 * s**2 for s in lengths))


def test_latent_attention_scores_are_wider_than_its_values() -> None:
    flop = forward_flop(catalog.model("deepseek-v3"))
    assert flop.attention == 2 * 128 * (192 + 128) * 62  # 61 layers and the prediction layer
    # 2 x active matmul weights: 36.6B with head, plus the prediction layer (1.5B active with its head)
    assert flop.linear + flop.head == pytest.approx(2 * (36.6e9 + 1.5e9), rel=0.02)


@given(st.integers(1, 10**6), st.integers(1, 10**5))
def test_a_window_never_adds_work_and_a_wide_one_changes_nothing(length: int, window: int) -> None:
    for causal in (True, False):
        free = float(attention_pairs(length, causal=causal))
        limited = float(attention_pairs(length, causal=causal, window=window))
        assert limited <= free * (1 + 1e-12)
        assert float(attention_pairs(length, causal=causal, window=length)) == pytest.approx(free)


@given(st.lists(st.integers(1, 10**5), min_size=1, max_size=8))
def test_joining_sequences_never_costs_less(lengths: list[int]) -> None:
    model = catalog.model("llama-3-8b")
    assert sequence_model_flop(model, [sum(lengths)]) >= sequence_model_flop(model, lengths) * (1 - 1e-12)


def test_embedding_and_head_count_as_layers():
    layers = replace(DENSE, layers=126)
    # 126 + 2 over 16 stages x 8 chunks: one each, none beside the embedding and the head.
    counts = stage_layers(layers, Layout(pp=16, vpp=8, schedule="interleaved", embedding_layers=True))
    assert [sum(chunks) for chunks in counts] == [7, *[8] * 14, 7]
    assert (counts[0][0], counts[15][7]) == (0, 0)
    # What does not divide: 10 + 2 over 5 stages are 2, 2, 3, 3, 2 or so; the extra ones sit in the middle.
    ten = replace(DENSE, layers=10)
    assert stage_layers(ten, Layout(pp=5, embedding_layers=True)) == ((1,), (3,), (3,), (2,), (1,))
    assert stage_layers(ten, Layout(embedding_layers=True)) == ((10,),)
    with pytest.raises(InfeasibleError, match="13 stages are more than the 10 layers, embedding and head"):
        stage_layers(ten, Layout(pp=13, embedding_layers=True))


def test_prediction_layers_count_too():
    # 61 + 2 + 1 over 4 stages x 4 chunks are 4 each: the first has 3 beside the embedding, the last 2
    model = replace(DENSE, layers=61, mtp_layers=1)
    layout = Layout(pp=4, vpp=4, schedule="interleaved", embedding_layers=True)
    counts = stage_layers(model, layout)
    assert counts == ((3, 4, 4, 4), (4, 4, 4, 4), (4, 4, 4, 4), (4, 4, 4, 2))
    # 126 + 3 over 128 chunks: no room, the last one holds the prediction layer on top
    deep = stage_layers(
        replace(model, layers=126), Layout(pp=16, vpp=8, schedule="interleaved", embedding_layers=True)
    )
    assert (sum(map(sum, deep)), deep[15][7]) == (126, 0)


@given(
    st.integers(2, 40), st.sampled_from(["zb-h1", "zb-v", "dualpipe"]), st.sampled_from([2, 4]), st.booleans()
)
def test_split_schedules_place_every_layer_once(layers: int, schedule: Schedule, pp: int, embedding: bool):
    vpp = 2 if schedule == "zb-v" else 1
    layout = Layout(pp=pp, vpp=vpp, schedule=schedule, embedding_layers=embedding)
    model = replace(DENSE, layers=max(layers, pp * vpp))
    contents = stage_contents(model, layout)
    copies = 2 if schedule == "dualpipe" else 1
    parts = [part for stage in contents for part in stage]
    assert sum(part.layers for part in parts) == copies * model.layers
    assert sum(part.embedding for part in parts) == sum(part.head for part in parts) == copies
    if schedule == "zb-v":
        assert (contents[0][0].embedding, contents[0][1].head) == (True, True)


def test_split_schedules_need_their_degrees():
    for layout, words in (
        (Layout(pp=4, schedule="zb-v"), "zb-v needs vpp 2, not 1"),
        (Layout(pp=3, schedule="dualpipe"), "even number of stages, not pp 3"),
        (Layout(schedule="zb-h1"), "needs a pipeline"),
        (Layout(pp=2, schedule="zb-h2", pp_overlap=False), "asynchronous transfers"),
    ):
        with pytest.raises(InfeasibleError, match=words):
            stage_layers(DENSE, layout)
