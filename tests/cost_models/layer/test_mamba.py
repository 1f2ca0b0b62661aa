"""Mamba-2 layers on one GPU: traffic of the scan against a published measurement, exchanges, launches, collectives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layer.host import forward_launches, tensor_collectives
from hdpsim.cost_models.layer.mamba import SCAN_RATE, MambaExchange, mamba_passes, most_mamba_ranks
from hdpsim.cost_models.layer.small_kernels import SmallKernels
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.transformer.layer_kinds import LayerKind, as_layer
from hdpsim.cost_models.transformer.model import Mamba, Model
from hdpsim.errors import InfeasibleError

HOPPER = calibration("hopper")
CLUSTER = catalog.cluster_of("hgx-h100-80gb", 16)
LAYER = Model(
    name="layer", layers=1, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn_hidden=1, vocab=1,
    layer_pattern="M", mamba=Mamba(heads=112, head_dim=64, state=128, groups=8, chunk=128),
)  # fmt: skip


def scanned(chunk=128):
    model = replace(LAYER, mamba=replace(LAYER.mamba, chunk=chunk))
    return sum(mamba_passes(model, Layout(), backward=side).scanned for side in (False, True))


def test_traffic_by_hand():
    inner, shared, states, scores, heads = 7168, 2048, 7168, 1024, 112
    forward = mamba_passes(LAYER, Layout(), backward=False)
    assert forward.streamed == 2 * (inner + shared) + 3 * inner
    steps, written, passed, multiplied = (
        5 * heads,
        inner + shared / 2 + 2 * states,
        3 * states,
        shared + 2 * scores,
    )
    outputs = 2 * inner + shared / 2 + states + 2 * scores
    assert forward.scanned == steps + written + passed + multiplied + outputs
    backward = mamba_passes(LAYER, Layout(), backward=True)
    again = steps + written + passed + multiplied
    parts = (
        inner + shared / 2 + states,
        5 * states,
        3 * inner + shared / 2 + states + 2 * scores,
        2 * (inner + 1.5 * shared + states),
        2 * inner + 2 * scores,
        2 * shared + 2 * scores,
        2 * inner + 2 * scores,
    )
    assert backward.scanned == again + sum(parts)
    assert backward.streamed == 2 * (inner + shared) + 5 * inner + 3 * (inner + shared)


def test_a_published_scan_takes_what_was_measured():
    """16,384 tokens, forward and backward, on 273 GB/s: 63.6 ms in chunks of 128, 87.6 of 64, 57.0 of 256."""
    seconds = scanned() * 2 * 16384 / (273e9 * 0.9 * SCAN_RATE)
    assert seconds == pytest.approx(63.571e-3, rel=0.02)
    assert scanned(64) / scanned() == pytest.approx(87.611 / 63.571, rel=0.1)
    assert scanned(256) / scanned() == pytest.approx(56.995 / 63.571, rel=0.13)


def test_tensor_parallelism_divides_the_traffic():
    for side in (False, True):
        one, four = (mamba_passes(LAYER, Layout(tp=tp), backward=side).at_full_rate for tp in (1, 4))
        assert four == pytest.approx(one / 4)


def test_small_kernels_are_norm_sum_and_scan():
    """One norm (2 passes) and one sum (3) of the hidden size, fused; no activation, no rotary embedding."""
    ideal = replace(HOPPER, small_kernel_passes=1.0)
    found = SmallKernels(LAYER, Layout(), CLUSTER.gpu, ideal, moe=False)
    scan = mamba_passes(LAYER, Layout(), backward=False).at_full_rate
    assert found.passes == pytest.approx(5 * 4096 + scan)
    scan = mamba_passes(LAYER, Layout(), backward=True).at_full_rate
    assert found.passes_backward == pytest.approx(10 * 4096 + scan)


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
