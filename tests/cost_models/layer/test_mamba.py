"""Mamba-2 layers on one GPU: traffic of the scan against a published measurement, exchanges, launches, collectives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layer.host_launches import forward_launches, tensor_collectives
from hdpsim.cost_models.layer.mamba import (
    MambaExchange,
    mamba_kernels,
    most_mamba_ranks,
)
from hdpsim.cost_models.layer.small_kernels import SmallKernels
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.transformer.layers import LayerKind, as_layer
from hdpsim.cost_models.transformer.model import Mamba, Model
from hdpsim.errors import InfeasibleError

HOPPER = calibration("hopper")
CLUSTER = catalog.cluster_of("hgx-h100-80gb", 16)
LAYER = Model(
    name="layer", layers=1, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn_hidden=1, vocab=1,
    layer_pattern="M", mamba=Mamba(heads=112, head_dim=64, state=128, groups=8, chunk=128),
)  # fmt: skip


def scan_s(cal, gpu, sides, **sizes):
    """Seconds of the scan of one token, traffic and work."""
    model = replace(LAYER, mamba=replace(LAYER.mamba, **sizes))
    kernels = [mamba_kernels(model, Layout(), backward=side) for side in sides]
    memory_s = sum(2 * each.scanned for each in kernels) / (gpu.hbm_bytes_per_s * cal.hbm_efficiency)
    return memory_s + sum(each.scan_flop for each in kernels) / (cal.scan_flop_per_sm * gpu.sm_count)


def test_traffic_by_hand():
    inner, shared, states, scores, heads = 7168, 2048, 7168, 1024, 112
    forward = mamba_kernels(LAYER, Layout(), backward=False)
    assert forward.streamed == 2 * (inner + shared) + 3 * inner
    steps, written, passed, multiplied = (
        5 * heads,
        inner + shared / 2 + 2 * states,
        3 * states,
        shared + 2 * scores,
    )
    outputs = 2 * inner + shared / 2 + states + 2 * scores
    assert forward.scanned == steps + written + passed + multiplied + outputs
    backward = mamba_kernels(LAYER, Layout(), backward=True)
    again = steps + written + passed + multiplied
    parts = (
        inner + shared / 2 + states,
        5 * states,
        3 * inner + shared / 2 + states + 2 * scores,
        2 * (inner + 1.5 * shared + states),
        2 * inner + 2 * scores,
        2 * shared + 2 * scores,
        2 * inner + 2 * scores,
        7 * shared + 7 * scores,
    )
    assert backward.scanned == again + sum(parts)
    assert backward.streamed == 2 * (inner + shared) + 5 * inner + 3 * (inner + shared)


def test_work_by_hand():
    """112 heads of 64 with states of 128 in chunks of 128, 8 groups."""
    forward, backward = (mamba_kernels(LAYER, Layout(), backward=side) for side in (False, True))
    assert forward.scan_flop == 112 * (4 * 128 * 64 + 128 * 64) + 8 * 2 * 128 * 128
    assert backward.scan_flop == 112 * (10 * 128 * 64 + 3 * 128 * 64) + 8 * 6 * 128 * 128
    channels = 7168 + 2048
    cal = replace(
        HOPPER, convolution_sm_s=1.0, convolution_backward_sm_s=10.0, gated_norm_backward_sm_s=100.0
    )
    for kernels, streaming_s in ((forward, channels), (backward, 11 * channels + 100 * 7168)):
        scan_s = kernels.scan_flop / cal.scan_flop_per_sm
        assert kernels.work_s(CLUSTER.gpu, cal) == pytest.approx((scan_s + streaming_s) / 132)


@pytest.mark.parametrize(
    ("generation", "gpu", "sides", "sizes", "measured_ns"),
    [
        # vllm-project/vllm, pull request 27299: 8,192 to 32,768 tokens
        ("hopper", "h100", (False,), {"heads": 128, "groups": 1, "chunk": 256}, (77.4, 84.7)),
        # Nemotron 3 Nano, both ways, in a training step
        ("hopper", "h100", (False, True), {"heads": 64}, (192.1, 192.1)),
        # ai-dynamo/aiconfigurator 0.8.0, TensorRT-LLM 1.2 and 1.1: 8,192 tokens
        ("blackwell", "gb200", (False,), {"heads": 128}, (78.0, 120.5)),
        ("blackwell", "gb200", (False,), {"heads": 64}, (51.1, 42.7)),
        ("blackwell", "gb200", (False,), {"heads": 64, "chunk": 256}, (44.7, 66.5)),
    ],
)
def test_published_scans_take_what_was_measured(generation, gpu, sides, sizes, measured_ns):
    found = scan_s(calibration(generation), catalog.gpu(gpu), sides, **sizes) * 1e9
    assert found == pytest.approx(sum(measured_ns) / 2, rel=0.12)


@pytest.mark.parametrize(
    ("sizes", "measured_ns"),
    [({"heads": 64}, 290.5), ({"heads": 128}, 512.2), ({"chunk": 256}, 461.7)],
)
def test_all_kernels_between_the_products_take_what_was_measured(sizes, measured_ns):
    """H100, 8,192 tokens, forward and backward, sums of PyTorch among them."""
    gpu, model = catalog.gpu("h100"), replace(LAYER, mamba=replace(LAYER.mamba, **sizes))
    found_s = 0.0
    for kernels in (mamba_kernels(model, Layout(), backward=side) for side in (False, True)):
        traffic_s = 2 * kernels.passes / (gpu.hbm_bytes_per_s * HOPPER.hbm_efficiency)
        found_s += traffic_s + kernels.work_s(gpu, HOPPER)
    assert found_s * 1e9 == pytest.approx(measured_ns, rel=0.03)


def test_chunks_of_a_published_scan():
    """GB10: chunks of 64 and 256 take 1.378 and 0.897 times as long as of 128; traffic alone says 1.49, 0.79."""
    blackwell = calibration("blackwell")
    gpu = replace(catalog.gpu("gb200"), hbm_bytes_per_s=273e9, sm_count=48)
    one, short, long = (scan_s(blackwell, gpu, (False, True), chunk=chunk) for chunk in (128, 64, 256))
    assert short / one == pytest.approx(87.611 / 63.571, rel=0.06)
    assert long / one == pytest.approx(56.995 / 63.571, rel=0.05)


def test_tensor_parallelism_divides_traffic_and_work():
    for side in (False, True):
        one, four = (mamba_kernels(LAYER, Layout(tp=tp), backward=side) for tp in (1, 4))
        assert four.passes == pytest.approx(one.passes / 4)
        assert four.work_s(CLUSTER.gpu, HOPPER) == pytest.approx(one.work_s(CLUSTER.gpu, HOPPER) / 4)


def test_small_kernels_are_norm_sum_and_scan():
    """One norm (2 passes) and one sum (3) of the hidden size, fused; no activation, no rotary embedding."""
    ideal = replace(HOPPER, small_kernel_passes=1.0)
    found = SmallKernels(LAYER, Layout(), CLUSTER.gpu, ideal, moe=False)
    scan = mamba_kernels(LAYER, Layout(), backward=False).passes
    assert found.passes == pytest.approx(5 * 4096 + scan)
    scan = mamba_kernels(LAYER, Layout(), backward=True).passes
    assert found.passes_backward == pytest.approx(10 * 4096 + scan)


def test_time_is_traffic_work_and_tails():
    found = SmallKernels(LAYER, Layout(), CLUSTER.gpu, HOPPER, moe=False)
    memory_s = 2 * found.passes_backward * 1000 / (CLUSTER.gpu.hbm_bytes_per_s * HOPPER.hbm_efficiency)
    work_s = 1000 * mamba_kernels(LAYER, Layout(), backward=True).work_s(CLUSTER.gpu, HOPPER)
    tails_s = 2 * found.kernels * HOPPER.kernel_tail_s
    assert found.seconds(np.array([1000.0]), backward=True)[0] == pytest.approx(memory_s + work_s + tails_s)


def test_time_is_linear_in_tokens():
    found = SmallKernels(LAYER, Layout(), CLUSTER.gpu, HOPPER, moe=False)
    times = found.seconds(np.array([1000.0, 2000.0, 3000.0]), backward=True)
    assert times[2] - times[1] == pytest.approx(times[1] - times[0])


def test_launches_and_collectives_of_one_part():
    """Norm, two products, seven kernels, sum; tensor parallelism: a gather and a reduction of three launches each."""
    assert forward_launches(LAYER, Layout(), moe=False) == 1 + 2 + 7 + 1
    assert forward_launches(LAYER, Layout(tp=2), moe=False) == 11 + 2 * 3
    assert tensor_collectives(LAYER, Layout(tp=2), moe=False) == 2
    hybrid = catalog.model("nemotron-3-super-120b-a12b")
    experts, _ = as_layer(hybrid, LayerKind.EXPERTS)
    assert tensor_collectives(experts, Layout(tp=2, ep=64), moe=True) == 2  # around the shared expert
    attention, _ = as_layer(hybrid, LayerKind.ATTENTION)
    assert tensor_collectives(attention, Layout(tp=2, ep=64), moe=False) == 2


def exchange(tp=1, **sizes):
    model = replace(LAYER, mamba=replace(LAYER.mamba, **sizes))
    layout = Layout(tp=tp)
    collectives = Collectives(FabricModel(CLUSTER, HOPPER.network))
    return MambaExchange(model, layout, CLUSTER.gpu, HOPPER, collectives)


def exchanged_s(found, ranks, tokens=8192.0, tier=0):
    return found.seconds(np.array([tokens]), np.array([float(ranks)]), np.array([tier]))[0]


class TestExchange:
    def test_one_rank_exchanges_nothing(self):
        assert exchanged_s(exchange(), 1) == 0.0

    def test_six_all_to_alls_and_their_copies(self):
        collectives = Collectives(FabricModel(CLUSTER, HOPPER.network))
        group = collectives.group(4)
        inner, shared, heads = 7168, 1024, 112
        widths = (inner, inner, shared, shared, heads, inner)
        sent = sum(float(collectives.all_to_all_s(2.0 * width * 8192, group)) for width in widths)
        copied = 2 * 2.0 * (3 * (2 * inner + 2 * shared + heads) + 2 * inner) * 8192
        memory_s = copied / (CLUSTER.gpu.hbm_bytes_per_s * HOPPER.hbm_efficiency)
        assert exchanged_s(exchange(), 4) == pytest.approx(sent + memory_s)

    def test_groups_fewer_than_ranks_travel_in_copies(self):
        more = exchanged_s(exchange(groups=2, state=2048), 8) / exchanged_s(exchange(groups=2, state=2048), 2)
        assert more > 1.5  # copies of B and C, four times as many

    def test_no_more_ranks_than_heads(self):
        assert most_mamba_ranks(LAYER, Layout(tp=2)) == 56
        with pytest.raises(InfeasibleError, match="64 ranks are more than the 56 heads of a GPU"):
            exchanged_s(exchange(tp=2), 64, tier=1)

    def test_what_leaves_a_node_is_what_other_nodes_get(self):
        found = exchange()
        tokens, sizes = np.array([8192.0, 8192.0]), np.array([16.0, 8.0])
        sent = found.sent(tokens, sizes, np.array([1, 0]))
        width = 2 * 7168 + 2 * 1024 * 2 + 112 + 7168  # twice as many ranks as groups
        assert sent.sent_bytes[0] == pytest.approx(2.0 * width * 8192 / 2)
        assert sent.times.tolist() == [1.0, 0.0]
