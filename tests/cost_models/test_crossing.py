"""Which flows cross a block or a pod at the same time, and what that leaves of them: one law for all groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ideal_hardware import HIDDEN, IDEAL, MODEL, NIC, ideal_cluster, ideal_cost, micro_batches

from hdpsim.cost_models.hardware.parts import Cluster, Fabric
from hdpsim.cost_models.layer.attention.ring_attention import AttentionCost
from hdpsim.cost_models.layer.micro_batches import Groups
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.congestion import congested_rate
from hdpsim.cost_models.network.fabric import FabricModel

NODES, NODE_GPUS = 64, 8
SMALL = Fabric(nodes_per_block=8, blocks_per_pod=4, hop_latency_s=0.0, uplinks=4)
BLOCK_GPUS = 8 * NODE_GPUS

fabrics = st.builds(
    replace,
    st.just(SMALL),
    routing=st.sampled_from(["ideal", "ecmp"]),
    congestion_control=st.sampled_from(["ideal", "none", "dcqcn"]),
    placement=st.sampled_from(["grouped", "scattered"]),
    port_split=st.sampled_from([1, 2]),
)
rank_sizes = st.sampled_from([1, 2, 4, 8, 16])


def cluster(fabric: Fabric, leaf: float = 1.0, spine: float = 1.0) -> Cluster:
    return replace(
        ideal_cluster(nodes=NODES),
        fabric=replace(fabric, leaf_oversubscription=leaf, spine_oversubscription=spine),
    )


@st.composite
def rings(draw: st.DrawFn) -> tuple[int, list[int]]:
    """GPUs of a rank, and the ranks of a ring: neighbours or any."""
    tp = draw(rank_sizes)
    ranks = NODES * NODE_GPUS // tp
    size = draw(st.integers(2, min(24, ranks)))
    if draw(st.booleans()):
        first = draw(st.integers(0, ranks - size))
        return tp, list(range(first, first + size))
    return tp, sorted(draw(st.sets(st.integers(0, ranks - 1), min_size=size, max_size=size)))


def hop_s(this: Cluster, tp: int, ranks: list[int], tokens: float = 1e6) -> float:
    """One hop of a ring of those ranks."""
    fabric = FabricModel(this, IDEAL.network)
    cost = AttentionCost(MODEL, Layout(tp=tp), this.gpu, IDEAL, fabric)
    gpus, offsets = np.array(ranks) * tp, np.array([0, len(ranks)])
    tier, crossing = fabric.ring_tiers(gpus, offsets), fabric.ring_crossing(gpus, offsets, tp)
    ring = Groups(np.array([tokens]), np.array([float(len(ranks))]), tier, crossing)
    return float(cost.hop_s(ring, backward=False)[0])


def crossings(tp: int, ranks: list[int], nodes: int) -> int:
    """Hops of a ring, back to its first rank, that leave a block of so many nodes."""
    blocks = [rank * tp // (nodes * NODE_GPUS) for rank in ranks]
    return sum(a != b for a, b in zip(blocks, blocks[1:] + blocks[:1], strict=True))


@settings(max_examples=50)
@given(rings(), st.floats(0.0, 1.0))
def test_a_ring_of_which_k_of_n_hops_cross_is_not_slowed_below_n_over_k(
    ring: tuple[int, list[int]], share: float
) -> None:
    tp, ranks = ring
    free_s = hop_s(cluster(SMALL), tp, ranks)
    leaf = max(1.0, share * len(ranks) / max(1, crossings(tp, ranks, 8)))
    assert hop_s(cluster(SMALL, leaf=leaf), tp, ranks) == pytest.approx(free_s)
    spine = max(1.0, share * len(ranks) / max(1, crossings(tp, ranks, 32)))
    assert hop_s(cluster(SMALL, spine=spine), tp, ranks) == pytest.approx(free_s)


@settings(max_examples=50)
@given(rank_sizes, st.integers(2, 24), st.integers(0, 1000))
def test_rings_of_neighbours_leave_a_block_at_its_two_ends(tp: int, size: int, first: int) -> None:
    """Whatever ring starts where: two of a block's ranks send over its edges while the others do not."""
    ranks = NODES * NODE_GPUS // tp
    first %= ranks - min(size, ranks) + 1
    ring = list(range(first, first + min(size, ranks)))
    slowed = hop_s(cluster(SMALL, leaf=BLOCK_GPUS / tp / 2), tp, ring)
    assert slowed == pytest.approx(hop_s(cluster(SMALL), tp, ring))


@settings(max_examples=50)
@given(rings(), fabrics, st.floats(1, 16), st.floats(1, 4), st.floats(1, 8))
def test_more_oversubscription_never_speeds_a_ring_up(
    ring: tuple[int, list[int]], fabric: Fabric, leaf: float, more: float, spine: float
) -> None:
    tp, ranks = ring
    least_s = hop_s(cluster(fabric, leaf, spine), tp, ranks)
    assert hop_s(cluster(fabric, leaf * more, spine), tp, ranks) >= least_s * (1 - 1e-12)
    assert hop_s(cluster(fabric, leaf, spine * more), tp, ranks) >= least_s * (1 - 1e-12)


@settings(max_examples=50)
@given(fabrics, st.sampled_from([2, 3]), st.floats(0.01, 1), st.floats(1, 30), st.floats(1, 1.5))
def test_hashed_flows_never_gain_from_fewer_uplinks(
    fabric: Fabric, tier: int, share: float, leaf: float, more: float
) -> None:
    def rate(leaf: float) -> float:
        this = replace(fabric, leaf_oversubscription=leaf)
        return congested_rate(this, tier, share) / max(1.0, leaf * share)

    assert rate(leaf * more) <= rate(leaf) * (1 + 1e-12)


@settings(max_examples=50)
@given(st.integers(2, 32), st.sampled_from([8, 16, 32, 64, 128]), st.floats(1, 16), st.floats(1, 8), fabrics)
def test_collectives_and_rings_agree_on_the_same_placement(
    ranks: int, stride: int, leaf: float, spine: float, fabric: Fabric
) -> None:
    """With a GPU on each node a collective's ring and a ring of ranks have the same hops."""
    ranks = min(ranks, NODES * NODE_GPUS // stride)
    this = FabricModel(cluster(fabric, leaf, spine), IDEAL.network)
    collectives = Collectives(this)
    wires = collectives.wires(collectives.group(ranks, stride=stride))
    members, offsets = np.arange(ranks) * stride, np.array([0, ranks])
    crossing = this.ring_crossing(members, offsets, stride)
    tiers = this.ring_tiers(members, offsets)
    if crossing is None:
        crossing = np.ones((1, 2))
    assert wires.nic_bytes_per_s == pytest.approx(float(this.slowest_bytes_per_s(tiers, crossing)[0]))
    # planners, who do not know the members yet, count on neighbours
    neighbours = this.neighbour_crossing(np.array([ranks]), tiers, stride)
    assert this.slowest_bytes_per_s(tiers, neighbours) == pytest.approx([wires.nic_bytes_per_s])


def test_a_block_sends_over_its_edge_what_its_rings_do() -> None:
    # blocks of 64 GPUs, ranks of 8: a ring of all 64 ranks has 8 blocks, so 1 of 8 flows crosses: 10:1 leaves 8 / 10
    everyone = hop_s(cluster(SMALL), 8, list(range(64)))
    assert hop_s(cluster(SMALL, leaf=8.0), 8, list(range(64))) == pytest.approx(everyone)
    assert hop_s(cluster(SMALL, leaf=10.0), 8, list(range(64))) == pytest.approx(everyone * 10 / 8)
    # a ring of ranks 0, 8, 16, ... crosses with every hop
    far = list(range(0, 64, 8))
    assert hop_s(cluster(SMALL, leaf=10.0), 8, far) == pytest.approx(10 * hop_s(cluster(SMALL), 8, far))


class TestPipelines:
    """64 nodes of 8 GPUs in 8 blocks; ranks of 8 GPUs and 8 stages: 8 ranks."""

    VOLUME = 2 * HIDDEN / 8 * 1000

    def seconds(self, order: str, leaf: float, pp: int = 8) -> float:
        layout = Layout(tp=8, pp=pp, order=order)  # type: ignore[arg-type]
        cost = ideal_cost(layout=layout, cluster=cluster(SMALL, leaf))
        return float(cost.transfer_s(micro_batches([[1000]]), layout.parallel.ranks(NODES * NODE_GPUS))[0])

    def test_stages_in_other_blocks_send_everything_across(self) -> None:
        # the next stage is 8 nodes away: all of a block's GPUs send out of it
        assert self.seconds("tp-dp-pp", 4.0) == pytest.approx(4 * self.VOLUME / NIC)

    def test_stages_of_a_rank_that_is_a_block_stay_in_it(self) -> None:
        assert self.seconds("tp-pp-dp", 4.0) == pytest.approx(self.VOLUME / NIC)

    def test_part_of_the_stages_in_the_next_block(self) -> None:
        # 16 stages of 4 ranks: the next stage is 4 nodes away, so half of a block's GPUs send out of it: 4:1 leaves
        # them 1/2. Of a rank's 15 links every second one crosses: 8 in a block, 7 across
        seconds = self.seconds("tp-dp-pp", 4.0, pp=16)
        assert seconds == pytest.approx(self.VOLUME / NIC * (8 + 2 * 7) / 15)

    def test_one_rank_in_many_across_an_edge(self) -> None:
        # ranks of 3 nodes on 63: of a block's 8 nodes one sends out of it
        layout = Layout(tp=8, pp=3, order="tp-pp-dp")
        this = replace(cluster(SMALL, leaf=8.0), nodes=63)
        seconds = ideal_cost(layout=layout, cluster=this).transfer_s(micro_batches([[1000]]), 21)
        assert seconds == pytest.approx([self.VOLUME / NIC])

    @settings(max_examples=50)
    @given(
        st.sampled_from(["tp-dp-pp", "tp-pp-dp"]),
        rank_sizes,
        st.sampled_from([2, 4, 8]),
        st.sampled_from([1, 2]),
        fabrics,
        st.floats(1, 8),
        st.floats(1, 4),
    )
    def test_more_oversubscription_never_speeds_a_pipeline_up(
        self, order: str, tp: int, pp: int, vpp: int, fabric: Fabric, leaf: float, more: float
    ) -> None:
        layout = Layout(tp=tp, pp=pp, vpp=vpp, order=order)  # type: ignore[arg-type]
        free, less, most = (
            float(
                ideal_cost(layout=layout, cluster=cluster(fabric, over)).transfer_s(
                    micro_batches([[1000]]), layout.parallel.ranks(NODES * NODE_GPUS)
                )[0]
            )
            for over in (1.0, leaf, leaf * more)
        )
        assert less <= most * (1 + 1e-12)
        if fabric.routing == "ideal":
            assert most <= free * leaf * more * (1 + 1e-12)
