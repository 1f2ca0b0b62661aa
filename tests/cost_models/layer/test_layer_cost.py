"""Linear parts of a layer: FLOP at peak by hand, experts, small kernels, tensor parallelism, properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import (
    FAST_MEMORY_GPU,
    FFN,
    GPU,
    HBM,
    HIDDEN,
    IDEAL,
    MODEL,
    NVLINK,
    PEAK,
    ideal_cluster,
    shipped_calibrations,
)

from hdpsim.cost_models.calibration.calibration import Calibration, calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layer.layer import LayerCost
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.transformer.model import Model

MIXTRAL = catalog.model("mixtral-8x7b")  # hidden 4096, 32 + 2 * 8 heads of 128, 8 experts of 14336, top 2
SLOW_MEMORY = ideal_cluster(gpu=GPU)


def layer(
    model: Model = MODEL,
    layout: Layout | None = None,
    *,
    moe: bool = False,
    cal: Calibration = IDEAL,
    cluster: Cluster | None = None,
) -> LayerCost:
    where = cluster or ideal_cluster()
    collectives = Collectives(FabricModel(where, cal.network))
    return LayerCost(model, layout or Layout(), where, cal, collectives, moe=moe)


def gemm(cost: LayerCost, tokens: int, *, backward: bool = False) -> float:
    return float(cost.gemm_s(np.array([float(tokens)]), backward=backward)[0])


class TestGemms:
    # 4096 tokens of LLaMA-7B in tiles of 128 x 256 on 64 SMs: 768, 512, 2752 and 512 tiles, full waves all
    qkv, out, up, down = (
        2 * 4096 * HIDDEN * 48 * 128,
        2 * 4096 * HIDDEN * HIDDEN,
        2 * 4096 * HIDDEN * 2 * FFN,
        2 * 4096 * FFN * HIDDEN,
    )

    def test_forward_of_a_dense_layer_is_its_flop_at_peak(self) -> None:
        flop = self.qkv + self.out + self.up + self.down
        assert gemm(layer(), 4096) == pytest.approx(flop / PEAK, rel=1e-14)

    def test_backward_is_twice_the_forward(self) -> None:
        # input gradients: 512 tiles for 4096 x 4096 three times, 32 * 43 = 1376 for 4096 x 11008 (21.5 waves: 22, or
        # 256 x 128 tiles: 16 * 86 = 1376 alike); weight gradients: 768, 512, 16 * 172 and 1376 tiles.
        flop = 2 * (self.qkv + self.out + self.up + self.down)
        assert flop / PEAK <= gemm(layer(), 4096, backward=True) <= 1.02 * flop / PEAK

    def test_weight_gradient_efficiency_touches_half_of_the_backward(self) -> None:
        slow = replace(IDEAL, weight_gradient_efficiency=0.5)
        forward, backward = gemm(layer(), 4096), gemm(layer(), 4096, backward=True)
        assert gemm(layer(cal=slow), 4096) == forward
        assert gemm(layer(cal=slow), 4096, backward=True) == pytest.approx(1.5 * backward, rel=0.01)

    def test_sums_that_are_read_and_written_show_beside_the_products(self) -> None:
        # weight gradients of 4096 tokens at 1 PFLOP/s: 8.192 ns a parameter; 8 B of its sum at 1 TB/s: 8 ns, and
        # operands: overlapping as products do, or not at all
        gpu = replace(FAST_MEMORY_GPU, hbm_bytes_per_s=1e12)
        cluster, tokens = ideal_cluster(gpu=gpu), 4096
        hidden, shown = (
            gemm(layer(cal=replace(IDEAL, accumulate_overlap=x), cluster=cluster), tokens, backward=True)
            for x in (1.0, 0.0)
        )
        shapes = ((HIDDEN, 48 * 128), (HIDDEN, HIDDEN), (HIDDEN, 2 * FFN), (FFN, HIDDEN))
        traffic = [(8 * m * n + 2 * tokens * (m + n)) / 1e12 for m, n in shapes]
        compute = [2 * tokens * m * n / PEAK for m, n in shapes]
        round_s = sum((c**3 + t**3) ** (1 / 3) for c, t in zip(compute, traffic, strict=True))
        assert shown - hidden == pytest.approx(sum(compute) + sum(traffic) - round_s, rel=0.03)
        # gradients that kernels of their own add up are written once, which products of large tiles hide
        apart = Layout(gradient_accumulation="separate")
        separate = (
            gemm(
                layer(layout=apart, cal=replace(IDEAL, accumulate_overlap=x), cluster=cluster),
                tokens,
                backward=True,
            )
            for x in (1.0, 0.0)
        )
        assert len(set(separate)) == 1

    def test_gradients_in_8_bit_promote_their_sums(self) -> None:
        cluster = ideal_cluster(gpu=replace(FAST_MEMORY_GPU, fp8_flop_per_s=2 * PEAK))
        slow = replace(IDEAL, fp8_gradient_efficiency=0.5)
        for precision, times in (("fp8", 2.0), ("mxfp8", 1.0), ("bf16", 1.0)):
            fast, promoted = (
                layer(layout=Layout(precision=precision), cal=cal, cluster=cluster)  # type: ignore[arg-type]
                for cal in (IDEAL, slow)
            )
            assert gemm(promoted, 4096) == gemm(fast, 4096)
            ratio = gemm(promoted, 4096, backward=True) / gemm(fast, 4096, backward=True)
            assert ratio == pytest.approx(times)

    def test_tensor_parallelism_divides_the_work(self) -> None:
        flop = (self.qkv + self.out + self.up + self.down) / 8
        assert flop / PEAK <= gemm(layer(layout=Layout(tp=8)), 8192) / 2 <= 1.05 * flop / PEAK

    @pytest.mark.parametrize(
        ("layout", "share"),
        [
            (Layout(), 2.0),  # all 8 experts here, two per token
            (Layout(ep=8), 2.0),  # one expert here, fed by eight ranks
            (Layout(tp=8, ep=8), 2.0 / 8),  # one expert here, fed by the eight GPUs of this rank
            (Layout(tp=8), 2.0 / 8),  # an eighth of every expert here
            (Layout(tp=2, ep=8), 2.0 / 2),  # one expert here, fed by four ranks
        ],
    )
    def test_expert_rows(self, layout: Layout, share: float) -> None:
        tokens = 65536
        cluster = ideal_cluster()
        routed = 2 * tokens * share * 3 * 4096 * 14336
        attention = 2 * tokens * 4096 * (48 * 128 + 4096) / layout.parallel.tp
        router = 2 * tokens / layout.parallel.tp * 4096 * 8
        seconds = gemm(layer(MIXTRAL, layout, moe=True, cluster=cluster), tokens)
        flop = routed + attention + router
        # the router's 8 columns fill a sixteenth of a 128 x 64 tile
        assert flop / PEAK <= seconds <= 1.08 * flop / PEAK

    def test_imbalance_makes_the_busiest_rank_slower(self) -> None:
        even = gemm(layer(MIXTRAL, Layout(ep=8), moe=True), 65536)
        busy = gemm(layer(MIXTRAL, Layout(ep=8, expert_imbalance=1.5), moe=True), 65536)
        experts = 2 * 65536 * 2 * 3 * 4096 * 14336 / PEAK
        assert busy - even == pytest.approx(0.5 * experts, rel=0.01)

    def test_latent_attention_projections(self) -> None:
        # DeepSeek-V3's dense layers: 7168 -> 1536 -> 128 * 192; 7168 -> 512 + 64; 512 -> 128 * 256; 128 * 128 -> 7168
        model = catalog.model("deepseek-v3")
        attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
        flop = 2 * 65536 * (attention + 3 * 7168 * 18432)
        assert flop / PEAK <= gemm(layer(model), 65536) <= 1.02 * flop / PEAK


class TestSmallKernels:
    def test_traffic(self) -> None:
        # 2 B * (2 norms * 2 h + 2 adds * 3 h + 2 (q + k) + 3 f), twice in the backward
        cost = layer(cal=replace(IDEAL, small_kernel_passes=1.0), cluster=SLOW_MEMORY)
        elements = 10 * HIDDEN + 2 * 40 * 128 + 3 * FFN
        tokens = np.array([1000.0])
        assert cost.small_kernels_s(tokens, backward=False) == pytest.approx([2 * elements * 1000 / HBM])
        assert cost.small_kernels_s(tokens, backward=True) == pytest.approx([4 * elements * 1000 / HBM])

    def test_sequence_parallelism_shards_norms_too(self) -> None:
        cal = replace(IDEAL, small_kernel_passes=1.0)
        tokens = np.array([1000.0])
        whole = layer(cal=cal, cluster=SLOW_MEMORY).small_kernels_s(tokens, backward=False)
        shard = layer(layout=Layout(tp=8), cal=cal, cluster=SLOW_MEMORY).small_kernels_s(
            tokens, backward=False
        )
        assert 8 * shard == pytest.approx(whole)


class TestCommunication:
    def test_tensor_parallel_collectives(self) -> None:
        # two all-gathers and two reduce-scatters of 2 B * 4096 * 1000 at (n - 1) / n of it over NVLink
        cost = layer(layout=Layout(tp=8))
        once = 7 / 8 * 2 * HIDDEN * 1000 / NVLINK
        tokens = np.array([1000.0])
        assert cost.tp_communication_s(tokens)[0] == pytest.approx([4 * once])
        assert cost.tp_communication_s(tokens)[1] == pytest.approx([6 * once])  # inputs once more
        assert layer().tp_communication_s(tokens)[0].tolist() == [0.0]

    def test_without_sequence_parallelism_two_all_reduces(self) -> None:
        cost = layer(layout=Layout(tp=8, sequence_parallel=False))
        expected = [2 * 2 * 7 / 8 * 2 * HIDDEN * 1000 / NVLINK]
        tokens = np.array([1000.0])
        assert cost.tp_communication_s(tokens)[0] == pytest.approx(expected)
        assert cost.tp_communication_s(tokens)[1] == pytest.approx(expected)

    def test_all_to_all(self) -> None:
        # dispatch and combine: 7/8 of 2 B * 4096 * top 2 * 1000 tokens leave the GPU each time
        cost = layer(MIXTRAL, Layout(ep=8), moe=True)
        expected = [2 * 7 / 8 * 2 * 4096 * 2 * 1000 / NVLINK]
        assert cost.expert_all_to_all_s(np.array([1000.0])) == pytest.approx(expected)
        assert layer(MIXTRAL, moe=True).expert_all_to_all_s(np.array([1000.0])).tolist() == [0.0]


@given(shipped_calibrations, st.integers(1, 100_000), st.integers(1, 100_000), st.booleans(), st.booleans())
def test_every_term_grows_with_tokens(name: str, tokens: int, more: int, backward: bool, moe: bool) -> None:
    model, layout = (MIXTRAL, Layout(tp=2, ep=2)) if moe else (MODEL, Layout(tp=2))
    cost = layer(model, layout, moe=moe, cal=calibration(name), cluster=SLOW_MEMORY)
    (times,) = cost.times(np.array([tokens, tokens + more], dtype=np.float64), backward)
    for term in (times.gemm, times.small_kernels, times.tp_communication, times.expert_all_to_all):
        assert term[1] >= term[0] * (1 - 1e-12)
