"""Kernels: times by hand on ideal hardware, published measurements, and properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import FAST_MEMORY_GPU, GPU, HBM, IDEAL, PEAK, shipped_calibrations

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.kernels.attention import KernelRate, attention_rate_flop_per_s, attention_s
from hdpsim.cost_models.kernels.gemm import (
    FP32_ACCUMULATE_BYTES,
    gemm_s,
    memory_bound_s,
    roofline_s,
    tile_efficiency,
    tile_slowdown,
)
from hdpsim.cost_models.layout.switches import ProductPrecision

SIZES = st.integers(1, 100_000)
MANY_TILES = replace(IDEAL, tile_sides=7)
NO_OR_SOME_S = st.just(0.0) | st.floats(1e-9, 1e3)


class TestTiles:
    def test_full_waves_of_full_tiles_lose_nothing(self) -> None:
        # 16 x 8 tiles of 128 x 256 on 64 SMs: two full waves
        assert tile_efficiency(16 * 128, 8 * 256, 4096, 64, IDEAL) == 1.0

    def test_slowdowns_follow_from_the_operands_of_a_tile(self) -> None:
        # (1 + 0.3 * 128 (1/rows + 1/columns)) / (1 + 0.3 * 1.5): 1.45, 1.45, 1.6, 1.9, 1.9 over 1.45
        assert tile_slowdown(IDEAL).tolist() == pytest.approx([1.0, 1.0, 1.6 / 1.45, 1.9 / 1.45, 1.9 / 1.45])

    def test_a_tile_of_192_columns_fills_a_wave(self) -> None:
        # 16 x 4 tiles of 128 x 192 on 64 SMs, each 1.5 / 1.45 times as slow; of 128 x 128 one and a half waves, cut
        assert tile_efficiency(2048, 768, 4096, 64, MANY_TILES) == pytest.approx(1.45 / 1.5)
        few = tile_efficiency(2048, 768, 4096, 64, IDEAL)
        assert few == pytest.approx(1.5 * 4096 / (1.5 * 4096 + IDEAL.stream_k_fixup) * 1.45 / 1.6)

    def test_one_row_of_a_tile_costs_the_smallest_tile(self) -> None:
        # one row of a 64 x 128 tile of 64 rows, one wave of 64 tiles along n
        expected = 1 / 64 / (1.9 / 1.45)
        assert tile_efficiency(1, 64 * 128, 100, 64, IDEAL) == pytest.approx(expected)

    def test_prologue(self) -> None:
        # k / (k + k_half) of a full wave
        assert tile_efficiency(8 * 128, 8 * 256, 300, 64, replace(IDEAL, gemm_half_k=100)) == pytest.approx(
            0.75
        )

    def test_few_tiles_are_cut_along_k(self) -> None:
        # 8 tiles of 128 x 256 for 64 SMs: w = 1/8, so 80000 k-steps of a tile take 80000 / 8 + 800 on all SMs
        share = tile_efficiency(2 * 128, 4 * 256, 80_000, 64, IDEAL)
        assert share == pytest.approx(10_000 / (10_000 + IDEAL.stream_k_fixup))
        # whole: 32 tiles of 64 x 128 or 128 x 64 on as many of the 64 SMs, half of them busy
        whole = tile_efficiency(2 * 128, 4 * 256, 80_000, 64, IDEAL, splits_k=False)
        assert whole == pytest.approx(0.5 / (1.9 / 1.45))

    def test_groups_fill_the_gpu_together(self) -> None:
        assert tile_efficiency(128, 256, 64, 64, IDEAL) < 0.1
        assert tile_efficiency(128, 256, 64, 64, IDEAL, groups=64) == 1.0

    @given(SIZES, SIZES, SIZES, st.integers(1, 200), st.floats(0, 500))
    def test_a_share(self, m: int, n: int, k: int, sm_count: int, half_k: float) -> None:
        assert 0.0 < tile_efficiency(m, n, k, sm_count, replace(IDEAL, gemm_half_k=half_k)) <= 1.0 + 1e-12

    @given(SIZES, SIZES, SIZES, st.integers(1, 200))
    def test_transposing_changes_nothing_and_more_tiles_are_never_slower(
        self, m: int, n: int, k: int, sm_count: int
    ) -> None:
        few, many = (float(tile_efficiency(m, n, k, sm_count, cal)) for cal in (IDEAL, MANY_TILES))
        assert many >= few * (1 - 1e-12)
        assert few == pytest.approx(tile_efficiency(n, m, k, sm_count, IDEAL))
        assert many == pytest.approx(tile_efficiency(n, m, k, sm_count, MANY_TILES))

    def test_broadcasting(self) -> None:
        table = tile_efficiency(
            np.array([[64.0], [128.0], [4096.0]]), np.array([64.0, 2048.0]), 1024, 64, IDEAL
        )
        assert table.shape == (3, 2)
        assert table[2, 1] == tile_efficiency(4096, 2048, 1024, 64, IDEAL)


class TestGemm:
    def test_full_tiles_run_at_peak(self) -> None:
        seconds = gemm_s(4096, 4096, 8192, FAST_MEMORY_GPU, IDEAL)
        assert seconds == pytest.approx(2 * 4096 * 4096 * 8192 / PEAK, rel=1e-14)

    def test_efficiencies_multiply(self) -> None:
        cal = replace(IDEAL, gemm_efficiency=0.8)
        seconds = gemm_s(4096, 4096, 8192, FAST_MEMORY_GPU, cal, efficiency=0.5)
        assert seconds == pytest.approx(2 * 4096 * 4096 * 8192 / (0.4 * PEAK))

    def test_memory_roofline(self) -> None:
        # a matrix-vector product reads the matrix: 2 B * (1*4096 + 4096*4096 + 1*4096)
        fast = replace(GPU, bf16_flop_per_s=1e20)
        assert gemm_s(1, 4096, 4096, fast, IDEAL) == pytest.approx(2 * (4096 + 4096**2 + 4096) / HBM)

    def test_the_corner_of_the_roofline_is_round(self) -> None:
        # as much matrix work as traffic: (1 + 1)^(1/3) = 1.26 times as long as either, 2 where nothing overlaps
        work_s = 2 * 4096 * 4096 * 8192 / PEAK
        traffic_bytes = 2 * (2 * 4096 * 8192 + 4096**2)
        gpu = replace(GPU, hbm_bytes_per_s=traffic_bytes / work_s)
        round_s, apart_s = (gemm_s(4096, 4096, 8192, gpu, IDEAL, overlap=x) for x in (1.0, 0.0))
        assert round_s == pytest.approx(2 ** (1 / 3) * work_s)
        assert apart_s == pytest.approx(2 * work_s)

    @given(NO_OR_SOME_S, NO_OR_SOME_S, st.floats(1.0, 500.0), st.floats(1.0, 2.0))
    def test_the_roofline_lies_between_the_longer_and_the_sum(
        self, work: float, traffic: float, power: float, more: float
    ) -> None:
        def busy_s(work: float, power: float) -> float:
            return float(roofline_s(np.array(work), np.array(traffic), replace(IDEAL, roofline_power=power)))

        found = busy_s(work, power)
        assert max(work, traffic) <= found <= (work + traffic) * (1 + 1e-12)
        assert found <= busy_s(more * work, power) * (1 + 1e-12)
        assert busy_s(work, power * more) <= found * (1 + 1e-12)

    @given(SIZES, SIZES, SIZES, st.floats(0.0, 1.0))
    def test_a_product_takes_between_the_longer_part_and_both(
        self, m: int, n: int, k: int, overlap: float
    ) -> None:
        memory_s = 2 * (m * k + k * n + m * n) / HBM
        work_s = float(gemm_s(m, n, k, FAST_MEMORY_GPU, IDEAL))
        seconds = float(gemm_s(m, n, k, GPU, IDEAL, overlap=overlap))
        assert max(work_s, memory_s) <= seconds * (1 + 1e-9)
        assert seconds <= (work_s + memory_s) * (1 + 1e-9)

    def test_weight_gradients_move_their_accumulator(self) -> None:
        # k = 16 tokens only: 2 B * 2 * 4096 * 16 inputs, 8 B * 4096^2 of fp32 gradient read and written
        seconds = gemm_s(4096, 4096, 16, GPU, IDEAL, output_bytes=FP32_ACCUMULATE_BYTES)
        assert seconds == pytest.approx((2 * 2 * 4096 * 16 + 8 * 4096**2) / HBM)

    def test_tail_once_per_kernel_and_nothing_for_no_work(self) -> None:
        cal = replace(IDEAL, kernel_tail_s=1.0)
        assert gemm_s([0, 128], 256, 64, FAST_MEMORY_GPU, cal, groups=64) == pytest.approx([0.0, 1.0])
        assert gemm_s(128, 256, 0, FAST_MEMORY_GPU, cal) == 0.0

    @given(shipped_calibrations, SIZES, SIZES, SIZES, st.integers(1, 5000))
    def test_monotone_in_every_dimension(self, name: str, m: int, n: int, k: int, more: int) -> None:
        gpu, cal = catalog.gpu("h100"), calibration(name)
        base = gemm_s(m, n, k, gpu, cal) * (1 - 1e-12)
        assert gemm_s(m + more, n, k, gpu, cal) >= base
        assert gemm_s(m, n + more, k, gpu, cal) >= base
        assert gemm_s(m, n, k + more, gpu, cal) >= base

    @given(shipped_calibrations, SIZES, SIZES, SIZES)
    def test_never_faster_than_peak(self, name: str, m: int, n: int, k: int) -> None:
        gpu = catalog.gpu("b200")
        assert gemm_s(m, n, k, gpu, calibration(name)) >= 2.0 * m * n * k / gpu.bf16_flop_per_s

    @pytest.mark.parametrize(
        ("gpu", "precision", "burst", "m", "n", "k", "tflops"),
        [
            # sustained rates after 10,000 warm-ups, Azure/AI-benchmarking-guide (ND A100 v4, H100 v5, GB200 v6)
            ("a100-80gb", "bf16", False, 8192, 8192, 8192, 253.7),
            ("a100-80gb", "bf16", False, 4096, 57344, 8192, 240.0),  # in an engine, microsoft/vidur
            ("h100", "fp8", False, 16384, 16384, 16384, 1377.3),
            ("gb200", "fp8", False, 8192, 8192, 8192, 2876.6),
            # nine of 25 to 33 ms in a row, ai-dynamo/aiconfigurator: 1000, 1100, 1200 and 1400 W
            ("b200", "bf16", False, 8192, 51200, 51200, 1288.0),
            ("b300", "bf16", False, 8192, 51200, 51200, 1373.0),
            ("gb200", "bf16", False, 8192, 51200, 51200, 1485.0),
            ("gb300", "bf16", False, 8192, 51200, 51200, 1748.0),
            # best shapes of a brute-force search, stas00/ml-engineering (MAMF): upper bounds
            ("a100-80gb", "bf16", True, 1024, 10240, 5120, 271.2),
            ("h100", "bf16", True, 2048, 2048, 13312, 794.5),
            ("b200", "bf16", True, 1792, 16128, 3072, 1745.0),
            ("h100", "fp8", True, 1024, 9216, 14336, 1402.6),
        ],
    )
    def test_published_rates(
        self, gpu: str, precision: ProductPrecision, burst: bool, m: int, n: int, k: int, tflops: float
    ) -> None:
        chip = catalog.gpu(gpu)
        cal = calibration(chip.calibration)
        seconds = gemm_s(m, n, k, chip, cal, precision=precision, burst=burst)
        assert 2.0 * m * n * k / seconds / 1e12 == pytest.approx(tflops, rel=0.16)


class TestAttention:
    def test_causal_forward_at_peak(self) -> None:
        # 4 b h s^2 d / 2 = 4 * 2 * 32 * 8192^2 * 128 / 2
        flop = 4 * 2 * 32 * 8192**2 * 128 / 2
        assert attention_s(2, 8192, 32, 128, GPU, IDEAL) == pytest.approx(flop / PEAK)
        # ... plus half a longest tile per SM: 64 SMs * 1 row * 8192 keys * 4 * 128 / 2
        head_by_head = replace(IDEAL, attention_forward_tail=0.5)
        idle = 64 * 8192 * 4 * 128 / 2
        assert attention_s(2, 8192, 32, 128, GPU, head_by_head) == pytest.approx((flop + idle) / PEAK)

    def test_backward_is_two_and_a_half_times_the_forward(self) -> None:
        forward = attention_s(2, 8192, 32, 128, GPU, IDEAL)
        assert attention_s(2, 8192, 32, 128, GPU, IDEAL, backward=True) == pytest.approx(2.5 * forward)

    def test_full_attention_is_twice_the_causal_one(self) -> None:
        cal = replace(IDEAL, attention_tile_tokens=1.0)
        causal = attention_s(2, 8192, 32, 128, GPU, cal)
        assert attention_s(2, 8192, 32, 128, GPU, cal, causal=False) == pytest.approx(2 * causal, rel=2e-4)

    def test_half_length_and_head_dimension(self) -> None:
        cal = replace(
            IDEAL, attention_half_tokens=1000, attention_backward_ramp=3.0, attention_half_head_dim=64.0
        )
        assert attention_rate_flop_per_s(1000, GPU, cal, backward=False) == pytest.approx(PEAK / 2)
        assert attention_rate_flop_per_s(3000, GPU, cal, backward=True) == pytest.approx(PEAK / 2)
        # g(64) / g(128) = (64 / 128) / (128 / 192) = 3/4
        rate = attention_rate_flop_per_s(np.inf, GPU, cal, backward=False, head_dim=64)
        assert rate == pytest.approx(0.75 * PEAK)
        # as many exponentials beside 2.5 times the matrix work: (64 / 89.6) / (128 / 153.6) = 6/7
        rate = attention_rate_flop_per_s(np.inf, GPU, cal, backward=True, head_dim=64)
        assert rate == pytest.approx(6 / 7 * PEAK)

    def test_an_older_kernel_is_slower_where_matrix_work_is(self) -> None:
        cal = replace(
            IDEAL, attention_half_tokens=1000, attention_half_head_dim=64.0, flash1_rate=0.25, flash2_rate=0.5
        )
        newer, older, oldest = (KernelRate.of(name, cal) for name in ("flash", "flash2", "flash1"))
        assert (newer, older, oldest) == (
            KernelRate(1, 1, 1),
            KernelRate(0.5, 0.5, 0.5),
            KernelRate(0.25, 0.25, 0.5, (32, 64, 128), descending=False),
        )
        # 500 tokens: 1 / (1 + 1000 / 500) of the peak, 1 / 2 x 1 / (1 + 500 / 500), 1 / 4 x 1 / (1 + 500 / 500)
        rates = [
            float(attention_rate_flop_per_s(500, GPU, cal, backward=False, kernel=kernel))
            for kernel in (newer, older, oldest)
        ]
        assert rates == pytest.approx([PEAK / 3, PEAK / 4, PEAK / 8])
        # a tile's fixed cost is the same: time - matrix time, here tokens / rate - tokens / long-sequence rate
        assert 1 / rates[0] - 1 / PEAK == pytest.approx(1 / rates[1] - 2 / PEAK)
        # exponentials weigh half as much: (64 / 96) / (128 / 160) = 5/6
        narrow = attention_rate_flop_per_s(np.inf, GPU, cal, backward=False, head_dim=64, kernel=older)
        assert narrow == pytest.approx(5 / 6 * PEAK / 2)

    def test_the_kernel_of_2025_is_slower_backward_alone(self) -> None:
        slow = replace(IDEAL, cudnn2025_rate=0.5)
        assert KernelRate.of("cudnn2025", slow, 128) == KernelRate.of("flash", slow)
        older = KernelRate.of("cudnn2025", slow, 160)
        gpu = replace(GPU, exponentials=2.0)  # its forward gains by them as the best kernel does
        cal = replace(IDEAL, attention_half_tokens=1000, attention_half_head_dim=64.0)
        for side, times in ((False, 1.0), (True, 2.0)):
            best, rate = (
                float(attention_rate_flop_per_s(np.inf, gpu, cal, backward=side, kernel=kernel))
                for kernel in (KernelRate.of("flash", cal), older)
            )
            # head dimension 128, where rates are stated; exponentials that are no bottleneck: 153.6 / 149.504 less
            assert best / rate == pytest.approx(times * (153.6 / 149.504 if side else 1.0), rel=3e-4)

    def test_the_kernel_of_2022_fills_heads_up(self) -> None:
        oldest = KernelRate.of("flash1", IDEAL)
        assert [oldest.filled(dim) for dim in (24, 64, 80, 96, 128, 256)] == [32, 64, 128, 128, 128, 256]
        rates = [
            float(attention_rate_flop_per_s(np.inf, GPU, IDEAL, backward=False, head_dim=dim, kernel=oldest))
            for dim in (64, 96, 128)
        ]
        assert rates == pytest.approx([rates[2], 0.75 * rates[2], rates[2]])  # 96 of 128 columns count
        narrow, wide = (KernelRate.of("flash1", IDEAL, dim) for dim in (64, 65))
        assert (narrow.forward, narrow.backward) == (1.33 * wide.forward, 1.33 * wide.backward)
        assert wide == oldest

    def test_faster_exponentials(self) -> None:
        cal = replace(IDEAL, attention_half_head_dim=64.0, flash2_rate=0.5)
        twice, endless = replace(GPU, exponentials=2.0), replace(GPU, exponentials=1e3)
        rates = [
            float(attention_rate_flop_per_s(np.inf, gpu, cal, backward=side))
            for gpu in (twice, endless)
            for side in (False, True)
        ]
        # 0.53 of 64 beside 128 (0.32 of 64 / 2.5 in the backward): half of it is saved, or all
        assert rates == pytest.approx(
            [192 / 175.04 * PEAK, 153.6 / 149.504 * PEAK, 192 / 158.08 * PEAK, 153.6 / 145.408 * PEAK],
            rel=3e-4,
        )
        older = KernelRate.of("flash2", cal)
        same = [
            float(attention_rate_flop_per_s(np.inf, gpu, cal, backward=False, kernel=older))
            for gpu in (GPU, twice)
        ]
        assert same[0] == same[1]

    @pytest.mark.parametrize(
        ("tokens", "forward", "backward"),
        # cuDNN 9.18, causal, 64 heads of dimension 128 (NVIDIA/cudnn-frontend): TFLOP/s of GB300 over those of GB200
        [
            (4096, 1679 / 1297, 1198 / 1105),
            (8192, 1927 / 1563, 1391 / 1279),
            (16384, 1998 / 1646, 1494 / 1371),
        ],
    )
    def test_blackwell_ultra(self, tokens: int, forward: float, backward: float) -> None:
        cal = calibration("blackwell")
        for side, measured in ((False, forward), (True, backward)):
            older, ultra = (
                float(attention_s(1, tokens, 64, 128, catalog.gpu(name), cal, backward=side, burst=True))
                for name in ("gb200", "gb300")
            )
            assert older / ultra == pytest.approx(measured, rel=0.06)

    @pytest.mark.parametrize(
        ("tokens", "forward_ms", "backward_ms"),
        # cuDNN 9.19 on GB200, causal, 128 heads of 192 and 128, backward in two kernels (NVIDIA/cudnn-frontend,
        # sdpa_benchmark_training/results/gb200_919_only_cudnn/dsv3_20260226_174854.csv); nothing is fitted on it
        [
            (2048, 0.161, 0.508),
            (4096, 0.509, 1.613),
            (8192, 1.800, 5.728),
            (16384, 6.318, 21.715),
            (32768, 24.232, 88.716),
        ],
    )
    def test_latent_attention_on_gb200(self, tokens: int, forward_ms: float, backward_ms: float) -> None:
        gpu, cal = catalog.gpu("gb200"), calibration("blackwell")
        for side, measured_ms in ((False, forward_ms), (True, backward_ms)):
            seconds = float(attention_s(1, tokens, 128, (192 + 128) / 2, gpu, cal, backward=side, burst=True))
            assert seconds * 1e3 == pytest.approx(measured_ms, rel=0.14)

    @pytest.mark.parametrize(
        ("tokens", "forward_ms", "backward_ms"),
        # cuDNN 9.23, MXFP8, causal, 2 x 64 heads of 128 (sdpa_benchmark_training/results/llama3.1/gb200, May 2026)
        [(2048, 0.105, 0.467), (4096, 0.328, 1.331), (8192, 1.160, 4.308), (32768, 17.288, 62.482)],
    )
    def test_attention_in_mxfp8_on_gb200(self, tokens: int, forward_ms: float, backward_ms: float) -> None:
        gpu, cal = catalog.gpu("gb200"), calibration("blackwell")
        kernel = KernelRate.of("mxfp8", cal)
        for side, measured_ms in ((False, forward_ms), (True, backward_ms)):
            seconds = attention_s(2, tokens, 64, 128, gpu, cal, backward=side, kernel=kernel, burst=True)
            assert float(seconds) * 1e3 == pytest.approx(measured_ms, rel=0.11)

    def test_no_kernel_ends_before_its_longest_tile(self) -> None:
        cal = replace(IDEAL, attention_tile_tokens=128)
        # one head: every SM could hold a tile of its own, and the longest takes 128 keys x 4096 queries
        alone = float(attention_s(1, 4096, 1, 128, GPU, cal, backward=True))
        assert alone == pytest.approx(2.5 * 4 * 128 * GPU.sm_count * 128 * 4096 / PEAK)
        many = float(attention_s(1, 4096, 1000, 128, GPU, cal, backward=True))
        assert many == pytest.approx(2.5 * 4 * 128 * 500 * 4096**2 / PEAK)
        head_by_head = replace(cal, attention_backward_tail=0.5)
        assert attention_s(1, 4096, 1000, 128, GPU, head_by_head, backward=True) > many

    def test_what_surrounds_the_kernel(self) -> None:
        cal = replace(IDEAL, kernel_tail_s=1.0)
        bare = attention_s(1, 1024, 8, 128, GPU, IDEAL)
        assert attention_s(1, 1024, 8, 128, GPU, cal, surrounding_bytes=HBM) == pytest.approx(bare + 2.0)

    def test_no_tokens_take_no_time(self) -> None:
        assert attention_rate_flop_per_s(0, GPU, calibration("hopper"), backward=False) == 0.0

    @given(shipped_calibrations, st.booleans(), st.booleans(), SIZES, st.integers(1, 10_000))
    def test_monotone_in_tokens(
        self, name: str, backward: bool, causal: bool, tokens: int, more: int
    ) -> None:
        gpu, cal = catalog.gpu("h100"), calibration(name)
        base, longer = attention_s(
            1, [tokens, tokens + more], 8, 128, gpu, cal, backward=backward, causal=causal
        )
        assert longer >= base

    @pytest.mark.parametrize(
        ("tokens", "causal", "tflops"),
        # FlashAttention-3, arXiv 2407.08608, figure 5: forward, head dimension 128, 16 heads, 16K tokens in all
        [(2048, True, 521), (4096, True, 579), (16384, True, 616), (2048, False, 625), (16384, False, 648)],
    )
    def test_flash_attention_3(self, tokens: int, causal: bool, tflops: float) -> None:
        gpu = catalog.gpu("h100")
        sequences = 16384 // tokens
        seconds = attention_s(sequences, tokens, 16, 128, gpu, calibration("hopper"), causal=causal)
        flop = 4 * sequences * 16 * tokens**2 * 128 * (0.5 if causal else 1.0)
        assert flop / seconds / 1e12 == pytest.approx(tflops, rel=0.10)

    @pytest.mark.parametrize(("tokens", "tflops"), [(2048, 155), (4096, 173), (16384, 189)])
    def test_flash_attention_2(self, tokens: int, tflops: float) -> None:
        # forward and backward on A100, head dimension 128, causal: figure of Dao-AILab/flash-attention
        gpu, cal = catalog.gpu("a100-80gb"), calibration("ampere")
        arguments = (16384 // tokens, tokens, 16, 128, gpu, cal)
        seconds = attention_s(*arguments) + attention_s(*arguments, backward=True)
        flop = 3.5 * 4 * 16384 * tokens * 16 * 128 / 2
        assert flop / seconds / 1e12 == pytest.approx(tflops, rel=0.10)


def test_memory_bound() -> None:
    assert memory_bound_s([0.0, HBM], GPU, replace(IDEAL, hbm_efficiency=0.5)) == pytest.approx([0.0, 2.0])
