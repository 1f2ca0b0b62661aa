"""Where work runs: processes on this machine, or a Dask cluster that is already there.

Both are a `concurrent.futures.Executor` plus what that interface does not cover: how a dead worker shows, and how to go
on after one.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from typing import Any, Self
from urllib.parse import urlsplit

from hdpsim.errors import UserInputError
from hdpsim.experiments.parallel.code_version import code_version
from hdpsim.experiments.parallel.pool import worker_pool
from hdpsim.quoting import quoted

CONNECT_S = 10.0
_CODE_VERSION = (
    "__import__('hdpsim.experiments.parallel.code_version', fromlist=['code_version']).code_version()"
)
WITHOUT_WORKERS_S = 60.0
"""How long a cluster may be without any worker before we give up."""


class Engine(ABC):
    """An executor and how its workers die.

    Attributes:
        slots: how many tasks run at the same time.
        deaths: what a future raises when its worker died.
        spreads: whether one dead worker ends the tasks of all others too.
        patience: how often a task may end its worker, alone in the pool, before it is given up.
        task_s: tasks shorter than this are put together.
    """

    slots: int
    deaths: tuple[type[BaseException], ...]
    spreads = False
    patience = 1
    task_s = 0.0

    @property
    @abstractmethod
    def executor(self) -> Executor:
        """What tasks are submitted to; another one after `restart`."""

    def restart(self) -> None:  # noqa: B027
        """Go on after a worker died: nothing to do where the scheduler does it."""

    def check(self) -> None:  # noqa: B027
        """Raise UserInputError when there is nobody left to work: a pool says so itself."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *error: Any) -> None: ...


class LocalEngine(Engine):
    """A pool of processes on this machine."""

    deaths = (BrokenProcessPool,)
    spreads = True
    patience = 4  # a person or the system may kill a worker that did nothing wrong

    def __init__(self, workers: int | None = None) -> None:
        """*workers*: default one per processor."""
        self.slots = workers or os.cpu_count() or 1
        self._stack = ExitStack()
        self._executor: Executor | None = None

    @property
    def executor(self) -> Executor:
        """The pool, started when it is first needed."""
        if self._executor is None:
            self._executor = self._stack.enter_context(worker_pool(self.slots))
        return self._executor

    def restart(self) -> None:
        """Replace the broken pool."""
        self._stack.close()
        self._executor = None

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)  # an error stops what still runs


class DaskEngine(Engine):
    """The workers of an existing Dask cluster, through `Client.get_executor()`.

    The scheduler itself runs the tasks of a dead worker again, and gives up one that was on several dead workers.
    """

    task_s = 0.25  # a Dask scheduler handles some hundred tasks a second

    def __init__(self, address: str) -> None:
        """*address*: "tcp://host:port" or "tls://host:port" of the scheduler.

        Raises:
            UserInputError: the extra is not installed, nobody answers, or no worker is connected.
        """
        try:
            import distributed
        except ImportError as error:
            raise UserInputError(
                "--engine dask://... needs the package distributed: pip install 'hdpsim[dask]'"
            ) from error
        _silence()
        self._address = address
        self._without_workers_since: float | None = None
        self.deaths: tuple[type[BaseException], ...] = (distributed.KilledWorker,)
        connect: Any = distributed.Client
        try:
            self._client: Any = connect(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise UserInputError(
                f"--engine: no Dask scheduler answers at {address} within {CONNECT_S:g} s ({_first_line(error)}); "
                "start one with `dask scheduler`, or leave --engine out to use this machine"
            ) from error
        self.slots = self._threads()
        if not self.slots:
            self._client.close()
            raise UserInputError(
                f"--engine: the Dask scheduler at {address} has no workers; "
                f"start some with `dask worker {address}`"
            )
        self._refuse_other_versions()
        self._executor: Executor = self._client.get_executor(pure=False)

    @property
    def executor(self) -> Executor:
        """The cluster as an executor."""
        return self._executor

    def check(self) -> None:
        """Raise UserInputError when the scheduler is gone, or no worker came back for a while."""
        try:
            threads = self._threads() if self._client.status == "running" else None
        except OSError:
            threads = None
        if threads is None:
            raise UserInputError(f"lost the Dask scheduler at {self._address}")
        if threads:
            self._without_workers_since = None
            return
        now = time.monotonic()
        self._without_workers_since = self._without_workers_since or now
        if now - self._without_workers_since > WITHOUT_WORKERS_S:
            raise UserInputError(
                f"the Dask scheduler at {self._address} has had no workers for {WITHOUT_WORKERS_S:g} s"
            )

    def _refuse_other_versions(self) -> None:
        """Ask every worker for its hdpsim.

        The question is text that the worker evaluates: a task whose module a worker does not have would end that
        worker, and with it other people's work.
        """
        answers = self._client.run(eval, _CODE_VERSION, on_error="return")
        other = {worker: answer for worker, answer in answers.items() if answer != code_version()}
        if not other:
            return
        self._client.close()
        worker, answer = next(iter(other.items()))
        has = (
            f"cannot load it ({_first_line(answer)})"
            if isinstance(answer, BaseException)
            else f"has {answer}"
        )
        raise UserInputError(
            f"{len(other)} of the {len(answers)} Dask workers do not have this hdpsim ({code_version()}): "
            f"{worker} {has}; install the same version on all of them"
        )

    def _threads(self) -> int:
        threads: dict[str, int] = self._client.nthreads()
        return sum(threads.values())

    def __exit__(self, *error: Any) -> None:
        self._executor.shutdown(wait=False)
        self._client.close(timeout=CONNECT_S)


def engine_of(text: str | None, workers: int | None = None) -> Engine:
    """The engine that `--engine` and `--workers` ask for.

    >>> engine_of("local", 3).slots
    3

    Raises:
        UserInputError: neither "local" nor "dask://host:port".
    """
    if text is None or text == "local":
        return LocalEngine(workers)
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("dask", "tcp", "tls") and bool(parts.hostname) and bool(parts.port)
        sound &= text.isprintable() and text.isascii()
    except ValueError:  # a port that is no number or too large, half an address in brackets
        sound = False
    if not sound:
        raise UserInputError(f"--engine: expected local or dask://host:port, got {quoted(text)}")
    if workers is not None:
        raise UserInputError("--workers: the cluster of --engine has its own workers; leave it out")
    scheme = "tcp" if parts.scheme == "dask" else parts.scheme
    return DaskEngine(f"{scheme}://{parts.netloc}")


def _silence() -> None:
    """What Dask's event loop has to say of a lost connection, traceback and all, we say in one line."""
    libraries = ("asyncio", "distributed", "tornado")
    for name in (*libraries, *logging.root.manager.loggerDict):  # some loggers have levels of their own
        if name.partition(".")[0] in libraries:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]
