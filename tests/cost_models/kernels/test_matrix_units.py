"""Number formats and power: rates by hand, limits, and what a layer does with narrow operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import FFN, GPU, HBM, HIDDEN, IDEAL, MODEL, NVLINK, PEAK, ideal_cluster

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster, Gpu
from hdpsim.cost_models.kernels.attention import attention_s
from hdpsim.cost_models.kernels.gemm import gemm_s
from hdpsim.cost_models.kernels.number_formats import (
    CAST_BYTES,
    MXFP8_RATE,
    OPERAND_BYTES,
    block_scaled,
    cast_bytes,
    matrix_unit,
    power_slowdown,
)
from hdpsim.cost_models.layer.layer import LayerCost
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ProductPrecision
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.errors import InfeasibleError

# 400 W of 500 W follow the clock: with 1 pJ per FLOP enough for 0.4 PFLOP/s of the 1 PFLOP/s
TIGHT_GPU = replace(GPU, tdp_w=500.0, hbm_bytes_per_s=1e18)
HUNGRY = replace(IDEAL, static_w=100.0, bf16_joule_per_flop=1e-12)
NARROW_GPU = replace(GPU, fp8_flop_per_s=2 * PEAK, fp4_flop_per_s=4 * PEAK)


class TestPower:
    def test_proportional_where_the_voltage_is_at_its_floor(self) -> None:
        seconds = gemm_s(4096, 4096, 8192, TIGHT_GPU, HUNGRY)
        assert seconds == pytest.approx(2 * 4096 * 4096 * 8192 / 0.4e15)

    def test_cubic_where_the_voltage_falls_with_the_clock(self) -> None:
        cubic = replace(HUNGRY, power_exponent=1 / 3)
        assert power_slowdown(1e15, 1e-12, TIGHT_GPU, cubic) == pytest.approx(2.5 ** (1 / 3))

    def test_a_burst_does_not_wait_for_the_power_controller(self) -> None:
        seconds = gemm_s(4096, 4096, 8192, TIGHT_GPU, HUNGRY, burst=True)
        assert seconds == pytest.approx(2 * 4096 * 4096 * 8192 / PEAK)

    def test_slow_kernels_do_not_meet_the_limit(self) -> None:
        # one tile of 64: far below 0.4 of the peak
        shape = (128, 256, 8192)
        free = gemm_s(*shape, TIGHT_GPU, IDEAL)
        assert gemm_s(*shape, TIGHT_GPU, HUNGRY) == free

    def test_attention_spends_the_same_energy(self) -> None:
        # 4 b h s^2 d / 2 = 2 * 32 * 65536^2 * 128 causal FLOP
        seconds = attention_s(1, 65536, 32, 128.0, TIGHT_GPU, HUNGRY)
        assert seconds == pytest.approx(2 * 32 * 65536**2 * 128 / 0.4e15, rel=1e-3)

    def test_the_boost_slider_adds_to_what_the_tensor_cores_have(self) -> None:
        # 1000 W of 400 W; of 500 W with 100 W from elsewhere
        cal = replace(HUNGRY, tensor_boost_w=100.0)
        boosted = replace(TIGHT_GPU, tensor_boost=True)
        assert power_slowdown(1e15, 1e-12, TIGHT_GPU, cal) == pytest.approx(2.5)
        assert power_slowdown(1e15, 1e-12, boosted, cal) == pytest.approx(2.0)
        assert power_slowdown(0.4e15, 1e-12, boosted, cal) == pytest.approx(1.0)

    def test_static_power_leaves_a_tenth_at_least(self) -> None:
        greedy = replace(HUNGRY, static_w=1000.0)
        assert power_slowdown(1e15, 1e-12, TIGHT_GPU, greedy) == pytest.approx(20.0)

    @given(st.floats(1e12, 1e16), st.floats(150.0, 2000.0), st.floats(1.0, 500.0), st.floats(0.3, 1.0))
    def test_more_power_never_slows(self, rate: float, watt: float, more: float, exponent: float) -> None:
        cal = replace(HUNGRY, power_exponent=exponent)
        base = power_slowdown(rate, 1e-12, replace(GPU, tdp_w=watt), cal)
        assert 1.0 <= power_slowdown(rate, 1e-12, replace(GPU, tdp_w=watt + more), cal) <= base

    def test_an_a100_sustains_nine_tenths_of_its_full_clock(self) -> None:
        gpu, cal = catalog.gpu("a100-80gb"), calibration("ampere")
        full = gpu.bf16_flop_per_s * cal.gemm_efficiency
        # 276.1 TFLOP/s x 1.748 pJ = 482.6 W of 345 W: (1.399)^(1/3) = 1.118; 247 TFLOP/s, published 237-257
        slowdown = power_slowdown(full, cal.bf16_joule_per_flop, gpu, cal)
        assert slowdown == pytest.approx((full * cal.bf16_joule_per_flop / 345.0) ** 0.3333)
        assert 237e12 < full / slowdown < 257e12

    @pytest.mark.parametrize("name", ["h100", "h200", "h800", "h20"])
    def test_bf16_of_hopper_is_limited_a_little(self, name: str) -> None:
        gpu = catalog.gpu(name)
        cal = calibration(gpu.calibration)
        full = gpu.bf16_flop_per_s * cal.gemm_efficiency
        # 776 TFLOP/s x 0.8 pJ = 621 W of the 525 W beside static power: the square root of 1.183
        limited = 1.0 if name == "h20" else pytest.approx((full * cal.bf16_joule_per_flop / 525.0) ** 0.5)
        assert power_slowdown(full, cal.bf16_joule_per_flop, gpu, cal) == limited
        assert power_slowdown(0.8 * full, cal.bf16_joule_per_flop, gpu, cal) == 1.0

    def test_the_slowest_gpu_of_a_job_slows_matrix_work_that_lasts(self) -> None:
        gpu, one = catalog.gpu("h100"), calibration("hopper")
        assert one.gpu_spread == 0.02
        assert one.of_job(1).slowest_gpu == 1.0
        # expected maxima of standard normals: 1.4236 of 8, 3.2414 of 1,000 (tables of order statistics)
        assert one.of_job(8).slowest_gpu == pytest.approx(1.0 + 0.02 * 1.4236, abs=1e-6)
        assert one.of_job(1000).slowest_gpu == pytest.approx(1.0 + 0.02 * 3.2414, abs=1e-6)
        job = one.of_job(1000)
        for precision in ("bf16", "fp8"):
            mean, slow = (
                float(gemm_s(8192, 8192, 8192, gpu, cal, precision=precision)) - cal.kernel_tail_s
                for cal in (one, job)
            )
            assert slow / mean == pytest.approx(job.slowest_gpu, rel=1e-4)  # but for a little traffic
        assert gemm_s(8192, 8192, 8192, gpu, job, burst=True) == gemm_s(
            8192, 8192, 8192, gpu, one, burst=True
        )
        assert calibration("bytescale-h20").of_job(12288).slowest_gpu == 1.0

    def test_gpus_that_power_does_not_limit_are_alike(self) -> None:
        # 400 W for what moves: 0.3 PFLOP/s at 1 pJ takes 300 W; 0.39 takes 390 W, of the slowest 1.05 times as much
        job = replace(HUNGRY, slowest_gpu=1.05)
        assert power_slowdown(0.3e15, 1e-12, TIGHT_GPU, job) == 1.0
        assert power_slowdown(0.39e15, 1e-12, TIGHT_GPU, job) == pytest.approx(0.975 * 1.05)
        assert power_slowdown(1e15, 1e-12, TIGHT_GPU, job) == pytest.approx(2.5 * 1.05)

    @given(st.floats(1e12, 1e16), st.floats(1.0, 1.2), st.floats(0.3, 1.0))
    def test_the_slowest_gpu_lies_between_the_mean_and_its_spread(
        self, rate: float, slowest: float, exponent: float
    ) -> None:
        cal = replace(HUNGRY, power_exponent=exponent)
        mean = power_slowdown(rate, 1e-12, TIGHT_GPU, cal)
        slow = power_slowdown(rate, 1e-12, TIGHT_GPU, replace(cal, slowest_gpu=slowest))
        assert mean <= slow <= mean * slowest * (1.0 + 1e-12)

    def test_boards_of_one_chip_differ_by_their_power(self) -> None:
        sustained = []
        for name in ("b200", "gb200", "gb300"):
            gpu = catalog.gpu(name)
            sustained.append(2 * 16384**3 / float(gemm_s(16384, 16384, 16384, gpu, calibration("blackwell"))))
        # the square root of 950 / 750 W, times 2500 / 2250 TFLOP/s, over 1.17 times the energy; 1150 W without that
        assert sustained[1] / sustained[0] == pytest.approx((950 / 750 * 2500 / 2250 / 1.17) ** 0.5, rel=0.01)
        assert sustained[2] / sustained[0] == pytest.approx((1150 / 750 * 2500 / 2250) ** 0.5, rel=0.01)


class TestUnits:
    @pytest.mark.parametrize(
        ("precision", "faster"), [("fp8", 2.0), ("mxfp8", 2.0 * MXFP8_RATE), ("nvfp4", 4.0)]
    )
    def test_narrow_operands_multiply_faster(self, precision: ProductPrecision, faster: float) -> None:
        gpu = replace(NARROW_GPU, hbm_bytes_per_s=1e18)
        seconds = gemm_s(4096, 4096, 8192, gpu, IDEAL, precision=precision)
        assert seconds == pytest.approx(2 * 4096 * 4096 * 8192 / PEAK / faster)

    def test_narrow_operands_are_read_faster(self) -> None:
        # a matrix-vector product: one byte per element read, two per element written
        fast = replace(NARROW_GPU, fp8_flop_per_s=1e20)
        seconds = gemm_s(1, 4096, 4096, fast, IDEAL, precision="fp8")
        assert seconds == pytest.approx((4096 + 4096**2 + 2 * 4096) / HBM)

    def test_prologues_are_times(self) -> None:
        # k_half of 100 BF16 elements lasts as long as 200 of twice the speed
        cal, gpu = replace(IDEAL, gemm_half_k=100.0), replace(NARROW_GPU, hbm_bytes_per_s=1e18)
        rows, columns = 8 * 128, 8 * 256  # one full wave
        narrow = gemm_s(rows, columns, 600, gpu, cal, precision="fp8")
        assert narrow == pytest.approx(gemm_s(rows, columns, 300, gpu, cal))

    def test_what_a_gpu_has_not_is_refused(self) -> None:
        with pytest.raises(InfeasibleError, match=r"nvfp4: .* no such tensor cores"):
            matrix_unit(catalog.gpu("h100"), calibration("hopper"), "nvfp4")
        with pytest.raises(InfeasibleError, match="fp8"):
            gemm_s(128, 128, 128, catalog.gpu("a100-80gb"), calibration("ampere"), precision="fp8")

    def test_scales_are_counted(self) -> None:
        assert OPERAND_BYTES["mxfp8"] == 33 / 32  # a byte per 32
        assert OPERAND_BYTES["nvfp4"] == 9 / 16  # half a byte, and a byte per 16
        # a maximum of the tensor reads it once more, those of rows and of columns twice; a block has 4 B of scale
        assert [cast_bytes("fp8", scaling) for scaling in ("delayed", "tensor", "row")] == [4.0, 6.0, 8.0]
        assert cast_bytes("fp8", "block") == 4.0 + 2 * 4 / 128
        assert block_scaled(Layout(precision="fp8", fp8_scaling="block").precision)
        assert not block_scaled(Layout(precision="bf16", fp8_scaling="block").precision)
        assert cast_bytes("bf16", "row") == 0.0
        assert CAST_BYTES["fp8"] == 4.0  # read two, write one along rows and one along columns
        # no measured cast moves less than what it must: one reading for MXFP8, three for NVFP4
        assert CAST_BYTES["mxfp8"] >= 2.0 + 2 * OPERAND_BYTES["mxfp8"]
        assert CAST_BYTES["nvfp4"] >= 3 * 2.0 + 2 * OPERAND_BYTES["nvfp4"]

    def test_a_burst_shows_part_of_the_lack_of_power(self) -> None:
        # 1 TFLOP/s asks for 2 J/s of a limit of 1: half as fast where it lasts
        gpu = replace(GPU, tdp_w=1.0, bf16_flop_per_s=1e12)
        cal = replace(IDEAL, bf16_joule_per_flop=2e-12, burst_power_share=0.5)
        lasting, burst = (float(gemm_s(4096, 4096, 4096, gpu, cal, burst=burst)) for burst in (False, True))
        full = float(gemm_s(4096, 4096, 4096, gpu, replace(cal, bf16_joule_per_flop=0.0)))
        assert (lasting / full, burst / full) == pytest.approx((2.0, 2.0**0.5))

    def test_products_of_a_layer_cast_before_on_b300(self) -> None:
        # Transformer Engine, GEMM profiling tutorial: 15,872 tokens, hidden 4,096, forward, NVFP4 1.254 ms.
        # They ask for 1.4 times the energy that the calibration has, which lies between them and a product of GB200
        b300 = catalog.gpu("b300")
        cal = calibration(b300.calibration)
        shapes = [(12288, 4096), (4096, 4096), (16384, 4096), (4096, 16384)]
        seconds = sum(float(gemm_s(15872, n, k, b300, cal, precision="nvfp4")) for n, k in shapes)
        assert seconds == pytest.approx(1.254e-3, rel=0.15)

    def test_scales_of_blocks_slow_products_limited_by_power_too(self) -> None:
        # the same tutorial, forward and both gradients: 6.812 ms in FP8, 7.161 ms in MXFP8; GB200 is short of power
        shapes = [(12288, 4096), (4096, 4096), (16384, 4096), (4096, 16384)]
        products = [(15872, n, k) for n, k in shapes] + [(15872, k, n) for n, k in shapes]
        products += [(n, k, 15872) for n, k in shapes]
        for name in ("b300", "gb200"):
            gpu = catalog.gpu(name)
            cal = calibration(gpu.calibration)
            whole, blocks = (
                sum(float(gemm_s(*product, gpu, cal, precision=kind)) for product in products)
                for kind in ("fp8", "mxfp8")
            )
            assert blocks / whole == pytest.approx(7.161 / 6.812, rel=0.01)


def layer(
    precision: ProductPrecision,
    gpu: Gpu = NARROW_GPU,
    *,
    tp: int = 1,
    moe: bool = False,
    tp_overlap: bool = False,
    adapter_rank: int = 0,
) -> LayerCost:
    where: Cluster = ideal_cluster(gpu=gpu)
    model = catalog.model("mixtral-8x7b") if moe else replace(MODEL, adapter_rank=adapter_rank)
    layout = Layout(tp=tp, precision=precision, tp_overlap=tp_overlap)
    return LayerCost(model, layout, where, IDEAL, Collectives(FabricModel(where, IDEAL.network)), moe=moe)


class TestLayers:
    tokens = np.array([4096.0])

    def test_all_products_of_a_dense_layer_are_narrow(self) -> None:
        gpu = replace(NARROW_GPU, hbm_bytes_per_s=1e18)
        wide, narrow = (layer(kind, gpu).gemm_s(self.tokens, backward=False) for kind in ("bf16", "fp8"))
        assert narrow == pytest.approx(wide / 2)

    def test_the_router_stays_wide(self) -> None:
        gpu = replace(NARROW_GPU, hbm_bytes_per_s=1e18)
        wide, narrow = (
            float(layer(kind, gpu, moe=True).gemm_s(self.tokens, backward=False)[0])
            for kind in ("bf16", "fp8")
        )
        router = float(gemm_s(4096, 8, 4096, gpu, IDEAL))
        assert narrow - router == pytest.approx((wide - router) / 2)

    def test_casts_by_hand(self) -> None:
        # inputs of the four products: h, h, h and f wide; gradients of their outputs: 6144, h, 2 f and h
        plain, cast = (
            [layer(kind).small_kernels_s(self.tokens, backward=side) for side in (False, True)]
            for kind in ("bf16", "fp8")
        )
        for side, width in enumerate((3 * HIDDEN + FFN, 6144 + HIDDEN + 2 * FFN + HIDDEN)):
            assert cast[side] - plain[side] == pytest.approx(4096 * 4.0 * width / HBM)

    def test_gathers_move_operands(self) -> None:
        sides = [layer(kind, tp=2).tp_communication_s(self.tokens)[0] for kind in ("bf16", "fp8")]
        # per pair an all-gather and a reduce-scatter of the same bytes: 1 + 1 against 1/2 + 1
        assert sides[1] == pytest.approx(0.75 * sides[0])

    def test_scales_of_blocks_gather_the_gradient_twice(self) -> None:
        # two blocks; a gather moves 33/32 B of every element, half of them to the other GPU
        gather = 33 / 32 * HIDDEN * 4096.0 / 2 / NVLINK

        def sides(kind: ProductPrecision, *, overlap: bool = False, rank: int = 0) -> list[float]:
            cost = layer(kind, tp=2, tp_overlap=overlap, adapter_rank=rank)
            return [float(cost.tp_communication_s(self.tokens)[side][0]) for side in (False, True)]

        for kind, more in (("fp8", 1), ("mxfp8", 2)):
            forward, backward = sides(kind)
            size = gather if kind == "mxfp8" else 32 / 33 * gather
            assert backward - forward == pytest.approx(2 * more * size)
        # overlapped: beside input gradients that last longer, it keeps 16 of 64 SMs
        assert sides("mxfp8", overlap=True)[1] - sides("fp8", overlap=True)[1] == pytest.approx(
            2 * gather / 4, rel=0.1
        )
        # frozen products have no weight gradient
        forward, backward = sides("mxfp8", rank=16)
        assert backward == pytest.approx(forward)
