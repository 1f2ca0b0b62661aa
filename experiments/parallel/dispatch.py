"""Many tasks on an engine: few in flight, dead workers survived, the guilty task found."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
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
    source = enumerate(tasks)
    suspects: deque[_Task[Arguments]] = deque()
    running: dict[Future[Any], _Task[Arguments]] = {}
    started = given_up = succeeded = 0
    exhausted = False

    def submit(task: _Task[Arguments]) -> bool:
        try:
            running[engine.executor.submit(function, task.arguments)] = task
        except engine.deaths:
            suspects.appendleft(task)
            return False
        return True

    def room() -> bool:
        if len(running) >= PER_SLOT * engine.slots:
            return False
        oldest = min((task.number for task in running.values()), default=started)
        return window is None or started - oldest < window

    try:
        while True:
            healthy = True
            if suspects:
                if not running:
                    healthy = submit(suspects.popleft())
            else:
                while healthy and not exhausted and room():
                    following = next(source, None)
                    if following is None:
                        exhausted = True
                    else:
                        healthy = submit(_Task(*following))
                        started += 1
            if healthy and not running:
                return
            ended, _ = wait(running, timeout=CHECK_S, return_when=FIRST_COMPLETED)
            if not ended:
                engine.check()
            victims: list[_Task[Arguments]] = []
            alone = len(running) == 1
            if not healthy or (engine.spreads and any(_died(future, engine) for future in ended)):
                ended, _ = wait(running)  # the others ended earlier, or will say that their pool is broken
            for future in ended:
                task = running.pop(future)
                if _died(future, engine):
                    victims.append(task)
                else:
                    succeeded += 1
                    yield Finished(task.number, task.arguments, future.result())
            if victims or not healthy:
                engine.check()
                engine.restart()
            for task in victims:
                task.kills += alone
                if task.kills < engine.patience:
                    suspects.append(task)
                else:
                    given_up += 1
                    if given_up >= _HOPELESS and not succeeded:
                        raise UserInputError(
                            f"every worker process died, {given_up} tasks in a row; is memory free?"
                        )
                    times = f"{task.kills} times" if task.kills > 1 else "every time"
                    reason = (
                        f"the process that computed it died {times} (killed from outside, or out of memory?)"
                    )
                    yield Finished(task.number, task.arguments, None, reason)
    finally:
        for future in running:  # nobody waits for them any more
            future.cancel()


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
