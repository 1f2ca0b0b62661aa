"""What NCCL picks: its estimates by hand, which algorithms sweeps show, and where a pick changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import calibration as shipped
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.network.algorithms import CollectiveTime, Wires
from hdpsim.cost_models.network.collectives import Collectives, GroupShape
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.network.nccl_tuner import Picked, Tuner
from hdpsim.cost_models.tracing import tracing


def collectives(node: str, nodes: int = 16) -> Collectives:
    machine = catalog.node(node)
    network = shipped(machine.gpu.calibration).network
    return Collectives(FabricModel(catalog.cluster_of(machine, machine.gpus * nodes), network))


def in_a_node(ranks: int) -> GroupShape:
    return GroupShape(ranks=ranks, ranks_per_node=ranks, nodes=1, tier=0)


def wires(ranks: int, nvlink: float = 360e9) -> Wires:
    this = collectives("hgx-h100-80gb").wires(in_a_node(ranks))
    return replace(this, nvlink_bytes_per_s=nvlink)


def test_two_gpus_change_from_ll_to_simple() -> None:
    half = Tuner(wires(2), "hopper", 2, 48.5e9).half
    # LL 6.6 + 0.6 us, half of the bytes at 141 GB/s; Simple 8.4 + 3.4 us, at 360; LL128 14 + 1.9 us, at 0.92 x 360
    by_hand = {
        "ring LL": 7.2e-6 + 1e6 / 141e9,
        "ring LL128": 15.9e-6 + 1e6 / 331.2e9,
        "ring Simple": 11.8e-6 + 1e6 / 360e9,
    }
    for name, expected_s in by_hand.items():
        assert float(half[name].seconds(np.float64(2e6))) == pytest.approx(expected_s)
    names = list(by_hand)
    picked = Picked(half, {name: half[name].seconds for name in names}, fastest=False)
    switch = 2 * 4.6e-6 / (1 / 141e9 - 1 / 360e9)
    places = picked.places(np.array([1.0, 0.999 * switch, 1.001 * switch, 1e12]))
    assert [names[place] for place in places] == ["ring LL", "ring LL", "ring Simple", "ring Simple"]


def test_in_switch_reduction_needs_heads() -> None:
    for ranks, speed, heads in ((4, 60e9, 4), (6, 60e9, 6), (7, 50e9, 7), (8, 40e9, 8)):
        estimate = Tuner(wires(ranks), "hopper", 8, 48.5e9).all_reduce["NVLS"]
        bytes_per_s = (
            2 * 0.85 * speed * (heads - 1)
        )  # of 360 GB/s each head's channel gets a rate that the search tries
        share = 2 * (ranks - 1) / ranks
        assert float(estimate.seconds(np.float64(1e9))) == pytest.approx(25e-6 + share * 1e9 / bytes_per_s)


@pytest.mark.parametrize(
    ("node", "ranks", "algorithm"),
    [("hgx-h200-141gb", 4, "ring Simple"), ("hgx-h200-141gb", 7, "NVLS"), ("hgx-h200-141gb", 8, "NVLS"),
     ("hgx-b200-180gb", 4, "ring Simple"), ("hgx-b200-180gb", 5, "ring Simple"), ("hgx-b200-180gb", 7, "NVLS"),
     ("hgx-a100-80gb", 16, "ring Simple")],
)  # fmt: skip
def test_default_algorithms(node: str, ranks: int, algorithm: str) -> None:
    """8 GiB: stas00/ml-engineering, network; 16 A100s over 200 Gbit/s: NetX-lab/Echo, whose bandwidth is a ring's."""
    this = collectives(node)
    with tracing() as calls:
        this.all_reduce_s(8 * 2**30, this.group(ranks))
    assert calls[-1].inputs["algorithm"] == algorithm


@pytest.mark.parametrize(
    ("generation", "nics", "rate", "channels"),
    [("ampere", 8, 24.25e9, 8), ("hopper", 1, 48.5e9, 2), ("hopper", 8, 48.5e9, 8), ("hopper", 4, 48.5e9, 8),
     ("ampere", 0.5, 12e9, 1)],
)  # fmt: skip
def test_channels_between_nodes(generation: str, nics: float, rate: float, channels: float) -> None:
    assert Tuner(replace(wires(8), nodes=2, ranks=16), generation, nics, rate).channels == channels


def test_tables_of_before_2_18() -> None:
    """Two nodes of 8 A100s: 192 GB/s of NICs, 8 channels."""
    this = collectives("hgx-a100-80gb")
    old = replace(this.fabric.calibration, nccl_before_2_18=True)
    group = this.group(16)
    estimates = Collectives(FabricModel(this.fabric.cluster, old)).tuner(group).all_reduce
    nics = 8 * 0.97 * 25e9
    # by hand, bytes of 1 MB: a tree reaches 0.6 of its rate (64 B x 2^13), the ring 16/30
    by_hand = {
        "tree LL": 4.4e-6 + 2 * (7 * 1.8 * 0.52e-6 + 5e-6) + 2e6 / 22.5e9,
        "tree LL128": 4.4e-6 + 2 * (7 * 1.25e-6 + 8.5e-6) + 2e6 / 160e9,
        "tree Simple": 2 * (7 * 28e-6 + 28e-6) + 2e6 / (8 * 23.6e9),
        "ring LL": 3.6e-6 + 28 * 1.8 * 0.47e-6 + 2 * 2.7e-6 + 1.875e6 / 22.5e9,
        "ring LL128": 10e-6 + 28 * 1.9e-6 + 2 * 4e-6 + 1.875e6 / 160e9,
        "ring Simple": 1.9 * (8.4e-6 + 28 * 3.4e-6 + 2 * 9.6e-6) + 1.875e6 / nics,
    }
    for name, expected_s in by_hand.items():
        assert float(estimates[name].seconds(np.float64(1e6))) == pytest.approx(expected_s), name
    gathers = Collectives(FabricModel(this.fabric.cluster, old)).tuner(in_a_node(8)).half
    # a third of at most 235 GB/s
    assert float(gathers["ring LL"].seconds(np.float64(8e6))) == pytest.approx(
        3.6e-6 + 7 * 0.47e-6 + 7e6 / (min(235e9, 0.783 * 300e9) / 3)
    )


@pytest.mark.parametrize(
    ("size", "algorithm"),
    [(2**16, "tree LL"), (2**18, "tree LL128"), (2**23, "tree LL128"), (2**24, "ring LL128")],
)
def test_picks_of_an_old_release(size: int, algorithm: str) -> None:
    """Two NDv4 of 2021: times go on along the tree's line to 8 MiB and jump at 16 MiB (NetX-lab/Echo, nccl_16.log)."""
    this = collectives("hgx-a100-80gb")
    old = replace(this.fabric.calibration, nccl_before_2_18=True)
    with tracing() as calls:
        Collectives(FabricModel(this.fabric.cluster, old)).all_reduce_s(size, this.group(16))
    assert calls[-1].inputs["algorithm"] == algorithm


def test_an_old_release_has_no_pat() -> None:
    """It came with 2.23, for one GPU of a node."""
    this = collectives("hgx-a100-80gb")
    group = this.group(16, stride=8)
    old = Collectives(
        FabricModel(this.fabric.cluster, replace(this.fabric.calibration, nccl_before_2_18=True))
    )
    assert set(this.half_options(1e6, group)) - set(old.half_options(1e6, group)) == {"PAT"}
    assert float(old.all_gather_s(1e3, group)) > float(this.all_gather_s(1e3, group))


def test_where_a_faster_algorithm_is_picked_late_the_time_stays() -> None:
    estimates = {"slow": CollectiveTime(0.0, 1.0, 1e9), "fast": CollectiveTime(1.0, 1.0, 2e9)}
    truth = {"slow": CollectiveTime(0.0, 1.0, 1e9).seconds, "fast": CollectiveTime(0.0, 1.0, 4e9).seconds}
    picked = Picked(estimates, truth, fastest=False)
    # the estimates cross at 2 GB: 2 s really, of which the fast one takes half a second; it takes 2 s from 8 GB on
    assert picked.seconds(np.array([1e9, 1.99e9, 2.01e9, 8e9, 12e9])) == pytest.approx(
        [1.0, 1.99, 2.0, 2.0, 3.0], abs=1e-4
    )
    assert Picked(estimates, truth, fastest=True).seconds(np.array([4e9])) == pytest.approx([1.0])


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(1e-6, 1e-3), st.floats(1e9, 1e12), st.floats(1e-6, 1e-3), st.floats(1e9, 1e12)),
             min_size=1, max_size=4),
    st.lists(st.floats(1.0, 1e12), min_size=2, max_size=8),
)  # fmt: skip
def test_longer_messages_never_take_less(
    algorithms: list[tuple[float, float, float, float]], sizes: list[float]
) -> None:
    estimates = {str(i): CollectiveTime(each[0], 1.0, each[1]) for i, each in enumerate(algorithms)}
    truth = {str(i): CollectiveTime(each[2], 1.0, each[3]).seconds for i, each in enumerate(algorithms)}
    times = Picked(estimates, truth, fastest=False).seconds(np.sort(np.array(sizes)))
    assert (np.diff(times) >= -1e-9 * times[1:]).all()


def test_inside_a_node_a_providers_tuner_leaves_the_pick_to_nccl() -> None:
    """aws-ofi-nccl's tuner has picks from two nodes on; a p5 is an HGX H100 inside."""
    sizes = 2.0 ** np.arange(10, 31)
    p5, hgx = collectives("p5-h100-80gb"), collectives("hgx-h100-80gb")
    for ranks in (2, 4, 8):
        alone = in_a_node(ranks)
        assert np.array_equal(p5.all_gather_s(sizes, alone), hgx.all_gather_s(sizes, alone))
        assert np.array_equal(p5.all_reduce_s(sizes, alone), hgx.all_reduce_s(sizes, alone))
    across = GroupShape(ranks=16, ranks_per_node=8, nodes=2, tier=1)
    fastest = np.min(list(p5.half_options(sizes, across).values()), axis=0)
    assert np.array_equal(p5.all_gather_s(sizes, across), fastest)
