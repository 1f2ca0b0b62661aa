"""Traffic around narrow products: casts by hand, scales of rows, and what a layer makes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import FFN, GPU, HBM, HIDDEN, IDEAL, MODEL, PEAK, ideal_cluster

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.kernels.casts import LinearOp, OperandCasts
from hdpsim.cost_models.kernels.number_formats import BLOCK_RATE, ROW_FORWARD_RATE, cast_bytes, scaled_rates
from hdpsim.cost_models.layer.layer import LayerCost
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Fp8Scaling
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.fabric import FabricModel

NARROW_GPU = replace(GPU, fp8_flop_per_s=2 * PEAK)
UP = LinearOp(columns=600, inner=100, matrices=2)
DOWN = LinearOp(columns=100, inner=300)


def casts(scaling: Fp8Scaling, *ops: LinearOp, shards: int = 1, frozen: bool = False) -> OperandCasts:
    return OperandCasts.of(ops, "fp8", scaling, frozen=frozen, full_width=100, sequence_shards=shards)


class TestTraffic:
    def test_one_scale_for_each_tensor(self) -> None:
        found = casts("tensor", UP, DOWN)
        assert found.per_token == (6.0 * (100 + 300), 6.0 * (600 + 100))
        assert found.of_weights == (0.0, 0.0)

    def test_scales_of_rows(self) -> None:
        found = casts("row", UP, DOWN)
        # two input gradients of 100 of the matrices side by side, one of 300, read and written once more
        assert found.per_token == (8.0 * (100 + 300), 8.0 * (600 + 100) + 4.0 * (2 * 100 + 300))
        weights = 600 * 100 + 100 * 300
        assert found.of_weights == (3.0 * weights, (7.0 + 4.0) * weights)

    def test_tensors_that_are_gathered_later_are_cast_in_shards(self) -> None:
        assert casts("tensor", UP, DOWN, shards=4).per_token == (6.0 * (25 + 300), 6.0 * (600 + 25))

    def test_frozen_weights_have_no_gradient_to_scale(self) -> None:
        weights = 600 * 100
        assert casts("row", UP, frozen=True).of_weights == (3.0 * weights, 7.0 * weights)

    def test_nothing_narrow_casts_nothing(self) -> None:
        assert casts("row") == OperandCasts((0.0, 0.0), (0.0, 0.0))


def layer(scaling: Fp8Scaling) -> LayerCost:
    where = ideal_cluster(gpu=NARROW_GPU)
    layout = Layout(precision="fp8", fp8_scaling=scaling)
    return LayerCost(MODEL, layout, where, IDEAL, Collectives(FabricModel(where, IDEAL.network)), moe=False)


class TestLayers:
    def test_a_layer_of_a_llama_by_hand(self) -> None:
        tokens = np.array([4096.0])
        one, rows = (layer(scaling) for scaling in ("tensor", "row"))
        qkv = 48 * 128
        weights = HIDDEN * (qkv + HIDDEN + 3 * FFN)
        inputs, gradients = 3 * HIDDEN + FFN, qkv + HIDDEN + 2 * FFN + HIDDEN
        more = (
            2.0 * 4096 * inputs + 3.0 * weights,
            # queries, keys, values: three input gradients; gate and up: two; output and down: one each
            2.0 * 4096 * gradients + 4.0 * 4096 * (3 * HIDDEN + HIDDEN + 2 * HIDDEN + FFN) + 11.0 * weights,
        )
        for backward in (False, True):
            seconds = [float(cost.small_kernels_s(tokens, backward=backward)[0]) for cost in (one, rows)]
            assert seconds[1] - seconds[0] == pytest.approx(more[backward] / HBM)

    def test_no_tokens_cast_no_weights(self) -> None:
        assert layer("row").small_kernels_s(np.array([0.0]), backward=True) == 0.0

    def test_forwards_run_at_a_share_of_the_rate(self) -> None:
        tokens = np.array([8192.0])
        one, rows = (layer(scaling).gemm_s(tokens, backward=False) for scaling in ("tensor", "row"))
        assert one / rows == pytest.approx(ROW_FORWARD_RATE, rel=0.02)  # traffic is as long in both
        one, rows = (layer(scaling).gemm_s(tokens, backward=True) for scaling in ("tensor", "row"))
        assert one == rows

    def test_scales_of_blocks_slow_all_products_down(self) -> None:
        # Hopper: promoted sums at 0.87, what multiplies them by scales at 0.94
        assert scaled_rates("block", calibration("hopper")) == pytest.approx((0.87 * 0.94, 0.87 * 0.94))
        tokens = np.array([8192.0])
        for backward in (False, True):
            one, blocks = (layer(way).gemm_s(tokens, backward=backward) for way in ("tensor", "block"))
            assert 0.98 * BLOCK_RATE < one / blocks < 1.03 * BLOCK_RATE  # traffic is as long in both

    def test_an_h200s_layer_with_scales_of_blocks_takes_what_it_was_measured_to_take_longer(self) -> None:
        # Transformer Engine, GEMM profiling tutorial: h 4096, f 16384, no gate, 15,872 tokens, weights cast with each
        # product: 18.98 ms with delayed scales, 22.88 with blocks; its products with delayed scales promote nothing
        h200 = replace(calibration("hopper"), fp8_gradient_efficiency=1.0)
        products_s, cast_s = 16.785e-3, 2.48e9 / (0.9 * 4.8e12)
        hopper = calibration("hopper")
        delayed_s = products_s / scaled_rates("delayed", h200)[0] + cast_s * cast_bytes("fp8", "delayed")
        blocks_s = products_s / scaled_rates("block", hopper)[0] + cast_s * cast_bytes("fp8", "block")
        assert delayed_s == pytest.approx(18.978e-3, rel=0.01)
        assert blocks_s == pytest.approx(22.882e-3, rel=0.01)

    @given(st.floats(1.0, 1e6), st.floats(1.0, 1e6), st.booleans())
    def test_more_tokens_never_take_less(self, tokens: float, more: float, backward: bool) -> None:
        few, many = layer("row").small_kernels_s(np.array([tokens, tokens + more]), backward=backward)
        assert few < many
