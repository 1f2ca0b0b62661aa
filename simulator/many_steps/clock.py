"""A run of many steps in one SimPy environment: whoever a step waits for is a process of its own.

    loaders -> planner -> [queue of batches that are ready] -> steps -> checkpoints -> storage
       ^                                                        |                        ^
       +---------- a place in the queue is free again ----------+     (loaders read from it, too)

* Loaders read a batch from the storage, at most at the rate of their nodes; then the one planner gathers its metadata,
  plans it and sends the plan. Loaders and planner work on one batch at a time, each on its own.
* With q batches on their way beside training a batch is begun when the q-th before it has been taken; without
  prefetching when the step before it has ended.
* A step begins when the step before lets it, its batch is planned and its hosts have room for what it offloads. Steps
  of zero-bubble schedules without a barrier follow each other stage by stage.
* A checkpoint follows every so many steps: it waits until the one before has been written, holds up training while
  states are copied to the hosts, and is then written to the storage beside training.

Steps are played beforehand where nothing else on the clock can reach into them (`PreparedStep`), which is exact; with
execution.executor = engine event by event in this environment. Transfers that share links (execution.network = flows)
do so within a step; with the engine, or without a barrier between steps, with those of the steps beside it as well.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import simpy

from hdpsim.arrays import Floats
from hdpsim.cost_models.network.links import Links
from hdpsim.simulator.many_steps.checkpoints import Checkpoints, checkpoints_of
from hdpsim.simulator.many_steps.host_memory import HostedStep, HostMemory, host_room_bytes
from hdpsim.simulator.many_steps.lanes import Record
from hdpsim.simulator.many_steps.options import RunOptions
from hdpsim.simulator.many_steps.prepared_step import PreparedStep
from hdpsim.simulator.many_steps.storage import SharedStorage, Storage, StorageOnNics, with_storage
from hdpsim.simulator.network.flows import FlowNetwork
from hdpsim.simulator.play.engine import StepPlay
from hdpsim.simulator.play.flows.engine import FlowStep
from hdpsim.simulator.playing import wired
from hdpsim.simulator.setup import Setup

_Process = Generator[simpy.Event, Any, None]
_Waits = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One step of a run, and what it waited for.

    Attributes:
        number: from 1.
        start_s: when its first stage began, on the clock of the run.
        end_s: when its last stage ended.
        step_s: the step itself.
        wait_data_s: from the end of the step before (of its first stage) until the batch was loaded.
        wait_plan_s: after that, until it was planned.
        wait_checkpoint_s: for the checkpoint between the two steps.
        wait_host_memory_s: for room on the hosts.
        contention_s: what storage traffic on its links adds to the step.
        carry_over_s: what stages that began at different times add or save; 0 where a barrier ends each step.
        ready_batches: further batches that were ready when it began.
    """

    number: int
    start_s: float
    end_s: float
    step_s: float
    wait_data_s: float
    wait_plan_s: float
    wait_checkpoint_s: float
    wait_host_memory_s: float
    contention_s: float
    carry_over_s: float
    ready_batches: int
    step: PreparedStep

    @property
    def waited_s(self) -> float:
        """Seconds of everything that the step waited for."""
        return self.wait_data_s + self.wait_plan_s + self.wait_checkpoint_s + self.wait_host_memory_s

    @property
    def period_s(self) -> float:
        """From the end of the step before to its own end: periods add up to the run."""
        return self.waited_s + self.step_s + self.contention_s + self.carry_over_s

    def without_waits(self) -> RunStep:
        """Return the step as if it had waited for nothing."""
        return replace(self, wait_data_s=0.0, wait_plan_s=0.0, wait_checkpoint_s=0.0, wait_host_memory_s=0.0)

    @property
    def account_s(self) -> dict[str, float]:
        """Seconds of the period in each account of a step, and what the clock adds to them."""
        accounts = dict(self.step.account_s)
        accounts["data"] += self.wait_data_s
        accounts["planning"] += self.wait_plan_s
        return accounts | {
            "wait_checkpoint": self.wait_checkpoint_s,
            "wait_host_memory": self.wait_host_memory_s,
            "contention": self.contention_s,
            "carry_over": self.carry_over_s,
        }


class _Ready(NamedTuple):
    """A batch that was loaded and planned."""

    step: PreparedStep
    number: int
    planning_s: float
    """When planning began."""
    ready_s: float
    """When the plan had reached all ranks."""


@dataclass(slots=True)
class _Running:
    """A step under way.

    Attributes:
        first_end: fires when the next step may begin on a stage.
        last_end: fires when all stages have ended.
        ends_s: [S]: when stages end, as far as it is known: of those that have ended, and of steps played beforehand.
        stage_ended: fires when that stage ends; only of steps that are played event by event.
    """

    first_end: simpy.Event
    last_end: simpy.Event
    ends_s: Floats
    stage_ended: list[simpy.Event]

    @property
    def first_end_s(self) -> float:
        """When first_end fired."""
        return float(np.nanmin(self.ends_s)) if self.first_end is not self.last_end else self.last_end_s

    @property
    def last_end_s(self) -> float:
        """When last_end fired."""
        return float(self.ends_s.max())


def run_of(setup: Setup, steps: Iterable[PreparedStep], options: RunOptions, *, record: bool = False) -> Run:
    """The run of *steps*, which were prepared for this setup with these options."""
    return Run(
        steps,
        storage_bytes_per_s=options.storage_bytes_per_s,
        host_room_bytes=host_room_bytes(setup),
        checkpoints=checkpoints_of(setup, options),
        links=wired(setup).links if setup.execution.network == "flows" else None,
        storage_on_nics=options.storage_nics == "shared",
        record=record,
    )


class Run:
    """Steps on one clock.

    Attributes:
        storage: what loaders and checkpoints share.
        memory: of the fullest host.
        record: what happened, if it is kept.
        planner_busy_s: time the planner worked.
        loaders_busy_s: time the loaders worked on some batch.
    """

    def __init__(
        self,
        steps: Iterable[PreparedStep],
        *,
        storage_bytes_per_s: float,
        host_room_bytes: float | None,
        checkpoints: Checkpoints | None = None,
        links: Links | None = None,
        storage_on_nics: bool = False,
        record: bool = False,
    ) -> None:
        """*steps* are taken as loaders come to them; *links*: what transfers of steps share, if they do."""
        self.record = Record(kept=record)
        self._env = simpy.Environment()
        self.storage: SharedStorage = Storage(self._env, storage_bytes_per_s, self.record)
        self._network: FlowNetwork | None = None
        if links is not None:
            self._network = FlowNetwork(self._env, with_storage(links, storage_bytes_per_s))
            if storage_on_nics:
                self.storage = StorageOnNics(self._network)
        self.memory = HostMemory(self._env, host_room_bytes, self.record)
        self.planner_busy_s = self.loaders_busy_s = 0.0
        self._checkpoints = checkpoints
        self._steps = iter(steps)
        self._failure: BaseException | None = None
        self._next: PreparedStep | None = None
        self._take_next()
        self._ahead = self._next.path.ahead_steps if self._next else 0
        self._stages = self._next.stages if self._next else 1
        self._places = simpy.Container(self._env, init=max(1, self._ahead))
        self._loaded = simpy.Store(self._env)
        self._ready = simpy.Store(self._env)
        self._upload: simpy.Event | None = None
        self._played: StepPlay | None = None
        self._loading = self._begun = 0  # the last batch that loaders, and that GPUs have begun with
        self._ended: list[RunStep] = []
        self._env.process(self._load())
        self._env.process(self._plan())
        self._env.process(self._train())

    @property
    def now_s(self) -> float:
        """The clock."""
        return float(self._env.now)

    def __iter__(self) -> Iterator[RunStep]:
        """Every step when it has ended. What goes wrong with a later one is raised after them.

        Raises:
            OutOfMemoryError: a step finds no room on the hosts, and never will.
            DeadlockError: the orders of the ranks of a step contradict each other.
        """
        while True:
            try:
                while not self._ended and self.memory.refused is None:
                    self._env.step()
                    self._take_next()
            except simpy.core.EmptySchedule:
                break
            if self.memory.refused is not None:
                break
            yield self._ended.pop(0)
        if self._failure is not None:
            raise self._failure
        self.memory.check()
        if isinstance(self._played, HostedStep):
            self._played.check_room(self._begun)
        if self._played is not None:
            self._played.check_played()

    def _take_next(self) -> None:
        """Fetch a step for the loaders, outside of the environment: it would wrap what is raised."""
        if self._next is None and self._failure is None:
            try:
                self._next = next(self._steps, None)
            except (Exception, KeyboardInterrupt) as error:
                self._failure = error

    def _load(self) -> _Process:
        env = self._env
        while True:
            yield self._places.get(1)
            step, self._next = self._next, None
            if step is None:
                break
            number = self._loading = self._loading + 1
            path = step.path
            yield self.memory.take(path.host_bytes, f"batch {number}")
            begin_s = env.now
            if path.read_bytes:
                fastest = path.read_bytes / path.loading_s if path.loading_s else np.inf
                yield self.storage.transfer(path.read_bytes, fastest, "read")
            else:
                yield env.timeout(path.loading_s)
            self.loaders_busy_s += env.now - begin_s
            self.record.span("loaders", "load", number, begin_s, env.now)
            yield self._loaded.put((step, number))
        yield self._loaded.put(None)

    def _plan(self) -> _Process:
        env = self._env
        while True:
            item = yield self._loaded.get()
            if item is None:
                break
            step, number = item
            path, begin_s = step.path, env.now
            for name, seconds in (("gather", path.gather_s), ("plan", path.plan_s), ("send", path.send_s)):
                if seconds:
                    part_s = env.now
                    yield env.timeout(seconds)
                    self.record.span("planner", name, number, part_s, env.now)
            self.planner_busy_s += env.now - begin_s
            yield self._ready.put(_Ready(step, number, begin_s, env.now))
            self.record.value("batches ready", env.now, len(self._ready.items))
        yield self._ready.put(None)

    def _train(self) -> _Process:
        """Steps, one after the other, with checkpoints between them."""
        env, start = self._env, self._env.event().succeed()
        running = _Running(start, start, np.zeros(self._stages), [start] * self._stages)
        while True:
            yield running.first_end
            at_s = running.first_end_s
            waited = dict.fromkeys(("checkpoint", "data", "plan", "host_memory"), 0.0)
            if self._checkpoint_due:
                yield running.last_end
                yield from self._checkpoint()
                waited["checkpoint"], at_s = env.now - at_s, env.now
            ready = yield self._ready.get()
            if ready is None:
                break
            if ready.ready_s > at_s:
                waited["plan"] = ready.ready_s - max(at_s, ready.planning_s)
                waited["data"] = ready.ready_s - at_s - waited["plan"]
                at_s = ready.ready_s
            room = self.memory.take(ready.step.host_bytes, f"step {ready.number}")
            asked_s = env.now
            yield room
            if env.now > asked_s:
                waited["host_memory"], at_s = env.now - at_s, env.now
            self.memory.give(ready.step.path.host_bytes)
            self._begun = ready.number
            self.record.value("batches ready", env.now, len(self._ready.items))
            if self._ahead:
                yield self._places.put(1)
            in_queue = len(self._ready.items)
            before, running = running, self._begin(ready.step, running, at_s)
            env.process(self._end(ready, before, running, at_s, waited, in_queue))

    @property
    def _checkpoint_due(self) -> bool:
        """Whether a checkpoint follows the step that has ended; the last one of a run has none."""
        over = self._next is None and self._begun == self._loading
        if self._checkpoints is None or not self._begun or over:
            return False
        return self._begun % self._checkpoints.every_steps == 0

    def _checkpoint(self) -> _Process:
        """Stage 1, once the one before has been written; stage 2 begins."""
        taken = self._checkpoints
        assert taken is not None
        if self._upload is not None:
            yield self._upload
        yield self.memory.take(taken.host_bytes, f"the checkpoint after step {self._begun}")
        begin_s = self._env.now
        yield self._env.timeout(taken.block_s)
        self.record.span("checkpoint", "copy to host", self._begun, begin_s, self._env.now)
        self._upload = self._env.process(self._write(taken, self._begun))

    def _write(self, taken: Checkpoints, number: int) -> _Process:
        begin_s = self._env.now
        yield self.storage.transfer(taken.upload_bytes, taken.fastest_bytes_per_s, "write")
        self.memory.give(taken.host_bytes)
        self.record.span("checkpoint", "write", number, begin_s, self._env.now)

    def _begin(self, step: PreparedStep, before: _Running, at_s: float) -> _Running:
        """Stages begin as soon as they have ended the step *before*, but not before *at_s*, which is now."""
        env = self._env
        played = self._played = self._play(step)
        if played is None:
            ends_s = step.ends_s(np.maximum(before.ends_s, at_s))
            first_end = last_end = self._at(float(ends_s.max()))
            if step.longest_s is not None:
                first_end = self._at(float(ends_s.min()))
            return _Running(first_end, last_end, ends_s, [])
        stages, begins = len(step.phases_s), before.stage_ended
        if len(begins) != stages:  # what was before was played beforehand, or nothing: all begin now
            begins = [self._at(float(begin_s)) for begin_s in np.broadcast_to(before.ends_s, stages)]
        played.start(env, begins)
        ends_s = np.full(stages, np.nan)
        ended: list[simpy.Event] = [
            env.process(self._note_end(event, step.allocator_wait_s, ends_s, stage))
            for stage, event in enumerate(played.stage_ended)
        ]
        all_ended: simpy.Event = env.all_of(ended)
        first_ended = env.any_of(ended) if step.longest_s is not None else all_ended
        return _Running(first_ended, all_ended, ends_s, ended)

    def _play(self, step: PreparedStep) -> StepPlay | None:
        """The play of the step in this environment; None: it was played beforehand."""
        if step.hosted is not None:
            return HostedStep(step.hosted, self._env)
        if step.flowing is not None and self._network is not None:
            return FlowStep(step.flowing, self._network)
        return None if step.program is None else StepPlay(step.program)

    def _at(self, time_s: float) -> simpy.Event:
        """An event at that time, which may be now but for rounding."""
        return self._env.timeout(max(0.0, time_s - self._env.now))

    def _note_end(self, ended: simpy.Event, wait_s: float, ends_s: Floats, stage: int) -> _Process:
        yield ended
        if wait_s:
            yield self._env.timeout(wait_s)
        ends_s[stage] = self._env.now

    def _end(
        self, ready: _Ready, before: _Running, running: _Running, at_s: float, waited: _Waits, in_queue: int
    ) -> _Process:
        """Wait until all stages have ended, and note what the step was like."""
        yield running.last_end
        step, start_s, end_s = ready.step, max(at_s, float(before.ends_s.min())), running.last_end_s
        self.memory.give(step.host_bytes)
        if not self._ahead:
            yield self._places.put(1)
        carry_over_s, contention_s, step_s = 0.0, 0.0, step.step_s
        if step.longest_s is not None:
            carry_over_s = end_s - before.last_end_s - sum(waited.values()) - step_s
        elif step.hosted is not None:
            waited["host_memory"] += end_s - at_s - step_s
        elif step.flowing is not None:
            contention_s = end_s - at_s - step_s
        elif step.program is not None:
            step_s = end_s - at_s
        self._show(ready, start_s, running)
        self._ended.append(
            RunStep(
                number=ready.number,
                start_s=start_s,
                end_s=end_s,
                step_s=step_s,
                contention_s=contention_s,
                carry_over_s=carry_over_s,
                ready_batches=in_queue,
                step=step,
                **{f"wait_{name}_s": seconds for name, seconds in waited.items()},
            )
        )

    def _show(self, ready: _Ready, start_s: float, running: _Running) -> None:
        """Lanes of the stages and of offload streams."""
        if not self.record.kept:
            return
        step, number = ready.step, ready.number
        for stage, (sync_s, summed_s, optimizer_s, end_s) in enumerate(step.phases_s.tolist()):
            ended_s = float(running.ends_s[min(stage, len(running.ends_s) - 1)])
            shift_s = ended_s - (end_s if len(running.ends_s) > 1 else step.step_s)
            begin_s = max(start_s, shift_s)
            for name, first_s, last_s in (
                ("micro-batches", begin_s - shift_s, sync_s),
                ("gradient sync", sync_s, summed_s),
                ("optimizer", optimizer_s, end_s),
            ):
                self.record.span(f"stage {stage}", name, number, shift_s + first_s, shift_s + last_s)
        if step.offload is not None:
            for when_s, held_bytes in step.offload.held.tolist():
                self.record.value("offloaded on the fullest host (B)", start_s + when_s, held_bytes)
            for lane, times in (("to host", step.offload.to_host_s), ("from host", step.offload.from_host_s)):
                for first_s, last_s in times.tolist():
                    self.record.span(lane, "offload", number, start_s + first_s, start_s + last_s)
