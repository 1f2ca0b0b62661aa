"""Hybrids priced layer by layer: as the transformer that is written as one, kinds of stages, groups, recomputation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Precision, is_parts
from hdpsim.cost_models.layout_checks import check_layout, reasons_against
from hdpsim.cost_models.memory.peak import memory_report
from hdpsim.cost_models.step.layer_prices import TERM_ROWS, wide_shares
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.transformer.flop import sequence_flop
from hdpsim.cost_models.transformer.layers import kinds_of
from hdpsim.cost_models.transformer.model import Mamba, Model
from hdpsim.cost_models.transformer.parameters import parameters
from hdpsim.errors import InfeasibleError, UserInputError

HOPPER = calibration("hopper")
CLUSTER = catalog.cluster_of("hgx-h100-80gb", 16)
TOKENS = np.array([4096, 8192])
PLAIN = Model(
    name="plain", layers=4, hidden=2048, heads=16, kv_heads=8, head_dim=128, ffn_hidden=8192, vocab=32_000,
    gated_mlp=False,
)  # fmt: skip
EXPERTS = replace(PLAIN, name="experts", ffn_hidden=1024, experts=16, top_k=2, shared_expert_ffn=2048)
MAMBA = Mamba(heads=32, head_dim=64, state=128, groups=8)
HYBRID = replace(
    EXPERTS, name="hybrid", layers=8, layer_pattern="MEM*MEME", mamba=MAMBA, expert_latent=512,
)  # fmt: skip


def as_hybrid(model):
    """The same model, its layers of two parts written as two layers of one."""
    letters = "*E" if model.experts else "*-"
    return replace(model, layers=2 * model.layers, layer_pattern=f"{model.layers}({letters})")


def cost_of(model, **layout):
    return MicroBatchCost(model, Layout(**layout), CLUSTER, HOPPER)


def terms(cost, tokens=TOKENS, **more):
    return cost.both_terms_s(MicroBatches.single(tokens, **more))


@settings(max_examples=40)
@given(
    model=st.sampled_from([PLAIN, EXPERTS, replace(PLAIN, name="latent", qk_norm=True, sliding_window=1024)]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 4]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    precision=st.sampled_from(["bf16", "fp8"]),
    sharding=st.sampled_from(["zero1", "zero3"]),
    fused=st.booleans(),
)
def test_a_transformer_written_as_a_hybrid_costs_the_same(
    model, tp, pp, ep, recompute, precision, sharding, fused
):
    """But what hides across its two halves: launches behind kernels, casts, gathers of sharded parameters."""
    layout = {
        "tp": tp, "pp": pp, "ep": ep if model.experts else 1, "recompute": recompute, "precision": precision,
        "sharding": sharding, "fused_kernels": fused, "cuda_graphs": True,
    }  # fmt: skip
    hybrid = as_hybrid(model)
    assert parameters(hybrid) == parameters(model)
    assert sequence_flop(hybrid, TOKENS) == pytest.approx(sequence_flop(model, TOKENS))
    plain, other = cost_of(model, **layout), cost_of(hybrid, **layout)
    for ours, theirs in zip(terms(other), terms(plain), strict=True):
        for name in (
            "gemm",
            "attention",
            "tp_communication",
            "expert_all_to_all",
            "small_kernels",
            "recompute",
        ):
            row = TERM_ROWS[name]
            assert other.by_stage(ours[row]) == pytest.approx(plain.by_stage(theirs[row]), rel=1e-9), name
    kept = [
        memory_report(
            each, Layout(**layout), CLUSTER, ranks=16 // (tp * pp), tokens_per_rank=4096
        ).activations
        for each in (hybrid, model)
    ]
    if recompute == "none":
        assert kept[0] == pytest.approx(kept[1])


def test_only_attention_pays_for_long_sequences():
    """Everything else is linear in tokens, but for what a kernel takes whatever it does."""
    cost = cost_of(HYBRID, ep=4, cuda_graphs=True)
    forward, _ = terms(cost, np.array([65536, 131072]))
    linear = [row for name, row in TERM_ROWS.items() if name not in ("attention", "gemm", "host", "logits")]
    once, twice = forward[linear].sum(axis=(0, 1))
    assert twice == pytest.approx(2 * once, rel=0.02)
    attention = forward[TERM_ROWS["attention"], 0]
    assert attention[1] > 3 * attention[0]


def test_stages_of_unequal_letters_take_unequal_times():
    model = replace(
        HYBRID, layer_pattern="MMMM*-*-", experts=0, top_k=0, shared_expert_ffn=0, expert_latent=0
    )
    cost = cost_of(model, pp=2)
    assert len(cost.kinds) == 2
    assert cost.layers_by_stage.tolist() == [4, 4]
    assert cost.attention_layers_by_stage.tolist() == [0, 2]
    assert cost.busiest_attention_layers == 2
    forward, _ = terms(cost)
    attention = cost.by_stage(forward[TERM_ROWS["attention"]])
    assert attention[0].tolist() == [0.0, 0.0]
    assert (attention[1] > 0).all()


def test_a_model_without_attention_has_none():
    model = replace(
        HYBRID, layers=2, layer_pattern="MM", experts=0, top_k=0, shared_expert_ffn=0, expert_latent=0
    )
    cost = cost_of(model)
    forward, backward = terms(cost)
    assert not forward[TERM_ROWS["attention"]].any()
    assert cost.sequence_s(4096, 1, 0) == 0.0
    assert backward.sum() > forward.sum() > 0.0


def group(ranks, tokens):
    return MicroBatches(
        segment_tokens=np.array([tokens]), segment_offsets=np.array([0, 1]), group_size=np.array([ranks]),
        tier=np.array([0]), offload_ratio=np.zeros(1),
    )  # fmt: skip


def test_groups_exchange_around_mamba_and_go_round_for_attention():
    cost = cost_of(HYBRID, ep=4, cuda_graphs=True)
    none = replace(HYBRID, layer_pattern="MEMEMEME")
    without = cost_of(none, ep=4, cuda_graphs=True)
    waits = [each.both_terms_s(group(4, 32768))[0][TERM_ROWS["ring_wait"], 0, 0] for each in (cost, without)]
    assert waits[1] > 0.0
    assert cost.attention.most_ranks == 32
    mamba_s = waits[1] / 4  # four Mamba layers
    assert waits[0] >= 4 * mamba_s  # as many of them, and what of the ring shows
    kinds = {sent.kind for sent in cost.traffic(replace_tier(group(16, 32768)))}
    assert "spread" in kinds


def replace_tier(batches):
    return replace(batches, tier=np.array([1]))


def test_recomputation_of_expert_layers_alone():
    """All of them: what layers with experts take forward, once more; nothing of the others."""
    every = cost_of(HYBRID, ep=4, recompute="full", cuda_graphs=True)
    some = cost_of(HYBRID, ep=4, recompute="full", recompute_layers="moe", cuda_graphs=True)
    alone = replace(HYBRID, layers=3, layer_pattern="EEE", mamba=None)
    experts = cost_of(alone, ep=4, recompute="full", cuda_graphs=True)
    again = [terms(cost)[1][TERM_ROWS["recompute"]] for cost in (every, some, experts)]
    assert again[1] == pytest.approx(again[2])
    assert (again[1] < again[0]).all()
    kept = [
        memory_report(
            HYBRID,
            Layout(ep=4, recompute="full", recompute_layers=layers),
            CLUSTER,
            ranks=16,
            tokens_per_rank=4096,
        )
        for layers in ("all", "moe")
    ]
    assert kept[1].activations > kept[0].activations


def test_linear_seconds_leave_out_what_is_not_linear():
    for layers in ("all", "moe"):
        cost = cost_of(HYBRID, ep=4, recompute="full", recompute_layers=layers, cuda_graphs=True)
        forward, backward = terms(cost)
        left_out = ("attention", "ring_merge", "ring_wait", "host", "recompute")
        linear = [row for name, row in TERM_ROWS.items() if name not in left_out]
        whole = forward[linear].sum(axis=0) + backward[linear].sum(axis=0)
        again = forward[linear].sum(axis=0) if layers == "all" else None
        found = cost.linear_by_kind_s(TOKENS)
        assert (found > whole).all()
        if again is not None:
            logits = forward[TERM_ROWS["logits"]]
            embedding = found - (whole + again - logits)
            assert (np.abs(embedding) < 0.01 * found).all()


def test_prediction_layers_cost_their_letters():
    predicting = replace(HYBRID, mtp_layers=2, mtp_pattern="*E")
    base, more = (terms(cost_of(each, ep=4))[0] for each in (HYBRID, predicting))
    attention = TERM_ROWS["attention"]
    assert more[attention] == pytest.approx(3 * base[attention])
    all_to_all = TERM_ROWS["expert_all_to_all"]
    assert more[all_to_all] == pytest.approx(5 / 3 * base[all_to_all])


def test_latent_experts_send_and_multiply_less():
    wide = replace(HYBRID, expert_latent=0)
    narrow, whole = (terms(cost_of(each, ep=4))[0] for each in (HYBRID, wide))
    row = TERM_ROWS["expert_all_to_all"]
    assert (narrow[row] < 0.5 * whole[row]).all()  # 512 of 2,048, and latencies


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"tp": 16}, "layout.tp: 8 groups of Mamba-2 heads of hybrid do not divide by tp = 16"),
        ({"tp": 3}, "layout.tp: 32 Mamba-2 heads of hybrid do not divide by tp = 3"),
        ({"cp": 3}, "layout.cp: the 32 Mamba-2 heads of a GPU of hybrid do not divide by cp = 3"),
        ({"ep": 4, "ep_overlap": True}, "layout.ep_overlap: is not modelled for hybrids"),
        ({"cp_kind": "disaggregated"}, "layout.cp_kind: disaggregated is not modelled for hybrids"),
    ],
)
def test_what_cannot_run_says_why(layout, words):
    with pytest.raises(InfeasibleError, match=words):
        check_layout(HYBRID, Layout(**layout))


def test_groups_that_neither_divide_nor_are_copied():
    model = replace(HYBRID, mamba=replace(MAMBA, heads=24, groups=3))
    reasons = reasons_against(model, CLUSTER, Layout(cp=4), 4096)
    assert any("the 3 groups of Mamba-2 heads of a GPU" in reason for reason in reasons)


def test_recomputing_expert_layers_needs_some():
    with pytest.raises(InfeasibleError, match="recompute_layers: plain has no layers with experts"):
        check_layout(PLAIN, Layout(recompute="full", recompute_layers="moe"))


def test_an_offloaded_hybrid_moves_the_mean_of_its_layers():
    cost = cost_of(HYBRID, ep=4)
    batches = replace(MicroBatches.single(np.array([8192])), offload_ratio=np.array([1.0]))
    forward, _ = cost.both_terms_s(batches)
    wait = forward[TERM_ROWS["offload_wait"], 0, 0]
    layer_s = forward.sum(axis=0)[0, 0] - wait
    transfer_s = cost.offloading.activation_bytes_per_token * 8192 / cost.offloading.bytes_per_s
    assert wait >= 0.0
    assert wait <= 6 * transfer_s
    assert wait >= 6 * transfer_s - layer_s


class TestPartsIn16Bits:
    """bf16_layers and bf16_parts: what a recipe of 8 or 4 bits leaves in 16."""

    PREDICTING = replace(HYBRID, mtp_layers=2, mtp_pattern="*E")

    def test_shares_of_the_kinds_by_hand(self) -> None:
        """HYBRID has 4 Mamba-2, 3 expert, 1 attention layer; two predicting layers add 2 and 2."""
        layers = Precision(products="fp8", bf16_layers=0.25)
        assert wide_shares(self.PREDICTING, layers) == dict.fromkeys(kinds_of(HYBRID), 0.25)
        both = wide_shares(self.PREDICTING, replace(layers, bf16_parts="prediction"))
        assert {kind.name: share for kind, share in both.items()} == pytest.approx(
            {"MAMBA": 0.25, "EXPERTS": (0.25 * 3 + 2) / 5, "ATTENTION": (0.25 * 1 + 2) / 3}
        )
        assert wide_shares(HYBRID, Precision(products="fp8", bf16_parts="prediction+latent")) == {}
        assert wide_shares(self.PREDICTING, replace(layers, products="bf16", bf16_layers=0.0)) == {}

    @pytest.mark.parametrize("model", [HYBRID, PLAIN, EXPERTS])
    @pytest.mark.parametrize("graphs", [True, False])
    def test_layers_in_16_bits_cost_what_they_do_in_bf16(self, model: Model, graphs: bool) -> None:
        """All of them: the step in BF16. A quarter: a quarter of the way."""
        common: dict[str, Any] = {"ep": 4 if model.experts else 1, "cuda_graphs": graphs, "tp": 2}
        narrow, wide = (terms(cost_of(model, precision=each, **common)) for each in ("fp8", "bf16"))
        for share in (1.0, 0.25):
            mixed = terms(cost_of(model, precision="fp8", bf16_layers=share, **common))
            for ours, of_fp8, of_bf16 in zip(mixed, narrow, wide, strict=True):
                rows = [row for name, row in TERM_ROWS.items() if name != "logits"]  # the head is no layer
                expected = (1.0 - share) * of_fp8[rows] + share * of_bf16[rows]
                assert ours[rows] == pytest.approx(expected)

    def test_predicting_layers_in_16_bits_leave_the_others_alone(self) -> None:
        """What two predicting layers add in 8 bits with it is what they add in BF16, but for a sum's rounding."""
        rows = TERM_ROWS["gemm"]
        added = {}
        for precision, parts in (("fp8", None), ("fp8", "prediction"), ("bf16", None)):
            base, more = (
                terms(cost_of(model, ep=4, precision=precision, bf16_parts=parts))[0][rows]
                for model in (HYBRID, self.PREDICTING)
            )
            added[precision, parts] = more - base
        assert added["fp8", "prediction"] == pytest.approx(added["bf16", None])
        assert (added["fp8", None] < added["bf16", None]).all()

    @pytest.mark.parametrize("parts", ["attention", "latent", "latent+attention"])
    def test_products_of_parts_in_16_bits(self, parts: str) -> None:
        """They take longer than in 8 bits and less than all products in 16."""
        found = [
            terms(cost_of(HYBRID, ep=4, tp=2, precision=precision, bf16_parts=some))[1][TERM_ROWS["gemm"]]
            for precision, some in (("fp8", None), ("fp8", parts), ("bf16", None))
        ]
        assert (found[0] < found[1]).all()
        assert (found[1] < found[2]).all()

    @settings(max_examples=30)
    @given(
        model=st.sampled_from([HYBRID, PREDICTING, PLAIN, EXPERTS]),
        shares=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2).map(sorted),
        precision=st.sampled_from(["fp8", "mxfp8"]),
        parts=st.sampled_from([None, "attention", "prediction", "attention+latent+prediction"]),
        pp=st.sampled_from([1, 2]),
    )
    def test_more_layers_in_16_bits_multiply_no_faster(
        self, model: Model, shares: list[float], precision: str, parts: str | None, pp: int
    ) -> None:
        common: dict[str, Any] = {"precision": precision, "bf16_parts": parts, "pp": pp}
        costs = [cost_of(model, bf16_layers=share, **common) for share in shares]
        few, many = (terms(cost)[0] + terms(cost)[1] for cost in costs)
        assert (few[TERM_ROWS["gemm"]] <= many[TERM_ROWS["gemm"]] * (1 + 1e-12)).all()
        for cost, all_terms in zip(costs, (few, many), strict=True):
            assert (cost.floor_by_kind_s[:, None] <= all_terms.sum(axis=0) * (1 + 1e-12)).all()

    def test_kept_inputs_are_as_wide(self) -> None:
        kept = [
            memory_report(HYBRID, Layout(**layout), CLUSTER, ranks=16, tokens_per_rank=4096).activations
            for layout in (
                {"precision": "fp8"},
                {"precision": "fp8", "bf16_layers": 0.5},
                {"precision": "fp8", "bf16_layers": 1.0},
                {"precision": "bf16"},
            )
        ]
        assert kept[0] < kept[1] < kept[2]
        assert kept[1] == pytest.approx((kept[0] + kept[2]) / 2)
        assert kept[2] == pytest.approx(kept[3])


@pytest.mark.parametrize("text", ["", "mamba", "attention+attention", "attention + latent", "latent+"])
def test_words_that_name_no_parts(text: str) -> None:
    assert not is_parts(text)
    with pytest.raises(UserInputError, match="bf16_parts"):
        Layout(precision="fp8", bf16_parts=text)
