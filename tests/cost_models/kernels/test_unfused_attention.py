"""Attention whose scores go to memory, and older flash kernels: bytes and FLOP by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ideal_hardware import FAST_MEMORY_GPU, GPU, HBM, HEADS, IDEAL, MODEL, PEAK, ideal_cluster

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.attention import unfused_attention_s
from hdpsim.cost_models.layer.attention.pack_sharding import Cut
from hdpsim.cost_models.layer.attention.ring_attention import AttentionCost
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import AttentionKernel
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import InfeasibleError

S, D = 2048.0, 128


def alone(
    layout: Layout, model: Model = MODEL, cal: Calibration = IDEAL, gpu: Gpu = GPU, *, backward: bool = False
) -> float:
    cost = AttentionCost(model, layout, gpu, cal, FabricModel(ideal_cluster(), cal.network))
    return float(cost.segments.alone_s([S], backward=backward)[0])


@pytest.mark.parametrize(
    ("backward", "fused", "dropout", "bytes_per_score"),
    # products read or write the scores once each: two forward, four backward
    [
        (False, True, False, 4 + 4), (False, True, True, 4 + 9), (True, True, False, 8 + 6),
        (True, True, True, 8 + 11), (False, False, False, 4 + 36), (True, False, False, 8 + 40),
    ],
)  # fmt: skip
def test_traffic_of_the_scores(backward: bool, fused: bool, dropout: bool, bytes_per_score: int) -> None:
    gpu = replace(GPU, bf16_flop_per_s=1e21)  # all memory
    seconds = unfused_attention_s(
        S, S, HEADS, D, D, gpu, IDEAL, backward=backward, fused_softmax=fused, dropout=dropout
    )
    operands = (
        HEADS * (8 if backward else 4) * S * D * 2
    )  # two operands (or results) of s x d in each product
    assert float(seconds) == pytest.approx((HEADS * S * S * bytes_per_score + operands) / HBM, rel=1e-12)


@pytest.mark.parametrize(("backward", "products"), [(False, 2), (True, 4)])
def test_flop_of_the_whole_square(backward: bool, products: int) -> None:
    seconds = unfused_attention_s(S, S, HEADS, D, D, FAST_MEMORY_GPU, IDEAL, backward=backward)
    flop = products * 2 * HEADS * S * S * D
    # tiles of 128 x 128 for products of 128 columns: 1.09 times slower than the large ones
    assert flop / PEAK <= float(seconds) <= 1.2 * flop / PEAK


def test_memory_makes_it_slower_than_flash_and_a_window_saves_nothing() -> None:
    for backward in (False, True):
        flash, unfused = (
            alone(Layout(attention_kernel=kernel), backward=backward) for kernel in ("flash", "unfused")
        )
        assert unfused > 1.5 * flash
        windowed = replace(MODEL, sliding_window=512)
        assert alone(Layout(attention_kernel="unfused"), windowed, backward=backward) == unfused


def test_older_flash_kernels_run_at_their_rate() -> None:
    cal = replace(IDEAL, flash1_rate=0.25, flash2_rate=0.5)
    kernels: tuple[AttentionKernel, ...] = ("flash", "flash2", "flash1")
    assert [alone(Layout(attention_kernel=kernel), cal=cal) for kernel in kernels] == pytest.approx(
        [alone(Layout()) * factor for factor in (1, 2, 4)], rel=1e-12
    )


def test_attention_in_mxfp8_has_rates_of_its_own_and_a_backward_without_windows() -> None:
    cal = replace(IDEAL, mxfp8_attention_rate=2.0, mxfp8_attention_backward_rate=1.25)
    gpu = replace(GPU, fp4_flop_per_s=4 * PEAK)
    for windowed in (
        MODEL,
        replace(MODEL, sliding_window=256),
        replace(MODEL, sliding_window=256, full_attention_every=2),
    ):
        for backward, rate in ((False, 2.0), (True, 1.25)):
            seconds = alone(Layout(attention_kernel="mxfp8"), windowed, cal, gpu, backward=backward)
            whole = alone(Layout(), MODEL if backward else windowed, cal, backward=backward)
            assert seconds == pytest.approx(whole / rate, rel=1e-12)
    with pytest.raises(InfeasibleError, match="has no tensor cores for it"):
        alone(Layout(attention_kernel="mxfp8"), gpu=replace(GPU, fp4_flop_per_s=None))


def test_the_longest_row_of_a_backward_without_windows_meets_all_keys() -> None:
    gpu, where = replace(GPU, fp4_flop_per_s=4 * PEAK), ideal_cluster()
    windowed, one = replace(MODEL, sliding_window=256), np.array([1.0])
    cost = AttentionCost(
        windowed, Layout(attention_kernel="mxfp8"), gpu, IDEAL, FabricModel(where, IDEAL.network)
    )
    cut = Cut(tokens=np.array([S]), group_size=one, ranks=one, slices=one)
    # of one second: 2,048 of 2,048^2 / 2 pairs in each head; with the window 256 of 256 (2,048 - 256 / 2) pairs or so
    forward, backward = (
        float(cost.segments.longest_row_s(one, cut, backward=side)[0]) * HEADS for side in (False, True)
    )
    assert backward == pytest.approx(2 / S)
    assert forward == pytest.approx(1 / (S - 128), rel=1e-3)


@pytest.mark.parametrize(("backward", "slowdown"), [(False, 1.4), (True, 2.0)])
def test_the_first_kernel_in_triton_is_slower_backward_than_forward(backward: bool, slowdown: float) -> None:
    cal = replace(IDEAL, flash2_rate=0.5)
    newer, older = (
        alone(Layout(attention_kernel=kernel), cal=cal, backward=backward) for kernel in ("flash2", "triton")
    )
    assert older == pytest.approx(slowdown * newer, rel=1e-12)


def test_selective_recomputation_repeats_the_scores_of_unfused_attention_only() -> None:
    batches = MicroBatches(
        segment_tokens=np.array([4096]), segment_offsets=np.array([0, 1]), group_size=np.array([1]),
        tier=np.array([0]), offload_ratio=np.zeros(1),
    )  # fmt: skip

    def terms(kernel: AttentionKernel) -> tuple[MicroBatchCost, float, float]:
        layout = Layout(recompute="selective", attention_kernel=kernel)
        cost = MicroBatchCost(MODEL, layout, ideal_cluster(), IDEAL)
        forward, backward = cost.both_terms_s(batches)
        assert np.array_equal(backward, cost.terms_s(batches, backward=True))
        return (
            cost,
            float(forward[TERMS.index("attention"), 0, 0]),
            float(backward[TERMS.index("recompute"), 0, 0]),
        )

    cost, forward_s, again_s = terms("unfused")
    assert again_s == pytest.approx(forward_s, rel=1e-12)
    assert terms("flash")[2] == 0.0
    # the planner's view agrees: linear parts leave the repeated attention to sequence_s
    attention_s = float(cost.sequence_s([4096], [1], [0])[0])
    whole_s = float(cost.busy_s(batches)[0])
    assert float(cost.linear_s([4096])[0, 0]) + attention_s == pytest.approx(whole_s, rel=1e-9)
