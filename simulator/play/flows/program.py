"""A program whose transfers share links: what every operation sends, and how long it takes while nothing else is sent.

An operation under flows takes

    rest + sum over its kinds of transfers of  times x max(hidden, fixed + bytes / rate)

With the rate that its price assumes this is its price. With the rate of its own routes it is its time *alone*: a
group's flows that meet on a link share it even so. The transfers of an operation are one activity of the network, that
runs first; the rest follows. What it moves to the host or back is another activity, beside all of that from its start
on; the operation ends when both have. So operations that run in step meet on shared links as much as they do in
reality, layer by layer, and others as much as their shares of time let expect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.network.links import Links
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.step.step_traffic import HOST_KINDS, StepTraffic, Traffic, TrafficKind
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.network.link_flaps_on_flows import Flap
from hdpsim.simulator.play.accounts import Timeline
from hdpsim.simulator.play.pipeline.chain import Chain
from hdpsim.simulator.play.pipeline.program import Program, add_runs
from hdpsim.simulator.play.replay import replay_timeline
from hdpsim.simulator.play.shortcuts.repeating_steps import steady_step

from .routes import Rows, StepRoutes, Wired
from .works import Works, spread_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SentByOperations:
    """Transfers of one kind in every operation.

    Attributes:
        kind: which rows of the routes they take.
        term: place in StepCosts.terms of what shows of them.
        alone_s: [works]
        longer_s: [works]: alone_s beyond what its price has of it.
        sent_bytes: [works]: by the busiest GPU.
    """

    kind: TrafficKind
    term: int
    alone_s: Floats
    longer_s: Floats
    sent_bytes: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeTraffic:
    """Collectives of a stage at one edge of the step. Arrays over stages.

    Attributes:
        exposed_s: what shows of them, alone.
        hidden_s: what runs beside compute, alone.
        exposed_share: share of the bytes that exposed_s sends.
    """

    exposed_s: Floats
    hidden_s: Floats
    exposed_share: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowProgram:
    """A program and what it sends.

    Attributes:
        priced: the program whose durations are prices.
        alone: the same with the durations that its own routes give, nothing else on them.
        routes: who sends over which links.
        works: what micro-batches do of operations.
        sent: by kind of transfer.
        streams: what goes to hosts and comes back beside all that an operation does; nothing is in both.
        sending_s: [works]: the part of the operation's time alone in which it sends, waits for its meeting included.
        streaming_s: [works]: the part of it in which it streams.
        gather: parameters before the step.
        sync: gradients after it.
        flaps: links that go down meanwhile.
        played: the step as it is while nothing is shared.
    """

    priced: Program
    alone: Program
    played: Timeline
    routes: StepRoutes
    works: Works
    sent: tuple[SentByOperations, ...]
    streams: tuple[SentByOperations, ...]
    sending_s: Floats
    streaming_s: Floats
    gather: EdgeTraffic
    sync: EdgeTraffic
    flaps: tuple[Flap, ...] = ()

    @classmethod
    def of(cls, program: Program, wired: Wired) -> FlowProgram:
        """What *program* sends over the links that it is given.

        Raises:
            InfeasibleError: a schedule that overlaps pairs of operations.
        """
        check_flows(program.costs)
        costs, works, chain = program.costs, Works.of(program), program.chain
        traffic, pairs = works.traffic, sorted(set(stage_pairs(chain)))
        routes = StepRoutes.of(wired, works.plan, traffic, pairs, by_rank=not costs.pp_overlap)
        links = routes.links
        factor = _noise_factor(program)
        moved = [_moved(program, works, one, routes, factor) for one in traffic.passes]
        sent = tuple(one.sent for one in moved if one.sent.kind not in HOST_KINDS)
        streams = tuple(one.sent for one in moved if one.sent.kind in HOST_KINDS)
        nothing = np.zeros(len(works.operation))
        sending_s, streaming_s = (sum((one.alone_s for one in some), nothing) for some in (sent, streams))
        if works.meeting is None:
            longer_s = sum((one.sent.longer_s for one in moved), nothing)
            own_s = operation_s = program.operation_s + longer_s
        else:
            passes = _longer_passes(program, works, moved)
            longer_s = works.meeting.longer_s(*passes) * factor
            operation_s = program.operation_s + longer_s
            own_s = works.meeting.own_s(*passes) * factor[works.operation]
        whole_s = operation_s[works.operation]
        sending_s, streaming_s = (spread_s(some_s, own_s, whole_s) for some_s in (sending_s, streaming_s))
        gather = _edge(costs.epilogue.parameter_gather_s, traffic.gather_s, routes.gathers, traffic, links)
        sync = _edge(costs.epilogue.gradient_sync_s, traffic.sync_s, routes.sums, traffic, links)
        extras, delay_s = program.extras, _transfers_alone_s(program, works, routes).ravel()
        alone = replace(
            with_durations(program, operation_s, longer_s, gather.exposed_s, sync.exposed_s),
            result_delay_s=delay_s,
            extras=None if extras is None else extras.with_delays(program.part_operation, delay_s),
        )
        return cls(
            priced=program,
            alone=alone,
            played=steady_step(alone.costs, partial(replay_timeline, alone)),
            routes=routes,
            works=works,
            sent=sent,
            streams=streams,
            sending_s=sending_s,
            streaming_s=streaming_s,
            gather=gather,
            sync=sync,
            flaps=wired.flaps,
        )

    def carried_bytes(self) -> Floats:
        """[links]: what each carries in the step; nothing on links that hold nobody up, unless all are recorded."""
        routes, traffic, chain = self.routes, self.works.traffic, self.priced.chain
        carried = np.zeros(len(routes.links))

        def add(rows: Rows, sent_bytes: Floats) -> None:
            np.add.at(carried, rows.link, rows.flows * sent_bytes[rows.row])

        row, _ = row_of_stage(self)
        for sending in (*self.sent, *self.streams):
            rows = routes.passes[sending.kind]
            add(rows, np.bincount(row, sending.sent_bytes, len(rows.largest)).astype(np.float64))
        sent_bytes = np.bincount(routes.group_of_unit, traffic.transfer_bytes, routes.groups)
        for pair in stage_pairs(chain):
            if pair in routes.transfers:
                add(routes.transfers[pair], sent_bytes.astype(np.float64))
        for rows in (routes.gathers, routes.sums):
            add(rows, np.ones(len(rows.largest)))
        return np.where(routes.follows >= 0, carried[routes.follows], 0.0)


def check_flows(costs: StepCosts) -> None:
    """Refuse what transfers that share links cannot be played with."""
    if costs.schedule == "dualpipe":
        raise InfeasibleError(
            "execution.network = flows does not play overlapped pairs of operations (layout.schedule = dualpipe): use "
            "another schedule, or execution.network = independent"
        )


def with_durations(
    program: Program, operation_s: Floats, longer_s: Floats, gather_s: Floats, sync_s: Floats
) -> Program:
    """The program whose operations take so long, *longer_s* more than before, gathers and sums of every stage, too."""
    own_s = program.part_own_s
    epilogue = replace(program.costs.epilogue, parameter_gather_s=gather_s, gradient_sync_s=sync_s)
    return replace(
        program,
        costs=replace(program.costs, epilogue=epilogue),
        operation_s=operation_s,
        part_own_s=None if own_s is None else own_s + longer_s[program.part_operation],
    )


def stage_pairs(chain: Chain) -> list[tuple[int, int]]:
    """The stages between which each link of the chain that sends does so."""
    sends = np.flatnonzero(chain.sends)
    return list(zip(chain.stage[0, sends].tolist(), chain.stage[0, sends + 1].tolist(), strict=True))


def _noise_factor(program: Program) -> Floats:
    """[operations]: how many times as long as its price an operation takes under noise."""
    if program.times.factors is None:
        return np.ones(len(program.operation_s))
    forward_s, backward_s, _ = program.times.own
    base_s = _by_operation(program, forward_s, backward_s)
    return np.divide(program.operation_s, base_s, out=np.ones_like(base_s), where=base_s > 0)


def _by_operation(program: Program, forward: Floats, backward: Floats) -> Floats:
    """[operations] from [virtual stages, micro-batches] of forwards and backwards."""
    values = program.chain.along(forward, backward).ravel()
    if program.chain.links > 1:
        return values
    merged = np.zeros_like(values)
    starts = program.unit_entries
    merged[program.entries.micro_batch[starts]] = add_runs(values[program.entries.micro_batch], starts)
    return merged


class _Moved(NamedTuple):
    """What works send of one kind, and what they take longer for it: [virtual stages, micro-batches] of one pass."""

    sent: SentByOperations
    backward: bool
    longer_s: Floats


def _moved(program: Program, works: Works, traffic: Traffic, routes: StepRoutes, factor: Floats) -> _Moved:
    chain, costs = program.chain, program.costs
    rate = routes.burst_bytes_per_s(traffic.kind)
    burst = rate[chain.stage[0, : chain.virtual_stages][:, None] * routes.groups + routes.group_of_unit]
    by_virtual = replace(traffic, times=traffic.times[chain.kinds(costs.kind)])
    assumed = np.broadcast_to(traffic.sent.bytes_per_s, burst.shape)
    if traffic.kind in HOST_KINDS:  # the price has what others at the same host leave
        burst = np.minimum(burst, assumed)
    alone_s = by_virtual.seconds(np.where(np.isfinite(burst), burst, assumed))
    longer_s = alone_s - by_virtual.seconds(assumed)
    nothing = np.zeros_like(alone_s)

    def along(values: Floats) -> Floats:
        sides = (nothing, values) if traffic.backward else (values, nothing)
        if works.meeting is None:
            return _by_operation(program, *sides)
        return chain.along(*sides).ravel()

    of_work = factor if works.meeting is None else factor[works.operation]
    sent = SentByOperations(
        kind=traffic.kind,
        term=traffic.term,
        alone_s=along(alone_s) * of_work,
        longer_s=along(longer_s) * of_work,
        sent_bytes=along(by_virtual.times * traffic.sent.sent_bytes),
    )
    return _Moved(sent, traffic.backward, longer_s)


def _longer_passes(program: Program, works: Works, moved: list[_Moved]) -> tuple[Floats, Floats]:
    """[virtual stages, micro-batches]: what forwards and backwards take longer for all they send."""
    forward_s, backward_s = np.zeros((2, program.chain.virtual_stages, works.units))
    for one in moved:
        longer_s = backward_s if one.backward else forward_s
        longer_s += one.longer_s
    return forward_s, backward_s


def _transfers_alone_s(program: Program, works: Works, routes: StepRoutes) -> Floats:
    """[links of the chain, units]: latency and wire of each operation's result; of a meeting the slowest."""
    traffic = works.traffic
    delay_s = np.zeros((program.chain.links, works.units))
    capacity = routes.links.capacity_bytes_per_s
    rates = {pair: rows.bytes_per_s(capacity) for pair, rows in routes.transfers.items()}
    for link, pair in zip(np.flatnonzero(program.chain.sends), stage_pairs(program.chain), strict=True):
        if pair in rates:
            rate = rates[pair][routes.group_of_unit]
            rate = np.where(np.isfinite(rate), rate, traffic.node_bytes_per_s)
            delay_s[link] = traffic.transfer_fixed_s + traffic.transfer_bytes / rate
    return delay_s if works.meeting is None else works.meeting.largest(delay_s)


def _edge(shown_s: Floats, whole_s: Floats, rows: Rows, traffic: StepTraffic, links: Links) -> EdgeTraffic:
    """*shown_s* of collectives that take *whole_s* at the rate that is assumed, at the rate of their own routes."""
    parts = traffic.gathers if whole_s is traffic.gather_s else traffic.sums
    assumed_s = sum((part.sent_bytes / part.bytes_per_s for part in parts), np.zeros(len(whole_s)))
    routed_s = 1.0 / rows.bytes_per_s(links.capacity_bytes_per_s)
    both_known = (whole_s > 0) & (routed_s > 0)
    alone_s = np.where(both_known, whole_s - np.minimum(assumed_s, whole_s) + routed_s, whole_s)
    ratio = np.divide(alone_s, whole_s, out=np.ones_like(whole_s), where=both_known)
    share = np.divide(shown_s, whole_s, out=np.ones_like(whole_s), where=whole_s > 0)
    share = np.minimum(1.0, share)
    return EdgeTraffic(exposed_s=shown_s * ratio, hidden_s=alone_s * (1.0 - share), exposed_share=share)


def row_of_stage(program: FlowProgram) -> tuple[Ints, Ints]:
    """[works]: the row of passes, and the group."""
    chain, routes = program.priced.chain, program.routes
    rows = chain.stage[0][:, None] * routes.groups + routes.group_of_unit
    return rows.ravel(), np.broadcast_to(routes.group_of_unit, rows.shape).ravel()
