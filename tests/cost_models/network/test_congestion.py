"""Hashed flows against brute force, Monte Carlo and the published table; what congestion makes of links."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster, Fabric
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.congestion import (
    blocked_share,
    busiest_load,
    congested_rate,
    delivered_share,
    maximum_distribution,
)
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.errors import UserInputError

# Worst link load and mean utilisation for k up-links and kq flows of 1/q: a Monte Carlo table, two digits.
TABLE = {
    8: [(2.55, 0.66), (2.09, 0.75), (1.77, 0.81), (1.54, 0.87), (1.37, 0.91), (1.18, 0.95)],
    32: [(3.52, 0.64), (2.67, 0.74), (2.17, 0.81), (1.80, 0.86), (1.55, 0.90), (1.26, 0.95)],
    64: [(3.94, 0.63), (2.98, 0.73), (2.33, 0.81), (1.92, 0.86), (1.63, 0.90), (1.31, 0.95)],
}


@pytest.mark.parametrize("links", [8, 32, 64])
def test_the_table_of_balls_in_bins(links: int) -> None:
    for per_link, (busiest, mean) in zip((1, 2, 4, 8, 16, 64), TABLE[links], strict=True):
        flows = links * per_link
        assert busiest_load(links, flows, per_link=per_link) == pytest.approx(busiest, rel=0.025)
        assert delivered_share(links, flows, per_link=per_link) == pytest.approx(mean, abs=0.0125)


@pytest.mark.parametrize(("links", "flows"), [(2, 3), (3, 4), (4, 4), (1, 5)])
def test_exactly_what_counting_all_hashes_gives(links: int, flows: int) -> None:
    every = [np.bincount(hashes, minlength=links) for hashes in product(range(links), repeat=flows)]
    assert busiest_load(links, flows) == pytest.approx(np.mean([c.max() for c in every]), rel=1e-12)
    carried = np.mean([np.minimum(c, 1).sum() for c in every]) / flows
    assert delivered_share(links, flows) == pytest.approx(carried, rel=1e-12)


def test_monte_carlo_agrees() -> None:
    random = np.random.default_rng(1)
    loads = random.multinomial(64, np.full(32, 1 / 32), 20_000) / 2
    error = loads.max(axis=1).std() / np.sqrt(20_000)
    assert abs(busiest_load(32, 64, per_link=2) - loads.max(axis=1).mean()) < 4 * error
    delivered = np.minimum(loads, 1).sum(axis=1) / 32
    assert abs(delivered_share(32, 64, per_link=2) - delivered.mean()) < 4 * delivered.std() / np.sqrt(20_000)
    two = loads.max(axis=1).reshape(2, -1).max(axis=0)
    assert busiest_load(32, 64, per_link=2, switches=2) == pytest.approx(
        two.mean(), abs=4 * error * np.sqrt(2)
    )


@given(st.integers(1, 40), st.integers(0, 120), st.integers(1, 4))
def test_the_busiest_link_carries_at_least_the_mean(links: int, flows: int, per_link: int) -> None:
    load = busiest_load(links, flows, per_link=per_link)
    assert flows / links / per_link - 1e-9 <= load <= flows / per_link + 1e-9
    assert 0.0 < delivered_share(links, flows, per_link=per_link) <= 1.0
    assert np.all(np.diff(maximum_distribution(links, flows)) >= -1e-12)


def test_more_flows_than_a_switch_has_are_refused() -> None:
    with pytest.raises(UserInputError, match="at most"):
        busiest_load(4, 10**6)


def test_congestion_control_orders_itself() -> None:
    assert blocked_share("none") == 1.0
    assert blocked_share("ideal") == 0.0
    assert blocked_share("dcqcn") == pytest.approx(0.275 / 1.275)
    assert blocked_share("hybrid") == pytest.approx(0.11 / 1.11)


def hashed(**changes: object) -> Fabric:
    return replace(Fabric(routing="ecmp"), **changes)  # type: ignore[arg-type]


def test_bounds_of_a_hashed_fabric() -> None:
    # 32 flows on 32 links: fair sharing delivers 1 - (31/32)^32 = 0.6379; pauses: the busiest link's 1 / 3.53
    assert congested_rate(hashed(), 2, 1.0) == pytest.approx(1 - (31 / 32) ** 32)
    paused = congested_rate(hashed(congestion_control="none"), 2, 1.0)
    assert paused == pytest.approx(1 / busiest_load(32, 32))
    # port split: two flows fill an up-link
    split = congested_rate(hashed(port_split=2), 2, 1.0)
    assert split == pytest.approx(delivered_share(32, 64, per_link=2))


@given(
    st.sampled_from(["ideal", "none", "dcqcn", "hybrid"]),
    st.integers(1, 4),
    st.sampled_from([2, 3]),
    st.floats(0.01, 1),
)
def test_no_collision_is_best_and_every_remedy_helps(
    control: str, split: int, tier: int, share: float
) -> None:
    rate = congested_rate(hashed(congestion_control=control, port_split=split), tier, share)
    assert 0.0 < rate <= 1.0
    assert congested_rate(hashed(congestion_control="ideal", port_split=split), tier, share) >= rate - 1e-12
    assert congested_rate(hashed(congestion_control="none", port_split=split), tier, share) <= rate + 1e-12
    assert congested_rate(hashed(congestion_control=control, port_split=split), 2, share) >= rate - 1e-12


def test_one_flow_of_a_ring_never_collides() -> None:
    # 192 nodes in three blocks: one flow in 64 leaves a leaf
    assert congested_rate(hashed(port_split=2, congestion_control="none"), 2, 3 / 192) == 1.0


def big(**changes: object) -> Cluster:
    cluster = catalog.cluster("megascale")
    return replace(cluster, fabric=replace(cluster.fabric, **changes))  # type: ignore[arg-type]


def ring_s(cluster: Cluster) -> float:
    collectives = Collectives(FabricModel(cluster))
    return float(collectives.reduce_scatter_s(1e9, collectives.group(192, stride=8)))


def test_the_ideal_fabric_is_the_default_and_unchanged() -> None:
    ideal = FabricModel(big(routing="ideal", port_split=2, congestion_control="none"))
    plain = FabricModel(catalog.cluster("megascale"))
    shares = [1.0, 0.5, 0.25, 1.0]
    assert (
        ideal.bytes_per_s([0, 1, 2, 3], shares).tolist() == plain.bytes_per_s([0, 1, 2, 3], shares).tolist()
    )


def test_placement_decides_whether_a_ring_collides() -> None:
    grouped = ring_s(big(routing="ecmp", congestion_control="none"))
    scattered = ring_s(big(routing="ecmp", congestion_control="none", placement="scattered"))
    assert grouped == pytest.approx(ring_s(big()))
    assert scattered > 2.0 * grouped
    assert ring_s(big(placement="scattered")) == pytest.approx(ring_s(big()), rel=0.02)  # latency only
    split = ring_s(big(routing="ecmp", congestion_control="none", placement="scattered", port_split=2))
    assert grouped < split < scattered


def test_scattered_neighbours_are_far_away() -> None:
    model = FabricModel(big(placement="scattered"))
    assert model.tier([0, 0, 0], [7, 8, 12_287]).tolist() == [0, 3, 3]
    assert model.crossing_share(2, 3, 192) == pytest.approx(1 - 63 / 1535)
    assert FabricModel(big()).crossing_share(2, 3, 192) == 3 / 192
