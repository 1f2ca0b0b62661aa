"""Flows of collectives: volumes by hand, times against the formulas of collectives where nothing is shared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster, Fabric
from hdpsim.cost_models.network.algorithms import SIMPLE, ring_half_time
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.network.links import Links
from hdpsim.cost_models.network.traffic import (
    Traffic,
    all_to_all,
    hops,
    incast,
    permutation,
    ring_all_reduce,
    together,
)

# NCCL's rings and its send/recv reach slightly different shares of NVLink; here the same
CALIBRATION = NetworkCalibration(nvlink_efficiency=0.81, p2p_nvlink_efficiency=0.81)


def cluster(gpus: int, **fabric: object) -> Cluster:
    return catalog.cluster_of("hgx-h100-80gb", gpus, Fabric(**fabric))  # type: ignore[arg-type]


def sent(traffic: Traffic, gpus: int) -> list[float]:
    return np.bincount(traffic.source, weights=traffic.share, minlength=gpus).tolist()


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_every_rank_of_a_ring_sends_all_shards_but_one(gpus: int) -> None:
    whole = ring_all_reduce(np.arange(gpus), 8)
    assert sent(whole, gpus) == pytest.approx([2 * (gpus - 1) / gpus] * gpus)


@given(
    stride=st.sampled_from([1, 2, 4, 8]),
    nodes=st.sampled_from([1, 2, 4, 16]),
    leaf=st.sampled_from([1.0, 2.0]),
)
@settings(max_examples=20, derandomize=True, deadline=None)
def test_a_ring_alone_takes_what_its_formula_says(stride: int, nodes: int, leaf: float) -> None:
    ranks = nodes * 8 // stride
    if ranks < 2:
        return
    machine = cluster(8 * nodes, nodes_per_block=8, leaf_oversubscription=leaf)
    collectives = Collectives(FabricModel(machine, CALIBRATION))
    wires = collectives.wires(collectives.group(ranks, stride))
    time = ring_half_time(wires, SIMPLE, in_place=True)
    links = Links.of(machine, CALIBRATION)
    # NVLink is not used on the hop that leaves the node: of r hops r - 1 remain, which the formula does not count
    local = 8 // stride
    spared = (local - 1) / local if nodes > 1 else 1.0
    seconds = [1e9 * time.wire_share / wires.nvlink_bytes_per_s * spared] if local > 1 else []
    if nodes > 1:
        seconds.append(1e9 * time.wire_share / (local * wires.nic_bytes_per_s))
    wire_s = ring_all_reduce(np.arange(ranks) * stride, 8).wire_s(links, 1e9 / 2)
    assert wire_s == pytest.approx(max(seconds), rel=1e-9)
    if spared == 1.0 or stride > 1:
        assert wire_s <= 1e9 * time.wire_share / time.wire_bytes_per_s * (1 + 1e-9)


@pytest.mark.parametrize("leaf", [1.0, 7.0])
@pytest.mark.parametrize(("stride", "nodes"), [(1, 1), (8, 16), (1, 8)])
def test_an_all_to_all_alone_takes_what_its_formula_says(stride: int, nodes: int, leaf: float) -> None:
    # in a plain fat tree: over rails, NVLink also carries what changes the rail, which the formula leaves out
    machine = cluster(8 * nodes, kind="fat-tree", nodes_per_block=4, leaf_oversubscription=leaf)
    collectives = Collectives(FabricModel(machine, CALIBRATION))
    ranks = nodes * 8 // stride
    wires = collectives.wires(collectives.group(ranks, stride))
    expected = max(
        1e9 * share / rate
        for share, rate in (
            ((min(ranks, 8 // stride) - 1) / ranks, wires.p2p_nvlink_bytes_per_s),
            *wires.remote,
        )
    )
    members = [np.arange(ranks) * stride + lane for lane in range(stride)]
    traffic = together(all_to_all(lane) for lane in members)  # the formula's worst case: every GPU is in one
    assert traffic.wire_s(Links.of(machine, CALIBRATION), 1e9) == pytest.approx(expected, rel=1e-9)


def test_a_group_alone_gets_up_links_that_others_leave() -> None:
    """The formula divides up-links between all groups of the kind; on links of its own one is faster."""
    machine = cluster(128, nodes_per_block=8, leaf_oversubscription=4.0, kind="fat-tree")
    links = Links.of(machine, CALIBRATION)
    lanes = [all_to_all(np.arange(16) * 8 + lane) for lane in range(8)]
    alone, everybody = lanes[0].wire_s(links, 1e9), together(lanes).wire_s(links, 1e9)
    assert everybody > 2 * alone


def test_lanes_of_a_ring_use_their_own_nics() -> None:
    machine = cluster(64)
    links = Links.of(machine, CALIBRATION)
    ranks = np.arange(8)[:, None] * 8 + np.arange(8)
    one, all_lanes = hops(ranks[:, :1]), hops(ranks)
    assert one.wire_s(links, 1e9) == all_lanes.wire_s(links, 1e9)


def test_other_patterns() -> None:
    shuffled = permutation(64, 8, seed=1)
    assert sorted(shuffled.source.tolist()) == sorted(shuffled.target.tolist()) == list(range(64))
    assert (shuffled.source // 8 != shuffled.target // 8).all()
    many = incast(64, 8, 9)
    assert len(many.source) == 9
    assert set(many.target.tolist()) == {0}
    machine = cluster(64)
    links = Links.of(replace(machine), CALIBRATION)
    assert many.wire_s(links, 1e9) == pytest.approx(9 * hops([0, 8]).wire_s(links, 1e9))
