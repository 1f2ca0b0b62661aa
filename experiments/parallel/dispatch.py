"""Many tasks on an engine: few in flight, dead workers survived, the guilty task found."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeVar

from hdpsim.errors import UserInputError
from hdpsim.experiments.parallel.engines import Engine

Arguments = TypeVar("Arguments")

PER_SLOT = 2
"""Tasks in flight per worker: one that runs, one that waits for it."""

CHECK_S = 1.0

_HOPELESS = 20
"""So many tasks given up before any has ended: the workers cannot start at all."""


@dataclass(frozen=True, slots=True)
class Finished(Generic[Arguments]):
    """A task and what became of it.

    Attributes:
        value: what the function returned; None when it killed its workers.
        killed: why it was given up; empty when it ended.
    """

    number: int
    arguments: Arguments
    value: Any
    killed: str = ""


@dataclass(slots=True)
class _Task(Generic[Arguments]):
    number: int
    arguments: Arguments
    kills: int = 0


def dispatch(
    engine: Engine,
    function: Callable[[Arguments], Any],
    tasks: Iterable[Arguments],
    *,
    window: int | None = None,
) -> Iterator[Finished[Arguments]]:
    """Run *function* on all *tasks*, which are taken as they are needed; yields them as they end, in any order.

    When a worker dies, its tasks run again, one at a time with nothing beside them: then a task that kills its worker
    is alone when it does, and after engine.patience times it is given up.

    Args:
        engine: where they run.
        function: must pickle; what it raises is raised here.
        tasks: numbered from 0 in this order.
        window: no task is started that is this far beyond the oldest one that has not ended.
    """
    flight = _Flight(engine, function, tasks, window)
    try:
        while flight.start():
            yield from flight.land()
    finally:
        flight.cancel()


class _Flight(Generic[Arguments]):
    """Tasks on an engine, and the suspects: those that were there when a worker died."""

    def __init__(
        self,
        engine: Engine,
        function: Callable[[Arguments], Any],
        tasks: Iterable[Arguments],
        window: int | None,
    ) -> None:
        self._engine, self._function, self._window = engine, function, window
        self._waiting = map(_Task, count(), tasks)
        self._suspects: deque[_Task[Arguments]] = deque()
        self._running: dict[Future[Any], _Task[Arguments]] = {}
        self._healthy = True
        self._started = self._given_up = self._succeeded = 0

    def start(self) -> bool:
        """Start what there is room for, or one suspect alone; False when nothing is left."""
        self._healthy = True
        if self._suspects:
            if not self._running:
                self._submit(self._suspects.popleft())
        else:
            while self._healthy and self._has_room():
                task = next(self._waiting, None)
                if task is None:
                    break
                self._submit(task)
                self._started += 1
        return bool(self._running) or not self._healthy

    def land(self) -> Iterator[Finished[Arguments]]:
        """Wait for a task at least, and yield those that ended or are given up."""
        engine, running = self._engine, self._running
        alone = len(running) == 1
        ended, _ = wait(running, timeout=CHECK_S, return_when=FIRST_COMPLETED)
        if not ended:
            engine.check()
        if not self._healthy or (engine.spreads and any(_died(future, engine) for future in ended)):
            ended, _ = wait(running)  # the others ended earlier, or will say that their pool is broken
        victims: list[_Task[Arguments]] = []
        for future in ended:
            task = running.pop(future)
            if _died(future, engine):
                victims.append(task)
            else:
                self._succeeded += 1
                yield Finished(task.number, task.arguments, future.result())
        if victims or not self._healthy:
            engine.check()
            engine.restart()
        for task in victims:
            task.kills += alone
            if task.kills < engine.patience:
                self._suspects.append(task)
            else:
                yield self._give_up(task)

    def cancel(self) -> None:
        """Forget what runs: nobody waits for it any more."""
        for future in self._running:
            future.cancel()

    def _submit(self, task: _Task[Arguments]) -> None:
        try:
            self._running[self._engine.executor.submit(self._function, task.arguments)] = task
        except self._engine.deaths:
            self._suspects.appendleft(task)
            self._healthy = False

    def _has_room(self) -> bool:
        if len(self._running) >= PER_SLOT * self._engine.slots:
            return False
        oldest = min((task.number for task in self._running.values()), default=self._started)
        return self._window is None or self._started - oldest < self._window

    def _give_up(self, task: _Task[Arguments]) -> Finished[Arguments]:
        """A task that killed its workers; raises when no task has ended and so many were given up."""
        self._given_up += 1
        if self._given_up >= _HOPELESS and not self._succeeded:
            raise UserInputError(
                f"every worker process died, {self._given_up} tasks in a row; is memory free?"
            )
        times = f"{task.kills} times" if task.kills > 1 else "every time"
        reason = f"the process that computed it died {times} (killed from outside, or out of memory?)"
        return Finished(task.number, task.arguments, None, reason)


def in_order(
    engine: Engine,
    function: Callable[[Arguments], Any],
    steps: Iterable[Arguments],
    *,
    window: int | None = None,
) -> Iterator[Any]:
    """What *function* returns of every step, in their order; those that end early wait.

    Raises:
        UserInputError: a step was given up.
    """
    early: dict[int, Any] = {}
    following = 0
    for task in dispatch(engine, function, steps, window=window):
        if task.killed:
            raise UserInputError(f"step {task.number + 1}: {task.killed}")
        early[task.number] = task.value
        while following in early:
            yield early.pop(following)
            following += 1


def _died(future: Future[Any], engine: Engine) -> bool:
    """Whether the future has no result because its worker died."""
    return future.cancelled() or isinstance(future.exception(), (*engine.deaths, CancelledError))
