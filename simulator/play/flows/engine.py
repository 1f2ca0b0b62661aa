"""A step whose transfers share the links of a network: the engine, with activities in place of durations.

    operation     its transfers as one activity, then the rest of it (see program); beside both its copies to the host.
                  Of a meeting each micro-batch so; it ends with the last (see works)
    transfer      from one stage of a group to the next: an activity, then its latency. Those that hold stages: see
                  exchanges
    gather, sum   what shows: an activity that all ranks of the stage wait for. What is hidden: an activity beside the
                  first or last operations; sums end when both do, second operations wait for hidden gathers

Hidden sums begin when they would have to alone to end with the last backward.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import simpy

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.step.step_traffic import TrafficKind
from hdpsim.simulator.network.activity import Activity
from hdpsim.simulator.network.flows import FlowNetwork
from hdpsim.simulator.network.link_flaps_on_flows import Flap, play_flaps
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.accounts import Timeline, account, make_spans, sum_by_process
from hdpsim.simulator.play.engine import Operation, StepPlay, without_collector
from hdpsim.simulator.play.execution import Execution, Noise, SharedLinks
from hdpsim.simulator.play.pipeline.program import compile_program
from hdpsim.simulator.play.replay import run_replay

from .combined import Combined, Part
from .exchanges import HeldTransfers
from .program import EdgeTraffic, FlowProgram, row_of_stage, stage_pairs, with_durations
from .rings import busiest_ring
from .routes import Rows, Wired

_Process = Generator[simpy.Event, None, None]
_GATHER, _SUM = "parameter gather", "gradient sum"
"""Edges of a step."""


FlapsUntil = Callable[[float], tuple[Flap, ...]]
"""All flaps that begin before a time; a later time only adds some."""


def run_flows(
    plan: Plan,
    costs: StepCosts,
    wired: Wired,
    noise: Noise | None = None,
    spans: bool = False,
    flaps: FlapsUntil | None = None,
) -> Execution:
    """Play *plan* on a network of its own; the costs say what is sent (StepCosts.traffic).

    Stages that follow each other step by step begin as they do when nothing is shared.

    Raises:
        DeadlockError: the orders of the ranks contradict each other.
        InfeasibleError: a schedule that is not played with flows; a link that stays down.
    """
    execution = _run(plan, costs, wired, noise, spans)
    if flaps is None:
        return execution
    quiet_s = until_s = execution.step_s
    while met := flaps(until_s):
        execution = _run(plan, costs, replace(wired, flaps=met), noise, spans)
        if execution.step_s <= until_s:
            break
        until_s = 2.0 * execution.step_s
    network = execution.network
    assert network is not None
    met = tuple(flap for flap in met if flap.at_s < execution.step_s)
    return replace(execution, network=replace(network, flaps=met, flaps_s=execution.step_s - quiet_s))


def _run(plan: Plan, costs: StepCosts, wired: Wired, noise: Noise | None, spans: bool) -> Execution:
    flows = FlowProgram.of(compile_program(plan, costs, noise), wired)
    env = simpy.Environment()
    network = FlowNetwork(env, flows.routes.links, record=wired.record)
    step = FlowStep(flows, network)
    timeline = _play_on_links(step, env, flows.played)
    execution, contention_s = step.account(timeline)
    record = ring = None
    if network.recorder is not None and costs.traffic is not None:
        env.run()  # hidden gathers that outlast the step included
        record = network.recorder.record(wired.links, flows.routes.follows)
        ring = busiest_ring(record, wired, plan, costs.traffic, flows.routes)
    limited = np.isfinite(flows.routes.links.capacity_bytes_per_s)
    shared = SharedLinks(
        independent_s=run_replay(plan, replace(costs, traffic=None), noise).step_s,
        alone_s=flows.played.step_end.step_s,
        contention_s=contention_s,
        carried_bytes=np.where(limited, flows.carried_bytes(), 0.0),
        record=record,
        ring=ring,
    )
    shown = make_spans(flows.alone, timeline) if spans else None
    return replace(execution, spans=shown, events=step.events, network=shared)


def _play_on_links(step: FlowStep, env: simpy.Environment, alone: Timeline) -> Timeline:
    with without_collector():
        finished = step.start(env, [env.timeout(seconds) for seconds in alone.step_end.begin_s.tolist()])
        try:
            timeline = env.run(finished)
        except RuntimeError:  # out of events
            step.check_played()
            raise
    assert isinstance(timeline, Timeline)
    return timeline


class FlowStep(StepPlay):
    """One step on a network that others may use as well; start it in the network's environment."""

    def __init__(self, flows: FlowProgram, network: FlowNetwork) -> None:
        super().__init__(flows.alone)
        self._flows, self._network = flows, network
        self._combined = Combined()
        self._row, self._group = (column.tolist() for column in row_of_stage(flows))
        self._sending_s: list[float] = flows.sending_s.tolist()
        self._streaming_s: list[float] = flows.streaming_s.tolist()
        self._kinds, self._stream_kinds = (
            [(one.kind, flows.routes.passes[one.kind], one.sent_bytes) for one in some]
            for some in (flows.sent, flows.streams)
        )
        self._late_s = [0.0] * len(self._row)
        self._stream_late_s = [0.0] * len(self._row)
        self._works = flows.works.of_operations()
        chain, works = flows.priced.chain, flows.works
        self._work_units, traffic = works.units, works.traffic
        self._transfer_bytes: list[float] = traffic.transfer_bytes.tolist()
        self._latency_s: list[float] = traffic.transfer_fixed_s.tolist()
        self._held = HeldTransfers.of(flows.alone)
        self._held_works = [] if self._held is None else works.of_ranks(self._held.rank, self._held.result)
        if self._works is not None and self._held is None:  # the next meeting needs all results of one
            for number, parts in enumerate(self._works[: -self._units]):
                self._missing[number + self._units] += len(parts) - 1
        self._between = flows.routes.transfers if self._held is None else flows.routes.rank_transfers
        sent = dict(zip(np.flatnonzero(chain.sends).tolist(), stage_pairs(chain), strict=True))
        self._pairs = [sent[link] if sent.get(link) in self._between else None for link in range(chain.links)]
        self._transfers: dict[tuple[tuple[int, int], int, float, float], Activity | None] = {}
        self._arrival_s = np.zeros(len(self._row))
        self._gather_s, self._sum_s = np.zeros((2, flows.priced.stages))
        self._hidden_sums: list[simpy.Event] = []
        self._hidden_gathers = [self._hidden_gather(stage) for stage in range(flows.priced.stages)]
        self._seconds = [
            [] if gather is None else self._second_operations(stage)
            for stage, gather in enumerate(self._hidden_gathers)
        ]
        for number in (number for numbers in self._seconds for number in numbers):
            self._missing[number] += 1

    def start(self, env: simpy.Environment, begins: Sequence[simpy.Event]) -> simpy.Process:
        """Start the step as StepPlay does, in the network's *env*, with its link flaps and hidden gradient sums."""
        play_flaps(self._network, self._flows.flaps)
        hidden = (self._hidden_sum(env, stage, begin) for stage, begin in enumerate(begins))
        self._hidden_sums = [env.process(one) for one in hidden]
        return super().start(env, begins)

    def _start(self, operation: Operation) -> None:
        number, now_s = operation.number, self._env.now
        start_s = self._start_s[number] = max(now_s, self._input_s[number])
        if self._works is None and not self._sending_s[number] and not self._streaming_s[number]:
            self._end(operation, start_s - now_s + self._duration_s[number])
        elif start_s > now_s:
            later = self._env.timeout(start_s - now_s)
            later.callbacks.append(lambda _: self._begin(operation))
        else:
            self._begin(operation)

    def _begin(self, operation: Operation) -> None:
        """Begin what micro-batches do of an operation."""
        number = operation.number
        duration_s, ended = self._duration_s[number], partial(self._end, operation)
        if self._works is None:
            self._work(number, duration_s, ended)
            return
        works = self._works[number]
        last = _Last(self._env, len(works), ended)
        for work in works:
            self._work(work, duration_s, last.done)

    def _work(self, work: int, duration_s: float, done: Callable[[float], None]) -> None:
        """Send what a work sends, then do the rest of it; stream to the host beside that.

        *done*: told how many seconds from then on it is over.
        """
        sends = self._activity(work, self._kinds, self._sending_s[work])
        streams = self._activity(work, self._stream_kinds, self._streaming_s[work])
        if streams is not None:
            self._env.process(self._with_streams(work, duration_s, sends, streams, done))
        elif sends is None:
            done(duration_s)
        else:
            alone_s = sends.alone_s

            def sent(took_s: float) -> None:
                self._late_s[work] = max(0.0, took_s - alone_s)
                done(max(0.0, duration_s - alone_s))

            self._network.begin(sends, sent)

    def _activity(
        self, work: int, kinds: list[tuple[TrafficKind, Rows, Floats]], alone_s: float
    ) -> Activity | None:
        if not alone_s:
            return None
        row = self._row[work]
        sent = [Part(kind, rows, row, float(volume[work])) for kind, rows, volume in kinds]
        label = max(sent, key=lambda part: part.sent)[0]
        return self._combined.activity(sent, alone_s, label, self._flows.routes.who(label, row))

    def _with_streams(
        self,
        work: int,
        duration_s: float,
        sends: Activity | None,
        streams: Activity,
        done: Callable[[float], None],
    ) -> _Process:
        """A work is over when it and its streams are; what follows them takes as long as ever."""
        begin_s = self._env.now
        streamed = self._network.start(streams)
        took_s = duration_s
        if sends is not None:
            yield self._network.start(sends)
            late_s = self._late_s[work] = max(0.0, self._env.now - begin_s - sends.alone_s)
            took_s += late_s
        yield streamed
        streamed_s: float = streamed.value  # type: ignore[assignment]
        stream_took_s = duration_s + max(0.0, streamed_s - streams.alone_s)
        self._stream_late_s[work] = max(0.0, stream_took_s - took_s)
        done(max(0.0, begin_s + max(took_s, stream_took_s) - self._env.now))

    def _send(self, number: int, now_s: float) -> None:
        """Send a result to the next stage: between nodes as an activity, unless it holds stages."""
        following = number + self._units
        if self._held is not None:
            arrival_s = now_s + self._result_delay_s[number]
            self._arrived(following, arrival_s, arrival_s)
            return
        for work in (number,) if self._works is None else self._works[number]:
            self._transfer(number, work, self._group[work], [(following, number)])

    def _operation_with_feeds_ended(self, operation: simpy.Event) -> None:
        """Note the end of an operation; where transfers hold stages those begin that only waited for it."""
        held = self._held
        if held is None:
            super()._operation_with_feeds_ended(operation)
            return
        self._operation_ended(operation)
        assert isinstance(operation, Operation)
        for ready in held.ready_behind(operation.number):
            self._transfer(held.result[ready], self._held_works[ready], held.rank[ready], held.waiting[ready])

    def _transfer(self, number: int, work: int, row: int, waiting: list[tuple[int, int]]) -> None:
        """Send the result of a work of an operation from now on; between nodes an activity.

        *waiting*: operations that wait for it, and those at whose ends they would have it if nobody else were late.
        """
        begin_s, alone_s, ends_s = self._env.now, self._result_delay_s[number], self._end_s
        activity = None if work == HOLE else self._transfer_of(work, row, alone_s)
        if activity is None:
            for operation, since in waiting:
                self._arrived(operation, begin_s + alone_s, ends_s[since] + alone_s)
            return

        latency_s = self._latency_s[work % self._work_units]

        def arrived(_: float) -> None:
            arrival_s = self._env.now + latency_s
            took_s = arrival_s - begin_s
            for operation, since in waiting:
                self._arrived(operation, arrival_s, ends_s[since] + took_s)

        self._network.begin(activity, arrived)

    def _arrived(self, number: int, arrival_s: float, accounted_s: float) -> None:
        """Something an operation waits for arrives; until *accounted_s* that is a wait for its input."""
        if accounted_s > self._arrival_s[number]:
            self._arrival_s[number] = accounted_s
        self._feed(number, arrival_s)

    def _transfer_of(self, work: int, row: int, delay_s: float) -> Activity | None:
        """Between nodes an activity, one for all equal transfers of a group, or of a rank that it holds."""
        link, unit = divmod(work, self._work_units)
        pair = self._pairs[link]
        if pair is None:
            return None
        wire_s = delay_s - self._latency_s[unit]
        volume_bytes = self._transfer_bytes[unit]
        key = (pair, row, volume_bytes, wire_s)
        if key not in self._transfers:
            label, routes = "stage transfer", self._flows.routes
            sent = [Part(f"transfer {pair}", self._between[pair], row, volume_bytes)]
            who = routes.who(label, self._row[work])
            self._transfers[key] = self._combined.activity(sent, wire_s, label, who)
        return self._transfers[key]

    def _gather(self, stage: int) -> _Process:
        begin_s = self._env.now
        yield from self._exposed(_GATHER, stage)
        self._gather_s[stage] = self._env.now - begin_s
        hidden = self._hidden_gathers[stage]
        if hidden is None:
            return
        needed, later = hidden
        self._network.begin(needed, lambda _: self._gathered(stage, later))

    def _hidden_gather(self, stage: int) -> tuple[Activity, Activity | None] | None:
        """Parameters that are gathered beside the first operations: what the shortest of them hides, and the rest."""
        activity = self._edge_activity(_GATHER, stage, hidden=True)
        first, last = self._parts(stage)
        if activity is None or not (last > first).any():
            return None
        operations = self._flows.alone.part_operation[first[last > first]]
        played = self._flows.played
        opening_s = self._flows.alone.opening_s[stage] + played.step_end.begin_s[stage]
        share = min(1.0, float((played.end_s[operations] - opening_s).min()) / activity.alone_s)
        if share == 1.0:
            return activity, None
        needed, later = (
            replace(activity, alone_s=part * activity.alone_s, volume_bytes=part * activity.volume_bytes)
            for part in (share, 1.0 - share)
        )
        return needed, later

    def _parts(self, stage: int) -> tuple[Ints, Ints]:
        """[ranks]: the first part of each process of a stage, and where the next process begins."""
        ranks = self._flows.alone.ranks
        bounds = self._flows.alone.part_offsets[stage * ranks : (stage + 1) * ranks + 1]
        return bounds[:-1], bounds[1:]

    def _second_operations(self, stage: int) -> list[int]:
        """The operations that follow the first ones of all their processes."""
        first, last = self._parts(stage)
        operation = self._flows.alone.part_operation
        later_operations, firsts = operation[(first + 1)[last > first + 1]], operation[first[last > first]]
        numbers: list[int] = np.setdiff1d(later_operations, firsts).tolist()
        return numbers

    def _gathered(self, stage: int, later: Activity | None) -> None:
        now_s = self._env.now
        if later is not None:
            self._network.start(later)
        for number in self._seconds[stage]:
            self._arrived(number, now_s, now_s)

    def _hidden_sum(self, env: simpy.Environment, stage: int, begin: simpy.Event) -> _Process:
        """Gradients that are summed beside the last backwards."""
        yield begin
        edge, end = self._flows.sync, self._flows.played.step_end
        opening_s = float(self._flows.alone.opening_s[stage])
        until_s = float(end.sync_start_s[stage] - end.begin_s[stage])
        lasting_s = min(float(edge.hidden_s[stage]), until_s - opening_s)
        activity = self._edge_activity(_SUM, stage, hidden=True)
        if activity is None or lasting_s <= 0:
            return
        yield env.timeout(until_s - lasting_s)
        yield self._network.start(replace(activity, alone_s=lasting_s))

    def _sum(self, stage: int) -> _Process:
        begin_s = self._env.now
        yield from self._exposed(_SUM, stage)
        yield self._hidden_sums[stage]
        self._sum_s[stage] = self._env.now - begin_s

    def _exposed(self, label: str, stage: int) -> _Process:
        """What nothing hides of an edge of the step."""
        activity = self._edge_activity(label, stage, hidden=False)
        seconds = float(self._edge(label)[0].exposed_s[stage])
        yield self._env.timeout(seconds) if activity is None else self._network.start(activity)

    def _edge(self, label: str) -> tuple[EdgeTraffic, Rows]:
        flows, routes = self._flows, self._flows.routes
        return (flows.gather, routes.gathers) if label == _GATHER else (flows.sync, routes.sums)

    def _edge_activity(self, label: str, stage: int, *, hidden: bool) -> Activity | None:
        edge, rows = self._edge(label)
        share = float(1.0 - edge.exposed_share[stage] if hidden else edge.exposed_share[stage])
        seconds = float((edge.hidden_s if hidden else edge.exposed_s)[stage])
        if seconds <= 0:
            return None
        sent = [Part(label, rows, stage, share)]
        return self._combined.activity(sent, seconds, label, f"{label}, stage {stage}")

    def _timeline(self) -> Timeline:
        return replace(super()._timeline(), arrival_s=self._arrival_s)

    def account(self, timeline: Timeline) -> tuple[Execution, Floats]:
        """Where the time of the step went, that of shared links in the accounts of what was sent; that part alone."""
        flows, alone = self._flows, self._flows.alone
        shared_s, streams_s = np.array(self._late_s), np.array(self._stream_late_s)
        sending_s = sum((one.alone_s for one in flows.sent), np.zeros(len(shared_s)))
        share = np.divide(shared_s, sending_s, out=np.zeros_like(shared_s), where=sending_s > 0)
        contended = [(one.term, share * one.alone_s) for one in flows.sent]
        if flows.streams:
            contended.append((flows.streams[0].term, streams_s))
        late_s = np.zeros(len(alone.operation_s))
        np.maximum.at(late_s, flows.works.operation, shared_s + streams_s)
        played = with_durations(alone, alone.operation_s + late_s, late_s, self._gather_s, self._sum_s)
        costs_more = [(one.term, one.longer_s) for one in (*flows.sent, *flows.streams)]
        by_process = partial(flows.works.by_process, played)
        longer = [(term, by_process(seconds)) for term, seconds in (*costs_more, *contended)]
        waited_s: Floats | float = 0.0
        if self._works is not None:  # for the last of a meeting
            waited_s = sum_by_process(played, played.operation_s - flows.priced.operation_s)
            waited_s -= sum(seconds for _, seconds in longer)
        execution = account(played, timeline, longer, waited_s)
        contention_s = np.zeros(len(execution.accounts))
        for term, seconds in longer[len(costs_more) :]:
            contention_s[term] += seconds.mean()
        gathering, summing = map(execution.accounts.index, ("parameter_gather", "gradient_sync"))
        contention_s[gathering] = (self._gather_s - flows.gather.exposed_s).mean()
        contention_s[summing] = (self._sum_s - flows.sync.exposed_s).mean()
        return execution, contention_s


class _Last:
    """Ends a meeting when the last of its works is over."""

    def __init__(self, env: simpy.Environment, works: int, ended: Callable[[float], None]) -> None:
        self._env, self._missing, self._ended = env, works, ended
        self._latest_s = 0.0

    def done(self, delay_s: float) -> None:
        """One of them is over so many seconds from now."""
        now_s = self._env.now
        self._latest_s = max(self._latest_s, now_s + delay_s)
        self._missing -= 1
        if not self._missing:
            self._ended(self._latest_s - now_s)
