"""Attention over a context-parallel group against published rates, which no constant was fitted on.

Source: MagiAttention (SandAI-org), docs/source/blog/cp_benchmark.md, read off figures (+-1 TFLOP/s): attention alone,
64 query and 8 key/value heads of 128, bf16, causal, FlashAttention-3, H100 SXM, 8,192 tokens a GPU; TFLOP/s of a GPU,
backward counted 2.5 times the forward.
"""

import numpy as np
import pytest

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layer.attention.ring_attention import AttentionCost
from hdpsim.cost_models.layer.micro_batches import Groups, MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.transformer.model import Model

HEADS, HEAD_DIM, TOKENS = 64, 128, 8192
MODEL = Model(
    name="attention", layers=1, hidden=HEADS * HEAD_DIM, heads=HEADS, kv_heads=8, head_dim=HEAD_DIM, ffn_hidden=28672,
    vocab=32000,
)  # fmt: skip
KINDS = ("ring", "all-gather", "ulysses", "hybrid")
RATES = {  # (GPUs, backward): ring, all-gather, ulysses, usp
    (8, False): (422.5, 601.7, 601.1, 593.4),
    (8, True): (433.9, 517.3, 582.4, 572.5),
    (32, False): (451.8, 591.2, 580.3, 594.0),
    (32, True): (469.3, 522.6, 574.0, 574.7),
}


def predicted(kind: str, gpus: int, *, backward: bool) -> float:
    """TFLOP/s of a GPU."""
    node, cal = catalog.node("hgx-h100-80gb"), calibration("hopper").of_job(gpus)
    cluster = Cluster(name="h100", node=node, nodes=gpus // 8)
    fabric = FabricModel(cluster, cal.network)
    cost = AttentionCost(MODEL, Layout(cp_kind=kind), node.gpu, cal, fabric)
    total = gpus * TOKENS
    times = cost.times(MicroBatches.one([total], gpus, int(gpus > 8)), backward=backward)
    flop = 4 * HEADS * HEAD_DIM * total**2 / 2 * (2.5 if backward else 1.0)
    return float(flop / times.total[0] / gpus / 1e12)


@pytest.mark.parametrize(("gpus", "backward"), RATES)
def test_rates_of_every_kind(gpus: int, backward: bool) -> None:
    found = [predicted(kind, gpus, backward=backward) for kind in KINDS]
    errors = [rate / measured - 1 for rate, measured in zip(found, RATES[gpus, backward], strict=True)]
    assert max(map(abs, errors)) < 0.15, dict(zip(KINDS, errors, strict=True))
    assert found[0] < min(found[1:])  # a ring is the slowest
    assert not backward or found[1] < min(found[2:])  # then gathered keys, which every slice of rows meets


def test_the_median_error() -> None:
    errors = [
        abs(predicted(kind, gpus, backward=backward) / measured - 1)
        for (gpus, backward), rates in RATES.items()
        for kind, measured in zip(KINDS, rates, strict=True)
    ]
    assert np.median(errors) < 0.04


@pytest.mark.parametrize(("tp", "share"), [(1, 1.0), (2, 0.5), (4, 0.5)])
def test_one_sender_of_a_node_gets_a_whole_nic(tp: int, share: float) -> None:
    """Eight GPUs on four NICs: a ring leaves a node from one rank, whose GPUs share NICs in pairs from tp = 2 on."""
    node, cal = catalog.node("hgx-a800-80gb"), calibration("ampere")
    fabric = FabricModel(Cluster(name="a800", node=node, nodes=4), cal.network)
    cost = AttentionCost(MODEL, Layout(tp=tp), node.gpu, cal, fabric)
    tokens = 1e6
    rings = Groups(np.array([tokens, 0.0]), np.array([32.0 / tp] * 2), np.array([1, 1]))
    hop_s, fixed_s = cost.hop_s(rings, backward=False).tolist()
    rate = share * node.nic_bytes_per_s * fabric.calibration.nic_efficiency
    assert hop_s - fixed_s == pytest.approx(tokens * cost.kv_bytes_per_token / rate)
