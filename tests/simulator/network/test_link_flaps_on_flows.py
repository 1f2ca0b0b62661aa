"""Links that go down inside a step: one flap by hand, the mean law of campaigns, the end of a job."""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.network.links import Links
from hdpsim.cost_models.reliability.link_flap_stalls import LinkFlaps
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.network.activity import Activity
from hdpsim.simulator.network.flows import FlowNetwork
from hdpsim.simulator.network.link_flaps_on_flows import Flap, draw_flaps, play_flaps


def network(*, record: bool = False) -> tuple[FlowNetwork, Links]:
    links = Links.of(catalog.cluster_of("hgx-h100-80gb", 16))
    return FlowNetwork(simpy.Environment(), links, record=record), links


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


def test_only_flows_over_the_link_stand_still_and_move_all_their_bytes() -> None:
    net, links = network(record=True)
    flap = Flap(nic=0, at_s=1.0, down_s=0.5, stall_s=2.0)
    play_flaps(net, [flap, Flap(nic=1, at_s=20.0, down_s=1.0, stall_s=2.0)])
    rate = links.capacity_bytes_per_s[nic(links)]
    over, back, beside = (
        net.start(Activity.of(links, links.routes(*way).pattern(), 5.0 * rate))
        for way in ((0, 8), (8, 0), (1, 9))
    )
    net.env.run(until=net.env.all_of([over, back, beside]))
    assert beside.value == pytest.approx(5.0)
    assert over.value == back.value == pytest.approx(7.0)  # 1 s, 2 s without a byte, 4 s
    assert net.recorder is not None
    carried = net.recorder.record().link_bytes()
    np.testing.assert_allclose(carried[flap.links(links)], 5.0 * rate)


def test_flaps_are_drawn_by_their_law_and_more_time_only_adds_some() -> None:
    law = LinkFlaps(per_link_day=24.0, mean_s=0.1, adaptive=True)
    few, many = (draw_flaps(law, 400, np.random.default_rng(5), until_s) for until_s in (600.0, 36_000.0))
    assert many[: len(few)] == few
    assert len(many) == pytest.approx(4000, rel=0.05)  # one an hour on each of 400 links, 10 h
    assert np.mean([flap.down_s for flap in many]) == pytest.approx(0.1, rel=0.05)
    assert np.mean([flap.stall_s for flap in many]) == pytest.approx(law.stall_s, rel=0.05)
    assert not draw_flaps(LinkFlaps(), 400, np.random.default_rng(5), 1e9)


@pytest.mark.parametrize("sends", [True, False])
def test_a_flap_that_outlasts_all_tries_ends_the_job_if_anything_is_sent(sends: bool) -> None:
    net, links = network()
    (flap, *_) = draw_flaps(
        LinkFlaps(per_link_day=86400.0, mean_s=1e6, timeout=14), 16, np.random.default_rng(3), 10.0
    )
    play_flaps(net, [flap])
    rate = links.capacity_bytes_per_s[nic(links)]
    if not sends:
        net.env.run(until=1e6)
        return
    over = net.start(Activity.of(links, links.routes(flap.nic, (flap.nic + 8) % 16).pattern(), 60.0 * rate))
    with pytest.raises(InfeasibleError, match=r"gives up after 0\.537 s: the job ends"):
        net.env.run(until=over)
