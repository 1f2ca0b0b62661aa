"""What each micro-batch does of an operation: all of it, or where ranks meet in every layer its share of a meeting.

A meeting is one operation of several micro-batches (see meetings.py). They go through their layers together: each
waits in every layer for the slowest. So one that has less to do spreads what it sends over the time of the slowest:

    alone = its own transfers + what the slowest takes longer than it

The wait is a limit to its rate, as compute beside a transfer is. The share of each is an activity of its own, a *work*,
and the meeting ends with the last of them.

An empty pass gathers and reduces the parameters of every layer, as these collectives need all ranks. It sends nothing
else.
Ignored: that a work which falls behind slows down the others of its meeting before the end; the way back of experts'
all-to-alls, which is counted as another way there (the same where all send alike).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.step.step_traffic import StepTraffic, Traffic
from hdpsim.simulator.plan import HOLE, Entries, Plan
from hdpsim.simulator.play.accounts import sum_by_process
from hdpsim.simulator.play.meetings import Meetings
from hdpsim.simulator.play.pipeline.durations import Durations
from hdpsim.simulator.play.pipeline.program import Program


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Works:
    """Who sends in the operations of a program. Work c * micro-batches + m is what micro-batch m does in link c.

    Attributes:
        plan: groups that send. Behind its own micro-batches the empty passes of each meeting, as one more.
        traffic: what they send.
        operation: [works]: of which operation each is a part.
        meeting: where ranks meet; None: every operation is one work, of the same number.
    """

    plan: Plan
    traffic: StepTraffic
    operation: Ints
    meeting: WorksOfMeetings | None

    @classmethod
    def of(cls, program: Program) -> Works:
        """The works of a program."""
        traffic = program.costs.traffic
        assert traffic is not None, "whoever plays flows asks for traffic when the plan is priced"
        if program.met is None or program.given is None:
            operations = np.arange(len(program.operation_s))
            return cls(plan=program.plan, traffic=traffic, operation=operations, meeting=None)
        plan, costs, _ = program.given
        entries, of_unit = plan.entries, program.met.meeting
        held, rank = _empty_passes(program.met, program.plan)
        if len(held):
            meetings, sizes = np.unique(held, return_counts=True)
            of_unit = np.concatenate([of_unit, meetings])
            plan = replace(
                plan,
                member_ranks=np.concatenate([plan.member_ranks, rank]),
                member_offsets=np.concatenate(
                    [plan.member_offsets, len(plan.member_ranks) + np.cumsum(sizes)]
                ),
                offload_ratio=np.concatenate([plan.offload_ratio, np.zeros(len(meetings))]),
            )
            traffic = _with_empty_passes(traffic, len(meetings))
        operation = np.arange(program.chain.links)[:, None] * program.units + of_unit
        forward_s, backward_s, _ = Durations.of(costs, program.chain, entries, None, None).own
        meeting = WorksOfMeetings(
            program=program,
            met=program.met,
            entries=entries,
            of_unit=of_unit,
            forward_s=forward_s,
            backward_s=backward_s,
        )
        return cls(plan=plan, traffic=traffic, operation=operation.ravel(), meeting=meeting)

    @property
    def units(self) -> int:
        """Micro-batches, empty passes included."""
        return self.plan.micro_batches

    def of_operations(self) -> list[list[int]] | None:
        """The works of every operation; None: those of the same number."""
        if self.meeting is None:
            return None
        order = np.argsort(self.operation, kind="stable")
        bounds = np.flatnonzero(np.diff(self.operation[order], prepend=-1)).tolist()
        parts = order.tolist()
        return [parts[first:end] for first, end in zip(bounds, [*bounds[1:], None], strict=True)]

    def of_ranks(self, rank: list[int], operation: list[int]) -> list[int]:
        """What each *rank* does of an operation; HOLE: an empty pass."""
        if self.meeting is None:
            return operation
        works: list[int] = self.meeting.of_ranks(np.array(rank), np.array(operation)).tolist()
        return works

    def by_process(self, program: Program, work_s: Floats) -> Floats:
        """[stages, ranks]: sum over the works of each process."""
        return sum_by_process(program, work_s) if self.meeting is None else self.meeting.by_process(work_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorksOfMeetings:
    """Shares of micro-batches in the meetings of a program.

    Attributes:
        program: whose operations are meetings.
        met: the meetings.
        entries: of the plan that was given.
        of_unit: [units]: the meeting of each, those of empty passes last.
        forward_s: [virtual stages, micro-batches]: what each takes without the others, at the rates of its price.
        backward_s: the same of backwards, without weight gradients that run apart.
    """

    program: Program
    met: Meetings
    entries: Entries
    of_unit: Ints
    forward_s: Floats
    backward_s: Floats

    @property
    def micro_batches(self) -> int:
        """Without empty passes."""
        return len(self.met.meeting)

    def longer_s(self, forward_s: Floats, backward_s: Floats) -> Floats:
        """[operations]: what meetings take longer when forwards and backwards of [virtual stages, units] do."""
        both = (self.forward_s, forward_s), (self.backward_s, backward_s)
        return self.program.chain.along(
            *(
                self.met.largest(own_s + longer_s[:, : self.micro_batches]) - self.met.largest(own_s)
                for own_s, longer_s in both
            )
        ).ravel()

    def own_s(self, forward_s: Floats, backward_s: Floats) -> Floats:
        """[works]: what each takes without the others when forwards and backwards take so much longer."""
        forward_s, backward_s = forward_s.copy(), backward_s.copy()
        forward_s[:, : self.micro_batches] += self.forward_s
        backward_s[:, : self.micro_batches] += self.backward_s
        return self.program.chain.along(forward_s, backward_s).ravel()

    def largest(self, values: Floats) -> Floats:
        """[..., meetings] of [..., units], without empty passes."""
        return self.met.largest(values[..., : self.micro_batches])

    def by_process(self, work_s: Floats) -> Floats:
        """[stages, ranks]: sum over the works of each process."""
        program, (_, rank, _, unit) = self.program, self.entries
        total_s = np.zeros((program.stages, program.ranks))
        for stage, values in zip(
            program.chain.stage[0], work_s.reshape(program.chain.links, -1), strict=True
        ):
            total_s[stage] += np.bincount(rank, values[unit], program.ranks)
        return total_s

    def of_ranks(self, rank: Ints, operation: Ints) -> Ints:
        """What each *rank* does in that meeting; HOLE: an empty pass."""
        link, meeting = np.divmod(operation, self.program.units)
        unit = self.met.of_ranks(rank, meeting)
        return np.where(unit == HOLE, HOLE, link * len(self.of_unit) + unit)


def spread_s(sends_s: Floats, own_s: Floats, whole_s: Floats) -> Floats:
    """[works]: the time over which each sends what takes it *sends_s*, if its operation takes *whole_s*.

    *own_s*: what it takes without the others of its meeting.
    """
    waits_s = np.maximum(0.0, whole_s - np.maximum(own_s, sends_s))
    return np.where(sends_s > 0, np.minimum(sends_s + waits_s, whole_s), 0.0)


def _empty_passes(met: Meetings, plan: Plan) -> tuple[Ints, Ints]:
    """Meetings, and in each the ranks that have no micro-batch there; *plan*: of meetings."""
    meeting = np.repeat(np.arange(plan.micro_batches), plan.group_size)
    empty = met.of_ranks(plan.member_ranks, meeting) == HOLE
    return meeting[empty], plan.member_ranks[empty]


def _with_empty_passes(traffic: StepTraffic, count: int) -> StepTraffic:
    """*count* more micro-batches, which gather and reduce parameters beside nothing, as any other does."""

    def more(values: Floats, added: Floats | float) -> Floats:
        return np.concatenate([values, np.broadcast_to(added, (*values.shape[:-1], count))], axis=-1)

    def of_kind(one: Traffic) -> Traffic:
        sent, gathers = one.sent, float(one.kind == "shards")
        return replace(
            one,
            times=more(one.times, gathers * one.times[:, :1]),
            sent=SentTimes(
                times=more(sent.times, gathers * sent.times[:1]),
                hidden_s=more(sent.hidden_s, 0.0),
                fixed_s=more(sent.fixed_s, gathers * sent.fixed_s[:1]),
                sent_bytes=more(sent.sent_bytes, gathers * sent.sent_bytes[:1]),
                bytes_per_s=more(sent.bytes_per_s, sent.bytes_per_s[:1]),
            ),
        )

    passes = tuple(of_kind(one) for one in traffic.passes)
    return replace(
        traffic,
        passes=passes,
        transfer_bytes=more(traffic.transfer_bytes, 0.0),
        transfer_fixed_s=more(traffic.transfer_fixed_s, 0.0),
    )
