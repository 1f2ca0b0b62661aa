"""The links of a cluster against the rates by tier, the graph, and routes counted by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, FabricKind, Gpu, Node, Routing, degraded_links
from hdpsim.cost_models.network.congestion import busiest_load
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.network.graph import build_graph
from hdpsim.cost_models.network.links import Links, Routes
from hdpsim.errors import InfeasibleError, UserInputError

GPU = Gpu(
    name="H100", bf16_flop_per_s=989e12, fp8_flop_per_s=1979e12, hbm_bytes=80 * 2**30, hbm_bytes_per_s=3.35e12,
    sm_count=132, nvlink_bytes_per_s=450e9, host_link_bytes_per_s=55e9, host_link_duplex_bytes_per_s=40e9,
    tdp_w=700, calibration="h100",
)  # fmt: skip
EXACT = NetworkCalibration(nic_efficiency=1.0, p2p_nvlink_efficiency=1.0)


def cluster(nodes: int, fabric: Fabric, *, gpus: int = 4, nics: int = 4, board: int | None = None) -> Cluster:
    node = Node(
        name="server", gpu=GPU, gpus=gpus, nics=nics, nic_bytes_per_s=50e9, host_memory_bytes=2e12,
        board_gpus=board,
    )  # fmt: skip
    return Cluster(name="test", node=node, nodes=nodes, fabric=fabric)


SMALL = Fabric(nodes_per_block=2, blocks_per_pod=2)  # with 4 GPUs a node: blocks of 8 GPUs, pods of 16


def names(links: Links, routes: Routes, flow: int = 0) -> list[str]:
    return [links.name(number) for number in routes.link[routes.offsets[flow] : routes.offsets[flow + 1]]]


def test_routes_by_distance() -> None:
    links = Links.of(cluster(8, SMALL))
    routes = links.routes([0, 0, 0, 0, 3], [3, 4, 8, 16, 3])
    assert names(links, routes, 0) == ["gpu-out:0", "gpu-in:3"]
    block = ["pcie-out:0", "pcie-in:4", "nic-out:0.0", "nic-in:1.0"]
    assert names(links, routes, 1) == block
    assert names(links, routes, 2)[-2:] == ["leaf-up:0.0", "leaf-down:1.0"]
    assert names(links, routes, 3)[-4:] == ["leaf-up:0.0", "leaf-down:2.0", "spine-up:0", "spine-down:1"]
    assert names(links, routes, 4) == []


def test_another_rail_is_reached_over_nvlink_first() -> None:
    links = Links.of(cluster(8, SMALL))
    assert names(links, links.routes(0, 5)) == [
        "gpu-out:0", "gpu-in:1", "pcie-out:1", "pcie-in:5", "nic-out:0.1", "nic-in:1.1",
    ]  # fmt: skip
    tree = Links.of(cluster(8, replace(SMALL, kind="fat-tree")))
    assert names(tree, tree.routes(0, 5)) == ["pcie-out:0", "pcie-in:5", "nic-out:0.0", "nic-in:1.1"]


def test_few_and_many_nics() -> None:
    two_gpus_a_nic = Links.of(cluster(2, SMALL, nics=2))
    assert names(two_gpus_a_nic, two_gpus_a_nic.routes(3, 7))[-2:] == ["nic-out:0.1", "nic-in:1.1"]
    two_nics_a_gpu = Links.of(cluster(2, SMALL, nics=8), EXACT)
    pattern = two_nics_a_gpu.routes(3, 7).pattern()
    shares = {two_nics_a_gpu.name(link): n for link, n in zip(pattern.links, pattern.flows, strict=True)}
    assert shares["nic-out:0.6"] == shares["nic-out:0.7"] == 0.5
    assert pattern.burst_bytes_per_s(two_nics_a_gpu) == 100e9
    odd = Links.of(cluster(2, SMALL, nics=3), EXACT)
    assert odd.routes(0, 4).pattern().burst_bytes_per_s(odd) == 55e9  # three NICs, but one PCIe port


def test_a_board_without_a_switch_has_a_link_for_each_pair() -> None:
    links = Links.of(cluster(1, SMALL, nics=0, board=4), EXACT)
    routes = links.routes([0, 2, 2], [2, 0, 3])
    assert [names(links, routes, flow)[2] for flow in range(3)] == ["pair:0.2", "pair:2.0", "pair:2.3"]
    assert links.routes(0, 2).pattern().burst_bytes_per_s(links) == 150e9
    assert links.routes([0, 0, 0], [1, 2, 3]).pattern().burst_bytes_per_s(links) == 150e9


@given(
    kind=st.sampled_from(["rail-optimised", "fat-tree"]),
    nodes=st.sampled_from([1, 2, 5, 8, 16]),
    nics=st.sampled_from([1, 2, 4, 8]),
    leaf=st.sampled_from([1.0, 2.0, 7.0]),
    spine=st.sampled_from([1.0, 4.0]),
)
@settings(max_examples=40, derandomize=True, deadline=None)
def test_rates_are_those_of_tiers_while_all_gpus_send(
    kind: FabricKind, nodes: int, nics: int, leaf: float, spine: float
) -> None:
    fabric = replace(SMALL, kind=kind, leaf_oversubscription=leaf, spine_oversubscription=spine)
    machine = cluster(nodes, fabric, nics=nics)
    links, model = Links.of(machine, EXACT), FabricModel(machine, EXACT)
    gpus = np.arange(machine.gpus)
    for distance in (4, 8, 16):  # a node, a block, a pod
        if machine.gpus % (2 * distance):
            continue  # somebody would have no partner
        partner = gpus ^ distance
        tier = int(model.tier(gpus, partner).max())
        rate = links.routes(gpus, partner).pattern().burst_bytes_per_s(links)
        assert rate == pytest.approx(float(model.bytes_per_s(tier)))


def test_up_links_have_the_rate_of_the_graph() -> None:
    fabric = replace(SMALL, leaf_oversubscription=2.0, spine_oversubscription=3.0)
    machine = cluster(16, fabric)
    links, graph = Links.of(machine), build_graph(machine)
    expected = Counter[str]()
    kinds = nx.get_node_attributes(graph, "kind")
    for a, b, capacity in graph.edges(data="capacity"):
        expected["-".join(sorted((kinds[a], kinds[b])))] += capacity
    sums = {
        kind: links.capacity_bytes_per_s[links.first[kind] : links.first[kind] + links.count[kind]].sum()
        for kind in links.first
    }
    assert sums["gpu-out"] == pytest.approx(expected["gpu-nvswitch"])
    assert sums["nic-out"] == pytest.approx(expected["leaf-nic"])
    assert sums["leaf-up"] == sums["leaf-down"] == pytest.approx(expected["leaf-spine"])
    assert sums["spine-up"] == sums["spine-down"] == pytest.approx(expected["core-spine"])


@pytest.mark.parametrize("split", [1, 2])
def test_hashed_permutation_collides_as_balls_in_bins(split: int) -> None:
    # one rail: leaves of 32 x split NICs, all of which send to the next block
    fabric = Fabric(nodes_per_block=32 * split, blocks_per_pod=400, routing="ecmp", port_split=split)
    machine = cluster(32 * split * 400, fabric, gpus=1, nics=1)
    links = Links.of(machine, EXACT)
    assert links.leaf.bins == 32
    gpus = np.arange(machine.gpus)
    routes = links.routes(gpus, np.roll(gpus, 32 * split), seed=3)
    up = routes.link[(routes.link >= links.first["leaf-up"]) & (routes.link < links.first["leaf-down"])]
    load = np.bincount(up - links.first["leaf-up"], minlength=links.count["leaf-up"]).reshape(-1, 32)
    assert load.sum() == machine.gpus
    assert load.max(axis=1).mean() / split == pytest.approx(
        busiest_load(32, 32 * split, per_link=split), rel=0.03
    )


def test_flows_of_a_connection_are_hashed_on_their_own() -> None:
    fabric = Fabric(nodes_per_block=32, routing="ecmp", flows_per_connection=16)
    links = Links.of(cluster(64, fabric), EXACT)
    routes = links.routes(0, 128)
    up = (routes.link >= links.first["leaf-up"]) & (routes.link < links.first["leaf-down"])
    assert up.sum() == 16
    assert routes.share[up].sum() == pytest.approx(1.0)
    assert len(set(routes.link[up].tolist())) > 8


def test_connection_and_seed_change_the_hash_and_nothing_else() -> None:
    links = Links.of(cluster(64, Fabric(routing="ecmp")), EXACT)
    gpus = np.arange(128)
    first, same = links.routes(gpus, gpus + 128), links.routes(gpus, gpus + 128)
    assert np.array_equal(first.link, same.link)
    for other in (links.routes(gpus, gpus + 128, connection=1), links.routes(gpus, gpus + 128, seed=1)):
        assert not np.array_equal(first.link, other.link)
        assert np.array_equal(first.offsets, other.offsets)


def with_cut(machine: Cluster, links: str) -> Cluster:
    return replace(machine, fabric=replace(machine.fabric, degraded_links=links))


def test_a_cut_up_link_moves_its_flows_to_others() -> None:
    machine = cluster(64, Fabric(routing="ecmp", nodes_per_block=16, blocks_per_pod=2))
    gpus = np.arange(128)
    whole, cut = (
        Links.of(machine),
        Links.of(with_cut(machine, "leaf-up:0.1.*[0-6]=0; spine-down:1.?=0")),
    )
    before, after = whole.routes(gpus, gpus + 128), cut.routes(gpus, gpus + 128)
    assert (cut.capacity_bytes_per_s[after.link] > 0).all()
    untouched = cut.capacity_bytes_per_s[before.link] > 0
    assert not untouched.all()
    flow = np.repeat(np.arange(128), np.diff(before.offsets))
    kept = np.setdiff1d(flow, flow[~untouched])
    of_kept = np.isin(flow, kept)
    assert np.array_equal(before.link[of_kept], after.link[of_kept])


def test_no_way_left() -> None:
    machine = cluster(8, replace(SMALL, routing="ecmp"))
    links = Links.of(with_cut(machine, "leaf-up:0.2.*=0"))
    links.routes([0, 1, 3], [8, 9, 11])
    with pytest.raises(InfeasibleError, match=r"leaf-up:0\.2\.\d is cut"):
        links.routes(2, 10)
    with pytest.raises(InfeasibleError, match=r"nic-out:0\.1 is cut"):
        Links.of(with_cut(machine, "nic-out:0.1=0")).routes(1, 9)
    with pytest.raises(InfeasibleError, match=r"'nic-out:9\.\*'; there are .*nic-out:0.0 to nic-out:7.3"):
        Links.of(with_cut(machine, "nic-out:9.*=0.5"))
    with pytest.raises(UserInputError, match=r"'nic:0'; names begin with .*nic-out:"):
        with_cut(machine, "nic:0=0.5")


def test_degraded_links() -> None:
    links = Links.of(with_cut(cluster(8, SMALL), "nic-out:1.*=0.5"), EXACT)
    assert links.routes([0, 4], [4, 0]).pattern().burst_bytes_per_s(links) == 25e9
    assert links.routes(0, 4).pattern().burst_bytes_per_s(links) == 50e9


def test_names_are_unique_and_kinds_agree() -> None:
    for machine in (
        cluster(8, SMALL), cluster(8, replace(SMALL, routing="ecmp"), nics=2), cluster(2, SMALL, board=4),
        cluster(1, SMALL, nics=0),
    ):  # fmt: skip
        links = Links.of(machine)
        every = links.names()
        assert len(set(every)) == len(every) == len(links)


def test_scattered_nodes_leave_their_blocks() -> None:
    near = Links.of(cluster(64, Fabric(nodes_per_block=16)))
    far = Links.of(cluster(64, Fabric(nodes_per_block=16, placement="scattered")), seed=5)
    gpus = np.arange(0, 60 * 4)
    crossing = [(links.routes(gpus, gpus + 4).link >= links.first["leaf-up"]).sum() for links in (near, far)]
    assert crossing[1] > 5 * crossing[0]


def test_copies_to_the_host() -> None:
    links = Links.of(cluster(2, SMALL), memory_bytes_per_s=100e9)
    one, both = links.host_routes(0, "out"), [links.host_routes(0, way) for way in ("out", "in")]
    assert one.pattern().burst_bytes_per_s(links) == 55e9
    together = Routes(
        offsets=np.array([0, 4, 8]),
        link=np.concatenate([r.link for r in both]),
        share=np.ones(8),
    )
    assert together.pattern().burst_bytes_per_s(links) == 40e9
    assert links.host_routes([0, 1, 2, 3], "in").pattern().burst_bytes_per_s(links) == 25e9
    shared = replace(cluster(2, SMALL), node=replace(cluster(2, SMALL).node, host_link_gpus=2))
    pairs = Links.of(shared, memory_bytes_per_s=1e12)
    assert pairs.host_routes([0, 1], "out").pattern().burst_bytes_per_s(pairs) == 55e9 / 2
    assert pairs.host_routes([1, 2], "out").pattern().burst_bytes_per_s(pairs) == 55e9
    assert links.name(links.first["storage"]) == "storage"


@pytest.mark.parametrize(
    "name", ["superpod-h100", "llama3-24k", "megascale", "superpod-gb200", "deepseek-h800"]
)
@pytest.mark.parametrize("routing", ["ideal", "ecmp"])
def test_clusters_of_the_catalog_route_in_no_time(name: str, routing: Routing) -> None:
    machine = catalog.cluster(name)
    links = Links.of(replace(machine, fabric=replace(machine.fabric, routing=routing)))
    routes = links.routes(np.arange(machine.gpus), np.random.default_rng(0).permutation(machine.gpus))
    assert routes.flows == machine.gpus
    assert routes.link.max() < links.first["host-out"]


def test_degraded_links_in_words() -> None:
    assert degraded_links("") == {}
    assert degraded_links(" nic-out:1.*=0.5;leaf-up:0.0.1=0 ;") == {"nic-out:1.*": 0.5, "leaf-up:0.0.1": 0.0}
    for wrong in ("nic-out:1.0", "nic-out:1.0=2", "=1", "nic-out:1.0=half"):
        with pytest.raises(UserInputError, match="expected NAME=FACTOR"):
            degraded_links(wrong)
        with pytest.raises(UserInputError, match="degraded_links expected NAME=FACTOR"):
            Fabric(degraded_links=wrong)
    links = Links.of(cluster(8, replace(SMALL, degraded_links="nic-out:1.*=0.5")), EXACT)
    assert links.routes(4, 0).pattern().burst_bytes_per_s(links) == 25e9
