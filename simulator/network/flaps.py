"""Links that go down while activities run over them."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import simpy
from numpy.typing import ArrayLike

from hdpsim.cost_models.reading.units import DAY_S
from hdpsim.cost_models.reliability.flaps import LinkFlaps
from hdpsim.simulator.network.flows import FlowNetwork


class LinkLostError(Exception):
    """A link stayed down for longer than a connection tries to send again: the job ends here."""

    def __init__(self, link: int, at_s: float) -> None:
        super().__init__(link, at_s)
        self.link, self.at_s = link, at_s


def flapping(
    network: FlowNetwork, flaps: LinkFlaps, links: ArrayLike, rng: np.random.Generator
) -> Generator[simpy.Event, None, None]:
    """A process that takes *links* down, one at a time, and brings them back; it never ends.

        gap between flaps    exponential, rate = flaps per link and day x links
        a flap               exponential; flows move again at the end of the timeout in which the link comes back

    Flows over a link that is down stand still, and with them the activities that they are part of; everybody else may
    use what they leave. Link flaps of a campaign (reliability/flaps.py) are the same law on average, every one of which
    stops the whole job.

    Ignored: flaps that overlap (the next gap begins when a link is back); the same cable's other direction.

    Raises:
        LinkLostError: out of the process, when a flap outlasts all tries; the environment's run ends with it.
    """
    numbers = np.atleast_1d(np.asarray(links, dtype=np.int64))
    per_s = flaps.per_link_day * len(numbers) / DAY_S
    while per_s > 0:
        yield network.env.timeout(rng.exponential(1.0 / per_s))
        link, down_s = int(rng.choice(numbers)), float(rng.exponential(flaps.mean_s))
        network.set_capacity(link, 0.0)
        stall_s = flaps.stall_of(down_s)
        if stall_s is None:
            yield network.env.timeout(flaps.gives_up_s)
            raise LinkLostError(link, network.env.now)
        yield network.env.timeout(stall_s)
        network.set_capacity(link, 1.0)
