"""A pool of processes that ends with its work, or at once when the work is given up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait

__all__ = ["worker_pool"]


@contextmanager
def worker_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yield an executor of *processes* fresh processes; leaving the block by an exception stops what still runs.

    Ctrl-C in a terminal reaches every process. A worker would answer it with the next piece of work in its queue, so
    workers ignore it, and this process, which does not, ends them.
    """
    # spawn: the thread of a progress bar must not be copied into a worker
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_depend_on_the_parent)
    others = set(multiprocessing.active_children())
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    pool.shutdown()


def _depend_on_the_parent() -> None:
    """Leave interrupts to the parent, and end when it does: a worker whose parent was killed would wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
