"""Updates of delayed 8-bit scales: kernels and launches by hand, and which layers have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ideal_hardware import GPU, IDEAL, MODEL

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.kernels.casts import (
    maxima_s,
    scale_update_kernels,
    scale_update_launches,
    scale_updates_s,
)
from hdpsim.cost_models.layer.host_launches import backward_launches, forward_launches
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layer.small_kernels import SmallKernels
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost

SEPARATE = Layout(precision="fp8", separate_scale_updates=True)
PLAIN = SEPARATE.changed(separate_scale_updates=False)


def test_three_modules_of_ten_kernels() -> None:
    assert scale_update_kernels(SEPARATE) == 30
    assert scale_updates_s(SEPARATE) == pytest.approx(90e-6)


@pytest.mark.parametrize(
    "layout",
    [
        PLAIN,
        SEPARATE.changed(precision="bf16"),
        SEPARATE.changed(precision="mxfp8"),
        SEPARATE.changed(fp8_scaling="tensor"),
    ],
)
def test_only_delayed_scales_of_fp8_have_a_history(layout: Layout) -> None:
    assert scale_update_launches(layout) == 0
    assert scale_updates_s(layout) == 0.0


@pytest.mark.parametrize("backward", [False, True])
def test_every_pass_pays_whatever_its_tokens(backward: bool) -> None:
    tokens = np.array([1.0, 4096.0])
    separate, plain = (
        SmallKernels(MODEL, layout, GPU, IDEAL, moe=False).seconds(tokens, backward=backward)
        for layout in (SEPARATE, PLAIN)
    )
    assert separate - plain == pytest.approx([90e-6, 90e-6])


def test_both_passes_launch_them_once() -> None:
    for count in (forward_launches, backward_launches):
        assert count(MODEL, SEPARATE, moe=False) - count(MODEL, PLAIN, moe=False) == 6


def test_a_fifth_of_the_host_s_forward_is_theirs() -> None:
    model = replace(MODEL, learned_positions=2048)
    separate = SEPARATE.changed(tp=4)
    share = scale_update_launches(separate) / forward_launches(model, separate, moe=False)
    assert share == pytest.approx(0.2, abs=0.02)


def test_graphs_launch_none() -> None:
    graphed = SEPARATE.changed(cuda_graphs=True)
    assert forward_launches(MODEL, graphed, moe=False) == 0
    assert backward_launches(MODEL, graphed, moe=False) == 0


class TestBlockingMaxima:
    LAYOUT = Layout(precision="fp8", blocking_maxima=True, tp=4, pp=2)

    @pytest.fixture
    def collectives(self) -> Collectives:
        cluster = catalog.cluster_of(catalog.node("hgx-h100-80gb"), 256)
        return Collectives(FabricModel(cluster, calibration("hopper").network))

    def test_all_reduces_of_48_bytes_a_layer(self, collectives: Collectives) -> None:
        # 256 GPUs / (4 x 2) = 32 ranks of 4 neighbours; before version 1.4 these ranks, 4 GPUs apart, then neighbours
        whole, ranks, neighbours = (collectives.group(*shape) for shape in ((128, 1), (32, 4), (4, 1)))
        once, first, second = (
            float(collectives.all_reduce_s(48.0 * 12, group)) for group in (whole, ranks, neighbours)
        )
        assert maxima_s(self.LAYOUT, collectives, 12) == pytest.approx(once)
        before = self.LAYOUT.changed(separate_scale_updates=True)
        assert maxima_s(before, collectives, 12) == pytest.approx(first + second)
        assert 20e-6 < once < 150e-6

    @pytest.mark.parametrize(
        "changes", [{"blocking_maxima": False}, {"precision": "bf16"}, {"fp8_scaling": "tensor"}]
    )
    def test_nothing_without_delayed_scales_or_the_switch(
        self, collectives: Collectives, changes: dict[str, Any]
    ) -> None:
        assert maxima_s(self.LAYOUT.changed(**changes), collectives, 12) == 0.0

    def test_a_gpu_that_shares_nothing_agrees_at_once(self) -> None:
        node, network = catalog.node("hgx-h100-80gb"), calibration("hopper").network
        alone = self.LAYOUT.changed(tp=1, pp=8)  # eight stages of one rank
        assert maxima_s(alone, Collectives(FabricModel(catalog.cluster_of(node, 8), network)), 12) == 0.0

    def test_more_ranks_never_agree_sooner(self) -> None:
        node, network = catalog.node("hgx-h100-80gb"), calibration("hopper").network
        seconds = [
            maxima_s(self.LAYOUT, Collectives(FabricModel(catalog.cluster_of(node, gpus), network)), 12)
            for gpus in (8, 64, 512, 4096, 32768)
        ]
        assert seconds == sorted(seconds)

    def test_every_chunk_waits_in_both_passes(self) -> None:
        cluster, cal = catalog.cluster_of(catalog.node("hgx-h100-80gb"), 64), calibration("hopper")
        model = replace(catalog.model("llama-3-8b"), layers=8)
        layout = self.LAYOUT.changed(vpp=2, schedule="interleaved")
        batches = MicroBatches(
            segment_tokens=np.array([2048]), segment_offsets=np.array([0, 1]), group_size=np.array([1]),
            tier=np.array([0]), offload_ratio=np.zeros(1),
        )  # fmt: skip
        waiting, free = (
            MicroBatchCost(model, used, cluster, cal)
            for used in (layout, layout.changed(blocking_maxima=False))
        )
        once = maxima_s(layout, waiting.collectives, 2)
        for blocked, plain in zip(waiting.both_terms_s(batches), free.both_terms_s(batches), strict=True):
            assert (blocked - plain).sum(axis=0) == pytest.approx(np.full(blocked.shape[1:], once))
