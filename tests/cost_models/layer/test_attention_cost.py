"""Attention alone and in a ring: limits by hand on ideal hardware, and properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import (
    FAST_MEMORY_GPU,
    GPU,
    HBM,
    HEADS,
    HIDDEN,
    IDEAL,
    KV_HEADS,
    MODEL,
    NIC,
    NVLINK,
    PEAK,
    ideal_cluster,
    micro_batches,
    shipped_calibrations,
)

from hdpsim.cost_models.calibration.calibration import Calibration, calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.kernels.attention import attention_s, empty_blocks_s
from hdpsim.cost_models.layer.attention.ring_attention import EULER_GAMMA, AttentionCost, RingTimes
from hdpsim.cost_models.layer.micro_batches import Groups, MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.transformer.model import Model

SLOW_MEMORY = ideal_cluster(gpu=GPU)


def attention(
    cal: Calibration = IDEAL, *, model: Model = MODEL, tp: int = 1, cluster: Cluster | None = None
) -> AttentionCost:
    where = cluster or ideal_cluster()
    return AttentionCost(model, Layout(tp=tp), where.gpu, cal, FabricModel(where, cal.network))


def times(cost: AttentionCost, batches: MicroBatches, *, backward: bool = False) -> RingTimes:
    return cost.times(batches, backward=backward)


class TestAlone:
    def test_quadratic_work_at_peak(self) -> None:
        # causal: 4 h d s^2 / 2 = 2 * 4096 * s^2
        assert attention().segments.alone_s(8192, backward=False) == pytest.approx(
            2 * HIDDEN * 8192**2 / PEAK
        )
        assert attention().segments.alone_s(8192, backward=True) == pytest.approx(5 * HIDDEN * 8192**2 / PEAK)

    def test_an_older_kernel_needs_as_much_power_for_less_work(self) -> None:
        # at full clock the best kernel would take 1.4 kW of 0.7: half of its rate; so does one of half that rate
        hungry = replace(IDEAL, bf16_joule_per_flop=1.4e-12, flash2_rate=0.5)
        where = ideal_cluster()
        older = AttentionCost(
            MODEL, Layout(attention_kernel="flash2"), where.gpu, hungry, FabricModel(where, hungry.network)
        )
        best_s = 2 * HIDDEN * 8192**2 / PEAK
        assert attention(hungry).segments.alone_s(8192, backward=False) == pytest.approx(2 * best_s)
        assert older.segments.alone_s(8192, backward=False) == pytest.approx(4 * best_s)

    def test_tensor_parallelism_shares_the_heads(self) -> None:
        assert attention(tp=8).segments.alone_s(8192, backward=False) == pytest.approx(
            2 * HIDDEN / 8 * 8192**2 / PEAK
        )

    def test_half_length(self) -> None:
        cal = replace(IDEAL, attention_half_tokens=500, attention_backward_ramp=2.0)
        assert attention(cal).segments.alone_s(500, backward=False) == pytest.approx(
            2 * HIDDEN * 500 * 1000 / PEAK
        )
        assert attention(cal).segments.alone_s(500, backward=True) == pytest.approx(
            5 * HIDDEN * 500 * 1500 / PEAK
        )

    def test_slices_of_rows_meet_keys_again_in_a_backward(self) -> None:
        # four slices of 2,000 rows meet 2,000 to 8,000 keys, 20,000 in all and 12,000 more than rows; a key costs what
        # 100 pairs do, a pair 4 h d FLOP forward and 2.5 times that backward
        cal = replace(IDEAL, attention_block_half_tokens=50, attention_backward_ramp=2.0)
        whole, sliced = (
            [
                float(attention(cal).segments.alone_s(8000, backward=side, slices=slices))
                for side in (False, True)
            ]
            for slices in (1, 4)
        )
        assert sliced[0] == whole[0]
        assert whole[1] == pytest.approx(5 * HIDDEN * 8000**2 / PEAK)
        assert sliced[1] - whole[1] == pytest.approx(2.5 * 4 * HIDDEN * 100 * 12_000 / PEAK)

    def test_same_as_the_kernel(self) -> None:
        # many heads, long sequence: the kernel's last tiles no longer count
        cluster = catalog.cluster_of("hgx-h100-80gb", 8)
        cal = calibration("hopper")
        for backward in (False, True):
            ours = attention(cal, cluster=cluster).segments.alone_s(200_000, backward=backward)
            kernel = attention_s(1, 200_000, HEADS, 128, cluster.gpu, cal, backward=backward)
            assert ours == pytest.approx(kernel, rel=0.01)

    def test_sliding_window(self) -> None:
        # rows 0..W see on average W/2 keys, the other s - W rows W each: pairs = W s - W^2 / 2
        windowed = attention(model=replace(MODEL, sliding_window=1000))
        pairs = 1000 * 8000 - 1000**2 / 2
        assert windowed.segments.alone_s(8000, backward=False) == pytest.approx(4 * HIDDEN * pairs / PEAK)
        assert windowed.segments.alone_s(900, backward=False) == pytest.approx(2 * HIDDEN * 900**2 / PEAK)

    def test_segments_of_a_pack_do_not_see_each_other(self) -> None:
        result = times(attention(), micro_batches([[4096, 4096], [8192]]))
        assert result.attention[0] == pytest.approx(2 * 2 * HIDDEN * 4096**2 / PEAK)
        assert result.attention[1] == pytest.approx(2 * HIDDEN * 8192**2 / PEAK)
        assert result.merge.tolist() == [0.0, 0.0]
        assert result.wait.tolist() == [0.0, 0.0]

    def test_latent_attention(self) -> None:
        # DeepSeek-V3: 128 heads, queries and keys of 192, values of 128; 512 + 64 latent values go round
        cost = attention(model=catalog.model("deepseek-v3"))
        assert cost.segments.alone_s(8192, backward=False) == pytest.approx(
            128 * (192 + 128) * 8192**2 / PEAK
        )
        assert cost.kv_bytes_per_token == 2 * (512 + 64)


class TestRing:
    def test_hidden_transfers_cost_nothing(self) -> None:
        # 4 ranks of 8192 tokens: 4 steps of 2 w l^2; one hop (2 * 1024 * 2 B * 8192 / 100 GB/s = 0.34 ms) is shorter
        step = 2 * HIDDEN * 8192**2 / PEAK
        result = times(attention(), micro_batches([[4 * 8192]], group_size=[4]))
        assert result.attention == pytest.approx([4 * step])
        assert result.wait.tolist() == [0.0]
        assert result.total == pytest.approx([2 * HIDDEN * (4 * 8192) ** 2 / 4 / PEAK])

    @pytest.mark.parametrize(("tier", "link"), [(0, NVLINK), (1, NIC)])
    @pytest.mark.parametrize("backward", [False, True])
    def test_exposed_hops(self, tier: int, link: float, backward: bool) -> None:
        # 8 ranks of 16 tokens: d * step + (d - 1) * (hop - step)
        step = 2 * HIDDEN * 16**2 / PEAK * (2.5 if backward else 1.0)
        hop = 16 * 2 * KV_HEADS * 128 * 2 / link * (2 if backward else 1)
        assert hop > step
        result = times(attention(), micro_batches([[128]], group_size=[8], tier=[tier]), backward=backward)
        assert result.attention == pytest.approx([8 * step])
        assert result.wait == pytest.approx([7 * (hop - step)])

    @pytest.mark.parametrize("kept", [0.0, 0.5, 0.75])
    def test_hops_beside_work_keep_a_part_of_their_rate(self, kept: float) -> None:
        step = 2 * HIDDEN * 8192**2 / PEAK
        hop = 8192 * 2 * KV_HEADS * 128 * 2 / NVLINK
        assert 0.5 * step < hop < 0.75 * step
        cal = replace(IDEAL, ring_overlap=kept)
        result = times(attention(cal), micro_batches([[4 * 8192]], group_size=[4]))
        shown = {0.0: hop, 0.5: hop - 0.5 * step, 0.75: 0.0}[kept]
        assert result.total == pytest.approx([4 * step + 3 * shown])

    def test_short_pieces_cost_a_tile(self) -> None:
        cal = replace(IDEAL, attention_tile_tokens=128)
        result = times(attention(cal), micro_batches([[64]], group_size=[8]))
        # 32 tiles, one a head, on 64 SMs: half of them idle while each of the others works on one
        assert result.attention == pytest.approx([8 * 2 * HIDDEN * 128**2 / PEAK * GPU.sm_count / HEADS])

    def test_merging_moves_the_output_of_every_later_step(self) -> None:
        # 3 merges of 8192 tokens * 4096 outputs * 10 B
        cal = replace(IDEAL, merge_bytes_per_element=10.0)
        result = times(attention(cal, cluster=SLOW_MEMORY), micro_batches([[4 * 8192]], group_size=[4]))
        assert result.merge == pytest.approx([3 * 8192 * HIDDEN * 10 / HBM])

    def test_the_slowest_of_many_delayed_hops(self) -> None:
        cal = replace(IDEAL, ring_delay_s=1e-3)
        cost = attention(cal)
        near, far = (cost.hop_s(Groups(0, 64, tier), backward=False) for tier in (0, 1))
        assert near == 0.0
        assert far == pytest.approx(1e-3 * (np.log(64) + EULER_GAMMA))

    def test_more_tensor_ranks_than_key_heads_replicate_them(self) -> None:
        assert attention(tp=8).kv_bytes_per_token == 2 * 128 * 2
        assert attention(tp=16).kv_bytes_per_token == 2 * 128 * 2


lengths = st.integers(1, 300_000)


@given(shipped_calibrations, lengths, st.integers(1, 100_000), st.sampled_from([1, 2, 8, 64]), st.booleans())
def test_monotone_in_tokens(name: str, tokens: int, more: int, group: int, backward: bool) -> None:
    cal = calibration(name)
    batches = micro_batches([[tokens], [tokens + more]], group_size=[group] * 2, tier=[int(group > 8)] * 2)
    total = times(attention(cal), batches, backward=backward).total
    assert total[1] >= total[0] * (1 - 1e-12)


@given(shipped_calibrations, st.lists(lengths, min_size=2, max_size=6), st.booleans())
def test_splitting_a_sequence_adds_empty_blocks_at_most(name: str, pieces: list[int], backward: bool) -> None:
    cal = calibration(name)
    whole, split = times(attention(cal), micro_batches([[sum(pieces)], pieces]), backward=backward).total
    empty_s = empty_blocks_s(
        np.array(pieces, dtype=np.float64), np.array([0, len(pieces)]), HEADS, GPU, cal, backward=backward
    )
    assert split - empty_s[0] <= whole * (1 + 1e-12)


@given(shipped_calibrations, lengths, st.sampled_from([2, 8, 64]), st.integers(0, 1), st.booleans())
def test_a_faster_link_never_slows(name: str, tokens: int, group: int, tier: int, backward: bool) -> None:
    cal = calibration(name)
    batches = micro_batches([[tokens]], group_size=[group], tier=[tier])
    base = times(attention(cal), batches, backward=backward).total
    fast = times(
        attention(cal, cluster=ideal_cluster(nvlink=2 * NVLINK, nic=2 * NIC)), batches, backward=backward
    ).total
    assert fast[0] <= base[0]


@given(st.integers(1_000_000, 4_000_000), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_a_larger_group_lowers_attention_while_transfers_are_hidden(tokens: int, group: int) -> None:
    cal = replace(IDEAL, merge_bytes_per_element=0.0)
    batches = micro_batches([[tokens], [tokens]], group_size=[group, 2 * group])
    small, large = (result for result in times(attention(cal), batches).total)
    assert large == pytest.approx(small / 2)


@given(shipped_calibrations, st.lists(st.lists(lengths, min_size=1, max_size=4), min_size=1, max_size=4))
def test_micro_batches_do_not_influence_each_other(name: str, packs: list[list[int]]) -> None:
    cost = attention(calibration(name))
    together = times(cost, micro_batches(packs)).total
    assert together == pytest.approx([times(cost, micro_batches([pack])).total[0] for pack in packs])


def test_no_micro_batches() -> None:
    assert times(attention(), micro_batches([])).total.shape == (0,)


def test_ideal_memory_is_free() -> None:
    assert attention(replace(IDEAL, merge_bytes_per_element=34.0)).merge_s(8192) == pytest.approx(
        0.0, abs=1e-8
    )
    assert FAST_MEMORY_GPU.hbm_bytes_per_s == 1e18
