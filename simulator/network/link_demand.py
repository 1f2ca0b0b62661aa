"""Who uses every link, how much all of them want of it, and which links have less than that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints
from hdpsim.cost_models.hardware.parts import LinkKind
from hdpsim.cost_models.network.links import Links, Pattern
from hdpsim.simulator.network.activity import Running

MANY = 128  # links of a pattern that is not listed link by link
KEPT = 16384  # patterns that nobody uses and that stay listed at least


@dataclass(slots=True)
class _Wide:
    """A pattern on many links: those who use it, and its flows by link, made when first asked for."""

    pattern: Pattern
    running: dict[Running, None] = field(default_factory=dict)
    flows: dict[int, float] = field(default_factory=dict)

    def flows_on(self, link: int) -> float | None:
        if not self.flows:
            self.flows = _flows_by_link(self.pattern)
        return self.flows.get(link)


class Users:
    """Who is on every link, pattern by pattern.

    A pattern is listed on its links when it is first used and stays there: who comes or goes is added to the users of
    the pattern alone, however many links that has. Equal transfers use one pattern a hundred times.
    """

    def __init__(self) -> None:
        self._of: dict[Pattern, dict[Running, None]] = {}
        self._on: defaultdict[int, list[tuple[dict[Running, None], float]]] = defaultdict(list)
        self._wide: dict[Pattern, _Wide] = {}  # those that somebody uses
        self._idle = 0  # listed patterns that nobody uses

    def add(self, newcomer: Running) -> None:
        """Add an activity to the users of its links."""
        pattern = newcomer.activity.pattern
        if len(pattern.links) > MANY:
            wide = self._wide.get(pattern)
            if wide is None:
                wide = self._wide[pattern] = _Wide(pattern)
            wide.running[newcomer] = None
            return
        running = self._of.get(pattern)
        if running is None:
            running = self._of[pattern] = {}
            for link, flows in _flows_by_link(pattern).items():
                self._on[link].append((running, flows))
        elif not running:
            self._idle -= 1
        running[newcomer] = None

    def remove(self, leaver: Running) -> None:
        """Take an activity off its links."""
        pattern = leaver.activity.pattern
        if len(pattern.links) > MANY:
            wide = self._wide[pattern]
            del wide.running[leaver]
            if not wide.running:
                del self._wide[pattern]
            return
        running = self._of[pattern]
        del running[leaver]
        if not running:
            self._idle += 1
            if self._idle > KEPT and self._idle > len(self._of) // 2:
                self._forget_idle()

    def on(self, link: int) -> dict[Running, float]:
        """Activities on a link, with the number of their flows."""
        users = {one: flows for running, flows in self._on.get(link, ()) for one in running}
        for wide in self._wide.values():
            flows = wide.flows_on(link)
            if flows is not None:
                users.update(dict.fromkeys(wide.running, flows))
        return users

    def _forget_idle(self) -> None:
        self._of = {pattern: running for pattern, running in self._of.items() if running}
        for link, listed in list(self._on.items()):
            if busy := [entry for entry in listed if entry[0]]:
                self._on[link] = busy
            else:
                del self._on[link]
        self._idle = 0


def _flows_by_link(pattern: Pattern) -> dict[int, float]:
    return dict(zip(pattern.links.tolist(), pattern.flows.tolist(), strict=True))


TOLERANCE = 1e-9  # relative excess of demand over capacity that is rounding
CROWDED = -np.inf  # room of a link that is short or paused


class LinkUse:
    """Demand and capacity of all links.

    A link is *calm* while what all want of it at their own fastest rates is not more than it has, and no congestion
    control pauses it. It holds nobody up then, and whoever comes or goes changes no rate on it.

    Attributes:
        is_short: [links]: whether more is wanted of it than it has.
        effective: [links]: bytes per second that each can carry now.
    """

    def __init__(self, links: Links, blocked: float) -> None:
        """*blocked*: share of the time in which a switch pauses its senders while flows collide on an up-link."""
        self._links, self._blocked = links, blocked
        self._nominal = links.capacity_bytes_per_s
        self._capacity = self._nominal.copy()
        self.effective = self._capacity.copy()
        self._demand, self._lacking = np.zeros((2, len(links)))  # wanted, and what of it nobody gets
        self.is_short = np.zeros(len(links), dtype=np.bool_)
        self._room = self._capacity * (1.0 + TOLERANCE)  # largest demand with which a link stays calm
        # Layers that hash, as the up-links of every switch: [switches, up-links].
        self._layers: list[tuple[int, int, Ints]] = []
        for kind, bins in (("leaf-up", links.leaf.bins), ("spine-up", links.spine.bins)):
            own = links.of_kind(cast(LinkKind, kind))
            if bins > 1 and own.stop > own.start and blocked > 0:
                self._layers.append((own.start, own.stop, np.arange(own.start, own.stop).reshape(-1, bins)))
        self._users = Users()
        self.users = self._users.on  # (link): who is on it, with how many flows

    def add(self, running: Running) -> bool:
        """Add what an activity wants of its links; return whether all of them stay calm."""
        self._users.add(running)
        activity = running.activity
        links = activity.pattern.links
        demand = self._demand[links]
        demand += activity.wanted
        self._demand[links] = demand
        return not _any(demand > self._room[links])

    def remove(self, running: Running) -> bool:
        """Take an activity off its links; return whether all of them were calm."""
        self._users.remove(running)
        activity = running.activity
        links = activity.pattern.links
        demand = self._demand[links]
        demand -= activity.wanted
        self._demand[links] = demand
        if running.rate != running.limit:
            self.change_rate(running, running.limit)
        return not _any(self._room[links] == CROWDED)

    def change_rate(self, running: Running, rate: float) -> None:
        """Note another rate of an activity."""
        pattern = running.activity.pattern
        self._lacking[pattern.links] += pattern.flows * (running.rate - rate)

    def recount(self, slowed: Iterable[Running]) -> None:
        """Forget rounding: count again what those who are slower than they could be do not get."""
        self._lacking[:] = 0.0
        for running in slowed:
            pattern = running.activity.pattern
            self._lacking[pattern.links] += pattern.flows * (running.limit - running.rate)

    def carried(self, links: Ints) -> Floats:
        """What flows over these links."""
        return np.asarray(self._demand[links] - self._lacking[links])

    def carried_by(self, link: int) -> float:
        """What flows over this one."""
        return self._demand.item(link) - self._lacking.item(link)

    def set_capacity(self, numbers: Ints, factor: float) -> None:
        """These links have *factor* of their usual rate, and are looked at again before anything is calm on them."""
        self._capacity[numbers] = self._nominal[numbers] * factor
        self._room[numbers] = CROWDED

    def find_short(self, touched: Ints) -> Ints:
        """Say anew which of the touched links are short; return those that are or were, and what changed with them."""
        touched = touched[self._demand.take(touched) > self._room.take(touched)]  # whoever was short has none
        if not len(touched):
            return touched
        direct = len(touched)
        switches = self._switches(touched)
        if switches:
            touched = np.concatenate([touched, *(rows.ravel() for rows in switches)])
        before, could = self.is_short.take(touched), self.effective.take(touched)
        have = self._capacity.take(touched)
        self.effective[touched] = have
        for rows in switches:
            self.effective[rows] = self._paused(self._demand.take(rows), self._capacity.take(rows))
        can = self.effective.take(touched)
        short = self._demand.take(touched) > can * (1.0 + TOLERANCE)
        self.is_short[touched] = short
        self._room[touched] = np.where(short | (can != have), CROWDED, have * (1.0 + TOLERANCE))
        before |= short
        changed = before & (can != could)
        changed[:direct] |= before[:direct]
        return np.asarray(touched[changed])

    def _switches(self, touched: Ints) -> list[Ints]:
        """[switches, up-links] of every layer that hashes: the switches of which an up-link is touched."""
        rows, numbers = [], touched.tolist() if self._layers else []
        for first, end, uplinks in self._layers:
            bins = uplinks.shape[1]
            if switches := {(link - first) // bins for link in numbers if first <= link < end}:
                rows.append(uplinks[sorted(switches)])
        return rows

    def _paused(self, demand: Floats, capacity: Floats) -> Floats:
        """What is left of a switch's up-links ([switches, up-links]) while flows collide on one of them.

            left = min(capacity, demand) x (1 - b + b max(1, load) / largest load),   load = demand / capacity

        During a share b of the time (blocked_share: what its congestion control needs) the switch pauses whoever
        sends to it, at the pace of its most loaded up-link. That link itself works on at its full rate. A link that is
        down drops what it gets, and pauses nobody.
        """
        load = np.divide(demand, capacity, out=np.ones_like(demand), where=capacity > 0)
        load = np.maximum(1.0, load)
        worst = load.max(axis=1, keepdims=True)
        paused = np.minimum(capacity, demand) * (1.0 - self._blocked + self._blocked * load / worst)
        return np.where(worst > 1.0 + TOLERANCE, paused, capacity)


def _any(some: Bools) -> bool:
    """Whether one of *some*, which are not none, is true; quicker than any()."""
    return some.item(some.argmax())
