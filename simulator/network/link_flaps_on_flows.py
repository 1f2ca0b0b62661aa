"""Links that go down during a step played as flows: flows over them stand still until they are back."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass

import numpy as np
import simpy

from hdpsim.arrays import Ints
from hdpsim.cost_models.network.links import Links
from hdpsim.cost_models.reading.units import DAY_S
from hdpsim.cost_models.reliability.link_flap_stalls import LinkFlaps
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.network.flows import FlowNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class Flap:
    """The link of a NIC goes down, both ways.

    Attributes:
        nic: number of the NIC in the cluster.
        at_s: when.
        down_s: until it is back.
        stall_s: until flows move again, with the try that follows; at least down_s.
        gives_up_s: when a connection has no try left: it ends, and the job with it, if anything is sent over it then.
    """

    nic: int
    at_s: float
    down_s: float
    stall_s: float
    gives_up_s: float = math.inf

    def links(self, links: Links) -> Ints:
        """Numbers of the link in both directions."""
        return np.array([links.first["nic-out"], links.first["nic-in"]], dtype=np.int64) + self.nic


def draw_flaps(flaps: LinkFlaps, nics: int, random: np.random.Generator, until_s: float) -> tuple[Flap, ...]:
    """Every flap that begins before *until_s*; a later end only adds some.

        gap between flaps    exponential, rate = flaps per link and day x links
        a flap               exponential; flows move again at the end of the timeout in which the link comes back

    The same law as that of campaigns (reliability/link_flap_stalls.py), where every flap stops the whole job.
    Ignored: flaps of a link on which flows still stand still; that a timeout begins with the first packet that is lost.
    """
    drawn: list[Flap] = []
    back_s: dict[int, float] = {}
    per_s, now_s = flaps.per_link_day * nics / DAY_S, 0.0
    while per_s > 0:
        now_s += random.exponential(1.0 / per_s)
        nic, down_s = int(random.integers(nics)), float(random.exponential(flaps.mean_s))
        if now_s >= until_s:
            break
        if now_s < back_s.get(nic, 0.0):
            continue
        stall_s = flaps.stall_of(down_s)
        lasting_s = down_s if stall_s is None else stall_s
        gives_up_s = flaps.gives_up_s if stall_s is None else math.inf
        drawn.append(Flap(nic=nic, at_s=now_s, down_s=down_s, stall_s=lasting_s, gives_up_s=gives_up_s))
        back_s[nic] = now_s + lasting_s
    return tuple(drawn)


def play_flaps(network: FlowNetwork, flaps: Iterable[Flap]) -> None:
    """Take links down and bring them back, counted from now."""
    for flap in flaps:
        network.env.process(_flap(network, flap))


def _flap(network: FlowNetwork, flap: Flap) -> Generator[simpy.Event, None, None]:
    """Flows over a link that is down stand still, and with them the activities that they are part of.

    Raises:
        InfeasibleError: out of the process, when no try is left while something is sent; the environment's run ends.
    """
    links, env = flap.links(network.links), network.env
    back_s = env.now + flap.at_s + flap.stall_s
    yield env.timeout(flap.at_s)
    network.set_capacity(links, 0.0)
    if flap.gives_up_s < flap.stall_s:
        yield env.timeout(flap.gives_up_s)
        if network.used(links).any():
            raise InfeasibleError(
                f"execution.link_flaps_per_hour: {network.links.name(int(links[0]))} stays down for "
                f"{flap.down_s:.3g} s, and a connection gives up after {flap.gives_up_s:.3g} s: the "
                "job ends. Raise execution.nccl_timeout or execution.nccl_retries; hdpsim campaign counts such failures"
            )
    yield env.timeout(max(0.0, back_s - env.now))
    network.set_capacity(links, 1.0)
