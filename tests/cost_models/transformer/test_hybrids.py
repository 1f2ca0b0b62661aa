"""Hybrids: patterns, kinds of layers, what each is made of, parameters and FLOP of published models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.reading.checked import ContradictionError
from hdpsim.cost_models.transformer.flop import forward_flop, model_flop_per_token
from hdpsim.cost_models.transformer.layers import (
    KIND_OF,
    LETTER_OF,
    LayerKind,
    as_layer,
    attention_layers,
    kinds_of,
    layer_counts,
    layer_matrices,
    parts_of,
)
from hdpsim.cost_models.transformer.model import MOST_LAYERS, Mamba, Model, written_out
from hdpsim.cost_models.transformer.parameters import (
    active_parameters,
    layer_parameters,
    parameters,
    parameters_per_gpu,
    stage_contents,
)
from hdpsim.errors import InfeasibleError

MAMBA = Mamba(heads=8, head_dim=4, state=16, groups=2, conv=4, chunk=32)
SMALL = Model(
    name="small", layers=6, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn_hidden=64, vocab=128, gated_mlp=False,
    experts=8, top_k=2, shared_expert_ffn=16, expert_latent=8, layer_pattern="MEM*E-", mamba=MAMBA,
)  # fmt: skip


def test_repetitions_are_written_out():
    assert written_out("") == ""
    assert written_out("3(ME)2M*-") == "MEMEMEMM*-"
    assert written_out("2(M2(-*))") == "M-*-*M-*-*"
    assert written_out("0M*") == "*"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("MXM", "'X' at place 2"),
        ("M)", "closes a bracket at place 2"),
        ("2(M", "not closed"),
        ("99999M", "more than 10,000 layers"),
        ("9999(9999(9999M))", "more than 10,000 layers"),
        ("M3", "'3' at place 2"),
        ("m", "'m' at place 1"),
    ],
)
def test_what_is_no_pattern_says_where(pattern, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        written_out(pattern)


@given(st.text(alphabet="M*-E", max_size=40), st.integers(1, 5))
def test_a_repeated_pattern_is_the_pattern_repeated(letters, times):
    assert written_out(letters) == letters
    if letters:
        assert written_out(f"{times}({letters})") == letters * times


@given(st.text(alphabet="M*-E()0123456789x", max_size=20))
def test_a_pattern_is_letters_or_refused(text):
    try:
        found = written_out(text)
    except ValueError:
        return
    assert set(found) <= set("M*-E")
    assert len(found) <= MOST_LAYERS


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"layers": 7}, "layer_pattern", "has 6 layers, layers says 7"),
        ({"layer_pattern": "MEM*EX"}, "layer_pattern", "'X' at place 6"),
        ({"mamba": None}, "mamba", "is required: the pattern has layers M"),
        ({"experts": 0, "top_k": 0, "shared_expert_ffn": 0, "expert_latent": 0}, "experts", "is required"),
        ({"layer_pattern": "6*"}, "mamba", "only makes sense with layers M"),
        ({"mtp_layers": 1}, "mtp_pattern", "must be given together"),
        ({"mtp_pattern": "*"}, "mtp_pattern", "must be given together"),
        ({"adapter_rank": 4}, "adapter_rank", "is not modelled in a hybrid"),
        ({"parallel_block": True}, "parallel_block", "is not modelled in a hybrid"),
        ({"layer_pattern": ""}, "mamba", "only makes sense with layer_pattern"),
    ],
)
def test_contradictions_are_named(changes, key, words):
    with pytest.raises(ContradictionError) as error:
        replace(SMALL, **changes)
    assert any(name == key and words in text for name, text in error.value.problems)


def test_groups_of_heads_divide_them():
    with pytest.raises(ContradictionError, match="must divide the 8 heads, got 3"):
        replace(MAMBA, groups=3)


def test_each_kind_is_a_model_of_its_own():
    assert layer_counts(SMALL) == (
        (LayerKind.MAMBA, 2), (LayerKind.ATTENTION, 1), (LayerKind.MLP, 1), (LayerKind.EXPERTS, 2),
    )  # fmt: skip
    assert kinds_of(SMALL) == tuple(sorted(KIND_OF.values()))
    assert attention_layers(SMALL) == 1
    for letter, kind in KIND_OF.items():
        one, moe = as_layer(SMALL, kind)
        assert (one.layer_pattern, one.layers, LETTER_OF[kind]) == (letter, 1, letter)
        assert moe == (letter == "E")
        assert parts_of(one).blocks == 1


def test_kinds_of_plain_layers_are_whether_they_have_experts():
    mixtral = catalog.model("mixtral-8x7b")
    assert kinds_of(mixtral) == (LayerKind.MOE,) == (True,)
    assert kinds_of(catalog.model("llama-3-8b")) == (LayerKind.DENSE,) == (False,)
    assert layer_counts(catalog.model("deepseek-v3")) == ((False, 3), (True, 58))
    assert as_layer(mixtral, LayerKind.MOE) == (mixtral, True)


def test_whoever_knows_nothing_of_hybrids_refuses_them():
    with pytest.raises(InfeasibleError, match=r"small is a hybrid \(layer_pattern\)"):
        layer_matrices(SMALL, moe=False)


def matrices(letter):
    one, moe = as_layer(SMALL, KIND_OF[letter])
    return {m.name: (m.inputs, m.outputs, m.cut, m.experts) for m in layer_matrices(one, moe=moe)}


def test_matrices_of_each_letter():
    inner, shared = 8 * 4, 2 * 2 * 16
    assert matrices("M") == {
        "mamba_in": (32, 2 * inner + shared + 8, "outputs", 1),
        "mamba_out": (inner, 32, "inputs", 1),
    }
    assert matrices("*") == {
        "qkv": (32, 8 * (4 + 2 * 2), "outputs", 1),
        "attention_out": (32, 32, "inputs", 1),
    }
    assert matrices("-") == {"mlp_up": (32, 64, "outputs", 1), "mlp_down": (64, 32, "inputs", 1)}
    assert matrices("E") == {
        "expert_mlp_up": (8, 64, "outputs", 8),
        "expert_mlp_down": (64, 8, "inputs", 8),
        "latent_down": (32, 8, "none", 1),
        "latent_up": (8, 32, "none", 1),
        "shared_mlp_up": (32, 16, "outputs", 1),
        "shared_mlp_down": (16, 32, "inputs", 1),
        "router": (32, 8, "none", 1),
    }


def test_parameters_by_hand():
    # in 32 x (2 x 32 + 64 + 8), out 32 x 32, convolution with bias (4 + 1) x (32 + 64), A, D and bias of the step
    # 3 x 8, gated norm 32
    mamba = 32 * 136 + 32 * 32 + 5 * 96 + 3 * 8 + 32
    one, _ = as_layer(SMALL, LayerKind.MAMBA)
    counted = layer_parameters(one, moe=False)
    assert (counted.mamba, counted.norms, counted.total) == (mamba, 32, mamba + 32)
    attention, mlp = 32 * 64 + 32 * 32, 2 * 32 * 64
    experts, beside = 8 * 2 * 8 * 64, 2 * 32 * 8 + 2 * 32 * 16 + 32 * 8
    layers = 2 * mamba + attention + mlp + 2 * (experts + beside) + 6 * 32
    assert parameters(SMALL).total == layers + 2 * 128 * 32 + 32
    assert active_parameters(SMALL) == parameters(SMALL).total - 2 * experts * 6 // 8


def test_flop_by_hand():
    # per token: products of the matrices that it meets, 7 H P N of a scan, 4 a d per key in one layer
    mamba = 32 * 136 + 32 * 32
    met = (
        2 * mamba
        + (32 * 64 + 32 * 32)
        + 2 * 32 * 64
        + 2 * (2 * 2 * 8 * 64 + 2 * 32 * 8 + 2 * 32 * 16 + 32 * 8)
    )
    flop = forward_flop(SMALL)
    assert flop.linear == 2 * met + 2 * 7 * 32 * 16
    assert flop.attention == 2 * 4 * (8 + 8)
    assert flop.head == 2 * 32 * 128


@pytest.mark.parametrize(
    ("name", "total", "active", "layers"),
    [
        ("nemotron-h-8b", 8.1e9, 8.1e9, (24, 4, 24, 0)),
        ("nemotron-h-47b", 46.8e9, 46.8e9, (45, 5, 48, 0)),
        ("nemotron-h-56b", 56.3e9, 56.3e9, (54, 10, 54, 0)),
        ("nemotron-nano-9b-v2", 8.89e9, 8.89e9, (27, 4, 25, 0)),
        ("nemotron-nano-12b-v2", 12.3e9, 12.3e9, (28, 6, 28, 0)),
        ("nemotron-3-nano-30b-a3b", 31.6e9, 3.6e9, (23, 6, 0, 23)),
        ("nemotron-3-super-120b-a12b", 120.6e9, 12.7e9, (40, 8, 0, 40)),
        ("nemotron-3-ultra-550b-a55b", 550e9, 55e9, (48, 12, 0, 48)),
    ],
)
def test_shipped_hybrids_have_the_parameters_of_their_names(name, total, active, layers):
    model = catalog.model(name)
    assert parameters(model).total == pytest.approx(total, rel=0.005)
    assert active_parameters(model) == pytest.approx(active, rel=0.02)
    counts = dict(layer_counts(model))
    assert tuple(counts.get(KIND_OF[letter], 0) for letter in "M*-E") == layers


@pytest.mark.parametrize(
    ("name", "printed"),
    [  # GFLOP per token: TFLOP/s over tokens/s as Megatron-Bridge prints them, at 8,192 tokens
        ("nemotron-3-super-120b-a12b", 84.7),
        ("nemotron-3-ultra-550b-a55b", 362.9),
    ],
)
def test_flop_are_those_that_megatron_bridge_prints(name, printed):
    """But for the router and the input of multi-token prediction, which it leaves out: 1.1 % of Super."""
    counted = model_flop_per_token(catalog.model(name), 8192).total / 1e9
    assert counted == pytest.approx(printed, rel=0.015)


def test_megatron_bridge_takes_the_heads_of_nano_for_twice_the_hidden_size():
    """22.28 GFLOP per token are printed: with 84 heads of 64, twice 2,688; there are 64."""
    nano = catalog.model("nemotron-3-nano-30b-a3b")
    assert model_flop_per_token(nano, 8192).total / 1e9 == pytest.approx(20.8, abs=0.1)
    wider = replace(nano, mamba=replace(nano.mamba, heads=84, groups=4))
    groups = (
        23 * 6 * nano.hidden * (2 * 4 * 128 - (84 - 64)) / 1e9
    )  # 8 groups and 64 step widths in the formula
    assert model_flop_per_token(wider, 8192).total / 1e9 + groups == pytest.approx(22.28, rel=0.005)


def test_prediction_layers_have_their_own_pattern():
    predicting = replace(SMALL, mtp_layers=2, mtp_pattern="*E")
    attention, experts = (as_layer(SMALL, KIND_OF[letter]) for letter in "*E")
    one = layer_parameters(attention[0], moe=False) + layer_parameters(experts[0], moe=True)
    more = parameters_per_gpu(predicting, Layout(), 0).total - parameters(predicting).total
    assert more == 2 * (one.total + 2 * 32 * 32 + 3 * 32)
    more = forward_flop(predicting).attention / forward_flop(SMALL).attention
    assert more == 3.0  # one layer attends; with two of prediction three


def test_stages_hold_what_their_letters_say():
    contents = stage_contents(SMALL, Layout(pp=3))
    assert [stage[0].by_kind for stage in contents] == [
        ((LayerKind.MAMBA, 1), (LayerKind.EXPERTS, 1)),
        ((LayerKind.MAMBA, 1), (LayerKind.ATTENTION, 1)),
        ((LayerKind.MLP, 1), (LayerKind.EXPERTS, 1)),
    ]
    assert [stage[0].attention_layers for stage in contents] == [0, 1, 0]
    assert [stage[0].expert_layers for stage in contents] == [1, 0, 1]


@given(
    pattern=st.text(alphabet="M*-E", min_size=4, max_size=24),
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4]),
    mtp=st.integers(0, 2),
)
def test_stages_hold_all_parameters_whatever_the_pattern(pattern, tp, pp, ep, mtp):
    model = replace(
        SMALL,
        layers=len(pattern),
        layer_pattern=pattern,
        mtp_layers=mtp,
        mtp_pattern="ME" if mtp else "",
        mamba=MAMBA if "M" in pattern or mtp else None,
        **(
            {}
            if "E" in pattern or mtp
            else {"experts": 0, "top_k": 0, "shared_expert_ffn": 0, "expert_latent": 0}
        ),
    )
    layout = Layout(tp=tp, pp=pp, ep=ep if model.experts else 1)
    layers = sum(chunk.layers for stage in stage_contents(model, layout) for chunk in stage)
    assert layers == len(pattern)
    held = [parameters_per_gpu(model, layout, stage) for stage in range(pp)]
    whole = parameters_per_gpu(model, Layout(), 0).total
    spread = layout.parallel.ep * layout.parallel.expert_cut
    copies = sum(part.dense for part in held) * tp + sum(part.experts for part in held) * spread
    embedding_copy = (
        model.vocab * model.hidden * (mtp > 0 and pp > 1)
    )  # prediction sits elsewhere than the embedding
    assert copies - embedding_copy >= whole
    if tp == 1:
        assert copies - embedding_copy == whole
