"""Traffic of norms, biases, activation and routing, counted by hand; fused never moves more than separate kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import FFN, GPU, HBM, HEADS, HIDDEN, IDEAL, KV_HEADS, MODEL

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.layer.host_launches import forward_launches, small_kernels
from hdpsim.cost_models.layer.small_kernels import SmallKernels
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.transformer.model import LatentAttention, Model

CAL = replace(IDEAL, small_kernel_passes=1.0)
GPT = replace(MODEL, gated_mlp=False, norm="layer", biases=True, learned_positions=2048)


def passes(model: Model, layout: Layout | None = None) -> float:
    return SmallKernels(model, layout or Layout(), GPU, CAL, moe=False).passes


def test_fused_passes_of_llama() -> None:
    # 2 norms (read, write), 2 adds (read 2, write 1), rotary (read, write), gate and up in, product out
    assert passes(MODEL) == 2 * (2 + 3) * HIDDEN + 2 * (HEADS + KV_HEADS) * 128 + 3 * FFN


def test_separate_passes_of_llama() -> None:
    by_hand = (2 * 18 + 2 * 3) * HIDDEN + 10 * (HEADS + KV_HEADS) * 128 + 5 * FFN
    assert passes(MODEL, Layout(fused_kernels=False)) == by_hand
    by_hand = (2 * 2 + 2 * 3) * HIDDEN + 10 * (HEADS + KV_HEADS) * 128 + 5 * FFN
    assert passes(MODEL, Layout(fused_kernels=False, fused_norms=True)) == by_hand


def test_separate_gradients_of_llama() -> None:
    # norm: weight 2, to fp32 3, scale 4, of the scale 6 + 2, of the mean 2, of the square 4 + 4 + 6, sum 6, back 3;
    # of its weight 3 + 1; fork 3; rotary: 4 products, negation, 2 x 2 zeros, 2 sums; SwiGLU 3 + 3 + 3
    rotary = 15 * (HEADS + KV_HEADS) * 128
    assert backward(MODEL, fused_kernels=False) == 2 * (46 + 3) * HIDDEN + rotary + 9 * FFN
    one = backward(MODEL, fused_kernels=False, fused_norms=True)
    assert one == 2 * (5 + 3) * HIDDEN + rotary + 9 * FFN
    frozen = backward(replace(MODEL, adapter_rank=8), fused_kernels=False)
    assert frozen == 2 * (42 + 3) * HIDDEN + rotary + 9 * FFN
    normed = replace(MODEL, qk_norm=True)
    more = backward(normed, fused_kernels=False) - backward(MODEL, fused_kernels=False)
    assert more == 46 * (HEADS + KV_HEADS) * 128
    dropped = replace(MODEL, dropout=True)
    assert backward(dropped, fused_kernels=False) - backward(MODEL, fused_kernels=False) == 2 * 2.5 * HIDDEN
    assert backward(GPT, fused_kernels=False) == 2 * passes(GPT, Layout(fused_kernels=False))


def test_gradients_of_matrices_that_read_one_input_are_summed() -> None:
    # of queries, keys and values two sums, of gate and up one: 2 read, 1 written, of whole rows on every GPU
    def sums(model: Model, *, fused: bool = False, moe: bool = False, tp: int = 1) -> float:
        joined = Layout(fused_kernels=fused, tp=tp, sequence_parallel=tp > 1)
        usual, apart = (
            SmallKernels(model, layout, GPU, CAL, moe=moe).passes_backward
            for layout in (joined, joined.changed(matrices_apart=True))
        )
        return apart - usual

    assert sums(MODEL) == sums(MODEL, tp=8) == (6 + 3) * HIDDEN
    assert sums(GPT) == 6 * HIDDEN
    assert sums(replace(MODEL, experts=8, top_k=2), moe=True) == (6 + 2 * 3) * HIDDEN
    assert sums(MODEL, fused=True) == 0


def test_dropout_of_gpt() -> None:
    # fused: only the mask of one byte is new, twice; separate: read, write and the mask, twice, beside the biases
    assert passes(replace(GPT, dropout=True)) - passes(GPT) == 2 * 0.5 * HIDDEN
    separate = Layout(fused_kernels=False)
    assert passes(GPT, separate) == (2 * 10 + 2 * 5) * HIDDEN + 4 * FFN
    assert passes(replace(GPT, dropout=True), separate) - passes(GPT, separate) == 2 * 2.5 * HIDDEN


def test_sequence_parallelism_spreads_norms_and_dropout() -> None:
    whole, spread = (passes(GPT, Layout(tp=8, sequence_parallel=sp)) for sp in (False, True))
    assert whole - spread == 10 * HIDDEN * 7 / 8


def test_the_backward_moves_twice_as_much() -> None:
    kernels, tokens = SmallKernels(MODEL, Layout(), GPU, CAL, moe=False), np.array([1000.0])
    assert kernels.seconds(tokens, backward=False) == pytest.approx(2 * passes(MODEL) * 1000 / HBM)
    assert kernels.seconds(tokens, backward=True) == pytest.approx(4 * passes(MODEL) * 1000 / HBM)


def backward(model: Model, **switches: bool | int) -> float:
    return SmallKernels(model, Layout(**switches), GPU, CAL, moe=False).passes_backward


def test_lean_gradients_read_what_they_need() -> None:
    # 2 norms (gradient, input, written), 2 forks (two gradients summed), rotary, SwiGLU: 1 + 2 read, 2 written
    by_hand = 2 * (3 + 3) * HIDDEN + 2 * (HEADS + KV_HEADS) * 128 + 5 * FFN
    assert backward(MODEL, lean_gradients=True) == by_hand
    assert backward(GPT, lean_gradients=True) == 2 * (3 + 3) * HIDDEN + 3 * FFN
    dropout = replace(GPT, dropout=True)  # gradient, a mask of one byte, written
    assert backward(dropout, lean_gradients=True) - backward(GPT, lean_gradients=True) == 2 * 2.5 * HIDDEN
    parallel = replace(MODEL, parallel_block=True)  # one norm, whose output and input are read twice
    assert by_hand - backward(parallel, lean_gradients=True) == 3 * HIDDEN
    normed = replace(MODEL, qk_norm=True)
    assert backward(normed, lean_gradients=True) == by_hand + 3 * (HEADS + KV_HEADS) * 128
    separate = (backward(MODEL, fused_kernels=False, lean_gradients=lean) for lean in (False, True))
    assert len(set(separate)) == 1  # kernels of single operations have gradients of their own


def test_every_kernel_starts_up_and_drains() -> None:
    # fused: 2 norms, 2 adds, activation, rotary embedding, 2 copies; separate: 2 x 6, 2, 2, 8, 2
    cal = replace(CAL, kernel_tail_s=1.0)
    tokens = np.array([0.0, 1000.0])
    for layout, kernels in ((Layout(), 8), (Layout(fused_kernels=False), 26), (Layout(cuda_graphs=True), 8)):
        plain, tailed = (SmallKernels(MODEL, layout, GPU, c, moe=False) for c in (CAL, cal))
        for backward in (False, True):
            more = tailed.seconds(tokens, backward=backward) - plain.seconds(tokens, backward=backward)
            assert more == pytest.approx([0.0, kernels * (2 if backward else 1)])


@given(
    st.sampled_from([MODEL, replace(MODEL, experts=64, top_k=8), replace(MODEL, qk_norm=True)]),
    st.sampled_from([1, 8]), st.sampled_from([1, 8]), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_small_kernels_are_launched(
    model: Model, tp: int, ep: int, graphs: bool, fused: bool, overlap: bool
) -> None:
    layout = Layout(tp=tp, ep=ep, cuda_graphs=graphs, fused_kernels=fused, ep_overlap=overlap)
    moe = bool(model.experts)
    kernels = small_kernels(model, layout, moe=moe)
    assert 0 < kernels < forward_launches(model, layout.changed(cuda_graphs=False), moe=moe)
    # neither graphs nor the pieces of an overlapped layer change what runs on the device
    assert kernels == small_kernels(model, layout.changed(cuda_graphs=False, ep_overlap=False), moe=moe)


@given(
    st.sampled_from([MODEL, GPT]), st.booleans(), st.booleans(), st.sampled_from([1, 2, 4, 8]), st.booleans()
)
def test_fused_and_lean_never_move_more(
    model: Model, parallel: bool, dropout: bool, tp: int, sp: bool
) -> None:
    shape = replace(model, parallel_block=parallel, dropout=dropout)
    layouts = (Layout(tp=tp, sequence_parallel=sp, fused_kernels=fused) for fused in (True, False))
    cal = calibration("hopper")
    fused, separate = (SmallKernels(shape, layout, GPU, cal, moe=False).passes for layout in layouts)
    assert fused < separate
    if not parallel:  # whose two forks the forward, with one sum, does not tell
        lean, usual = (
            backward(shape, tp=tp, sequence_parallel=sp, lean_gradients=lean) for lean in (True, False)
        )
        assert usual / 2 < lean < usual


MOE = replace(MODEL, experts=64, top_k=8)


def moe(model: Model, layout: Layout) -> SmallKernels:
    return SmallKernels(model, layout, GPU, CAL, moe=True)


def test_routing_is_copied_as_often_back_as_forth() -> None:
    # in: gathered, sorted by expert, 2 passes each over 8 copies; out: the same
    assert moe(MOE, Layout(ep=8)).routing_passes == 8 * 8 * HIDDEN
    assert moe(MOE, Layout(ep=64)).routing_passes == 4 * 8 * HIDDEN  # one expert: nothing to sort
    assert moe(MOE, Layout()).routing_passes == 4 * 8 * HIDDEN
    # experts cut over two GPUs: both sort what both gathered, 8 x 2 copies of half of the tokens
    assert moe(MOE, Layout(tp=2, ep=8, etp=2)).routing_passes == (4 + 4 * 2) * 8 * HIDDEN / 2
    kernels, tokens = moe(MOE, Layout(ep=8)), np.array([1000.0])
    forward, backward = (kernels.seconds(tokens, backward=side) for side in (False, True))
    assert 2 * forward - backward == pytest.approx(2 * 64 * HIDDEN * 1000 / HBM)


def test_fused_dispatch_copies_what_arrives() -> None:
    # a token reaches 5.43 of 8 GPUs, each copies it for its experts; one expert each: as all-to-all
    fused = Layout(ep=8, expert_dispatch="fused")
    assert moe(MOE, fused).routing_passes == pytest.approx(2 * (8 + 5.4327) * HIDDEN, rel=1e-4)
    one_each = Layout(ep=64, expert_dispatch="fused")
    assert moe(MOE, one_each).routing_passes == pytest.approx(4 * 8 * HIDDEN)


def test_rows_are_padded_for_narrow_products_only() -> None:
    plain, padded = (Layout(ep=8, precision="mxfp8", expert_padding=on) for on in (False, True))
    more = moe(MOE, padded).routing_passes - moe(MOE, plain).routing_passes
    assert more == 4 * 8 * HIDDEN  # into a buffer and out of one
    assert moe(MOE, padded.changed(precision="bf16")).routing_passes == moe(MOE, plain).routing_passes
    shared = (Layout(tp=2, ep=8, etp=2, precision="fp8", expert_padding=on) for on in (False, True))
    without, with_padding = (moe(MOE, layout).routing_passes for layout in shared)
    assert with_padding - without == 4 * 2 * 8 * HIDDEN / 2


@given(
    tp=st.sampled_from([1, 2]), gated=st.booleans(), kernels=st.sampled_from(["separate", "grouped", "fused"])
)
def test_scores_that_weigh_gated_activations_read_them_once_more(tp: int, gated: bool, kernels: str) -> None:
    model = replace(MOE, gated_mlp=gated)
    outputs = Layout(tp=tp, ep=8, expert_kernels=kernels)
    plain, weighed = moe(model, outputs), moe(model, outputs.changed(expert_weights="activations"))
    again = 3 * 8 * MOE.ffn_hidden / tp if gated and kernels != "fused" else 0.0  # gradient, gate and input
    assert weighed.passes_backward - plain.passes_backward == pytest.approx(again)
    assert weighed.passes == plain.passes


def test_experts_as_modules_write_into_one_output() -> None:
    one, several = (replace(MODEL, experts=8, top_k=2), replace(MODEL, experts=32, top_k=2))
    grouped, modules = Layout(ep=8), Layout(ep=8, expert_kernels="modules")
    for model, experts in ((one, 1), (several, 4)):
        plain, copied = moe(model, grouped), moe(model, modules)
        assert copied.routing_passes - plain.routing_passes == 3 * 2 * HIDDEN
        more = copied.routing_passes_backward - plain.routing_passes_backward
        assert more == (2 + 8 * experts) * 2 * HIDDEN


def test_experts_that_take_tokens_by_index_add_to_one_gradient_of_all() -> None:
    model = replace(MODEL, experts=8, top_k=2)
    for ep, experts in ((8, 1), (2, 4), (1, 8)):
        plain, indexed = moe(model, Layout(ep=ep)), moe(model, Layout(ep=ep, expert_kernels="indexed"))
        assert indexed.routing_passes - plain.routing_passes == (3 * 2 + 1) * HIDDEN
        more = indexed.routing_passes_backward - plain.routing_passes_backward
        assert more == (10 * 2 + 4 * experts) * HIDDEN


def test_a_scaled_rotary_embedding_is_not_fused() -> None:
    scaled, turned = replace(MODEL, scaled_rotary=True), (HEADS + KV_HEADS) * 128
    # forward 5 passes of vectorised kernels, 7 of views and broadcast operands, at 0.45 of the rate
    assert passes(scaled) - passes(MODEL) == pytest.approx((5 + 7 / 0.45 - 2) * turned)


def test_the_rotary_embedding_of_latent_attention_in_separate_kernels() -> None:
    latent = LatentAttention(
        q_lora_rank=256, kv_lora_rank=128, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    fused = replace(MODEL, kv_heads=HEADS, latent_attention=latent)
    separate, layout = replace(fused, scaled_rotary=True), Layout(tp=2)
    kernels = SmallKernels(separate, layout, GPU, CAL, moe=False)
    turned, whole = HEADS / 2 * 64, HEADS / 2 * (2 * 192 + 128)
    rest = passes(fused, layout) - 2 * (2 * HEADS) * 128 / 2  # what a fused kernel reads and writes
    assert kernels.passes - rest == pytest.approx((5 + 9 / 0.45) * turned + 2 / 0.45 * whole)
    backward = kernels.passes_backward - 2 * rest
    assert backward == pytest.approx((15 + 9 / 0.45) * turned + 2 / 0.45 * whole)


def test_kernels_of_scaled_rotary_embeddings() -> None:
    latent = LatentAttention(
        q_lora_rank=256, kv_lora_rank=128, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    for model, kernels in ((MODEL, 44 / 3), (replace(MODEL, latent_attention=latent), 64 / 3)):
        counts = [
            small_kernels(replace(model, scaled_rotary=on), Layout(), moe=False) for on in (False, True)
        ]
        assert counts[1] - counts[0] == pytest.approx(kernels - 1)


def test_norms_of_queries_and_keys() -> None:
    normed = replace(MODEL, qk_norm=True)
    assert passes(normed) - passes(MODEL) == 2 * (HEADS + KV_HEADS) * 128
    separate = Layout(fused_kernels=False)
    assert passes(normed, separate) - passes(MODEL, separate) == 18 * (HEADS + KV_HEADS) * 128


def test_clamps_and_biases_of_experts() -> None:
    layout = Layout(ep=8, tp=2)
    plain = moe(MOE, layout).passes
    clamped, biased = (replace(MOE, clamped_activation=True), replace(MOE, expert_biases=True))
    assert moe(clamped, layout).passes - plain == pytest.approx((4 + 4 / 0.45) * 8 * FFN / 2)
    assert moe(biased, layout).passes - plain == pytest.approx((7 + 7 / 0.45) * 8 * HIDDEN / 2)
    assert passes(replace(MOE, dense_layers=1, dense_ffn_hidden=FFN, expert_biases=True)) == passes(MODEL)
    backward = moe(MOE, layout).passes_backward
    assert moe(clamped, layout).passes_backward - backward == pytest.approx((5.5 + 9.5 / 0.45) * 8 * FFN / 2)
    assert moe(biased, layout).passes_backward - backward == pytest.approx((9 + 11 / 0.45) * 8 * HIDDEN / 2)


def test_fused_experts_clamp_and_add_biases_in_their_products() -> None:
    grouped, fused = Layout(ep=8), Layout(ep=8, expert_kernels="fused")
    model = replace(MOE, clamped_activation=True, expert_biases=True)
    assert (moe(model, fused).passes, moe(model, fused).kernels) == (
        moe(MOE, grouped).passes,
        moe(MOE, grouped).kernels,
    )
    assert moe(model, fused).passes_backward == moe(MOE, grouped).passes_backward
    assert moe(MOE, fused).passes == moe(MOE, grouped).passes


def test_attention_in_mxfp8_transposes_and_casts_what_it_reads() -> None:
    plain, narrow = (
        SmallKernels(MODEL, Layout(tp=2, attention_kernel=kernel), GPU, CAL, moe=False)
        for kernel in ("flash", "mxfp8")
    )
    # read and written transposed, then 5.3 B of a cast along rows and columns
    per_element = 2 + 5.3 / 2
    assert narrow.passes - plain.passes == pytest.approx(per_element * (HEADS + 2 * KV_HEADS) * 128 / 2)
    assert narrow.passes_backward - plain.passes_backward == pytest.approx(per_element * HEADS * 128 / 2)
    parts = LatentAttention(
        q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    latent = replace(MODEL, latent_attention=parts)  # keys and values of every head
    wide, usual = (passes(latent, Layout(attention_kernel=kernel)) for kernel in ("mxfp8", "flash"))
    assert wide - usual == pytest.approx(per_element * HEADS * (2 * 192 + 128))


def test_norms_activation_and_clamps_run_again() -> None:
    model = replace(MOE, clamped_activation=True, expert_biases=True, qk_norm=True)
    tokens, plain = np.array([1000.0]), Layout(ep=8, recompute="selective")
    again = plain.changed(recompute_small_kernels=True)
    for backward, passes in (
        (False, 0),
        (True, 2 * 2 * HIDDEN + 2 * (HEADS + KV_HEADS) * 128 + (3 + 4 + 4 / 0.45) * 8 * FFN),
    ):
        times = [moe(model, layout).seconds(tokens, backward=backward) for layout in (plain, again)]
        assert times[1] - times[0] == pytest.approx(2 * passes * 1000 / HBM, rel=1e-9, abs=1e-15)
    assert moe(model, again.changed(recompute="none")).repeated_passes == 0
