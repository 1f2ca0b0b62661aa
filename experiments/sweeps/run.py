"""Running a sweep: what the store has is not computed again, what is computed goes into the store at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hdpsim.errors import HdpSimError, UserInputError
from hdpsim.experiments.parallel.code_version import code_version
from hdpsim.experiments.parallel.dispatch import Finished, dispatch
from hdpsim.experiments.studies.comparing.compare import Report, silent
from hdpsim.experiments.sweeps.worker import simulate_cell, simulate_cells
from hdpsim.simulator.find_own_strategy import source_hash

if TYPE_CHECKING:
    from hdpsim.experiments.parallel.engines import Engine
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.sweeps.axes import Sweep
    from hdpsim.experiments.sweeps.cells import Cell
    from hdpsim.experiments.sweeps.store import ResultStore


_KEPT = ("ok", "infeasible")
"""States that depend on nothing but the key; the others are tried again next time."""

_MOST_TOGETHER = 64
_SAMPLES, _SAMPLING_S = 5, 15.0
_START_S = 1.5  # a process starts and loads numpy, scipy and hdpsim


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A cell with its state and its result.

    Attributes:
        status: "ok", "infeasible", "invalid" (contradictory keys or unusable data), "failed", or "not run" when the
            sweep was interrupted before.
        result: the outcome as JSON data, when it is ok.
    """

    cell: Cell
    status: str
    reason: str = ""
    result: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """All cells of a sweep, in order.

    Attributes:
        found: simulations that were in the store.
        computed: simulations done now.
        repaired: damaged entries of the store that were computed again.
        interrupted: Ctrl-C came before the end.
    """

    sweep: Sweep
    results: tuple[CellResult, ...]
    found: int
    computed: int
    repaired: int
    interrupted: bool

    def count(self, *statuses: str) -> int:
        """How many cells have one of these states."""
        return sum(result.status in statuses for result in self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEstimate:
    """What a sweep would do.

    Attributes:
        simulations: different simulations the cells need.
        steps: steps of those that are not in the store.
        seconds: about how long these take on the workers; None when nothing is left to do.
        sampled: simulations timed for it.
    """

    cells: int
    simulations: int
    found: int
    infeasible: int
    invalid: int
    steps: int
    seconds: float | None
    sampled: int
    workers: int


def run_sweep(
    sweep: Sweep, cells: Sequence[Cell], store: ResultStore, engine: Engine, report: Report = silent
) -> SweepRun:
    """Simulate every cell that the store does not have.

    The result depends on the cells only, not on the engine, its workers, or what the store had.

    Args:
        sweep: the file the cells come from.
        cells: see `cells.expand`.
        store: asked before, written after every simulation.
        engine: where simulations run; entered and left here.
        report: told (done, total) of the simulations.

    Raises:
        UserInputError: the store cannot be written, or the engine has lost all its workers. What was finished before is
            in the store.
    """
    by_key, waiting = _look_up(cells, store)
    if waiting:  # a complete store may be read-only
        store.prepare()
    stored = len(by_key)
    total = stored + len(waiting)
    report(stored, total)
    interrupted = False
    try:
        if waiting:
            with engine:
                for key, entry in _simulate(waiting, engine):
                    if entry["status"] in _KEPT:
                        store.put(key, entry)
                    by_key[key] = entry
                    report(len(by_key), total)
    except KeyboardInterrupt:
        interrupted = True
    except HdpSimError as error:
        raise UserInputError(
            f"{error}\n{_count_kept(by_key)} of {total} simulations are finished and kept in {store.folder}; the same "
            "command goes on from there"
        ) from error
    nothing = {"status": "not run", "reason": "interrupted", "result": None}
    return SweepRun(
        sweep=sweep,
        results=tuple(
            CellResult(cell=cell, status=cell.status, reason=cell.reason)
            if cell.scenario is None
            else CellResult(cell=cell, **by_key.get(cell.key, nothing))
            for cell in cells
        ),
        found=stored,
        computed=len(by_key) - stored,
        repaired=store.damaged,
        interrupted=interrupted,
    )


def _count_kept(by_key: dict[str, dict[str, Any]]) -> int:
    return sum(entry["status"] in _KEPT for entry in by_key.values())


def estimate_sweep(cells: Sequence[Cell], store: ResultStore, workers: int) -> SweepEstimate:
    """Count what is left to do and time some of it: cells at even distances, one batch each; writes nothing."""
    by_key, waiting = _look_up(cells, store)
    scenarios = [cell.scenario for cell in waiting.values() if cell.scenario is not None]
    steps = [scenario.batch_count for scenario in scenarios]
    sampled: list[float] = []
    if scenarios:
        simulate_cell(replace(scenarios[0], batch_count=1))  # the first one loads modules and traces
        began = time.perf_counter()
        places = range(min(_SAMPLES, len(scenarios)))
        for place in places:
            scenario = scenarios[(2 * place + 1) * len(scenarios) // (2 * len(places))]
            sampled.append(simulate_cell(replace(scenario, batch_count=1))["wall_s"])
            if time.perf_counter() - began > _SAMPLING_S:
                break
    at_once = max(1, min(workers, os.cpu_count() or 1, len(scenarios)))
    return SweepEstimate(
        cells=len(cells),
        simulations=len(by_key) + len(waiting),
        found=len(by_key),
        infeasible=sum(cell.status == "infeasible" for cell in cells),
        invalid=sum(cell.status == "invalid" for cell in cells),
        steps=sum(steps),
        seconds=_START_S + sum(sampled) / len(sampled) * sum(steps) / at_once if sampled else None,
        sampled=len(sampled),
        workers=workers,
    )


def _look_up(cells: Sequence[Cell], store: ResultStore) -> tuple[dict[str, dict[str, Any]], dict[str, Cell]]:
    """What the store has, and one cell for every key that it has not."""
    by_key: dict[str, dict[str, Any]] = {}
    waiting: dict[str, Cell] = {}
    for cell in cells:
        if not cell.key or cell.key in by_key or cell.key in waiting:
            continue
        entry = store.get(cell.key)
        if entry is None:
            waiting[cell.key] = cell
        else:
            by_key[cell.key] = entry
    return by_key, waiting


def _simulate(waiting: dict[str, Cell], engine: Engine) -> Iterator[tuple[str, dict[str, Any]]]:
    """Simulate cells, and yield keys and entries as they end."""
    strategies = [cell.scenario.strategy for cell in waiting.values() if cell.scenario is not None]
    own = {name: source_hash(name) for name in {one.name for one in strategies if one.is_own}}
    function = partial(simulate_cells, code=code_version(), own=own)
    bundles = _Bundles(list(waiting.values()), engine.task_s)
    alone: list[Cell] = []
    for finished in dispatch(engine, function, bundles):
        bundle = bundles.given[finished.number]
        if finished.killed and len(bundle) > 1:
            alone += bundle  # one of them is to blame; which one shows when each is on its own
            continue
        yield from _entries(bundle, finished, bundles)
    for finished in dispatch(engine, function, [_scenarios((cell,)) for cell in alone]):
        yield from _entries((alone[finished.number],), finished, bundles)


class _Bundles:
    """The tasks: cells one by one, or together as soon as they turn out to be short.

    Attributes:
        given: the cells of every task handed out, by its number.
    """

    def __init__(self, cells: list[Cell], task_s: float) -> None:
        self.given: list[tuple[Cell, ...]] = []
        self._cells, self._task_s = cells, task_s
        self._seconds, self._timed = 0.0, 0

    def took(self, seconds: float) -> None:
        """Learn how long a cell took."""
        self._seconds += seconds
        self._timed += 1

    def __iter__(self) -> Iterator[tuple[Scenario, ...]]:
        place = 0
        while place < len(self._cells):
            together = int(self._task_s * self._timed / self._seconds) if self._seconds else 1
            bundle = tuple(self._cells[place : place + max(1, min(together, _MOST_TOGETHER))])
            place += len(bundle)
            self.given.append(bundle)
            yield _scenarios(bundle)


def _scenarios(cells: Sequence[Cell]) -> tuple[Scenario, ...]:
    return tuple(cell.scenario for cell in cells if cell.scenario is not None)


def _entries(
    bundle: Sequence[Cell], finished: Finished[tuple[Scenario, ...]], bundles: _Bundles
) -> Iterator[tuple[str, dict[str, Any]]]:
    if finished.killed:
        yield bundle[0].key, {"status": "failed", "reason": finished.killed, "result": None}
        return
    for cell, answer in zip(bundle, finished.value, strict=True):
        bundles.took(answer["wall_s"])
        yield cell.key, {name: answer[name] for name in ("status", "reason", "result")}
