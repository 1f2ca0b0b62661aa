"""Activities that all start at once: what a fabric does to a pattern of traffic."""

from __future__ import annotations

from collections.abc import Iterable

import simpy

from hdpsim.cost_models.hardware.parts import CongestionControl
from hdpsim.cost_models.network.links import Links
from hdpsim.simulator.network.activity import Activity
from hdpsim.simulator.network.flows import FlowNetwork
from hdpsim.simulator.network.record import FlowRecord


def play_together(
    links: Links, activities: Iterable[Activity], control: CongestionControl | None = None
) -> FlowRecord:
    """Start *activities* on empty *links* and wait for all of them."""
    env = simpy.Environment()
    network = FlowNetwork(env, links, control, record=True)
    env.run(until=env.all_of([network.start(activity) for activity in activities]))
    assert network.recorder is not None
    return network.recorder.record()
