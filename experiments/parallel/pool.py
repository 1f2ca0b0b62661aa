"""A pool of processes that ends with its work, or at once when the work is given up."""

from __future__ import annotations

import ast
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any

from hdpsim.interrupts import held

_PARENTS = {signal.SIGINT, signal.SIGHUP} if hasattr(signal, "pthread_sigmask") else set()
"""Signals that reach every process of a terminal and are answered by the first one alone; Windows has no masks."""

_END_S = 5.0
"""How long a pool that was given up may take to end."""


@contextmanager
def worker_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yield an executor of *processes* fresh processes; leaving the block by an exception stops what still runs.

    Ctrl-C in a terminal, and its end (SIGHUP), reach every process. A worker would answer with the next piece of work
    in its queue, so workers ignore them, and this process, which does not, ends them.
    """
    # spawn: the thread of a progress bar must not be copied into a worker
    context = multiprocessing.get_context("spawn")
    with _sheltered():
        resource_tracker.ensure_running()  # it would be ended by SIGHUP, and a second one knows nothing of the first's
        pool = _Pool(processes, mp_context=context, initializer=_depend_on_the_parent)
    others = set(multiprocessing.active_children())
    try:
        yield pool
    except BaseException:
        manager = getattr(pool, "_executor_manager_thread", None)
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        if manager is not None:  # while it closes its pipes, Python may want to write into them to end it
            manager.join(_END_S)
        raise
    pool.shutdown()


@contextmanager
def _sheltered() -> Iterator[None]:
    """Processes started in this block never hear of the parent's signals; the parent's own wait for its end."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENTS) if _PARENTS else ()
    try:
        with held():
            yield
    finally:
        if _PARENTS:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _script_left_out() -> Iterator[None]:
    """Processes started in this block do not run the user's script again where it has no guard against it.

    A spawned process runs the file of `__main__` first. A script that calls a verb outside
    `if __name__ == "__main__":` would call it again in every worker.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None or _has_guard(file):
        yield
        return
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@cache
def _has_guard(file: str) -> bool:
    """Whether a statement of the script is `if __name__ == "__main__":`; the name alone may stand anywhere."""
    try:
        script = ast.parse(Path(file).read_bytes())
    except OSError:  # a script that came through a pipe (`<stdin>`): no process can run it again
        return False
    except (SyntaxError, ValueError):  # no Python: an archive that runs
        return True
    return any(isinstance(part, ast.If) and _asks_for_main(part.test) for part in script.body)


def _asks_for_main(test: ast.expr) -> bool:
    if not isinstance(test, ast.Compare) or not all(isinstance(each, ast.Eq) for each in test.ops):
        return False
    sides = (test.left, *test.comparators)
    names = [side.id for side in sides if isinstance(side, ast.Name)]
    texts = [side.value for side in sides if isinstance(side, ast.Constant)]
    return names == ["__name__"] and texts == ["__main__"]


class _Pool(ProcessPoolExecutor):
    """Starts its workers, which it does when it is given work, with the parent's interrupts waiting and their own off.

    A worker that is interrupted while it starts, or whose parent is, says so with a traceback.
    """

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run a function in one of the processes, as the base class does."""
        with _sheltered(), _script_left_out():
            return super().submit(function, *arguments, **named)


def _depend_on_the_parent() -> None:
    """Leave interrupts to the parent, and end when it does: a worker whose parent was killed would wait for ever."""
    for number in _PARENTS or {signal.SIGINT}:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
