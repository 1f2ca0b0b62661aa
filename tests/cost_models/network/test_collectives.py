"""Collectives: hand-computed numbers, published measurements, and properties every cost must have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import calibration as shipped
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Gpu, Node
from hdpsim.cost_models.network.algorithms import (
    LL,
    LL128,
    PROTOCOLS,
    SIMPLE,
    Protocol,
    nvls_bytes_per_s,
    nvls_tree_all_reduce_s,
    ring_all_reduce_s,
    ring_broadcast_s,
    ring_half_s,
    ring_latency_s,
    slots_s,
    tree_all_reduce_s,
)
from hdpsim.cost_models.network.all_to_all import all_to_all_s
from hdpsim.cost_models.network.collectives import (
    Collectives,
    GroupShape,
    _members_by_node,
    bus_bandwidth_factor,
)
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.errors import InfeasibleError, UserInputError

AMPERE_NETWORK, HOPPER_NETWORK, BLACKWELL_NETWORK = (
    shipped(generation).network for generation in ("ampere", "hopper", "blackwell")
)
PLAIN = NetworkCalibration(
    nvlink_efficiency=0.8, p2p_nvlink_efficiency=0.8, nic_efficiency=1.0, base_latency_factor=1.0,
    intra_latency_factor=1.0, simple_base_factor=1.0, simple_step_factor=1.0, nvls_latency_factor=1.0,
    pipeline_fill_s=0.0, all_to_all_fill_s=0.0, nvls_fill_s=0.0, nic_latency_s=0.0, channels_rank_s=0.0,
)  # fmt: skip
"""Round numbers, for arithmetic by hand."""


def collectives(
    calibration: NetworkCalibration = HOPPER_NETWORK, *, nodes: int = 1024, nvlink: float = 450e9, nic: float = 50e9,
    sharp: bool = True, fabric: Fabric | None = None, generation: str = "hopper",
) -> Collectives:  # fmt: skip
    gpu = Gpu(
        name="gpu", bf16_flop_per_s=989e12, fp8_flop_per_s=None, hbm_bytes=80 * 2**30, hbm_bytes_per_s=3.35e12,
        sm_count=132, nvlink_bytes_per_s=nvlink, host_link_bytes_per_s=55e9, host_link_duplex_bytes_per_s=40e9,
        tdp_w=700, calibration=generation,
    )  # fmt: skip
    node = Node(
        name="server",
        gpu=gpu,
        gpus=8,
        nics=8,
        nic_bytes_per_s=nic,
        host_memory_bytes=2e12,
        nvlink_sharp=sharp,
    )
    return Collectives(
        FabricModel(Cluster(name="test", node=node, nodes=nodes, fabric=fabric or Fabric()), calibration)
    )


def shape(nodes: int, per_node: int) -> GroupShape:
    tier = 0 if nodes == 1 else 1 if nodes <= 32 else 2 if nodes <= 512 else 3
    return GroupShape(ranks=nodes * per_node, ranks_per_node=per_node, nodes=nodes, tier=tier)


shapes = st.builds(shape, st.sampled_from([1, 2, 3, 4, 8, 32, 64, 1024]), st.sampled_from([1, 2, 4, 8]))
sizes = st.floats(1.0, 1e11)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def seconds(this: Collectives, kind: str, bytes_total: float, group: GroupShape) -> float:
    return float(getattr(this, f"{kind}_s")(bytes_total, group))


# hand-computed


def test_ring_all_gather_inside_a_node() -> None:
    wires = collectives(PLAIN).wires(shape(1, 8))
    # Simple: 8.4 us + 7 x 3.4 us = 32.2 us; 7/8 GB over 0.8 x 450 = 360 GB/s; the own 1/8 GB copied at 1.06 TB/s
    expected_s = 32.2e-6 + 0.875e9 / 360e9
    assert float(ring_half_s(1e9, wires, SIMPLE, in_place=True)) == pytest.approx(expected_s)
    assert float(ring_half_s(1e9, wires, SIMPLE)) == pytest.approx(expected_s + 0.125e9 / 1.06e12)


def test_ring_all_reduce_across_nodes() -> None:
    fabric = Fabric(hop_latency_s=0.5e-6)
    wires = collectives(PLAIN, fabric=fabric).wires(shape(4, 2))
    # LL: 14 steps of which 6 cross the network: 6.6 + 8 x max(0.6, 1) + 6 x (2.7 + 0.5) = 33.8 us
    # bandwidth: 2 NICs = 100 GB/s, half of it 50, limited to 20.4; 2 x 7/8 of 1 MB
    assert float(ring_all_reduce_s(1e6, wires, LL)) == pytest.approx(33.8e-6 + 1.75e6 / 20.4e9)
    # Simple: 1.4 x (8.4 + 8 x 3.4 + 6 x (14 + 2 x 0.5)) = 1.4 x 125.6 us and 1.75 MB over 100 GB/s, half of it behind
    # the latency, 1/8 MB copied; of 1 GB all latency is behind the wire
    expected_s = 1.4 * 125.6e-6 + 0.5 * 1.75e6 / 100e9 + 0.125e6 / 1.06e12
    assert float(ring_all_reduce_s(1e6, wires, SIMPLE)) == pytest.approx(expected_s)
    assert float(ring_all_reduce_s(1e9, wires, SIMPLE)) == pytest.approx(1.75e9 / 100e9 + 0.125e9 / 1.06e12)
    # a transport with slow steps hides nothing: 1.4 x (8.4 + 14 x 50) us
    slow = replace(wires, ring_step_s=50e-6)
    expected_s = 1.4 * 708.4e-6 + 1.75e9 / 100e9 + 0.125e9 / 1.06e12
    assert float(ring_all_reduce_s(1e9, slow, SIMPLE)) == pytest.approx(expected_s)


def test_cores_handle_every_shard_of_ll() -> None:
    for ranks in (2, 4, 8):
        wires = collectives(PLAIN).wires(shape(1, ranks))
        # half of 360 GB/s; a gather of n shards handles n, an all-reduce 2 n - 1, a broadcast the buffer
        for collective, steps, shards in (
            (ring_half_s, ranks - 1, ranks),
            (ring_all_reduce_s, 2 * ranks - 2, 2 * ranks - 1),
            (ring_broadcast_s, ranks - 1, ranks),
        ):
            expected_s = 6.6e-6 + steps * 0.6e-6 + shards / ranks * 1e6 / 180e9
            assert float(collective(1e6, wires, LL)) == pytest.approx(expected_s)


def test_the_last_shard_of_an_all_reduce_is_copied() -> None:
    wires = collectives(PLAIN).wires(shape(1, 2))
    # 2 GPUs, 1 GB: half of it each way twice over 360 GB/s, half of it copied at 1.06 TB/s; 8.4 + 2 x 3.4 us
    expected_s = 15.2e-6 + 1e9 / 360e9 + 0.5e9 / 1.06e12
    assert float(ring_all_reduce_s(1e9, wires, SIMPLE)) == pytest.approx(expected_s)


def test_tree_all_reduce() -> None:
    options = collectives(PLAIN, fabric=Fabric(hop_latency_s=0.0)).all_reduce_options(8192.0, shape(4, 8))
    # LL: 6.8 + 2 (7 x 0.6 + 2 x 5) = 35.2 us; 0.92 x 360 / 3.8 = 87 limited to 20.4 GB/s; 8 KiB is 64 B x 2^7: 0.7
    assert float(options["tree LL"]) == pytest.approx(35.2e-6 + 2 * 8192 / (0.7 * 20.4e9))


def test_a_tree_of_simple_waits_for_chunks() -> None:
    wires = collectives(PLAIN, fabric=Fabric(hop_latency_s=0.0)).wires(shape(4, 8))
    short_s, half_s, whole_s, double_s = tree_all_reduce_s(
        2.0**13 * np.array([0.0, 2.0, 4.0, 8.0]), wires, SIMPLE
    )
    # 8.4 + 2 (7 x 0.6 + 2 x 14) us; chunks of 16 KiB make a step 2.3 us long, those of 32 KiB and more 4
    assert short_s == pytest.approx(8.4e-6 + 2 * (7 * 0.6e-6 + 2 * 14e-6))
    assert half_s - short_s == pytest.approx(14 * 1.7e-6, rel=0.05)
    assert whole_s - short_s == pytest.approx(14 * 3.4e-6, rel=0.05)
    assert double_s - whole_s < 2e-6


@settings(max_examples=30)
@given(st.sampled_from(KINDS), shapes, sizes)
def test_nodes_where_packets_overtake_each_other_use_simple_alone(
    kind: str, group: GroupShape, size: float
) -> None:
    this = collectives(sharp=False)
    node = replace(this.fabric.cluster.node, simple_only=True)
    alone = Collectives(FabricModel(replace(this.fabric.cluster, node=node), HOPPER_NETWORK))
    if kind == "all_reduce":
        assert alone.all_reduce_options(size, group).keys() == {"ring Simple", "tree Simple"}
    assert seconds(alone, kind, size, group) >= best_s(this, kind, size, group) * (1 - 1e-12)


def test_tree_of_two_nodes_sends_its_buffer_once() -> None:
    # each node sends 1 GB to the other and receives 1 GB over 8 x 25 GB/s; of four nodes some send 2 GB
    this = collectives(PLAIN, nic=25e9, nvlink=10e12)
    two, four = (this.wires(shape(nodes, 8)).tree_bytes_per_s for nodes in (2, 4))
    assert (2e9 / two, 2e9 / four) == pytest.approx((1e9 / 200e9, 2e9 / 200e9))
    steps = replace(this.wires(shape(4, 8)), ring_step_s=1e-3)
    # a slow transport: 2 x 2 steps of 1 ms over the network
    slower = float(tree_all_reduce_s(8.0, steps, LL) - tree_all_reduce_s(8.0, this.wires(shape(4, 8)), LL))
    assert slower == pytest.approx(4e-3, rel=0.01)


def test_buffers_come_back_late_where_steps_are_slow() -> None:
    this = collectives(PLAIN, nic=12.5e9).wires(shape(2, 8))
    wires = replace(this, ring_step_s=80e-6, tree_channels=8)
    # 8 steps from end to end. A channel's 128 KiB are 4 chunks of 32 KiB, 512 KiB 8 of 64, 4 MiB 32 of 128, 64 MiB 128
    # of 512; each waits 2 x 80 / 8 us
    sizes = np.array([2.0**17, 2.0**19, 2.0**22, 2.0**26]) * 8
    assert slots_s(sizes, wires, SIMPLE) == pytest.approx(np.array([4, 8, 32, 128]) * 20e-6)
    # LL128, n = 1 + 1 + 0.8: 64 n / 8 = 22.4 and 5.6 chunks. Of 576,000 B a channel's 72,000 B are 4 of 18,000,
    # 288,000 B stay at 5.6, 720,000 B are 10 of 72,000, 5.76 MB stay at 22.4, 57.6 MB are 100
    lines = np.array([72e3, 288e3, 720e3, 5.76e6, 57.6e6]) * 8
    assert slots_s(lines, wires, LL128) == pytest.approx(np.array([4, 5.6, 10, 22.4, 100]) * 20e-6)
    # NVLS: 1 GiB are 64 chunks of 128 KiB for each of 8 ranks on each of 16 channels, of four nodes twice as many
    for nodes, chunks in ((2, 64), (4, 128)):
        slow, fast = (replace(this, nodes=nodes, ring_step_s=step_s) for step_s in (80e-6, 0.0))
        later_s = float(nvls_tree_all_reduce_s(2.0**30, slow) - nvls_tree_all_reduce_s(2.0**30, fast))
        latency_s = 2 * (nodes // 2) * (80e-6 - 20.9e-6 - 2 * this.propagation_s)
        assert later_s == pytest.approx(chunks * 20e-6 + latency_s)


def test_the_nics_of_a_gpu_are_one_to_nccl() -> None:
    """p5's 32 of 100 Gbit/s are the 8 of 400 of other servers."""
    several, one = (
        Collectives(FabricModel(catalog.cluster_of(catalog.node(name), 16), HOPPER_NETWORK))
        for name in ("p5-h100-80gb", "hgx-h100-80gb")
    )
    tuners = [this.tuner(this.group(16)) for this in (several, one)]
    assert tuners[0].nics == tuners[1].nics == 8
    assert tuners[0].nic_bytes_per_s == pytest.approx(tuners[1].nic_bytes_per_s)
    assert tuners[0].wires.tree_channels == tuners[1].wires.tree_channels


@given(sizes, st.floats(1.0, 4.0), shapes.filter(lambda group: group.nodes > 1), st.integers(1, 32))
def test_chunks_have_the_sizes_of_their_protocol(
    size: float, factor: float, group: GroupShape, channels: int
) -> None:
    wires = replace(collectives().wires(group), ring_step_s=4.0, tree_channels=channels)  # one second a chunk
    for protocol, least, most in ((SIMPLE, 2**15, 2**19), (LL128, 18_000, 576_000)):
        chunks, more = slots_s(np.array([size, factor * size]), wires, protocol)
        assert size / channels / most <= chunks * (1 + 1e-12)
        assert chunks <= size / channels / least * (1 + 1e-12)
        assert more >= chunks


def test_messages_of_several_channels_start_later() -> None:
    wires = collectives(replace(PLAIN, channels_rank_s=1e-6)).wires(shape(1, 8))
    plain = collectives(PLAIN).wires(shape(1, 8))
    for size, later_s in ((32767, 0.0), (32768, 8e-6)):  # 4 KiB x 8 ranks
        for collective in (ring_half_s, ring_all_reduce_s):
            assert float(collective(size, wires, LL) - collective(size, plain, LL)) == pytest.approx(later_s)
            assert float(collective(size, wires, SIMPLE)) == float(collective(size, plain, SIMPLE))


def test_in_switch_all_reduce() -> None:
    options = collectives(PLAIN).all_reduce_options(1e9, shape(1, 8))
    # 25 us; every rank puts 1 + 1/8 GB on its wire at 0.83 x 360 GB/s
    assert float(options["NVLS"]) == pytest.approx(25e-6 + 1.125e9 / (0.83 * 360e9))
    assert "NVLS" not in collectives(PLAIN, sharp=False).all_reduce_options(1e9, shape(1, 8))
    assert "NVLS" not in collectives(replace(PLAIN, nvls=False)).all_reduce_options(1e9, shape(1, 8))


def test_in_switch_tree_across_nodes() -> None:
    options = collectives(PLAIN, fabric=Fabric(hop_latency_s=0.0)).all_reduce_options(1e9, shape(4, 8))
    # 25 + 2 x 2 x 20.9 us; each NIC carries 2/8 GB: 1 GB over 8 x 50 / 2 = 200 GB/s (NVLS could do 265)
    assert float(options["NVLS tree"]) == pytest.approx(108.6e-6 + 1e9 / 200e9)


def test_pat_needs_one_rank_per_node() -> None:
    this = collectives(PLAIN, fabric=Fabric(hop_latency_s=0.0))
    options = this.half_options(1e6, shape(64, 1), in_place=True)
    # 8 + 2.8 x 64 + 6 x 14 / 3.5 = 211.2 us; 63/64 MB over 0.75 x 50 GB/s
    assert float(options["PAT"]) == pytest.approx(211.2e-6 + 63 / 64 * 1e6 / 37.5e9)
    assert "PAT" not in this.half_options(1e6, shape(64, 2))


def test_all_to_all_is_limited_by_the_busiest_wire() -> None:
    calibration = replace(
        PLAIN, p2p_intra_latency_s=6e-6, p2p_inter_latency_s=12e-6, all_to_all_copy_bytes_per_s=1e12
    )
    fabric = Fabric(hop_latency_s=0.5e-6, nodes_per_block=2, leaf_oversubscription=4.0)
    this = collectives(calibration, fabric=fabric)
    # 7 of 8 parts over 360 GB/s NVLink, the own one copied at 1 TB/s; 6 us + 7 x 0.3; Simple starts 1.8 + 2.8 us later
    assert seconds(this, "all_to_all", 1e9, shape(1, 8)) == pytest.approx(
        12.7e-6 + 0.875e9 / 360e9 + 0.125e9 / 1e12
    )
    # two nodes of a block: half of the bytes leave at 50 GB/s; 12 us + 7 x 0.3 + 8 x 1 + 0.5 of the switch
    assert seconds(this, "all_to_all", 1e9, shape(2, 8)) == pytest.approx(
        27.2e-6 + 0.5e9 / 50e9 + 1e9 / 16 / 1e12
    )
    # NICs on which all-to-alls reach 0.8 of that
    slow = replace(this.wires(shape(2, 8)), all_to_all_share=0.8)
    assert float(all_to_all_s(1e9, slow)) == pytest.approx(27.2e-6 + 0.5e9 / 40e9 + 1e9 / 16 / 1e12)
    # four nodes in two blocks: half of the bytes leave the block at 50 / 4 GB/s; 12 + 2.1 + 24 + 1.5 us
    four = GroupShape(ranks=32, ranks_per_node=8, nodes=4, tier=2)
    assert seconds(this, "all_to_all", 1e9, four) == pytest.approx(44.2e-6 + 0.5e9 / 12.5e9 + 1e9 / 32 / 1e12)


def test_broadcast() -> None:
    # 8 ranks: Simple 8.4 + 7 x 3.4 us + 1 GB / 360 GB/s, and 6 times 12 MiB (512 KiB on 24 channels) before the last
    # rank has any of it; LL128 14 + 7 x 1.9 us + 1 GB / (0.92 x 360 GB/s) is slower
    time_s = seconds(collectives(PLAIN), "broadcast", 1e9, shape(1, 8))
    assert time_s == pytest.approx(32.2e-6 + (1e9 + 6 * 12 * 2**20) / 360e9)
    # of 64 MB a tenth is less than 12 MiB: LL128 is faster
    time_s = seconds(collectives(PLAIN), "broadcast", 64e6, shape(1, 8))
    assert time_s == pytest.approx(27.3e-6 + 64e6 / (0.92 * 360e9))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_chain_costs_its_hops(protocol: Protocol) -> None:
    """However long a chain of nodes, every further node adds its latency, and with Simple a slice on its way."""
    this = collectives(PLAIN, fabric=Fabric(hop_latency_s=0.5e-6))
    short, long = this.wires(shape(64, 8)), this.wires(shape(128, 8))
    for size in (1e3, 1e9):
        more_s = float(ring_broadcast_s(size, long, protocol) - ring_broadcast_s(size, short, protocol))
        latency_s = ring_latency_s(long, protocol, rounds=1) - ring_latency_s(short, protocol, rounds=1)
        slice_s = min(size, 12 * 2**20) / short.ring_bytes_per_s if protocol.name == "Simple" else 0.0
        assert more_s == pytest.approx(latency_s + 512 * slice_s, rel=1e-3)


def test_send_between_two_gpus() -> None:
    this = collectives(replace(PLAIN, p2p_inter_latency_s=12e-6), fabric=Fabric(hop_latency_s=0.5e-6))
    # 1 GB over 50 GB/s; 12 us + one switch
    assert float(this.p2p_s(1e9, 1)) == pytest.approx(12.5e-6 + 1e9 / 50e9)
    assert this.p2p_s([0.0, 0.0], [0, 3]).tolist() == [0.0, 0.0]
    # over NVLink 16 KiB take three more turns of a channel's threads of 0.6 us, more the Simple protocol: 1.8 + 2.8 us
    few, short, long = this.p2p_s([4096.0, 16384.0, 16385.0], 0)
    assert short - few == pytest.approx(3 * 0.6e-6 + 12288 / 360e9)
    assert long - few == pytest.approx(4.6e-6 + 12289 / 360e9)


def test_sends_of_releases_with_ll_by_channel() -> None:
    this = collectives(
        replace(PLAIN, p2p_ll_by_channel=True, p2p_intra_latency_s=6e-6, nvswitch_latency_s=0.0)
    )
    # up to 512 KiB a third of 360 GB/s; above as others: 1.8 + 2.8 us later
    short, long = this.p2p_s([2**19, 2**20], 0)
    assert short == pytest.approx(6e-6 + 3 * 2**19 / 360e9)
    assert long == pytest.approx(10.6e-6 + 2**20 / 360e9)
    # 8 GPUs with 64 KiB for each other one: 7 x 64 KiB
    eight_s = seconds(this, "all_to_all", 2**19, shape(1, 8))
    assert eight_s == pytest.approx(8.1e-6 + 3 * 7 * 2**16 / 360e9 + 2**16 / 1.06e12)


def test_reduction_over_the_switches_of_a_rack_is_slower() -> None:
    server, rack = (
        nvls_bytes_per_s(replace(collectives().wires(shape(1, 8)), ranks=n, ranks_per_node=n))
        for n in (16, 72)
    )
    # local / (local + 1) of what the switches pass
    assert rack / server == pytest.approx(0.625 / 0.83 * (72 / 73) / (16 / 17))


def test_bus_bandwidth_factors() -> None:
    assert bus_bandwidth_factor("all_reduce", 8) == 1.75
    assert bus_bandwidth_factor("all_gather", 8) == 0.875
    assert bus_bandwidth_factor("broadcast", 8) == 1.0


# groups


def test_group_of_strided_gpus() -> None:
    this = collectives(nodes=256)
    for group, expected in (
        (this.group(8), shape(1, 8)),
        (this.group(512, stride=2), shape(128, 4)),
        (this.group(4, stride=8), shape(4, 1)),
        (this.group(1, first_gpu=17), shape(1, 1)),
    ):
        assert replace(group, blocks=None, pods=None, stride=None) == expected
    # 128 nodes in four blocks of 32; one member of a group in each of 256 / 8 nodes of a block
    assert (this.group(512, stride=2).blocks, this.group(512, stride=2).pods) == (4, 1)
    assert (this.group(4, stride=512).nodes, this.group(4, stride=512).blocks) == (4, 4)
    uneven = this.group(9)
    assert (uneven.nodes, uneven.ranks_per_node, uneven.tier) == (2, 8, 1)
    with pytest.raises(InfeasibleError, match="does not fit"):
        this.group(2049)


def test_groups_through_different_gpus_do_not_share_nics() -> None:
    this = collectives(PLAIN)
    # 4 ranks a node bring 4 NICs: 200 GB/s; with a second collective at the same time half of that
    assert this.wires(shape(128, 4)).ring_bytes_per_s == pytest.approx(200e9)
    halved = this.wires(replace(shape(128, 4), nic_share=0.5))
    assert halved.ring_bytes_per_s == pytest.approx(100e9)


def test_oversubscription_does_not_slow_rings_that_follow_the_numbering() -> None:
    fabric = Fabric(nodes_per_block=16, blocks_per_pod=24, spine_oversubscription=7.0)
    wires = collectives(PLAIN, nodes=1024, fabric=fabric).wires(shape(1024, 8))
    assert wires.nic_bytes_per_s == pytest.approx(50e9)
    two_pods = GroupShape(ranks=2, ranks_per_node=1, nodes=2, tier=3)
    assert collectives(PLAIN, fabric=fabric).wires(two_pods).nic_bytes_per_s == pytest.approx(50e9 / 7)


@pytest.mark.parametrize(
    ("ranks", "per_node", "nodes", "tier", "nic_share"),
    [(9, 4, 2, 1, 1), (4, 8, 1, 0, 1), (8, 8, 1, 1, 1), (16, 8, 2, 0, 1), (16, 8, 2, 4, 1), (1, 1, 2, 1, 1),
     (16, 8, 2, 1, 0.0), (0, 0, 0, 0, 1)],
)  # fmt: skip
def test_impossible_shapes(ranks: int, per_node: int, nodes: int, tier: int, nic_share: float) -> None:
    with pytest.raises(ValueError, match=r"sit on|tier|nic_share"):
        GroupShape(ranks=ranks, ranks_per_node=per_node, nodes=nodes, tier=tier, nic_share=nic_share)


def test_bad_bytes_and_constants() -> None:
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="bytes_total"):
            collectives().all_reduce_s(bad, shape(1, 8))
    with pytest.raises(UserInputError, match=r"nic_efficiency: expected a number from 1e-06 to 1; got 1\.2"):
        NetworkCalibration(nic_efficiency=1.2)
    with pytest.raises(UserInputError, match="copy_bytes_per_s"):
        NetworkCalibration(copy_bytes_per_s=0.0)
    with pytest.raises(UserInputError, match="nic_latency_s"):
        NetworkCalibration(nic_latency_s=float("nan"))


# published measurements


@pytest.mark.parametrize(
    ("size", "measured_us"),
    [(2**10, 16.9), (2**16, 19.5), (2**19, 20.7), (2**20, 27.4), (2**22, 54.2), (2**24, 123.8), (2**26, 324.7),
     (2**28, 1112), (2**30, 4029)],
)  # fmt: skip
def test_h100_all_reduce(size: int, measured_us: float) -> None:
    """DGX H100, 8 GPUs: NVIDIA/dgxc-benchmarking, nccl/README.md."""
    time_us = 1e6 * seconds(collectives(), "all_reduce", size, shape(1, 8))
    assert time_us == pytest.approx(measured_us, rel=0.25)


@pytest.mark.parametrize(("ranks", "measured_gb_per_s"), [(5, 414), (6, 436), (7, 460), (8, 473)])
def test_h200_in_switch_all_reduce_by_ranks(ranks: int, measured_gb_per_s: float) -> None:
    """8 x H200, 8 GiB: stas00/ml-engineering, network."""
    time_s = seconds(collectives(), "all_reduce", 8 * 2**30, shape(1, ranks))
    assert 8 * 2**30 / time_s * bus_bandwidth_factor("all_reduce", ranks) / 1e9 == pytest.approx(
        measured_gb_per_s, rel=0.05
    )


def test_b200_in_switch_all_reduce() -> None:
    """8 x B200, 8 GiB: 838 GB/s bus bandwidth, stas00/ml-engineering."""
    this = collectives(BLACKWELL_NETWORK, nvlink=900e9)
    time_s = seconds(this, "all_reduce", 8 * 2**30, shape(1, 8))
    assert 8 * 2**30 / time_s * 1.75 == pytest.approx(838e9, rel=0.03)


@pytest.mark.parametrize(
    ("ranks", "size", "measured_us"),
    [(16, 2**28, 4159), (32, 2**28, 4069), (64, 2**28, 4504), (128, 2**28, 4786), (32, 2**30, 16562),
     (128, 2**30, 16586)],
)  # fmt: skip
def test_a100_all_reduce_over_an_old_network(ranks: int, size: int, measured_us: float) -> None:
    """Azure NDv4, 8 x 200 Gbit/s a node at 0.64 of the line rate: NetX-lab/Echo, nccl-test-log.

    Two nodes of it reduce no faster than sixteen: NCCL picks a ring there, though a tree would send half as much.
    """
    calibration = replace(AMPERE_NETWORK, nic_efficiency=0.64, inter_latency_factor=2.0)
    this = collectives(calibration, nvlink=300e9, nic=25e9, sharp=False, generation="ampere")
    time_us = 1e6 * seconds(this, "all_reduce", size, shape(ranks // 8, 8))
    assert time_us == pytest.approx(measured_us, rel=0.2)


@pytest.mark.parametrize(
    ("size", "measured_us"),
    [(8, 164.3), (2**13, 175.9), (2**15, 224.6), (2**17, 229.7), (2**20, 309.4), (2**21, 433), (2**22, 534),
     (2**23, 763), (2**24, 1192), (2**25, 1540), (2**26, 2645), (2**27, 3913), (2**29, 13552), (2**31, 51406)],
)  # fmt: skip
def test_tree_between_two_nodes(size: int, measured_us: float) -> None:
    """Two p4de, 50 GB/s each (aws-samples/awsome-distributed-training): 41 GB/s of 50, where a ring reaches 27."""
    cluster = catalog.cluster_of(catalog.node("p4de"), 16)
    this = Collectives(FabricModel(cluster, AMPERE_NETWORK))
    assert 1e6 * seconds(this, "all_reduce", size, this.group(16)) == pytest.approx(measured_us, rel=0.12)


# properties


@settings(max_examples=60)
@given(st.sampled_from(KINDS), shapes, sizes, st.floats(1.0, 4.0))
def test_more_bytes_never_take_less(kind: str, group: GroupShape, size: float, factor: float) -> None:
    this = collectives()
    assert seconds(this, kind, size * factor, group) >= seconds(this, kind, size, group) * (1 - 1e-12)


def best_s(this: Collectives, kind: str, size: float, group: GroupShape) -> float:
    """Of the algorithms that apply the fastest: what NCCL picks may be another one."""
    if kind not in ("all_reduce", "all_gather", "reduce_scatter"):
        return seconds(this, kind, size, group)
    options = this.all_reduce_options if kind == "all_reduce" else this.half_options
    return 0.0 if group.ranks == 1 else float(min(options(size, group).values()))


@settings(max_examples=60)
@given(st.sampled_from(KINDS), shapes, sizes, st.floats(1.0, 4.0))
def test_faster_links_never_slow_an_algorithm(
    kind: str, group: GroupShape, size: float, factor: float
) -> None:
    base = best_s(collectives(), kind, size, group)
    assert best_s(collectives(nvlink=factor * 450e9), kind, size, group) <= base * (1 + 1e-12)
    assert best_s(collectives(nic=factor * 50e9), kind, size, group) <= base * (1 + 1e-12)


@settings(max_examples=60)
@given(st.sampled_from(KINDS), shapes, sizes)
def test_nothing_is_faster_than_the_fastest_algorithm(kind: str, group: GroupShape, size: float) -> None:
    assert seconds(collectives(), kind, size, group) >= best_s(collectives(), kind, size, group) * (1 - 1e-12)


@settings(max_examples=60)
@given(
    st.sampled_from(KINDS), shapes, sizes,
    st.sampled_from([f"{layer}_latency_factor" for layer in ("base", "intra", "inter")]), st.floats(1.0, 4.0),
)  # fmt: skip
def test_more_latency_never_speeds_up(
    kind: str, group: GroupShape, size: float, name: str, factor: float
) -> None:
    slower = replace(HOPPER_NETWORK, **{name: getattr(HOPPER_NETWORK, name) * factor})
    assert seconds(collectives(slower), kind, size, group) >= seconds(collectives(), kind, size, group) * (
        1 - 1e-12
    )


@settings(max_examples=60)
@given(shapes, sizes, st.sampled_from(PROTOCOLS))
def test_ring_all_reduce_takes_at_least_an_all_gather(
    group: GroupShape, size: float, protocol: Protocol
) -> None:
    wires = collectives().wires(group)
    gather_s = ring_half_s(size, wires, protocol, in_place=True)
    assert ring_all_reduce_s(size, wires, protocol) >= gather_s


@given(st.sampled_from(KINDS), sizes)
def test_nobody_to_talk_to_costs_nothing(kind: str, size: float) -> None:
    assert seconds(collectives(), kind, size, shape(1, 1)) == 0.0
    assert seconds(collectives(), kind, 0.0, shape(2, 8)) == 0.0


@settings(max_examples=30)
@given(st.sampled_from(KINDS), shapes, st.lists(sizes, min_size=1, max_size=5))
def test_arrays_are_the_same_as_numbers(kind: str, group: GroupShape, many: list[float]) -> None:
    this = collectives()
    together = getattr(this, f"{kind}_s")(np.asarray(many), group)
    assert together.tolist() == [seconds(this, kind, size, group) for size in many]


@given(st.integers(0, 7), st.integers(2, 8))
def test_which_gpus_of_a_node_does_not_matter(first: int, ranks: int) -> None:
    this = collectives()
    first = min(first, 8 - ranks)
    assert (
        this.group(ranks, first_gpu=first) == this.group(ranks, first_gpu=8 * 5 + first) == this.group(ranks)
    )


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 40), st.sampled_from([1, 2, 4, 6, 8]))
def test_members_by_node_are_counted_in_closed_form(
    ranks: int, stride: int, first_gpu: int, node: int
) -> None:
    nodes = (first_gpu + stride * np.arange(ranks)) // node
    counts = np.unique(nodes, return_counts=True)[1]
    assert _members_by_node(ranks, stride, first_gpu, node) == (counts.max(), len(counts))
