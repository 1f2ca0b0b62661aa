"""The discrete-event engine: plays a plan with SimPy.

The semantics are those in replay.py. Processes are pipeline stages of ranks. An operation is one event, shared by the
members of its group; it is scheduled once its last party is there, over its transfer and its duration at once, since
both are known by then and nothing can observe the moment between them.

A step is played alone (`run_engine`): ranks that share nothing one bundle after the other, each in an environment of
its own. Or it is played in a given environment (`StepPlay.start`), beside whatever else happens there: then all its
times are those of that environment's clock.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import simpy

from hdpsim.arrays import Floats
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.play.accounts import StepEnd, Timeline, account, make_spans
from hdpsim.simulator.play.execution import Execution, Noise
from hdpsim.simulator.play.meetings import joined
from hdpsim.simulator.play.pipeline.common_ends import ALONE
from hdpsim.simulator.play.pipeline.deadlock import deadlock_error
from hdpsim.simulator.play.pipeline.program import Program, compile_program
from hdpsim.simulator.play.shortcuts.repeating_steps import steady_step

BUNDLE_PROCESSES = 256
"""Processes played together at least, if there are so many: few enough for the caches."""

_Process = Generator[simpy.Event, None, None]


def run_engine(plan: Plan, costs: StepCosts, noise: Noise | None = None, spans: bool = False) -> Execution:
    """Play *plan* and return the step's time, where it went and, if asked for, all *spans*.

    Raises:
        DeadlockError: the orders of the ranks contradict each other.
    """
    program = compile_program(plan, costs, noise)
    events = 0

    def play(begin_s: Floats) -> Timeline:
        nonlocal events
        step = StepPlay(program)
        timeline = step.run_alone(begin_s)
        events = step.events
        return timeline

    timeline = steady_step(costs, play)
    shown = make_spans(program, timeline) if spans else None
    return replace(account(program, timeline), spans=shown, events=events)


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause Python's cyclic garbage collector.

    It walks through all waiting processes again and again: at 131,072 GPUs in two stages it took a fifth to a
    third of the time. A run makes no cycles, so nothing piles up meanwhile.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Operation(simpy.Event):
    """The end of an operation: everybody who takes part in it waits for this event."""

    def __init__(self, env: simpy.Environment, number: int) -> None:
        super().__init__(env)
        self.number = number

    def end_after(self, delay_s: float) -> None:
        """Like succeed(), but *delay_s* from now; a Timeout would need the delay when it is made."""
        self._ok = True
        self._value = None
        self.env.schedule(self, delay=delay_s)


class _Barrier:
    """Releases all parties once the last one has arrived."""

    def __init__(self, env: simpy.Environment, parties: int) -> None:
        self._missing, self.release = parties, env.event()

    def arrive(self) -> simpy.Event:
        """Return the event that fires when all are there."""
        self._missing -= 1
        if self._missing == 0:
            self.release.succeed()
        return self.release


class StepPlay:
    """One step of a program. Arrays are turned to lists: reading one element of an array costs ten times as much.

    Attributes:
        stage_ended: of a step in a given environment, by stage: fires when its optimizer is done.
        events: SimPy events of the step.
    """

    def __init__(self, program: Program) -> None:
        self._program, self._epilogue = program, program.costs.epilogue
        operations = len(program.operation_s)
        self._units = program.units
        self._duration_s: list[float] = program.operation_s.tolist()
        self._result_delay_s: list[float] = program.result_delay_s.tolist()
        self._missing: list[int] = program.parties.tolist()
        self._input_s = [0.0] * operations
        self._start_s = [0.0] * operations
        self._end_s = [float("nan")] * operations  # NaN: not played
        self._part_operation: list[int] = program.part_operation.tolist()
        self._waiting: list[Operation | None] = [None] * operations
        self._on_end = self._operation_ended
        self._meeting: list[int] = []
        if (common := program.common_ends) is not None:
            self._meeting, self._parties = common.meeting.tolist(), common.parties.tolist()
            self._computed_s = list(self._end_s)
            self._met: dict[int, list[Operation]] = {}
        self._env = simpy.Environment()
        self._begin_s = [0.0] * program.stages
        self._done_s = [0.0] * program.processes
        self._sync_start_s = [0.0] * program.stages
        self._optimizer_start_s = [0.0] * program.stages
        self._stage_by_stage = program.stage_by_stage
        if (extras := program.extras) is not None:
            self._feed_offsets: list[int] = extras.feed_offsets.tolist()
            self._feed_after: list[int] = extras.feeds.after.tolist()
            self._feed_delay_s: list[float] = extras.feeds.delay_s.tolist()
            self._on_end = self._operation_with_feeds_ended
        self.stage_ended: tuple[simpy.Process, ...] = ()
        self.events = 0

    def run_alone(self, begin_s: Floats) -> Timeline:
        """Play the step, whose stages begin at *begin_s*, to its end.

        Raises:
            DeadlockError: the orders of the ranks contradict each other.
        """
        bundles, self._begin_s = _bundles(self._program), begin_s.tolist()
        opening_s: list[float] = (self._program.opening_s + begin_s).tolist()
        with without_collector():
            for ranks in bundles:
                env = self._env = simpy.Environment()
                self._begin_ranks(ranks, [env.timeout(seconds) for seconds in opening_s])
                env.run()
        self.check_played()
        done_s = np.array(self._done_s).reshape(self._program.stages, self._program.ranks)
        env = self._env = simpy.Environment()
        self._begin_ends([env.timeout(seconds) for seconds in done_s.max(axis=1).tolist()])
        env.run()
        self._count_events(len(bundles))
        return self._timeline()

    def start(self, env: simpy.Environment, begins: Sequence[simpy.Event]) -> simpy.Process:
        """Play the step in *env*; *begins*: by stage, the event with which it begins.

        The process ends with the step and its value is the Timeline. If *env* has run out of events before that, the
        orders of the ranks contradict each other, and check_played says where.
        """
        program, self._env = self._program, env
        done = [_Barrier(env, program.ranks) for _ in begins]
        openings = [env.process(self._opening(stage, begin)) for stage, begin in enumerate(begins)]
        self._begin_ranks(list(range(program.ranks)), openings, done)
        self.stage_ended = self._begin_ends([barrier.release for barrier in done])
        return env.process(self._until_all_ended())

    def check_played(self) -> None:
        """Raise DeadlockError if an operation was not played."""
        played = ~np.isnan(np.array(self._end_s))
        if not played[self._program.part_operation].all():
            raise deadlock_error(self._program, played)

    def _until_all_ended(self) -> Generator[simpy.Event, None, Timeline]:
        yield from self.stage_ended
        self._count_events(bundles=1)
        return self._timeline()

    def _opening(self, stage: int, begin: simpy.Event) -> _Process:
        yield begin
        self._begin_s[stage] = self._env.now
        yield self._env.timeout(self._epilogue.data_s)
        yield from self._gather(stage)

    def _gather(self, stage: int) -> _Process:
        """What shows of gathering parameters."""
        yield self._env.timeout(float(self._epilogue.parameter_gather_s[stage]))

    def _begin_ranks(
        self, ranks: list[int], openings: Sequence[simpy.Event], done: Sequence[_Barrier] | None = None
    ) -> None:
        """Begin the operations of *ranks*; *done*: by stage, who waits for their ends."""
        program, extras = self._program, self._program.extras
        wait_s: list[float] | None = None
        tail_s = 0.0
        for stage, opening in enumerate(openings):
            barrier = done[stage] if done else None
            for rank in ranks:
                process = stage * program.ranks + rank
                own = slice(*program.part_offsets[process : process + 2].tolist())
                if extras is not None:
                    wait_s, tail_s = extras.part_wait_s[own].tolist(), float(extras.tail_s[process])
                operations = self._part_operation[own]
                self._env.process(self._stage_of_rank(process, opening, operations, barrier, wait_s, tail_s))

    def _begin_ends(self, done: Sequence[simpy.Event]) -> tuple[simpy.Process, ...]:
        """Begin what follows the operations; *done*: by stage, when all its ranks have run theirs."""
        env, summed = self._env, _Barrier(self._env, len(done))
        ends = (self._end_of_stage(stage, event, summed) for stage, event in enumerate(done))
        return tuple(env.process(end) for end in ends)

    def _count_events(self, bundles: int) -> None:
        # Besides the operations: start and end of every process, opening of every stage, work behind the last
        # operation; then start, end and three timeouts of every stage and one barrier of all of them.
        program = self._program
        played = int(np.count_nonzero(~np.isnan(np.array(self._end_s))))
        tails = 0 if program.extras is None else int(np.count_nonzero(program.extras.tail_s))
        stages = bundles * program.stages + 5 * program.stages + (not self._stage_by_stage)
        self.events = played + tails + 2 * program.processes + stages

    def _timeline(self) -> Timeline:
        program, begin_s = self._program, np.array(self._begin_s)
        optimizer_start_s = np.array(self._optimizer_start_s)
        step_end = StepEnd(
            begin_s=begin_s,
            done_s=np.array(self._done_s).reshape(program.stages, program.ranks),
            sync_start_s=np.array(self._sync_start_s),
            optimizer_start_s=optimizer_start_s,
            step_s=float((optimizer_start_s + self._epilogue.optimizer_s - begin_s).max()),
        )
        # It refers to this object: without the cycle memory is free as soon as the step is over.
        del self._on_end
        computed_s = np.array(self._computed_s) if self._meeting else None
        return Timeline(np.array(self._start_s), np.array(self._end_s), step_end, computed_s=computed_s)

    def _stage_of_rank(
        self,
        process: int,
        opening: simpy.Event,
        operations: list[int],
        done: _Barrier | None,
        wait_s: list[float] | None,
        tail_s: float,
    ) -> _Process:
        """*wait_s*: of weight gradients or transfers before operations, which end at a time known beforehand."""
        yield opening
        arrive, input_s, env = self._arrive, self._input_s, self._env
        if wait_s is None:
            yield from map(arrive, operations)
        for operation, seconds in zip(operations, wait_s or (), strict=False):
            ready_s = env.now + seconds
            if ready_s > input_s[operation]:
                input_s[operation] = ready_s
            yield arrive(operation)
        if tail_s:
            yield env.timeout(tail_s)
        self._done_s[process] = env.now
        if done is not None:
            done.arrive()

    def _end_of_stage(self, stage: int, done: simpy.Event, summed: _Barrier) -> _Process:
        """Gradients and optimizer, from the moment when all ranks of the stage are *done*."""
        env = self._env
        yield done
        self._sync_start_s[stage] = env.now
        yield from self._sum(stage)
        if not self._stage_by_stage:
            yield summed.arrive()
        self._optimizer_start_s[stage] = env.now
        yield env.timeout(float(self._epilogue.optimizer_s[stage]))

    def _sum(self, stage: int) -> _Process:
        """What shows of summing gradients."""
        yield self._env.timeout(float(self._epilogue.gradient_sync_s[stage]))

    def _arrive(self, number: int) -> Operation:
        """A member is ready for an operation; return the event of its end."""
        operation = self._waiting[number]
        if operation is None:
            operation = self._waiting[number] = Operation(self._env, number)
            operation.callbacks.append(self._on_end)
        missing = self._missing[number] = self._missing[number] - 1
        if missing == 0:
            self._start(operation)
        return operation

    def _start(self, operation: Operation) -> None:
        """Start an operation: all parties are there or, for its input, known to come."""
        number, now_s = operation.number, self._env.now
        start_s = max(now_s, self._input_s[number])
        self._start_s[number] = start_s
        self._end(operation, start_s - now_s + self._duration_s[number])

    def _end(self, operation: Operation, delay_s: float) -> None:
        """An operation has been computed *delay_s* from now; those that end together do with the last of them."""
        meeting = self._meeting[operation.number] if self._meeting else ALONE
        if meeting == ALONE:
            operation.end_after(delay_s)
            return
        now_s, computed_s = self._env.now, self._computed_s
        computed_s[operation.number] = now_s + delay_s
        met = self._met.setdefault(meeting, [])
        met.append(operation)
        if len(met) == self._parties[meeting]:
            latest_s = max(computed_s[member.number] for member in self._met.pop(meeting))
            for member in met:
                member.end_after(max(0.0, latest_s - now_s))

    def _operation_ended(self, operation: simpy.Event) -> None:
        """Send the result to the next operation of the chain."""
        assert isinstance(operation, Operation)
        number = operation.number
        now_s = self._end_s[number] = self._env.now
        self._waiting[number] = None
        if number + self._units < len(self._missing):
            self._send(number, now_s)

    def _send(self, number: int, now_s: float) -> None:
        """The result of an operation goes to the next one of its chain."""
        self._feed(number + self._units, now_s + self._result_delay_s[number])

    def _operation_with_feeds_ended(self, operation: simpy.Event) -> None:
        """Tell the operations that wait for this one besides the next of the chain."""
        self._operation_ended(operation)
        assert isinstance(operation, Operation)
        number, now_s = operation.number, self._env.now
        for place in range(self._feed_offsets[number], self._feed_offsets[number + 1]):
            self._feed(self._feed_after[place], now_s + self._feed_delay_s[place])

    def _feed(self, number: int, arrival_s: float) -> None:
        """Something an operation waits for arrives then."""
        if arrival_s > self._input_s[number]:
            self._input_s[number] = arrival_s
        missing = self._missing[number] = self._missing[number] - 1
        if missing == 0:
            waiting = self._waiting[number]
            assert waiting is not None, "all members have arrived, so the first of them made the event"
            self._start(waiting)


def _bundles(program: Program) -> list[list[int]]:
    """Ranks in bundles that share nothing with each other, of BUNDLE_PROCESSES or one tied group each.

    Nothing one bundle does is seen by another before the gradients, so each is played on its own: the queue of events
    stays short and what it touches in the cache. At 131,072 GPUs an event took 4.9 us in one queue of 16,384 processes
    and 2.8 us in bundles, as at 1,024 GPUs (CPU time).
    """
    if program.common_ends is not None:
        return [list(range(program.ranks))]
    tied = joined(program.plan.member_ranks, program.plan.member_offsets[:-1], program.ranks)
    order = np.argsort(tied, kind="stable")
    starts = np.flatnonzero(np.diff(tied[order], prepend=-1))
    most = max(1, BUNDLE_PROCESSES // program.stages)
    bundles, first = list[list[int]](), 0
    for end in [*starts[1:].tolist(), program.ranks]:
        if end - first >= most or end == program.ranks:
            bundles.append(order[first:end].tolist())
            first = end
    return bundles
