"""What links carried and who met whom, by hand and as a property of any play."""

from __future__ import annotations

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Fabric
from hdpsim.cost_models.network.links import Links
from hdpsim.simulator.network.activity import Activity
from hdpsim.simulator.network.flow_record import FlowRecord
from hdpsim.simulator.network.flows import FlowNetwork

EXACT = NetworkCalibration(nic_efficiency=1.0, p2p_nvlink_efficiency=1.0)
SECOND = 50e9  # what a NIC moves in one


def links_of(gpus: int, **fabric: object) -> Links:
    return Links.of(catalog.cluster_of("hgx-h100-80gb", gpus, Fabric(**fabric)), EXACT)  # type: ignore[arg-type]


def play(links: Links, flows: list[tuple[float, int, int, float, str]]) -> FlowRecord:
    """*flows*: start, from, to, bytes, label."""
    env = simpy.Environment()
    network = FlowNetwork(env, links, record=True)

    def process(start_s: float, activity: Activity) -> simpy.events.ProcessGenerator:
        yield env.timeout(start_s)
        yield network.start(activity)

    env.run(
        until=env.all_of(
            [
                env.process(
                    process(start, Activity.of(links, links.routes(a, b).pattern(), size, label=label))
                )
                for start, a, b, size, label in flows
            ]
        )
    )
    assert network.recorder is not None
    return network.recorder.record()


def test_two_flows_that_meet() -> None:
    links = links_of(16)
    record = play(
        links, [(0.0, 0, 8, SECOND, "ring"), (0.5, 0, 8, SECOND, "sum"), (0.0, 1, 9, SECOND, "ring")]
    )
    nic = links.names().index("nic-out:0.0")
    assert record.link_bytes()[nic] == pytest.approx(2 * SECOND)
    assert record.load([0.0, 0.5, 1.5, 2.0, 3.0], [nic, nic + 1])[0] == pytest.approx([1, 1, 1, 0])
    assert record.load([0.0, 0.5, 1.5, 2.0, 3.0], [nic, nic + 1])[1] == pytest.approx([1, 0.5, 0, 0])
    assert nic in record.hottest(4)
    assert sorted(record.lost_s.tolist()) == pytest.approx([0.0, 0.5, 0.5])
    lost = {(one.label, one.other): one.lost_s for one in record.collisions()}
    assert lost == pytest.approx({("ring", "sum"): 0.5, ("sum", "ring"): 0.5})


def test_a_link_that_is_down_is_nobodys_fault() -> None:
    links = links_of(16)
    env = simpy.Environment()
    network = FlowNetwork(env, links, record=True)
    done = network.start(Activity.of(links, links.routes(0, 8).pattern(), SECOND, label="ring"))
    nic = links.names().index("nic-out:0.0")
    network.set_capacity(nic, 0.0)
    env.run(until=2.0)
    network.set_capacity(nic, 1.0)
    env.run(until=done)
    assert network.recorder is not None
    (collision,) = network.recorder.record().collisions()
    assert (collision.link, collision.label, collision.other) == (nic, "ring", "")
    assert collision.lost_s == pytest.approx(2.0)


flows = st.lists(
    st.tuples(
        st.integers(0, 10).map(lambda eighths: eighths / 8), st.integers(0, 31), st.integers(0, 31),
        st.integers(1, 4).map(lambda tenths: tenths * SECOND / 10), st.sampled_from("ab"),
    ).filter(lambda flow: flow[1] != flow[2]),
    min_size=1, max_size=12,
)  # fmt: skip


@given(flows)
@settings(max_examples=40, derandomize=True, deadline=None)
def test_every_link_carries_what_its_flows_move_and_never_more_than_it_can(
    drawn: list[tuple[float, int, int, float, str]],
) -> None:
    links = links_of(32, nodes_per_block=2, leaf_oversubscription=4.0, kind="fat-tree")
    record = play(links, drawn)
    expected = np.zeros(len(links))
    for _, a, b, size, _ in drawn:
        routes = links.routes(a, b)
        np.add.at(expected, routes.link, routes.share * size)
    assert record.link_bytes() == pytest.approx(expected, rel=1e-9)
    edges = np.linspace(0.0, record.end_s.max(), 7)
    limited = np.flatnonzero(np.isfinite(links.capacity_bytes_per_s))
    load = record.load(edges, limited)
    assert load.max() <= 1.0 + 1e-9
    carried = load.sum(axis=1) * edges[1] * links.capacity_bytes_per_s[limited]
    assert carried == pytest.approx(expected[limited], rel=1e-9)
    lost = sum(one.lost_s for one in record.collisions())
    assert lost == pytest.approx(record.lost_s.sum(), rel=1e-6, abs=1e-9)
