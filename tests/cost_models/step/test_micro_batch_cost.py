"""Micro-batches on pipeline stages: terms by hand on ideal hardware, and properties with shipped calibrations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ideal_hardware import (
    FAST_MEMORY_GPU,
    FFN,
    GPU,
    HBM,
    HIDDEN,
    HOST,
    IDEAL,
    MODEL,
    NIC,
    NVLINK,
    PEAK,
    ideal_cluster,
    ideal_cost,
    micro_batches,
    shipped_calibrations,
)

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.kernels.gemm import gemm_s
from hdpsim.cost_models.layer.output_head import LOSS_PASSES_BYTES
from hdpsim.cost_models.layer.recomputation import repeated_share
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import RecomputeKind
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost

LAYERS, VOCAB = 32, 32000
SLOW_MEMORY = ideal_cluster(gpu=GPU)
MIXTRAL = catalog.model("mixtral-8x7b")


def term(cost: MicroBatchCost, name: str, tokens: int, *, backward: bool = False, kind: int = 0) -> float:
    return float(cost.terms_s(micro_batches([[tokens]]), backward=backward)[TERMS.index(name), kind, 0])


# 2 norms, 4 products, 2 copies, attention, rotary embedding, 2 adds, activation
LAUNCHES = 13


class TestTerms:
    def test_the_whole_model_on_one_gpu(self) -> None:
        cost = ideal_cost()
        layer = 2 * 4096 * (HIDDEN * 48 * 128 + HIDDEN * HIDDEN + 3 * HIDDEN * FFN) / PEAK
        assert cost.kinds[0].layers == LAYERS
        assert term(cost, "gemm", 4096) == pytest.approx(LAYERS * layer)
        assert term(cost, "attention", 4096) == pytest.approx(LAYERS * 2 * HIDDEN * 4096**2 / PEAK)
        # 32 * 125 tiles for the logits: 62.5 waves of 4096 k-steps, the last one cut along k
        logits = 2 * 4096 * HIDDEN * VOCAB / PEAK
        assert term(cost, "logits", 4096) == pytest.approx(
            logits * (1 + IDEAL.stream_k_fixup / (62.5 * 4096)), rel=1e-5
        )
        others = set(TERMS) - {"gemm", "attention", "logits"}
        assert {name for name in others if term(cost, name, 4096) > 1e-7} == set()

    def test_loss_reads_and_writes_the_logits(self) -> None:
        slow, fast = ideal_cost(cluster=SLOW_MEMORY), ideal_cost()
        added = term(slow, "logits", 4096) - term(fast, "logits", 4096)
        products = [float(gemm_s(4096, VOCAB, HIDDEN, gpu, IDEAL)) for gpu in (GPU, FAST_MEMORY_GPU)]
        assert added - (products[0] - products[1]) == pytest.approx(
            LOSS_PASSES_BYTES * VOCAB * 4096 / HBM, rel=1e-5
        )

    def test_separate_kernels_of_the_loss_move_the_logits_more_often(self) -> None:
        layout = Layout(tp=2)
        fused, separate, eager = (
            term(ideal_cost(cluster=SLOW_MEMORY, layout=changed), "logits", 4096)
            for changed in (
                layout,
                layout.changed(fused_loss=False),
                layout.changed(fused_loss=False, fused_kernels=False),
            )
        )
        assert separate - fused == pytest.approx((52 - 12) * 4096 * VOCAB / 2 / HBM)
        assert eager == separate

    def test_a_loss_may_say_what_it_moves(self) -> None:
        auto, told, eager = (
            term(ideal_cost(cluster=SLOW_MEMORY, layout=layout), "logits", 4096)
            for layout in (
                Layout(),
                Layout(loss_bytes=36.0),
                Layout(loss_bytes=36.0, fused_loss=False, fused_kernels=False),
            )
        )
        assert told - auto == pytest.approx((36 - 12) * 4096 * VOCAB / HBM)
        assert eager == told

    def test_a_metric_of_the_loss_moves_the_logits_again(self) -> None:
        none, two = (
            term(ideal_cost(cluster=SLOW_MEMORY, layout=Layout(loss_metrics=metrics)), "logits", 4096)
            for metrics in (0, 2)
        )
        assert two - none == pytest.approx(2 * 14 * 4096 * VOCAB / HBM)

    def test_embedding_gathers_rows(self) -> None:
        # norms and activations are switched off; the first stage reads and writes 2 B * 4096 per token
        cost = ideal_cost(layout=Layout(pp=2), cluster=SLOW_MEMORY)
        first, last = cost.kind[:, 0]
        assert term(cost, "small_kernels", 1000, kind=int(first)) == pytest.approx(4 * HIDDEN * 1000 / HBM)
        assert term(cost, "small_kernels", 1000, kind=int(last)) == 0.0
        assert term(cost, "logits", 1000, kind=int(first)) == 0.0
        assert term(cost, "logits", 1000, kind=int(last)) > 0.0

    @pytest.mark.parametrize(("tp", "backward_elements"), [(1, 2), (4, 4)])
    def test_tensor_parallel_ranks_look_up_all_tokens(self, tp: int, backward_elements: int) -> None:
        # Of 4: a quarter of the rows read, all written, three quarters set to zero; gradients are copied before
        cost = ideal_cost(layout=Layout(tp=tp, pp=2), cluster=SLOW_MEMORY)
        first = int(cost.kind[0, 0])
        forward, backward = (
            term(cost, "small_kernels", 1000, kind=first, backward=side) for side in (False, True)
        )
        assert forward == pytest.approx(2 * 2 * HIDDEN * 1000 / HBM)
        assert backward == pytest.approx(backward_elements * 2 * HIDDEN * 1000 / HBM)

    def test_pipeline_stages_share_the_layers(self) -> None:
        whole, half = ideal_cost(), ideal_cost(layout=Layout(pp=2))
        assert half.kind.shape == (2, 1)
        assert half.busiest_layers == LAYERS // 2
        parts = [term(half, "gemm", 4096, kind=int(kind)) for kind in half.kind[:, 0]]
        assert sum(parts) == pytest.approx(term(whole, "gemm", 4096))

    def test_full_recompute_adds_one_forward_of_the_layers(self) -> None:
        full, none = ideal_cost(layout=Layout(recompute="full")), ideal_cost()
        again = term(none, "gemm", 4096) + term(none, "attention", 4096)
        assert term(full, "recompute", 4096, backward=True) == pytest.approx(again)
        assert term(full, "recompute", 4096) == 0.0
        assert term(none, "recompute", 4096, backward=True) == 0.0

    def test_host_bounds_small_layers(self) -> None:
        cost = ideal_cost(calibration=replace(IDEAL, launch_s=1 / LAUNCHES))
        layer = term(ideal_cost(), "gemm", 4096) / LAYERS + term(ideal_cost(), "attention", 4096) / LAYERS
        assert term(cost, "host", 4096) == pytest.approx(LAYERS * (1.0 - layer))
        total = cost.terms_s(micro_batches([[4096]]), backward=True)[:, 0, 0].sum()
        logits = term(cost, "logits", 4096, backward=True)
        assert total == pytest.approx(LAYERS * 2.0 + logits)

    def test_blocking_launches_hide_nothing(self) -> None:
        host = replace(IDEAL, launch_s=1e-6 / LAUNCHES)
        hidden, shown = (
            ideal_cost(layout=Layout(launch_blocking=blocking), calibration=host)
            for blocking in (False, True)
        )
        assert term(hidden, "host", 4096) == 0.0  # products take longer
        assert term(shown, "host", 4096) == pytest.approx(LAYERS * 1e-6)
        assert term(shown, "host", 4096, backward=True) == pytest.approx(LAYERS * 2e-6)

    def test_fixed_host_work_is_spread_over_passes_and_chunks(self) -> None:
        cost = ideal_cost(layout=Layout(pp=2, vpp=2), calibration=replace(IDEAL, micro_batch_fixed_s=1.0))
        parts = [
            term(cost, "host", 10, backward=side, kind=int(k)) for side in (False, True) for k in cost.kind[0]
        ]
        assert sum(parts) == pytest.approx(1.0)

    def test_experts(self) -> None:
        cost = ideal_cost(MIXTRAL, Layout(tp=8, ep=8))
        assert term(cost, "expert_all_to_all", 8192) > 0.0
        assert term(ideal_cost(), "expert_all_to_all", 8192) == 0.0

    def test_multi_token_prediction_is_a_layer_and_a_head_more(self) -> None:
        model = catalog.model("deepseek-v3")
        layout = Layout(tp=8, ep=8)
        without = ideal_cost(replace(model, mtp_layers=0), layout)
        with_mtp = ideal_cost(replace(model, mtp_layers=1), layout)
        assert term(with_mtp, "logits", 8192) == pytest.approx(2 * term(without, "logits", 8192))
        one = term(with_mtp, "attention", 8192) - term(without, "attention", 8192)
        assert one == pytest.approx(term(without, "attention", 8192) / 61)
        more_experts = ideal_cost(replace(model, mtp_layers=0, layers=62), layout)
        alike, whole = term(more_experts, "gemm", 8192), term(with_mtp, "gemm", 8192)
        projection_flop = 2 * 8192 * 2 * model.hidden * model.hidden / 8
        rate = with_mtp.cluster.gpu.bf16_flop_per_s
        assert whole - alike == pytest.approx(projection_flop / rate, rel=0.02)


class TestOffload:
    def test_what_compute_does_not_hide(self) -> None:
        # first and last layer stay: 30 layers move 1000 tokens of activations each over the host link
        cost = ideal_cost()
        batch = micro_batches([[1000]], offload=[1.0])
        terms = cost.terms_s(batch, backward=False)[:, 0, 0]
        layer = (terms[TERMS.index("gemm")] + terms[TERMS.index("attention")]) / LAYERS
        transfer = cost.offloading.activation_bytes_per_token * 1000 / (2 * HOST)  # one way
        assert transfer > layer
        assert terms[TERMS.index("offload_wait")] == pytest.approx(30 * (transfer - layer))

    @given(shipped_calibrations, st.integers(1, 200_000), st.booleans())
    def test_nothing_to_wait_for_at_ratio_zero(self, name: str, tokens: int, backward: bool) -> None:
        cost = ideal_cost(calibration=calibration(name))
        assert term(cost, "offload_wait", tokens, backward=backward) == 0.0

    @given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(1, 100_000))
    def test_moving_more_never_takes_less(self, one: float, other: float, tokens: int) -> None:
        low, high = sorted((one, other))
        waits = ideal_cost().terms_s(micro_batches([[tokens]] * 2, offload=[low, high]), backward=False)
        less, more = waits[TERMS.index("offload_wait"), 0]
        assert less <= more


class TestTransfers:
    def test_one_stage_sends_nothing(self) -> None:
        assert ideal_cost().transfer_s(micro_batches([[1000]]), 1).tolist() == [0.0]

    def test_activations_of_a_rank_to_the_next_stage(self) -> None:
        # 2 B * 4096 / 8 * (8000 tokens / 4 ranks)
        batch = micro_batches([[3000, 5000]], group_size=[4])
        across = ideal_cost(layout=Layout(tp=8, pp=2)).transfer_s(batch, 4)
        assert across == pytest.approx([2 * HIDDEN / 8 * 2000 / NIC])
        inside = ideal_cost(layout=Layout(tp=2, pp=4, order="tp-pp-dp")).transfer_s(batch, 4)
        assert inside == pytest.approx([2 * HIDDEN / 2 * 2000 / NVLINK])

    def test_links_inside_a_node_and_between_nodes(self) -> None:
        # one rank of 4 stages of 4 GPUs, two stages a node: of its three links the middle one leaves the node
        batch = micro_batches([[2000]])
        layout = Layout(tp=4, pp=4, order="tp-pp-dp")
        volume = 2 * HIDDEN / 4 * 2000
        seconds = ideal_cost(layout=layout).transfer_s(batch, 1)
        assert seconds == pytest.approx([volume * (2 / NVLINK + 1 / NIC) / 3])
        # two chunks a stage pass each link twice, and once from the last stage back to the first: 3 of 7 leave the node
        chunks = ideal_cost(layout=layout.changed(vpp=2)).transfer_s(batch, 1)
        assert chunks == pytest.approx([volume * (4 / NVLINK + 3 / NIC) / 7])

    def test_blocking_transfers_show_the_host_until_the_next_kernel(self) -> None:
        # a quarter of the 2 ms that the host works for a forward and a backward
        cal = replace(IDEAL, micro_batch_fixed_s=2e-3)
        beside, blocking = (
            ideal_cost(layout=Layout(tp=8, pp=2, pp_overlap=on), calibration=cal).transfer_s(
                micro_batches([[8000]]), 1
            )
            for on in (True, False)
        )
        assert blocking - beside == pytest.approx([0.5e-3])


def test_selective_recomputation_repeats_its_share_of_a_layer() -> None:
    batch, row = micro_batches([[4096]]), TERMS.index("recompute")
    full, half, none = (
        ideal_cost(layout=Layout(recompute=mode, recompute_share=share)).terms_s(batch, backward=True)[row]
        for mode, share in (("full", 0.0), ("selective", 0.5), ("selective", 0.0))
    )
    assert half == pytest.approx(full / 2)
    assert none.sum() == 0.0


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_policies_by_operation_repeat_shares_of_their_own(mode: RecomputeKind) -> None:
    batch, layout = (
        micro_batches([[4096]]),
        Layout(tp=8, recompute=mode, recompute_share=float(mode == "selective")),
    )
    shares = {"recompute_products": 0.25, "recompute_attention": 0.0, "recompute_collectives": 0.5}
    kept = ideal_cost(layout=layout.changed(**shares)).terms_s(batch, backward=True)
    forward = ideal_cost(layout=layout).terms_s(batch, backward=False)
    term = {name: forward[TERMS.index(name)] for name in TERMS}
    of_layer = ideal_cost(layout=layout)._layers.terms_s(batch, (False,))[False, False]
    embedding = term["small_kernels"] - of_layer[TERMS.index("small_kernels")]
    repeated = 0.25 * term["gemm"] + 0.5 * term["tp_communication"] + term["small_kernels"] - embedding
    assert kept[TERMS.index("recompute")] == pytest.approx(repeated)


# What the last wave of a kernel adds depends on what else is in the micro-batch: a sequence's cost is without it.
NO_LAST_WAVE = replace(calibration("hopper"), attention_forward_tail=0.0, attention_backward_tail=0.0)


class TestPlannersView:
    def test_sequence_cost_is_the_attention_of_its_micro_batch(self) -> None:
        cost = ideal_cost(calibration=NO_LAST_WAVE)
        lengths, groups, tiers = np.array([5000, 400_000]), np.array([1, 16]), np.array([0, 1])
        batch = micro_batches([[5000], [400_000]], group_size=[1, 16], tier=[0, 1])
        rows = [TERMS.index(name) for name in ("attention", "ring_merge", "ring_wait")]
        expected = sum(cost.terms_s(batch, backward=side)[rows, 0].sum(axis=0) for side in (False, True))
        assert cost.sequence_s(lengths, groups, tiers) == pytest.approx(expected)

    @settings(max_examples=40, deadline=None)
    @given(
        st.sampled_from(["none", "selective", "full"]),
        st.sampled_from(["flash", "unfused"]),
        st.sampled_from(["ring", "all-gather", "gathered-ring", "ulysses"]),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from([None, 0.0, 0.5]),
    )
    def test_sequence_cost_repeats_what_its_micro_batch_repeats(
        self, mode: str, kernel: str, cp_kind: str, share: float, of_attention: float | None
    ) -> None:
        layout = Layout(
            recompute=mode,  # type: ignore[arg-type]
            attention_kernel=kernel,  # type: ignore[arg-type]
            cp_kind=cp_kind,  # type: ignore[arg-type]
            recompute_share=share,
            recompute_attention=of_attention,
        )
        cost = ideal_cost(layout=layout, calibration=NO_LAST_WAVE)
        batch = micro_batches([[5000], [400_000]], group_size=[1, 16], tier=[0, 1])
        forward, backward = (cost.terms_s(batch, backward=side)[:, 0] for side in (False, True))
        names = ("attention", "ring_merge", "ring_wait")
        rows = [TERMS.index(name) for name in names]
        again = np.array([repeated_share(layout, name) for name in names]) @ forward[rows]
        expected = forward[rows].sum(axis=0) + backward[rows].sum(axis=0) + again
        found = cost.sequence_s([5000, 400_000], [1, 16], [0, 1])
        assert found == pytest.approx(expected)

    def test_token_cost_is_the_rest_of_a_uniform_micro_batch_without_host_time(self) -> None:
        cost = ideal_cost(calibration=calibration("hopper"))
        not_linear = {"attention", "ring_merge", "ring_wait", "host"}
        rest = [row for row, name in enumerate(TERMS) if name not in not_linear]
        batch = micro_batches([[8192]])
        total = sum(cost.terms_s(batch, backward=side)[rest, 0, 0].sum() for side in (False, True))
        assert cost.token_s(8192) == pytest.approx(total / 8192)

    def test_the_floor_of_a_micro_batch_is_its_layers(self) -> None:
        cost = ideal_cost(layout=Layout(pp=2), calibration=replace(IDEAL, launch_s=1 / LAUNCHES))
        assert cost.floor_s == pytest.approx(3.0 * LAYERS / 2)

    def test_a_micro_batch_passes_one_of_the_two_copies_of_dualpipe(self) -> None:
        cal = replace(IDEAL, launch_s=1 / LAUNCHES)
        plain = ideal_cost(layout=Layout(pp=2), calibration=cal)
        both_ways = ideal_cost(layout=Layout(pp=2, schedule="dualpipe"), calibration=cal)
        assert both_ways.floor_s == plain.floor_s == pytest.approx(3.0 * LAYERS / 2)
        batch = micro_batches([[8192]])
        # Micro-batches start at either end in turn: both stages do half of what first and last do in 1F1B.
        sums = [cost.linear_s([8192]).sum(axis=0) for cost in (plain, both_ways)]
        assert sums[1] == pytest.approx(sums[0])
        assert both_ways.linear_s([8192]) == pytest.approx(sums[0][0] / 2)
        head_and_half = [
            ideal_cost(layout=Layout(pp=2, schedule=schedule)).busy_s(batch)
            for schedule in ("1f1b", "dualpipe")
        ]
        assert head_and_half[1] < head_and_half[0]

    def test_launches_of_an_input_gradient_hide_behind_its_own_work(self) -> None:
        # Faster products shorten the weight gradient; what the next stage waits for may not grow by as much.
        layout = Layout(pp=2, schedule="zb-h1")
        batch = micro_batches([[8192]])
        input_s = []
        for rate in (0.1, 0.2, 0.8):
            faster = replace(IDEAL, launch_s=0.02 / LAUNCHES, gemm_efficiency=rate)
            cost = ideal_cost(layout=layout, calibration=faster)
            backward = cost.terms_s(batch, backward=True).sum(axis=0)
            input_s.append(backward - cost.weight_terms_s(batch).sum(axis=0))
        assert (np.diff(input_s, axis=0) <= 1e-12).all()


lengths = st.integers(1, 200_000)


@given(shipped_calibrations, lengths, st.integers(1, 100_000), st.booleans(), st.sampled_from([1, 4, 16]))
def test_more_tokens_take_longer(name: str, tokens: int, more: int, backward: bool, group: int) -> None:
    cost = ideal_cost(layout=Layout(tp=2, pp=2), cluster=SLOW_MEMORY, calibration=calibration(name))
    batches = micro_batches([[tokens], [tokens + more]], group_size=[group] * 2, tier=[1] * 2)
    totals = cost.terms_s(batches, backward=backward).sum(axis=0)
    assert np.all(totals[:, 1] >= totals[:, 0] * (1 - 1e-12))


@given(shipped_calibrations, lengths, st.integers(2, 5), st.booleans())
def test_cutting_a_segment_in_equal_parts_never_slows(
    name: str, tokens: int, parts: int, backward: bool
) -> None:
    cost = ideal_cost(calibration=calibration(name))
    batches = micro_batches([[parts * tokens], [tokens] * parts])
    totals = cost.terms_s(batches, backward=backward).sum(axis=0)
    assert np.all(totals[:, 1] <= totals[:, 0] * (1 + 1e-12))


@given(shipped_calibrations, lengths, st.sampled_from([1, 8, 32]), st.booleans())
def test_faster_links_never_slow(name: str, tokens: int, group: int, backward: bool) -> None:
    batch = micro_batches([[tokens]], group_size=[group], tier=[int(group > 4)], offload=[0.5])
    layout, cal = Layout(tp=2, ep=2), calibration(name)
    base, fast = (
        MicroBatchCost(MIXTRAL, layout, ideal_cluster(nvlink=k * NVLINK, nic=k * NIC), cal).terms_s(
            batch, backward=backward
        ).sum()
        for k in (1, 2)
    )  # fmt: skip
    assert fast <= base * (1 + 1e-12)


@given(shipped_calibrations, st.lists(st.lists(lengths, min_size=1, max_size=3), min_size=1, max_size=4))
def test_every_time_is_finite_and_not_negative(name: str, packs: list[list[int]]) -> None:
    cost = ideal_cost(layout=Layout(recompute="full"), cluster=SLOW_MEMORY, calibration=calibration(name))
    terms = cost.terms_s(micro_batches(packs, offload=[0.7] * len(packs)), backward=True)
    assert terms.shape == (len(TERMS), 1, len(packs))
    assert np.isfinite(terms).all()
    assert (terms >= 0.0).all()


def test_no_micro_batches() -> None:
    assert ideal_cost().terms_s(micro_batches([]), backward=True).shape == (len(TERMS), 1, 0)


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100", "b200"])
def test_a_7b_step_reaches_a_plausible_share_of_the_peak(gpu: str) -> None:
    # 8 sequences of 4096 tokens, everything on one GPU: 0.4 to 0.8 of the peak, as published single-node runs do
    chip = catalog.gpu(gpu)
    cost = MicroBatchCost(MODEL, Layout(), ideal_cluster(gpu=chip), calibration(chip.calibration))
    batch = micro_batches([[4096]])
    seconds = sum(cost.terms_s(batch, backward=side).sum() for side in (False, True))
    weights = LAYERS * (HIDDEN * 48 * 128 + HIDDEN**2 + 3 * HIDDEN * FFN) + HIDDEN * VOCAB
    flop = 6 * weights * 4096 + 6 * LAYERS * HIDDEN * 4096**2
    assert 0.4 < flop / seconds / chip.bf16_flop_per_s < 0.8


def test_weight_gradients_are_half_of_the_backward_products_and_the_rest_is_the_input_gradient() -> None:
    # Without efficiencies a weight gradient has the FLOP of the forward, the whole backward twice as many.
    cost, batch = ideal_cost(), micro_batches([[4096], [1024, 1024]])
    backward, weight = cost.terms_s(batch, backward=True), cost.weight_terms_s(batch)
    row = TERMS.index("gemm")
    np.testing.assert_allclose(weight[row], backward[row] / 2, rtol=0.02)
    assert set(np.flatnonzero(weight.sum(axis=(1, 2)))) == {row, TERMS.index("logits")}


@given(shipped_calibrations, st.lists(lengths, min_size=1, max_size=4))
def test_weight_gradients_never_exceed_the_backward(name: str, tokens: list[int]) -> None:
    cost = MicroBatchCost(MIXTRAL, Layout(tp=2, ep=2), ideal_cluster(), calibration(name))
    batch = micro_batches([[count] for count in tokens])
    assert np.all(cost.weight_terms_s(batch) <= cost.terms_s(batch, backward=True))
