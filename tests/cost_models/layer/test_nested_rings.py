"""Rings within rings, and heads within rings, by hand on ideal hardware."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import HIDDEN, IDEAL, KV_HEADS, MODEL, NIC, NVLINK, PEAK, ideal_cluster

from hdpsim.cost_models.layer.attention.nested_rings import Nest, exposed_s
from hdpsim.cost_models.layer.attention.ring_attention import AttentionCost, RingTimes
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ContextParallelKind
from hdpsim.cost_models.network.fabric import FabricModel

KV = 2 * KV_HEADS * 128
"""Width of keys and values; queries are HIDDEN wide. Nodes have 8 GPUs with a NIC each."""


def cost(kind: ContextParallelKind) -> AttentionCost:
    where = ideal_cluster()
    return AttentionCost(MODEL, Layout(cp_kind=kind), where.gpu, IDEAL, FabricModel(where, IDEAL.network))


def times(
    kind: ContextParallelKind, tokens: int, ranks: int, tier: int, *, backward: bool = False
) -> RingTimes:
    return cost(kind).times(MicroBatches.one([tokens], ranks, tier), backward=backward)


def test_sets_of_a_group() -> None:
    sizes, tiers = np.array([8.0, 32.0, 2.0, 12.0]), np.array([0, 1, 1, 1])
    assert [each.tolist() for each in Nest.by_node(sizes, tiers, 8)] == [[8, 8, 1, 6], [1, 4, 2, 2]]
    # 6 heads: 2 of 8 neighbours can share them evenly
    inner, outer = Nest.by_heads(sizes, tiers, 8, 6)
    assert (inner.tolist(), outer.tolist()) == ([2, 2, 1, 6], [4, 16, 2, 2])


@pytest.mark.parametrize("backward", [False, True])
def test_a_hop_between_nodes_has_a_round_of_steps_to_hide_behind(backward: bool) -> None:
    # 32 ranks on 4 nodes: 4 x 7 hops within nodes and 3 between them; a step is 1/32 of the ring's blocks
    tokens = 4096
    local = tokens / 32
    step = (2.5 if backward else 1.0) * 2 * HIDDEN * local**2 / PEAK
    volume = (2 if backward else 1) * 2 * KV * local
    inner, outer = volume / NVLINK, volume / NIC
    within = 28 * max(0.0, inner - step)
    between = 3 * max(0.0, outer - 8 * max(step, inner))
    found = times("double-ring", tokens, 32, 1, backward=backward)
    assert found.wait[0] == pytest.approx(within + between, rel=1e-9)
    assert outer > step  # of which a plain ring, whose hops are 31 alike, shows all but a step
    plain = times("ring", tokens, 32, 1, backward=backward)
    assert plain.wait[0] == pytest.approx(31 * (outer - step), rel=1e-9)
    assert found.attention[0] == pytest.approx(plain.attention[0], rel=1e-12)


@given(st.integers(8, 2**20), st.sampled_from([2, 4, 8]), st.booleans())
def test_within_a_node_a_double_ring_is_a_ring(tokens: int, ranks: int, backward: bool) -> None:
    double, plain = (times(kind, tokens, ranks, 0, backward=backward) for kind in ("double-ring", "ring"))
    assert double.total[0] == pytest.approx(plain.total[0])


@pytest.mark.parametrize("backward", [False, True])
def test_heads_are_spread_within_nodes_and_rings_go_between_them(backward: bool) -> None:
    # 8 ranks share the heads on a node: all-to-alls of 7/8 within it; 3 hops of as many keys and values as ever, beside
    # a fourth of a rank's attention each
    tokens = 65536
    local = tokens / 32
    attends = (2.5 if backward else 1.0) * 2 * HIDDEN * tokens**2 / PEAK / 32
    spread = 2 * local * (KV + 2 * HIDDEN) * 7 / 8 / NVLINK
    hop = (2 if backward else 1) * 2 * KV * local / NIC
    found = times("hybrid", tokens, 32, 1, backward=backward)
    assert found.attention[0] == pytest.approx(attends, rel=1e-9)
    assert found.wait[0] == pytest.approx(spread + 3 * max(0.0, hop - attends / 4), rel=1e-9)
    # within a node heads are all there is
    assert times("hybrid", tokens, 8, 0, backward=backward).total[0] == pytest.approx(
        times("ulysses", tokens, 8, 0, backward=backward).total[0]
    )


SECONDS = st.floats(0.0, 1.0)


@given(SECONDS, SECONDS, SECONDS, st.floats(0.0, 1.0))
def test_a_step_ends_with_its_work_its_launches_and_its_transfer(
    hop_s: float, work_s: float, launch_s: float, kept: float
) -> None:
    hop, work = np.array([hop_s]), np.array([work_s])
    step_s = (work + exposed_s(hop, work, kept, launch_s))[0]
    assert max(hop_s, work_s, launch_s) - 1e-9 <= step_s <= max(hop_s + work_s, launch_s) + 1e-9
    # the network's replay of what is sent, at the rate that the price assumes, says the same
    sent = SentTimes.of_hops(np.ones(1), hop, work, hop / 2, np.ones(1), kept=kept, launch_s=launch_s)
    replayed_s = max(sent.hidden_s[0], sent.fixed_s[0] + sent.sent_bytes[0] / sent.bytes_per_s[0])
    assert replayed_s == pytest.approx(step_s, abs=1e-9)


@given(st.integers(64, 2**20), st.sampled_from([16, 32, 64]), st.booleans())
def test_what_is_sent_says_what_is_waited_for(tokens: int, ranks: int, backward: bool) -> None:
    for kind in ("double-ring", "hybrid"):
        sent = cost(kind).sent(MicroBatches.one([tokens], ranks, 1), backward=backward)
        hop_s = sent.fixed_s + sent.sent_bytes / sent.bytes_per_s
        between = sent.times * np.maximum(0.0, hop_s - sent.hidden_s)
        assert between[0] <= times(kind, tokens, ranks, 1, backward=backward).wait[0] * (1 + 1e-9)
