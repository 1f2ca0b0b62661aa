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
are short and changed, and for those whose rates change with theirs. Who starts and ends on links that have enough for
all changes nothing, and is not solved.

The events of a network are its own: it leaves alarms behind in the environment's queue, so run the environment until
an event or a time, not until its queue is empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import simpy
from numpy.typing import ArrayLike
from simpy.events import EventPriority

from hdpsim.arrays import Bools, Ints
from hdpsim.cost_models.hardware.parts import CongestionControl
from hdpsim.cost_models.network.congestion import blocked_share
from hdpsim.cost_models.network.links import Links
from hdpsim.simulator.network.activity import Activity, Running
from hdpsim.simulator.network.fair_share import FairSharing
from hdpsim.simulator.network.flow_record import FlowRecord, Recorder
from hdpsim.simulator.network.link_demand import LinkUse

LAST = EventPriority(10)  # priority of a solution: after whatever else happens at its instant
SAME_INSTANT = 1e-12  # relative difference below which two moments are one


class FlowNetwork:
    """Plays activities on links.

    Counted: max-min fair shares between flows; an activity's own flows on one link (in its time alone); what
        congestion control costs flows behind a link that others collide on (LinkUse).
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
        self._use = LinkUse(links, blocked_share(control or links.cluster.fabric.congestion_control))
        self._sharing = FairSharing(self._use)
        self._started = 0
        self._touched: list[Ints] = []  # links to look at again
        self._solution_due = False

    def start(self, activity: Activity) -> simpy.Event:
        """Begin *activity* now; the event fires at its end with the seconds it took."""
        event = self.env.event()
        self.begin(activity, event.succeed)
        return event

    def begin(self, activity: Activity, ended: Callable[[float], object]) -> None:
        """Begin *activity* now; *ended* is called at its end with the seconds it took."""
        now = self.env.now
        running = Running(activity, ended, self._started, now)
        self._started += 1
        if running.limit and not self._use.add(running):
            self._look_at(activity.pattern.links)
        self._set_alarm(running, now)

    def set_capacity(self, links: ArrayLike, factor: float) -> None:
        """From now on these links have *factor* of their usual rate (0: they are down)."""
        numbers = np.atleast_1d(np.asarray(links, dtype=np.int64))
        self._use.set_capacity(numbers, factor)
        self._look_at(numbers)

    def used(self, links: Ints) -> Bools:
        """Whether any activity is on each of *links*."""
        return np.array([bool(self._use.users(link)) for link in links.tolist()], dtype=np.bool_)

    def _look_at(self, links: Ints) -> None:
        self._touched.append(links)
        if not self._solution_due:
            self._solution_due = True
            event = simpy.Event(self.env)
            event._ok, event._value = True, None
            event.callbacks.append(self._solve)
            self.env.schedule(event, priority=LAST)

    def _solve(self, _: simpy.Event) -> None:
        touched = np.concatenate(self._touched) if len(self._touched) > 1 else self._touched[0]
        self._touched.clear()
        self._solution_due = False
        changed = self._use.find_short(touched)
        if not len(changed):
            return
        now = self.env.now
        for running, rate, stopped_by in self._sharing.share(changed):
            if rate != running.rate:
                self._record(running)
                self._use.change_rate(running, rate)
                running.set_rate(rate, now)
                if running.end_s < running.alarm_s:
                    self._set_alarm(running, now)
            self._sharing.stop(running, stopped_by)

    def _set_alarm(self, running: Running, now: float) -> None:
        """Look at it when it should end. Alarms that come too early are set again, later ones forgotten."""
        end_s = running.end_s
        if end_s == math.inf:
            running.alarm, running.alarm_s = None, math.inf
            return
        running.alarm = alarm = _Alarm(self.env, running, self._alarmed)
        running.alarm_s = end_s
        self.env.schedule(alarm, delay=end_s - now if end_s > now else 0.0)

    def _alarmed(self, alarm: simpy.Event) -> None:
        assert isinstance(alarm, _Alarm)
        running, now = alarm.running, self.env.now
        if running.alarm is not alarm:
            return
        if now < running.end_s * (1.0 - SAME_INSTANT):
            self._set_alarm(running, now)
            return
        running.alarm = None
        if self.recorder is not None:
            self._record(running)
            self.recorder.add_end(running.number, running.activity, running.start_s, now)
        if running.stopped_by >= 0:
            self._sharing.stop(running, -1)
        if running.limit and not self._use.remove(running):
            self._look_at(running.activity.pattern.links)
        running.ended(now - running.start_s)

    def _record(self, running: Running) -> None:
        """Close its piece: its rate ends here."""
        if self.recorder is not None:
            self.recorder.add_piece(running, self.env.now)


class _Alarm(simpy.Event):
    """Comes when an activity should have ended."""

    def __init__(
        self, env: simpy.Environment, running: Running, alarmed: Callable[[simpy.Event], None]
    ) -> None:
        self.env, self.running = env, running
        self.callbacks = [alarmed]
        self._ok, self._value = True, None


def play_together(links: Links, activities: Iterable[Activity]) -> FlowRecord:
    """Start *activities* on empty *links* and wait for all of them."""
    env = simpy.Environment()
    network = FlowNetwork(env, links, record=True)
    env.run(until=env.all_of([network.start(activity) for activity in activities]))
    assert network.recorder is not None
    return network.recorder.record()
