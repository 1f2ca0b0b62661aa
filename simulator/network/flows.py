"""Activities that share links on SimPy's clock.

The contract:

    network = FlowNetwork(env, links)                         # links: cost_models.network.links.Links
    pattern = links.routes(sources, targets).pattern()        # once for each group of GPUs, shared by its activities
    activity = Activity.of(links, pattern, volume_bytes, rest_s=..., hidden_s=...)   # or Activity(..., alone_s=...)
    yield network.start(activity)                             # fires at its end, with the seconds it took

An *activity* is a set of flows that advance together, at the pace of the slowest: a ring over a micro-batch, an
all-to-all, a transfer between stages, a gradient sum, a copy to the host, a read. Alone it takes alone_s. While other
activities want more of a link than it has, all share it: every flow gets the same rate, or its own fastest one if that
is less (max-min fairness). Rates change only when an activity starts or ends or a link's capacity changes; all that
happens at one instant is solved together, after everything else of that instant, and only for activities on links that
are short and changed, and for those whose rates change with theirs.

The events of a network are its own: it leaves timers behind in the environment's queue, so run the environment until
an event or a time, not until its queue is empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import cast

import numpy as np
import simpy
from numpy.typing import ArrayLike
from simpy.events import EventPriority

from hdpsim.arrays import Bools, Floats, Ints
from hdpsim.cost_models.hardware.parts import CongestionControl
from hdpsim.cost_models.network.congestion import blocked_share
from hdpsim.cost_models.network.links import LinkKind, Links, Pattern
from hdpsim.simulator.network.fair_share import fair_rates
from hdpsim.simulator.network.record import Recorder

LAST = EventPriority(10)  # priority of a solution: after whatever else happens at its instant
TOLERANCE = 1e-9  # relative excess of demand over capacity that is rounding
ROUNDING = 1e-11  # relative difference below which two rates are one
FEW = 4  # tries to find those whose rates change one by one; then all around them
NONE: Ints = np.zeros(0, dtype=np.int64)
SAME_INSTANT = 1e-12  # relative difference below which two ends are one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Activity:
    """Flows that advance together.

    Attributes:
        pattern: flows on every link.
        volume_bytes: what the largest flow moves.
        alone_s: seconds while nobody else is on its links.
        label: what it is, for the record ("ring", "gradient sum").
        who: which one of those ("ring of ranks 0 to 7"); empty: nobody asks.
    """

    pattern: Pattern
    volume_bytes: float
    alone_s: float
    label: str = ""
    who: str = ""

    @classmethod
    def of(
        cls,
        links: Links,
        pattern: Pattern,
        volume_bytes: float,
        *,
        rest_s: float = 0.0,
        hidden_s: float = 0.0,
        label: str = "",
    ) -> Activity:
        """An activity whose time alone follows from its links.

            alone = rest + max(hidden, volume / burst rate)

        Args:
            links: the cluster's links.
            pattern: flows on every link.
            volume_bytes: what the largest flow moves.
            rest_s: time during which it moves nothing: latencies, compute that nothing hides behind.
            hidden_s: compute that goes on meanwhile: a limit to its rate.
            label: see the class.
        """
        wire_s = volume_bytes / pattern.burst_bytes_per_s(links) if volume_bytes else 0.0
        return cls(
            pattern=pattern, volume_bytes=volume_bytes, alone_s=rest_s + max(hidden_s, wire_s), label=label
        )


class FlowNetwork:
    """Plays activities on links.

    Counted: max-min fair shares between flows; an activity's own flows on one link (in its time alone); what
        congestion control costs flows behind a link that others collide on (see _paused).
    Ignored: the way to a new fair share (rates jump); bursts of an activity that communicates only now and then, whose
        mean rate counts; latency that grows with queues.
    """

    def __init__(
        self,
        env: simpy.Environment,
        links: Links,
        control: CongestionControl | None = None,
        *,
        record: bool = False,
    ) -> None:
        """*control* None: as the cluster's fabric says; *record*: keep what happened, see recorder."""
        self.env, self.links = env, links
        self.recorder = Recorder(links) if record else None
        self._blocked = blocked_share(control or links.cluster.fabric.congestion_control)
        self._nominal = links.capacity_bytes_per_s
        self._capacity = self._nominal.copy()
        self._effective = self._capacity.copy()
        self._demand = np.zeros(len(links))
        self._users = np.zeros(len(links), dtype=np.int64)
        self._short = np.zeros(len(links), dtype=np.bool_)  # links whose demand exceeds what they have
        self._place = np.full(len(links), -1, dtype=np.int64)  # of links in what is being solved
        self._slots = _Slots()
        self._entries = _Entries()
        self._starting: list[tuple[Activity, simpy.Event]] = []
        self._fresh: Ints = NONE  # slots that start at this instant
        self._ended: list[int] = []
        self._changed_links: list[Ints] = []
        self._solution_due = False
        self._timer_s = math.inf

    def start(self, activity: Activity) -> simpy.Event:
        """Begin *activity* now; the event fires at its end with the seconds it took."""
        event = self.env.event()
        self._starting.append((activity, event))
        self._solve_soon()
        return event

    def set_capacity(self, links: ArrayLike, factor: float) -> None:
        """From now on these links have *factor* of their usual rate (0: they are down)."""
        numbers = np.atleast_1d(np.asarray(links, dtype=np.int64))
        self._capacity[numbers] = self._nominal[numbers] * factor
        self._changed_links.append(numbers)
        self._solve_soon()

    def used(self, links: Ints) -> Bools:
        """Whether any activity is on each of *links*."""
        return self._users[links] > 0

    @property
    def load_bytes_per_s(self) -> Floats:
        """[links]: what flows over each now."""
        slots, entries = self._slots, self._entries
        alive = slots.alive[entries.slot]
        slot, link, flows = entries.slot[alive], entries.link[alive], entries.flows[alive]
        load = np.bincount(link, weights=flows * slots.rate[slot], minlength=len(self.links))
        return load.astype(np.float64)

    def _solve_soon(self) -> None:
        if not self._solution_due:
            self._solution_due = True
            self._call(self._solve, self.env.now)

    def _call(self, what: Callable[[], None], at_s: float) -> None:
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        event.callbacks.append(lambda _: what())
        self.env.schedule(event, priority=LAST, delay=max(0.0, at_s - self.env.now))

    def _wake(self) -> None:
        now = self.env.now
        if now < self._timer_s * (1.0 - SAME_INSTANT):
            return  # an earlier end has been found since
        self._timer_s = math.inf
        slots = self._slots
        for slot in np.flatnonzero(slots.end_s[: slots.used] <= now * (1.0 + SAME_INSTANT)).tolist():
            self._finish(slot)
        if not self._ended:
            self._set_timer()

    def _finish(self, slot: int) -> None:
        slots = self._slots
        activity, event, start_s = slots.what[slot]
        self._record(np.array([slot]))
        if self.recorder is not None:
            self.recorder.add_end(int(slots.number[slot]), activity, start_s, self.env.now)
        slots.release(slot)
        self._ended.append(slot)
        self._solve_soon()
        event.succeed(self.env.now - start_s)

    def _solve(self) -> None:
        self._solution_due = False
        now, slots = self.env.now, self._slots
        touched = [*self._changed_links, *self._leave(), *self._enter()]
        self._changed_links.clear()
        if touched:
            short = self._find_short(np.concatenate(touched) if len(touched) > 1 else touched[0])
            if len(short):
                self._share(short, now)
        fresh = self._fresh
        if len(fresh):
            slots.end_s[fresh] = np.where(
                slots.rate[fresh] >= slots.limit[fresh], now + slots.alone_s[fresh], slots.end_s[fresh]
            )
            self._fresh = NONE
        self._set_timer()

    def _leave(self) -> list[Ints]:
        """Take activities that ended off their links."""
        if not self._ended:
            return []
        slots = self._slots
        patterns = [slots.activity(slot).pattern for slot in self._ended]
        links = self._change(patterns, [-slots.limit[slot] for slot in self._ended], -1)
        self._demand[links[self._users[links] == 0]] = 0.0  # no rounding is left behind
        self._entries.forget(len(links))
        for slot in self._ended:
            slots.forget(slot)
        self._ended.clear()
        if self._entries.dead > self._entries.used // 2 + 1024 or len(slots.forgotten) > slots.used // 2 + 64:
            self._entries.compact(slots)
        return [links]

    def _enter(self) -> list[Ints]:
        """Put activities that start on their links, at their own fastest rate."""
        slots, now = self._slots, self.env.now
        fresh, touched = [], []
        for activity, event in self._starting:
            slot = slots.take(activity, event, now)
            fresh.append(slot)
            if activity.volume_bytes > 0 and activity.alone_s > 0 and len(activity.pattern.links):
                touched.append((slot, activity.pattern))
        self._starting.clear()
        self._fresh = np.array(fresh, dtype=np.int64)
        if not touched:
            return []
        for slot, pattern in touched:
            self._entries.add(slot, pattern)
        return [
            self._change([pattern for _, pattern in touched], [slots.limit[slot] for slot, _ in touched], 1)
        ]

    def _change(self, patterns: list[Pattern], rates: list[float], users: int) -> Ints:
        """Add to the demand on links; return all that are touched."""
        if len(patterns) == 1:  # no link twice, which takes numpy far longer
            links = patterns[0].links
            self._demand[links] += patterns[0].flows * rates[0]
            self._users[links] += users
            return links
        links = np.concatenate([pattern.links for pattern in patterns])
        wanted = [pattern.flows * rate for pattern, rate in zip(patterns, rates, strict=True)]
        np.add.at(self._demand, links, np.concatenate(wanted))
        np.add.at(self._users, links, users)
        return links

    def _find_short(self, touched: Ints) -> Ints:
        """Say anew which of the touched links are short; return those that are or were."""
        have = self._capacity[touched]
        calm = (
            self._effective[touched] == have
        )  # nobody pauses its switch, which holds for the switch's other links
        calm &= self._demand[touched] <= have * (1.0 + TOLERANCE)
        if calm.all() and not self._short[touched].any():
            return NONE
        switches = self._switches(touched) if self._blocked > 0 else ()
        if switches:
            touched = np.concatenate([touched, *(rows.ravel() for rows in switches)])
        before = self._short[touched]
        self._effective[touched] = self._capacity[touched]
        for rows in switches:
            self._effective[rows] = self._paused(self._demand[rows], self._capacity[rows])
        self._short[touched] = self._demand[touched] > self._effective[touched] * (1.0 + TOLERANCE)
        return touched[before | self._short[touched]]

    def _switches(self, touched: Ints) -> Sequence[Ints]:
        """[switches, up-links] of every layer that hashes: the switches of which an up-link is touched."""
        rows = []
        for kind, bins in (("leaf-up", self.links.leaf.bins), ("spine-up", self.links.spine.bins)):
            first, count = self.links.first[cast(LinkKind, kind)], self.links.count[cast(LinkKind, kind)]
            if bins > 1 and count:
                is_touched = np.zeros(count // bins, dtype=np.bool_)
                is_touched[(touched[(touched >= first) & (touched < first + count)] - first) // bins] = True
                rows.append(first + np.flatnonzero(is_touched)[:, None] * bins + np.arange(bins))
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

    def _share(self, links: Ints, now: float) -> None:
        """Give fair rates to the activities on *links*, and to those whose rates change with theirs.

        Rates are fair when every activity has its own fastest rate or a link that stops it: one that is full and on
        which nobody is faster. So only the activities on changed links are solved first, with what others leave them;
        whoever is then not stopped as that says is solved with them, until all are.
        """
        slots = self._slots
        slot, link, flows, chosen = self._entries_near(links)
        number, place = np.zeros(len(slots.rate), dtype=np.int64), self._place
        for attempt in count():
            concerned = np.flatnonzero(chosen)
            number[concerned] = np.arange(len(concerned))
            inside = chosen[slot]
            used = np.unique(link[inside])
            place[used] = np.arange(len(used))
            places = place[link]
            place[used] = -1
            outside = ~inside & (places >= 0)
            other, at = slot[outside], places[outside]
            rate_of_other = slots.rate[other]
            taken = np.bincount(at, weights=flows[outside] * rate_of_other, minlength=len(used))
            owner, where, own_flows = number[slot[inside]], places[inside], flows[inside]
            limit, have = slots.limit[concerned], self._effective[used]
            shares = fair_rates(owner, where, own_flows, have - taken, limit)
            if not len(other):
                break
            fastest, stopped = np.zeros(len(used)), np.full(len(used), np.inf)
            np.maximum.at(fastest, where, shares.rate[owner])
            limited = shares.bottleneck >= 0
            np.minimum.at(stopped, shares.bottleneck[limited], shares.rate[limited])
            carried = taken + np.bincount(where, weights=own_flows * shares.rate[owner], minlength=len(used))
            may_rise = (carried < have * (1.0 - ROUNDING))[at]
            may_rise |= rate_of_other < fastest[at] * (1.0 - ROUNDING)
            wrong = may_rise & (slots.stopped_by[other] == used[at])
            wrong |= rate_of_other > stopped[at] * (1.0 + ROUNDING)
            if not wrong.any():
                break
            chosen[other if attempt >= FEW else other[wrong]] = True
        stopped_by = np.full(len(concerned), -1, dtype=np.int64)
        limited = shares.bottleneck >= 0
        stopped_by[limited] = used[shares.bottleneck[limited]]
        changed = shares.rate != slots.rate[concerned]
        moved = concerned[changed]
        self._record(moved)
        slots.set_rates(moved, shares.rate[changed], now)
        slots.stopped_by[concerned] = stopped_by

    def _entries_near(self, links: Ints) -> tuple[Ints, Ints, Floats, Bools]:
        """Entries of all activities on short links (slot, link, flows), and [slots]: who is on *links*."""
        entries, slots = self._entries, self._slots
        near, changed = self._short.copy(), np.zeros(len(self.links), dtype=np.bool_)
        near[links] = changed[links] = True
        found = np.flatnonzero(near[entries.link])
        found = found[slots.alive[entries.slot[found]]]
        slot, link = entries.slot[found], entries.link[found]
        chosen = np.zeros(len(slots.rate), dtype=np.bool_)
        chosen[slot[changed[link]]] = True
        short = self._short[link]
        return slot[short], link[short], entries.flows[found[short]], chosen

    def _record(self, which: Ints) -> None:
        """Close the pieces of these activities: their rates end here."""
        if self.recorder is not None:
            slots = self._slots
            number, stopped_by = slots.number[which], slots.stopped_by[which]
            self.recorder.add_pieces(
                number, slots.since_s[which], self.env.now, slots.rate[which], stopped_by
            )

    def _set_timer(self) -> None:
        slots = self._slots
        if not slots.used:
            return
        earliest = float(slots.end_s[: slots.used].min())
        if earliest < self._timer_s:
            self._timer_s = earliest
            self._call(self._wake, earliest)


class _Slots:
    """What is known of each running activity, as arrays; the slot of one that ended is free once forgotten."""

    def __init__(self) -> None:
        self.used = 0
        self.free: list[int] = []
        self.forgotten: list[int] = []
        self.what: list[tuple[Activity, simpy.Event, float]] = []
        size = 64
        self.alive: Bools = np.zeros(size, dtype=np.bool_)
        self.stopped_by: Ints = np.full(size, -1, dtype=np.int64)
        self.number: Ints = np.zeros(size, dtype=np.int64)
        self.limit, self.rate, self.left_bytes, self.since_s, self.end_s, self.alone_s = np.zeros((6, size))
        self.started = 0

    def activity(self, slot: int) -> Activity:
        return self.what[slot][0]

    def take(self, activity: Activity, event: simpy.Event, now: float) -> int:
        if self.free:
            slot = self.free.pop()
            self.what[slot] = (activity, event, now)
        else:
            slot = self.used
            self.used += 1
            self.what.append((activity, event, now))
            if slot == len(self.rate):
                self._grow()
        limit = activity.volume_bytes / activity.alone_s if activity.alone_s > 0 else 0.0
        self.alive[slot] = True
        self.limit[slot] = self.rate[slot] = limit
        self.left_bytes[slot] = activity.volume_bytes
        self.since_s[slot] = now
        self.alone_s[slot] = activity.alone_s
        self.end_s[slot] = now + activity.alone_s
        self.stopped_by[slot] = -1
        self.number[slot] = self.started
        self.started += 1
        return slot

    def _grow(self) -> None:
        for name in (
            "alive",
            "stopped_by",
            "number",
            "limit",
            "rate",
            "left_bytes",
            "since_s",
            "end_s",
            "alone_s",
        ):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros_like(old)]))

    def set_rates(self, slots: Ints, rate: Floats, now: float) -> None:
        moved = self.rate[slots] * (now - self.since_s[slots])
        self.left_bytes[slots] = np.maximum(0.0, self.left_bytes[slots] - moved)
        self.since_s[slots] = now
        self.rate[slots] = rate
        with np.errstate(divide="ignore", invalid="ignore"):
            self.end_s[slots] = np.where(rate > 0, now + self.left_bytes[slots] / rate, math.inf)

    def release(self, slot: int) -> None:
        """It ended: it moves nothing any more."""
        self.alive[slot] = False
        self.end_s[slot] = math.inf

    def forget(self, slot: int) -> None:
        """Nothing but old entries refers to it."""
        self.forgotten.append(slot)

    def reuse(self) -> None:
        """No entry refers to forgotten slots: others may have them."""
        self.free += self.forgotten
        self.forgotten.clear()


class _Entries:
    """(slot, link, flows) of all running activities, and of some that ended."""

    def __init__(self) -> None:
        self.used = self.dead = 0
        self._slot: Ints = np.zeros(1024, dtype=np.int64)
        self._link: Ints = np.zeros(1024, dtype=np.int64)
        self._flows: Floats = np.zeros(1024)

    @property
    def slot(self) -> Ints:
        return self._slot[: self.used]

    @property
    def link(self) -> Ints:
        return self._link[: self.used]

    @property
    def flows(self) -> Floats:
        return self._flows[: self.used]

    def add(self, slot: int, pattern: Pattern) -> None:
        end = self.used + len(pattern.links)
        if end > len(self._slot):
            size = max(2 * len(self._slot), end)
            self._slot, self._link = np.resize(self._slot, size), np.resize(self._link, size)
            self._flows = np.resize(self._flows, size)
        self._slot[self.used : end] = slot
        self._link[self.used : end] = pattern.links
        self._flows[self.used : end] = pattern.flows
        self.used = end

    def forget(self, entries: int) -> None:
        self.dead += entries

    def compact(self, slots: _Slots) -> None:
        stay = slots.alive[self.slot]
        kept = [values[: self.used][stay] for values in (self._slot, self._link, self._flows)]
        self.used, self.dead = len(kept[0]), 0
        self._slot[: self.used], self._link[: self.used], self._flows[: self.used] = kept
        slots.reuse()
