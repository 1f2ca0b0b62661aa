"""Links that go down inside a step: one flap by hand, the mean law of campaigns, the end of a job."""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.network.links import Links
from hdpsim.cost_models.reliability.flaps import LinkFlaps
from hdpsim.simulator.network.flaps import LinkLostError, flapping
from hdpsim.simulator.network.flows import Activity, FlowNetwork


def network() -> tuple[FlowNetwork, Links]:
    links = Links.of(catalog.cluster_of("hgx-h100-80gb", 16))
    return FlowNetwork(simpy.Environment(), links), links


def nic(links: Links) -> int:
    return links.first["nic-out"]


def test_a_stall_ends_with_a_timeout() -> None:
    fixed, adaptive = LinkFlaps(timeout=20), LinkFlaps(timeout=20, adaptive=True)
    assert fixed.stall_of(0.1) == pytest.approx(4.295, rel=1e-3)
    assert fixed.stall_of(4.3) == pytest.approx(8.59, rel=1e-3)
    assert adaptive.stall_of(0.1) == pytest.approx(2 * 0.0671, rel=1e-3)
    assert fixed.stall_of(35.0) is None
    rng = np.random.default_rng(1)
    for flaps in (fixed, adaptive):
        stalls = [flaps.stall_of(down_s) for down_s in rng.exponential(flaps.mean_s, 20_000)]
        survived = [stall for stall in stalls if stall is not None]
        assert np.mean(survived) == pytest.approx(flaps.stall_s, rel=0.03)
        assert len(survived) / len(stalls) == pytest.approx(flaps.survived_share, abs=0.01)


def test_only_flows_over_the_link_stand_still() -> None:
    net, links = network()
    flaps = LinkFlaps(per_link_day=86400 * 4.0, mean_s=0.2, adaptive=True)
    net.env.process(flapping(net, flaps, nic(links), np.random.default_rng(3)))
    over, beside = (
        net.start(Activity.of(links, links.routes(gpu, gpu + 8).pattern(), 48.5e9 * 5)) for gpu in (0, 1)
    )
    net.env.run(until=over)
    assert beside.value == pytest.approx(5.0)
    assert over.value > 6.0


def test_a_flap_that_outlasts_all_tries_ends_the_job() -> None:
    net, links = network()
    flaps = LinkFlaps(per_link_day=86400.0, mean_s=1e6, timeout=14)
    net.env.process(flapping(net, flaps, [nic(links)], np.random.default_rng(3)))
    with pytest.raises(LinkLostError) as lost:
        net.env.run(until=1e6)
    assert lost.value.link == nic(links)
