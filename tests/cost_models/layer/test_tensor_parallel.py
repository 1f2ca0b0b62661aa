"""Overlap of tensor-parallel collectives with GEMMs: hand-computed exposed times, limits, parallel blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import FFN, GPU, HBM, HIDDEN, IDEAL, MODEL, NVLINK, PEAK, ideal_cluster

from hdpsim.arrays import Floats
from hdpsim.cost_models.layer.layer import LayerCost
from hdpsim.cost_models.layer.tensor_parallel import (
    OVERLAP_CHUNKS,
    BlockGemms,
    beside_s,
    exchanged_s,
    pipelined_s,
)
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.transformer.model import Model

times = st.floats(0.0, 1e3)
shares = st.floats(0.0, 0.5)


def layer(layout: Layout, model: Model = MODEL, *, nvlink: float = NVLINK) -> LayerCost:
    cluster = ideal_cluster(nvlink=nvlink)
    return LayerCost(
        model, layout, cluster, IDEAL, Collectives(FabricModel(cluster, IDEAL.network)), moe=False
    )


def exposed(cost: LayerCost, tokens: float, *, backward: bool = False) -> float:
    return float(cost.tp_communication_s(np.array([tokens]))[backward][0])


class TestBeside:
    def test_a_long_product_hides_the_transfer_but_runs_on_fewer_sms(self) -> None:
        # in 2 s of transfer the product does 2 x 3/4 = 1.5 s of its 10 s: 10.5 s instead of 10
        assert float(beside_s(2.0, 10.0, 0.25)) == 0.5

    def test_a_long_transfer_hides_the_product(self) -> None:
        assert float(beside_s(10.0, 2.0, 0.25)) == 8.0

    @given(times, times, shares)
    def test_side_by_side_is_never_longer_than_one_after_the_other(
        self, c: float, g: float, x: float
    ) -> None:
        assert 0.0 <= float(beside_s(c, g, x)) <= c


class TestPipelined:
    def test_one_chunk_of_four_is_exposed(self) -> None:
        # 8 / 4 + 3/4 x max(8 x 1/8, 8 - 100) = 2 + 0.75
        assert float(pipelined_s(8.0, 100.0, 0.125, 0.0)) == 2.75

    def test_what_exceeds_the_product_is_exposed_too(self) -> None:
        # 8 / 4 + 3/4 x (8 - 4) = 5
        assert float(pipelined_s(8.0, 4.0, 0.125, 0.0)) == 5.0

    def test_what_chunks_add_to_the_product_shows(self) -> None:
        assert float(pipelined_s(8.0, 100.0, 0.125, 0.75)) == 3.5

    @given(times, times, shares, st.floats(0.0, 1.0))
    def test_it_never_costs_more_than_no_overlap(self, c: float, g: float, x: float, tail: float) -> None:
        assert 0.0 <= float(pipelined_s(c, g, x, tail)) <= c


class Waves:
    """Products of 300 tokens a wave of 1 s."""

    frozen = False

    def both_s(self, tokens: Floats) -> tuple[Floats, Floats]:
        return np.ceil(tokens / 300), 2 * np.ceil(tokens / 300)

    def products_s(self, tokens: Floats, *_: slice) -> list[Floats]:
        return [np.ceil(tokens / 300)]


class TestChunks:
    @pytest.mark.parametrize(
        ("tokens", "whole", "added"),
        [(1200.0, 4.0, 0.0), (600.0, 2.0, 2.0), (300.0, 1.0, 3.0)],  # chunks of 300, 150 and 75: a wave each
    )
    def test_in_sequence_every_chunk_has_waves_of_its_own(
        self, tokens: float, whole: float, added: float
    ) -> None:
        for chunks, expected in (("sequence", added), ("streams", 3 * 0.125)):
            layout = Layout(tp=8, tp_overlap=True, tp_chunks=chunks)
            block = BlockGemms.of(Waves(), Waves(), np.array([tokens]), layout, 0.125)  # type: ignore[arg-type]
            assert {(float(gemm.whole_s[0]), float(gemm.added_s[0])) for gemm in block} == {(whole, expected)}

    def test_the_backward_has_one_more_chunk_with_nothing_beside_it(self) -> None:
        # a reduction c beside a product g on 3/4 of the SMs shows b = max(c / 4, c - g); in chunks c / 4 + 3/4 x b
        tokens = 2.0**17  # full waves in chunks, too
        streams, sequence = (
            layer(Layout(tp=8, tp_overlap=True, tp_chunks=how)) for how in ("streams", "sequence")
        )
        c = 2 * HIDDEN * tokens * 7 / 8 / NVLINK
        products = (2 * tokens * HIDDEN * columns / 8 / PEAK for columns in (48 * 128, 2 * FFN))
        more = sum((c - max(c / 4, c - g)) / 4 for g in products)
        forward, backward = (
            exposed(sequence, tokens, backward=side) - exposed(streams, tokens, backward=side)
            for side in (False, True)
        )
        assert forward == pytest.approx(0.0, abs=1e-3 * c)
        assert backward == pytest.approx(more, rel=1e-2)


def memory_layer(layout: Layout, *, nvlink: float = NVLINK) -> LayerCost:
    """A layer on a GPU with 8-bit products and memory that takes its time."""
    cluster = ideal_cluster(gpu=replace(GPU, fp8_flop_per_s=2 * PEAK), nvlink=nvlink)
    network = Collectives(FabricModel(cluster, IDEAL.network))
    return LayerCost(MODEL, layout, cluster, IDEAL, network, moe=False)


class TestBatchFirst:
    """[batch, sequence, hidden]: 2 h B of a tensor cross NVLink, a copy reads and writes it."""

    TOKENS = 4096.0
    TENSOR_BYTES = 2 * HIDDEN * TOKENS
    TRANSFER_S = TENSOR_BYTES * 7 / 8 / NVLINK
    COPY_S = 2 * TENSOR_BYTES / HBM

    def test_two_blocks_gather_reduce_and_copy_alike_in_both_directions(self) -> None:
        cost = memory_layer(Layout(tp=8, tp_batch_first=True))
        by_hand = 2 * (2 * self.TRANSFER_S + 2 * self.COPY_S)
        assert exposed(cost, self.TOKENS) == pytest.approx(by_hand)
        assert exposed(cost, self.TOKENS, backward=True) == pytest.approx(by_hand)

    def test_narrow_gathers_and_their_copies_are_half_but_for_scales_of_rows(self) -> None:
        for scaling, share in (("tensor", 0.5), ("row", 1.0)):
            layout = Layout(tp=8, tp_batch_first=True, precision="fp8", fp8_scaling=scaling)  # type: ignore[arg-type]
            by_hand = 2 * (1 + share) * (self.TRANSFER_S + self.COPY_S)
            assert exposed(memory_layer(layout), self.TOKENS) == pytest.approx(by_hand)

    def test_broken_apart_a_forward_hides_what_is_shorter_than_its_products(self) -> None:
        # NVLink a hundred times as fast, no SMs to speak of: 1 / 64 of the transfers, the sums of what arrived forward
        fast = memory_layer(Layout(tp=8, tp_batch_first=True, tp_overlap=True), nvlink=100 * NVLINK)
        transfer_s = self.TRANSFER_S / 100
        beside = 2 * 2 * transfer_s / 64
        assert exposed(fast, self.TOKENS) == pytest.approx(beside + 2 * self.COPY_S / 2, rel=1e-3)
        backward = 2 * 2 * (transfer_s + self.COPY_S)  # as without
        assert exposed(fast, self.TOKENS, backward=True) == pytest.approx(backward, rel=1e-3)

    def test_scales_of_rows_leave_gathers_whole(self) -> None:
        layout = Layout(tp=8, tp_batch_first=True, tp_overlap=True, precision="fp8", fp8_scaling="row")
        alone = memory_layer(layout.changed(tp_overlap=False))
        # forward: what the reduction no longer shows
        saved = exposed(alone, self.TOKENS) - exposed(memory_layer(layout), self.TOKENS)
        assert saved <= 2 * (self.TRANSFER_S + self.COPY_S / 2) * (1 + 1e-9)
        assert exposed(memory_layer(layout), self.TOKENS, backward=True) == pytest.approx(
            exposed(alone, self.TOKENS, backward=True)
        )


class TestLayer:
    def test_scales_of_blocks_gather_gradients_once_more(self) -> None:
        layout = Layout(tp=8, precision="fp8", fp8_scaling="tensor")
        one, blocks = memory_layer(layout), memory_layer(layout.changed(fp8_scaling="block"))
        assert exposed(blocks, 4096.0) == exposed(one, 4096.0)
        more = exposed(blocks, 4096.0, backward=True) - exposed(one, 4096.0, backward=True)
        assert more == pytest.approx(2 * HIDDEN * 4096 * 7 / 8 / NVLINK)  # of two blocks, 1 B an element

    def test_each_of_the_four_products_hides_its_transfer(self) -> None:
        # 64 SMs, 16 kept: a quarter. Transfer of one pair: 2 h B / NVLink x 7/8 each way.
        tokens = 4096.0
        half = 2 * HIDDEN * tokens * 7 / 8 / NVLINK
        # the four products of a shard; partly filled waves change them by less than a percent of the sum
        projection = 2 * tokens * HIDDEN * HIDDEN / 8 / PEAK
        up, down = 2 * tokens * HIDDEN * 2 * FFN / 8 / PEAK, 2 * tokens * FFN * HIDDEN / 8 / PEAK
        qkv = 2 * tokens * HIDDEN * 48 * 128 / 8 / PEAK
        by_hand = sum(
            half / 4 + 0.75 * max(half / 4, half - product) for product in (qkv, projection, up, down)
        )
        assert exposed(layer(Layout(tp=8, tp_overlap=True)), tokens) == pytest.approx(by_hand, rel=1e-2)

    @pytest.mark.parametrize("sequence_parallel", [True, False])
    @pytest.mark.parametrize("backward", [True, False])
    def test_overlap_helps_and_a_fast_link_leaves_nothing(
        self, sequence_parallel: bool, backward: bool
    ) -> None:
        layout = Layout(tp=8, sequence_parallel=sequence_parallel)
        plain, beside = layer(layout), layer(layout.changed(tp_overlap=True))
        assert exposed(beside, 4096, backward=backward) < exposed(plain, 4096, backward=backward)
        fast = layer(layout.changed(tp_overlap=True), nvlink=1e18)
        assert exposed(fast, 4096, backward=backward) < 1e-10

    def test_overlap_without_tensor_parallelism_is_nothing(self) -> None:
        assert exposed(layer(Layout(tp_overlap=True)), 4096) == 0.0


class TestParallelBlock:
    parallel = replace(MODEL, parallel_block=True)

    @pytest.mark.parametrize("overlap", [True, False])
    def test_it_halves_the_collectives(self, overlap: bool) -> None:
        layout = Layout(tp=8, tp_overlap=overlap)
        ratio = exposed(layer(layout, self.parallel), 4096) / exposed(layer(layout), 4096)
        assert ratio <= 0.5 + 1e-12
        if not overlap:
            assert ratio == pytest.approx(0.5, rel=1e-12)

    def test_joined_products_fill_waves_that_separate_ones_leave_empty(self) -> None:
        # 128 tokens, tiles of 128 x 256 on 64 SMs: QKV 24 tiles, first MLP matrix 86; together 110 tiles in 2 waves
        # where the two alone take 1 + 2
        tokens = np.array([128.0])
        joined = layer(Layout(joined_block=True), self.parallel).gemm_s(tokens, backward=False)
        separate = layer(Layout(), self.parallel).gemm_s(tokens, backward=False)
        assert separate == pytest.approx(layer(Layout()).gemm_s(tokens, backward=False), rel=1e-12)
        assert float(joined[0]) < float(separate[0])


class TestExchanged:
    @pytest.mark.parametrize(
        ("collective", "gemm", "tail", "exposed"),
        [
            (3.0, 8.0, 0.0, 0.03),  # chunks of 1 behind products of 2: one SM in a hundred
            (3.0, 8.0, 0.1, 0.33),  # three more kernels
            (12.0, 8.0, 0.0, 6.0),  # arrives at 12, then the last product of 2: 14 - 8
            (3.0, 0.0, 0.5, 3.0),  # gains nothing: not cut
        ],
    )
    def test_by_hand(self, collective: float, gemm: float, tail: float, exposed: float) -> None:
        assert float(exchanged_s(collective, gemm, 0.01, tail, 4)) == pytest.approx(exposed)

    @given(st.floats(0.0, 10.0), st.floats(0.0, 10.0))
    def test_never_more_than_chunks_of_a_collective(self, c: float, g: float) -> None:
        # the same number of chunks and SMs: starting with the own chunk saves the wait for the first
        chunks = float(pipelined_s(c, g, 0.1, 0.0))
        assert float(exchanged_s(c, g, 0.1, 0.0, OVERLAP_CHUNKS)) <= chunks + 1e-9

    def test_a_layer_gains_from_every_exchange(self) -> None:
        none, gathers, mlp = (
            layer(Layout(tp=8, tp_overlap=True, tp_exchange=how)) for how in ("none", "gathers", "mlp")
        )
        assert exposed(mlp, 4096) < exposed(gathers, 4096) < exposed(none, 4096)
        backward = [exposed(cost, 4096, backward=True) for cost in (none, gathers, mlp)]
        assert backward[0] > backward[1] == backward[2]

    def test_without_overlap_it_changes_nothing(self) -> None:
        assert exposed(layer(Layout(tp=8, tp_exchange="mlp")), 4096) == exposed(layer(Layout(tp=8)), 4096)
