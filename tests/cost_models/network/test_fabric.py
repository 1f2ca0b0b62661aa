"""The fabric: tiers and rates against hand-computed numbers and against the full graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, FabricKind, Gpu, Node
from hdpsim.cost_models.network.fabric import FabricModel, count_devices
from hdpsim.cost_models.network.graph import FULL_GRAPH_LIMIT_GPUS, build_graph
from hdpsim.errors import InfeasibleError, UserInputError

GPU = Gpu(
    name="H100", bf16_flop_per_s=989e12, fp8_flop_per_s=1979e12, hbm_bytes=80 * 2**30, hbm_bytes_per_s=3.35e12,
    sm_count=132, nvlink_bytes_per_s=450e9, host_link_bytes_per_s=55e9, host_link_duplex_bytes_per_s=40e9,
    tdp_w=700, calibration="h100",
)  # fmt: skip


def cluster(
    nodes: int, fabric: Fabric | None = None, *, gpus: int = 4, nics: int = 4, nic_bytes_per_s: float = 50e9
) -> Cluster:
    node = Node(
        name="server", gpu=GPU, gpus=gpus, nics=nics, nic_bytes_per_s=nic_bytes_per_s, host_memory_bytes=2e12,
        nvlink_sharp=True,
    )  # fmt: skip
    return Cluster(name="test", node=node, nodes=nodes, fabric=fabric or Fabric())


KINDS_DOWN = ("core", "spine", "leaf", "gpu", "nvswitch", "nic")

SMALL = Fabric(nodes_per_block=2, blocks_per_pod=2)  # with 4 GPUs a node: blocks of 8 GPUs, pods of 16


def test_tier_follows_from_where_gpus_sit() -> None:
    model = FabricModel(cluster(8, SMALL))
    assert model.tier([0, 0, 0, 0, 0, 31], [0, 3, 4, 8, 16, 15]).tolist() == [0, 0, 1, 2, 3, 3]
    assert int(model.tier(4, 7)) == 0
    assert int(model.tier(3, 4)) == 1


def test_rates_by_tier() -> None:
    fabric = replace(SMALL, leaf_oversubscription=2.0, spine_oversubscription=3.0)
    calibration = NetworkCalibration(nic_efficiency=0.9, p2p_nvlink_efficiency=0.8)
    model = FabricModel(cluster(8, fabric, nics=2), calibration)
    # NVLink 450 x 0.8 = 360; two 50 GB/s NICs for four GPUs: 25 x 0.9 = 22.5; / 2 = 11.25; / 6 = 3.75
    assert model.bytes_per_s([0, 1, 2, 3]) == pytest.approx([360e9, 22.5e9, 11.25e9, 3.75e9])
    # one flow in four crosses: 2 / 4 and 6 / 4 of what the layer can carry
    assert model.bytes_per_s([2, 3], crossing_share=0.25) == pytest.approx([22.5e9, 15e9])


def test_latency_by_tier() -> None:
    calibration = NetworkCalibration(nic_latency_s=1e-6, nvswitch_latency_s=0.1e-6, p2p_inter_latency_s=10e-6)
    model = FabricModel(cluster(8, replace(SMALL, hop_latency_s=0.5e-6)), calibration)
    # two NICs and 1, 3, 5 switches: 2 + 0.5, 2 + 1.5, 2 + 2.5 us
    assert model.propagation_s([0, 1, 2, 3]) == pytest.approx([0.1e-6, 2.5e-6, 3.5e-6, 4.5e-6])
    assert model.latency_s(2) == pytest.approx(13.5e-6)


def test_rings() -> None:
    model = FabricModel(cluster(8, SMALL))
    members = [0, 1, 2, 3, 0, 4, 5, 1, 9, 0, 16, 7]
    assert model.ring_tiers(members, [0, 4, 7, 8, 9, 11, 12]).tolist() == [0, 1, 0, 0, 3, 0]
    assert model.ring_tiers([], [0]).tolist() == []
    with pytest.raises(ValueError, match="no ring empty"):
        model.ring_tiers([1, 2], [0, 0, 2])


def test_the_hop_back_to_the_first_member_counts() -> None:
    model = FabricModel(cluster(8, SMALL))
    # 16 -> 20 stays in a pod; the way back 20 -> 12, over which the ring closes, does not
    assert model.ring_tiers([16, 20, 12], [0, 3])[0] == 3
    assert model.ring_tiers([16, 20], [0, 2])[0] < 3


def test_few_flows_do_not_fill_an_oversubscribed_layer() -> None:
    fabric = Fabric(nodes_per_block=16, blocks_per_pod=4, leaf_oversubscription=7.0)
    model = FabricModel(cluster(32, fabric), NetworkCalibration(nic_efficiency=1.0))
    # 2 of 32 hops of a ring leave a block: 7 x 2/32 < 1, the up-links do not bind; where every hop does: 50 / 7
    assert float(model.bytes_per_s(2, 2 / 32)) == pytest.approx(50e9)
    assert float(model.bytes_per_s(2, 1.0)) == pytest.approx(50e9 / 7)


@given(st.lists(st.integers(0, 31), min_size=1, max_size=12, unique=True))
def test_ring_tier_is_the_worst_hop(members: list[int]) -> None:
    model = FabricModel(cluster(8, SMALL))
    hops = [int(model.tier(a, b)) for a, b in zip(members, members[1:] + members[:1], strict=True)]
    assert model.ring_tiers(members, [0, len(members)])[0] == max(hops)


@settings(max_examples=30)
@given(st.integers(0, 31), st.integers(0, 31), st.integers(0, 31))
def test_tier_is_an_ultrametric(a: int, b: int, c: int) -> None:
    model = FabricModel(cluster(8, SMALL))
    ab, bc, ac = (int(model.tier(x, y)) for x, y in ((a, b), (b, c), (a, c)))
    assert ac <= max(ab, bc)
    assert ab == int(model.tier(b, a))


@settings(max_examples=30)
@given(
    st.floats(10e9, 200e9), st.floats(1, 8), st.floats(1, 8), st.sampled_from(["rail-optimised", "fat-tree"])
)
def test_faster_nic_is_never_slower(nic: float, leaf: float, spine: float, kind: FabricKind) -> None:
    fabric = replace(SMALL, kind=kind, leaf_oversubscription=leaf, spine_oversubscription=spine)
    slow, fast = (
        FabricModel(cluster(8, fabric, nic_bytes_per_s=rate)).bytes_per_s([0, 1, 2, 3])
        for rate in (nic, 2 * nic)
    )
    assert np.all(fast >= slow)
    assert np.all(np.diff(slow[1:]) <= 0)


@pytest.mark.parametrize("kind", ["rail-optimised", "fat-tree"])
@pytest.mark.parametrize("gpus_and_nics", [(4, 4), (4, 2), (2, 4)])
@pytest.mark.parametrize(("leaf", "spine"), [(1.0, 1.0), (2.0, 1.0), (1.5, 4.0)])
def test_closed_form_equals_the_full_graph(
    kind: FabricKind, gpus_and_nics: tuple[int, int], leaf: float, spine: float
) -> None:
    fabric = replace(SMALL, kind=kind, leaf_oversubscription=leaf, spine_oversubscription=spine)
    gpus, nics = gpus_and_nics
    this = cluster(8, fabric, gpus=gpus, nics=nics)
    calibration = NetworkCalibration()
    model, graph = FabricModel(this, calibration), build_graph(this, calibration, collapse=False)
    block, pod, everything = 2 * gpus, 4 * gpus, 8 * gpus
    network = graph.subgraph(name for name in graph if graph.nodes[name]["kind"] != "nvswitch")
    for peer, tier in ((1, 0), (gpus, 1), (block, 2), (pod, 3)):
        view = graph if tier == 0 else network
        path_s = nx.shortest_path_length(view, "gpu:0", f"gpu:{peer}", weight="latency_s")
        assert path_s == pytest.approx(float(model.propagation_s(tier)))
    halves = {1: (range(gpus), range(gpus, block)), 2: (range(block), range(block, pod)),
              3: (range(pod), range(pod, everything))}  # fmt: skip
    for tier, (senders, receivers) in halves.items():
        flow = _max_flow(graph, senders, receivers)
        assert flow / len(senders) == pytest.approx(float(model.bytes_per_s(tier))), f"tier {tier}"


def _max_flow(graph: nx.Graph[str], senders: range, receivers: range) -> float:
    directed = graph.to_directed()
    for gpu in senders:
        directed.add_edge("source", f"gpu:{gpu}")
    for gpu in receivers:
        directed.add_edge(f"gpu:{gpu}", "sink")
    return float(nx.maximum_flow_value(directed, "source", "sink"))


@pytest.mark.parametrize("kind", ["rail-optimised", "fat-tree"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 8, 11])
def test_collapsed_graph_stands_for_the_full_one(kind: FabricKind, nodes: int) -> None:
    this = cluster(nodes, replace(SMALL, kind=kind, leaf_oversubscription=2.0))
    full, collapsed = build_graph(this, collapse=False), build_graph(this)

    def devices(graph: nx.Graph[str]) -> dict[str, int]:
        totals: dict[str, int] = {}
        for _, data in graph.nodes(data=True):
            totals[data["kind"]] = totals.get(data["kind"], 0) + data["count"]
        return totals

    def capacity(graph: nx.Graph[str]) -> dict[tuple[str, ...], float]:
        totals: dict[tuple[str, ...], float] = {}
        for a, b, data in graph.edges(data=True):
            layer = tuple(sorted((graph.nodes[a]["kind"], graph.nodes[b]["kind"])))
            totals[layer] = totals.get(layer, 0.0) + data["capacity"]
        return totals

    assert devices(collapsed) == devices(full)
    assert capacity(collapsed) == pytest.approx(capacity(full))
    assert sum(data["links"] for *_, data in collapsed.edges(data=True)) == full.number_of_edges()
    assert nx.is_connected(full)
    assert nx.is_connected(collapsed)


def test_superpod_has_the_published_number_of_switches() -> None:
    """NVIDIA DGX SuperPOD H100, units of 32 nodes: leaves, spines, cores of 4, 16 and 64 units."""
    for units, per_pod, switches in ((4, 16, (32, 16, 0)), (16, 4, (128, 128, 64)), (64, 4, (512, 512, 256))):
        graph = build_graph(cluster(32 * units, Fabric(blocks_per_pod=per_pod), gpus=8, nics=8))
        counts = [
            sum(data["count"] for _, data in graph.nodes(data=True) if data["kind"] == kind)
            for kind in ("leaf", "spine", "core")
        ]
        assert tuple(counts) == switches


def test_huge_clusters_stay_small_graphs() -> None:
    graph = build_graph(cluster(16384, gpus=8, nics=8))
    assert graph.number_of_nodes() < 3000
    gpus = sum(data["count"] for _, data in graph.nodes(data=True) if data["kind"] == "gpu")
    assert gpus == 131072


@given(
    nodes=st.integers(1, 200),
    fabric=st.builds(
        Fabric,
        kind=st.sampled_from(["rail-optimised", "fat-tree"]),
        nodes_per_block=st.integers(1, 5),
        blocks_per_pod=st.integers(1, 5),
        leaf_oversubscription=st.sampled_from([1.0, 3.0]),
    ),
)
def test_devices_are_counted_without_the_graph(nodes: int, fabric: Fabric) -> None:
    this = cluster(nodes, fabric)
    counts: dict[str, int] = {}
    for _, data in build_graph(this).nodes(data=True):
        counts[data["kind"]] = counts.get(data["kind"], 0) + data["count"]
    assert count_devices(this) == counts
    assert list(count_devices(this)) == sorted(counts, key=KINDS_DOWN.index)


def test_the_graph_grows_with_the_cluster_and_no_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = nx.Graph.__iter__

    def counted(graph: nx.Graph[str]) -> Iterator[str]:
        nonlocal looks
        looks += 1
        return real(graph)

    monkeypatch.setattr(nx.Graph, "__iter__", counted)
    build_graph(cluster(640, Fabric(nodes_per_block=2, blocks_per_pod=2)))
    assert looks <= 1  # it went over the whole graph once for every pod


def test_full_graph_of_a_huge_cluster_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=f"limit {FULL_GRAPH_LIMIT_GPUS}"):
        build_graph(cluster(16384), collapse=False)


@pytest.mark.parametrize(
    "fault",
    [
        {"nodes_per_block": 0},
        {"leaf_oversubscription": 0.5},
        {"spine_oversubscription": float("nan")},
        {"hop_latency_s": -1.0},
    ],
)
def test_bad_fabrics_are_named(fault: dict[str, Any]) -> None:
    with pytest.raises(UserInputError, match=f"Fabric: {next(iter(fault))}: expected a"):
        Fabric(**fault)


def test_nodes_without_nics_cannot_form_a_cluster() -> None:
    with pytest.raises(InfeasibleError, match="no NICs"):
        FabricModel(cluster(2, nics=0))
    assert int(FabricModel(cluster(1, nics=0)).tier(0, 3)) == 0
