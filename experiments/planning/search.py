"""The best layouts and strategies of a space: bounded from below, pruned, and replayed on the same batches."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from hdpsim.cost_models.transformer.flop import sequence_model_flop
from hdpsim.cost_models.transformer.stages import bubble_weight
from hdpsim.errors import InfeasibleError, OutOfMemoryError, ScenarioError
from hdpsim.experiments.parallel.dispatch import dispatch
from hdpsim.experiments.parallel.engines import LocalEngine
from hdpsim.experiments.planning.space import ANY_GPUS, Candidate, Changes, Space
from hdpsim.experiments.studies.cost_to_target import price_of
from hdpsim.simulator.lower_bound import lower_bound_s
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import StepResult, settled_degree, simulate_step
from hdpsim.simulator.step_memory import capacity_tokens, check_fits, memory_of

if TYPE_CHECKING:
    from hdpsim.cost_models.memory.report import MemoryReport
    from hdpsim.experiments.scenario.data_use import Drawn, Lengths
    from hdpsim.experiments.scenario.scenario import Scenario

Objective = Literal["tokens_per_s", "usd_per_token", "time_to_train"]
Progress = Callable[[int, int, str], None]
"""Told how many layouts are done, how many there are, and the best so far in words."""

BEST = 5
ALIKE = 1e-9
"""Relative difference of steps below which two candidates are the same under different names."""

ALONE_S = 5.0
"""How long one process works before others are started, which takes a second or two."""

_HOUR_S = 3600.0
_NUMBER = re.compile(r"\d[\d,.]*")
_LIMITS = {
    "gpus": "GPUs that do not divide by tp x pp",
    "layout.tp": "heads or widths that do not divide by tp",
    "layout.pp": "more stages than layers",
    "layout.vpp": "chunks without a pipeline or schedule for them",
    "layout.schedule": "schedules that do not run with these degrees",
    "layout.ep": "experts that do not divide",
    "layout.etp": "experts that do not divide",
    "layout.cp": "ranks that do not divide by cp",
    "layout.order": "experts across ranks in that order of ranks",
    "layout.shard_ranks": "ranks that do not divide by shard_ranks",
    "layout.precision": "number formats that the GPU lacks",
    "data.context": "a context that the model or the batch does not take",
}
"""What refuses a candidate, by the key that its message begins with."""
GPU_MEMORY, HOST_MEMORY = "GPU memory", "host memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A candidate replayed on all batches.

    Attributes:
        tokens_per_s: mean over the batches, as of `hdpsim simulate`.
        memory: of the fullest stage, of the batch that needs most.
        usd_per_token: GPUs alone; None where their price is unknown.
        bound_s: no plan of these batches on this layout takes less, mean over the batches; 0 where nobody asked.
        accounts: seconds of a step in each, mean over ranks, stages and batches.
        cp: ranks of the largest group.
        micro_batches: of the plan of the first batch.
    """

    candidate: Candidate
    setup: Setup
    tokens_per_s: float
    step_s: float
    memory: MemoryReport
    usd_per_token: float | None
    bound_s: float
    accounts: dict[str, float]
    cp: int
    micro_batches: int

    @property
    def headroom_bytes(self) -> float:
        """Memory of the GPU that is left."""
        return self.memory.capacity_bytes - self.memory.total_bytes


@dataclass(slots=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        best: the best candidates, the best first; those that are the same under another name are left out.
        own: the scenario as it is; None where it cannot run.
        evaluated: every candidate that was replayed.
        refused: candidates by the limit that refused them.
        outrun: candidates that a lower bound showed to be slower than the best ones.
        closest: of what memory refused, the candidate that lacks least, and the message.
        searched: candidates that were looked at.
        complete: whether that is all of them.
    """

    objective: Objective
    best: list[Evaluated] = field(default_factory=list)
    own: Evaluated | None = None
    own_reason: str = ""
    evaluated: list[Evaluated] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    outrun: int = 0
    closest: tuple[float, Candidate, str] | None = None
    searched: int = 0
    layouts: int = 0
    seconds: float = 0.0
    complete: bool = False

    def add(self, results: LayoutResults, count: int) -> None:
        """Take over what became of one layout; *count*: how many are the best."""
        self.evaluated += results.evaluated
        self.refused += results.refused
        self.outrun += results.outrun
        self.searched += len(results.evaluated) + results.outrun + results.refused.total()
        if results.closest and (self.closest is None or results.closest[0] < self.closest[0]):
            self.closest = results.closest
        if results.evaluated:
            self.best = ranked([*self.best, *results.evaluated], self.objective, count)


@dataclass(slots=True, kw_only=True)
class LayoutResults:
    """What became of the candidates of one layout; see Found."""

    evaluated: list[Evaluated] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    outrun: int = 0
    closest: tuple[float, Candidate, str] | None = None
    cut: bool = False
    """Time was up before the last one."""

    def refuse(self, candidate: Candidate, error: InfeasibleError | ScenarioError) -> None:
        """Note why a candidate cannot run."""
        self.refused[limit_of(error)] += 1
        if isinstance(error, OutOfMemoryError):
            excess = error.needed_bytes / error.available_bytes
            if self.closest is None or excess < self.closest[0]:
                self.closest = (excess, candidate, str(error))


def score(objective: Objective, tokens_per_s: float, usd_per_s: float | None) -> float:
    """How good that is, more is better. It grows with the throughput: the bound of one is the bound of the other."""
    if objective == "usd_per_token":
        assert usd_per_s is not None
        return tokens_per_s / usd_per_s
    return tokens_per_s


def usd_per_s(setup: Setup) -> float | None:
    """What all GPUs cost; None where their price is unknown."""
    price = price_of(setup.cluster.gpu).usd_per_hour
    return None if price is None else price * setup.cluster.gpus / _HOUR_S


def score_of(one: Evaluated, objective: Objective) -> float:
    """The score of what was replayed."""
    return score(objective, one.tokens_per_s, usd_per_s(one.setup))


def ranked(candidates: Sequence[Evaluated], objective: Objective, count: int) -> list[Evaluated]:
    """The best of them, the best first; of those that take the same step in the same memory, the first."""
    ordered = sorted(candidates, key=lambda one: (-score_of(one, objective), one.memory.total_bytes))
    kept: list[Evaluated] = []
    for one in ordered:
        if not any(_alike(one, other) for other in kept):
            kept.append(one)
            if len(kept) == count:
                break
    return kept


def _alike(one: Evaluated, other: Evaluated) -> bool:
    return (
        abs(one.step_s - other.step_s) <= ALIKE * one.step_s
        and one.memory.total_bytes == other.memory.total_bytes
        and one.setup.cluster == other.setup.cluster
    )


def limit_of(error: InfeasibleError | ScenarioError) -> str:
    """Which limit a candidate met, the same words for all whom it refuses."""
    if isinstance(error, OutOfMemoryError):
        return HOST_MEMORY if "host" in str(error) else GPU_MEMORY
    lines = [line.strip() for line in str(error).splitlines()]
    text = lines[1] if len(lines) > 1 and lines[0].endswith(":") else lines[0]
    if isinstance(error, ScenarioError) and error.problems:
        text = ": ".join(error.problems[0])
    key = text.partition(":")[0]
    if key in _LIMITS:
        return _LIMITS[key]
    return _NUMBER.sub("N", re.split(r"[:;]", text)[0])[:100]


def search(
    scenario: Scenario,
    space: Space,
    objective: Objective = "tokens_per_s",
    budget_s: float | None = None,
    progress: Progress = lambda done, total, words: None,
    *,
    batches: int | None = None,
    count: int = BEST,
    workers: int | None = 1,
    own_reason: str = "",
) -> Found:
    """Look for the best candidates of a space.

    Layouts are taken in the order in which a rough estimate expects them; whatever the order, a candidate is left out
    only if it cannot run, or if the lower bound of its layout (lower_bound_s, for every batch) is worse than the
    *count* best candidates that were replayed. Everything else is replayed on the same batches.

    Args:
        scenario: what was asked about; its batches are everybody's.
        space: what is tried.
        objective: what is best.
        budget_s: seconds after which nothing new is begun; None: no limit.
        progress: told after every layout.
        batches: how many global batches; default: the scenario's.
        count: how many best candidates are wanted: as many are safe from pruning.
        workers: processes; None: one per processor, where the first layouts say that it takes long.
        own_reason: why the scenario as it is cannot run, where that is known.
    """
    began = time.monotonic()
    deadline_s = None if budget_s is None else began + budget_s
    found = Found(objective=objective, own_reason=own_reason)
    drawn = _batches(scenario, batches)
    try:
        if not own_reason:
            _own(scenario, drawn, found, count)
        tasks = _tasks(scenario, space, drawn, objective, deadline_s, batches)
        found.layouts = len(tasks)
        found.complete = _run(tasks, found, count, workers, deadline_s, progress)
    except KeyboardInterrupt:
        if not found.evaluated:
            raise
    found.seconds = time.monotonic() - began
    return found


def _own(scenario: Scenario, drawn: Drawn, found: Found, count: int) -> None:
    """Replay the scenario as it is: what every candidate is held against, whether or not it has to fit."""
    results = LayoutResults()
    try:
        found.own = _replayed(
            Candidate(changes=()), scenario.setup(), drawn.lengths, (), found.objective, None
        )
    except InfeasibleError as error:
        found.own_reason = str(error)
    if found.own is not None:
        results.evaluated.append(found.own)
    found.add(results, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One layout: a unit of work for a process."""

    scenario: Scenario
    space: Space
    changes: Changes
    objective: Objective
    batches: int | None
    deadline_s: float | None
    least: float | None = None
    """Score that a candidate must be able to reach; None: any."""


def _tasks(
    scenario: Scenario,
    space: Space,
    drawn: Drawn,
    objective: Objective,
    deadline_s: float | None,
    batches: int | None,
) -> list[Task]:
    """Every layout, the one that is likely to be best first."""
    estimates: list[tuple[float, int, Task]] = []
    for site in space.sites:
        there = scenario.with_changes((*Candidate(changes=site).overrides, *ANY_GPUS))
        for layout in space.layouts(scenario, there.cluster):
            task = Task(
                scenario=scenario,
                space=space,
                changes=(*site, *layout),
                objective=objective,
                batches=batches,
                deadline_s=deadline_s,
            )
            estimates.append((_rough_s(there, dict(layout), drawn.lengths[0]), len(estimates), task))
    return [task for _, _, task in sorted(estimates, key=lambda item: item[:2])]


def _rough_s(scenario: Scenario, layout: dict[str, object], lengths: Lengths) -> float:
    """About what a step takes: work, recomputation, bubbles and tensor-parallel traffic; for the order alone."""
    tp, pp, vpp = (int(str(layout[f"layout.{key}"])) for key in ("tp", "pp", "vpp"))
    model, cluster = scenario.model, scenario.cluster
    again = {"full": 4.0 / 3.0, "selective": 1.05}.get(str(layout["layout.recompute"]), 1.0)
    flop = sequence_model_flop(model, lengths, causal=True) * again
    tokens, ranks = float(lengths.sum()), max(1, cluster.gpus // (tp * pp))
    traffic = 8.0 * 2.0 * model.hidden * model.layers * tokens * (tp - 1) / tp / (ranks * pp)
    rate = cluster.gpu.nvlink_bytes_per_s if tp <= cluster.node.gpus else cluster.node.nic_bytes_per_s_per_gpu
    work_s = flop / (0.6 * cluster.gpu.bf16_flop_per_s * cluster.gpus) + traffic / (0.7 * rate)
    micro_batches = max(1.0, tokens / scenario.data.context_tokens / ranks)
    switches = scenario.layout.changed(pp=pp, vpp=vpp, schedule=layout["layout.schedule"])
    bubble = bubble_weight(switches) / micro_batches
    slower = 1.2 if layout["layout.sharding"] == "zero3" and pp > 1 else 1.0
    return work_s * (1.0 + bubble) * slower * (1.05 if layout["layout.optimizer_offload"] else 1.0)


def _run(
    tasks: Sequence[Task],
    found: Found,
    count: int,
    workers: int | None,
    deadline_s: float | None,
    progress: Progress,
) -> bool:
    """Work through the layouts; whether all of them were."""
    complete = True
    done = 0

    def waiting() -> Iterator[Task]:
        """With the score that has to be reached by then."""
        for task in tasks:
            if deadline_s is not None and time.monotonic() > deadline_s:
                return
            yield replace(task, least=_least(found, count))

    for results in _results(waiting(), workers):
        found.add(results, count)
        complete &= not results.cut
        done += 1
        progress(done, len(tasks), _so_far(found))
    return complete and done == len(tasks)


def _results(tasks: Iterator[Task], workers: int | None) -> Iterator[LayoutResults]:
    """What becomes of every layout: at first one after the other, by several processes if that takes long."""
    began = time.monotonic()
    slots = workers or os.cpu_count() or 1
    for task in tasks if workers is None or slots == 1 else ():
        yield try_layout(task)
        if slots > 1 and time.monotonic() - began > ALONE_S:
            break
    if slots == 1:
        return
    with LocalEngine(slots) as engine:
        for finished in dispatch(engine, try_layout, tasks):
            yield finished.value or LayoutResults(cut=True)


def _least(found: Found, count: int) -> float | None:
    return score_of(found.best[-1], found.objective) if len(found.best) == count else None


def _so_far(found: Found) -> str:
    return f"best {found.best[0].tokens_per_s:,.0f} tokens/s" if found.best else "nothing fits so far"


class _Key:
    """A scenario that equals others with the same data, so that batches are drawn once in a process."""

    def __init__(self, scenario: Scenario, batches: int | None) -> None:
        self.scenario, self.count = scenario, batches or scenario.batch_count
        self._key = (json.dumps(scenario.document["data"]), self.count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _batches(scenario: Scenario, batches: int | None) -> Drawn:
    return _drawn(_Key(scenario, batches))


@lru_cache(maxsize=4)
def _drawn(key: _Key) -> Drawn:
    return key.scenario.draw(key.count)


def try_layout(task: Task) -> LayoutResults:
    """Try every strategy on one layout."""
    results = LayoutResults()
    layout = Candidate(changes=task.changes)
    lengths = _batches(task.scenario, task.batches).lengths
    try:
        there = task.scenario.with_changes((*layout.overrides, *_FREE))
        setup = there.setup()
        setup = replace(setup, memory=replace(setup.memory, must_fit=True))
        _check_smallest(setup)
        bounds_s = _bounds_s(setup, lengths)
    except (InfeasibleError, ScenarioError) as error:
        results.refuse(layout, error)
        return results
    equal = len({int(length) for batch in lengths for length in np.unique(batch)}) == 1
    candidates = [
        Candidate(changes=(*task.changes, *variant))
        for variant in task.space.variants(there, _capacity(setup), equal=equal)
    ]
    least = task.least
    for candidate in candidates:
        if task.deadline_s is not None and time.monotonic() > task.deadline_s:
            results.cut = True
            break
        try:
            own = _variant(there, setup, candidate)
            one = _replayed(candidate, own, lengths, bounds_s, task.objective, least)
        except (InfeasibleError, ScenarioError) as error:
            results.refuse(candidate, error)
            continue
        if one is None:
            results.outrun += 1
        else:
            results.evaluated.append(one)
    return results


_FREE = ("layout.cp=auto", "layout.rank_capacity=auto")
"""What a layout leaves open."""


def _variant(layout: Scenario, setup: Setup, candidate: Candidate) -> Setup:
    """The setup of a candidate on its layout: what reading the whole scenario gives."""
    changed = layout.with_changes(candidate.overrides).setup()
    return replace(changed, memory=setup.memory)


def _capacity(setup: Setup) -> int:
    """Tokens that memory allows on a rank while its pipeline is full; 0 where even the fewest are too many."""
    try:
        return capacity_tokens(setup)
    except OutOfMemoryError:
        return 0


def _check_smallest(setup: Setup) -> None:
    """Refuse a layout on which one micro-batch of hardly any tokens does not fit.

    Raises:
        OutOfMemoryError: it does not.
    """
    check_fits(setup, memory_of(setup, setup.layout.parallel.tp, micro_batches=1, sequence_tokens=1))


def _bounds_s(setup: Setup, batches: Sequence[Lengths]) -> tuple[float, ...]:
    """For every batch a time that no candidate of this layout undercuts; empty where noise may.

    The rank capacity is the whole context: a larger one than any candidate has only lowers the bound. Sequences are
    taken as attention sees them if a packer may cut them.
    """
    if setup.execution.jitter or setup.execution.gpu_spread is not None:
        return ()
    tp = setup.layout.parallel.tp
    whole = -(-setup.context_tokens // tp) * tp
    free = replace(setup, layout=setup.layout.changed(cp=None, rank_capacity_tokens=whole))
    known: dict[bytes, float] = {}
    for lengths in batches:
        key = lengths.tobytes()
        if key not in known:
            known[key] = lower_bound_s(free, lengths)
    return tuple(known[lengths.tobytes()] for lengths in batches)


def _replayed(
    candidate: Candidate,
    setup: Setup,
    batches: Sequence[Lengths],
    bounds_s: Sequence[float],
    objective: Objective,
    least: float | None,
) -> Evaluated | None:
    """Replay a candidate batch by batch; None as soon as it cannot reach the score *least* any more.

    Raises:
        InfeasibleError: it cannot run.
    """
    cost = usd_per_s(setup)
    rates = [lengths.sum() / bound_s for lengths, bound_s in zip(batches, bounds_s, strict=bool(bounds_s))]
    prune = least is not None and bool(rates)

    def hopeless() -> bool:
        return prune and score(objective, float(np.mean(rates)), cost) < (least or 0.0)

    if hopeless():
        return None
    degree = settled_degree(setup, batches[0]) if len(batches) > 1 else None
    known: dict[bytes, StepResult] = {}
    results = []
    for number, lengths in enumerate(batches):
        key = lengths.tobytes()
        if key not in known:
            known[key] = simulate_step(setup, lengths, mesh_degree=degree)
        results.append(known[key])
        if rates:
            rates[number] = results[-1].tokens_per_s
            if number + 1 < len(batches) and hopeless():
                return None
    tokens_per_s = float(np.mean([result.tokens_per_s for result in results]))
    return Evaluated(
        candidate=candidate,
        setup=setup,
        tokens_per_s=tokens_per_s,
        step_s=float(np.mean([result.step_s for result in results])),
        memory=max((result.memory for result in results), key=lambda memory: memory.total_bytes),
        usd_per_token=None if cost is None else cost / tokens_per_s,
        bound_s=float(np.mean(bounds_s)) if bounds_s else 0.0,
        accounts=_accounts(results),
        cp=max(result.largest_group for result in results),
        micro_batches=results[0].plan_micro_batches,
    )


def _accounts(results: Sequence[StepResult]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for result in results:
        for account, mean_s in zip(result.accounts, result.account_s.mean(axis=(1, 2)), strict=True):
            totals[account] = totals.get(account, 0.0) + float(mean_s) / len(results)
    return totals
