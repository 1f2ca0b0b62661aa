"""What made a recorded job slow: its ideal, and replays in which some operations are ideal and others are not.

The ideal job does the same operations in the same order, but all operations of a kind take the same time: the mean of
the recorded durations of computations, the median of the recorded transfer times of communication. Hence

    slowdown = mean step time of the replay / mean step time of the ideal replay

and for a set of operations (a kind, a stage, a rank):

    slowdown alone = mean step time with only these as recorded, all others ideal / mean ideal step time
    saved          = mean step time of the replay - mean step time with only these ideal
    share          = saved / (mean step time of the replay - mean ideal step time)

Replays here have no host gaps, so that only what operations take is compared.

Source: Lin et al., OSDI 2025 (arXiv 2505.05713), equations 1-3; `saved` is their "what if it were fixed".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints
from hdpsim.simulator.recorded.graph import RecordedGraph, host_gaps
from hdpsim.simulator.recorded.operation_graph import play_operations
from hdpsim.simulator.recorded.operations import COMMUNICATION, COMPUTE, KINDS, code, is_kind

Report = Callable[[int, int], None]

_CELLS = 4_000_000  # operations x variants that are played at once: 32 MB an array

RANKS_REPLAYED = 128
"""Of more ranks or workers than this, those with the most time above their ideal are replayed, the others not."""

_TRANSFERS = {
    "forward-send/recv": ("forward-send", "forward-recv"),
    "backward-send/recv": ("backward-send", "backward-recv"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one set of operations does to the step.

    Attributes:
        name: of the set.
        operations: how many it holds.
        slowdown_alone: if all others were ideal.
        saved_s: seconds per step if only these were ideal (or changed as the name says).
        share: of the whole slowdown that this saves; shares need not sum to 1. None if there is no slowdown.
    """

    name: str
    operations: int
    slowdown_alone: float | None
    saved_s: float
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """A recorded job, replayed.

    Attributes:
        recorded_s: [steps]
        predicted_s: [steps]: with the usual host gaps, played by the engine.
        usual_transfers_s: [steps]: the same, but communication takes the median transfer time of its kind: of each
            step only the computation is known.
        without_gaps_s: [steps]: operations only.
        ideal_s: [steps]
        engine_difference: largest relative difference between the engine and the closed form.
        by_kind: kinds of operations; the two ends of a transfer are one.
        by_stage: pipeline stages.
        by_rank: data-parallel ranks, the worst first.
        by_worker: one stage of one data-parallel rank, the worst first.
        worker: (data-parallel rank, stage) of each entry of by_worker.
        remedies: what evening out would save.
    """

    recorded_s: Floats
    predicted_s: Floats
    usual_transfers_s: Floats
    without_gaps_s: Floats
    ideal_s: Floats
    engine_difference: float
    by_kind: tuple[Effect, ...]
    by_stage: tuple[Effect, ...]
    by_rank: tuple[Effect, ...]
    by_worker: tuple[Effect, ...]
    worker: tuple[tuple[int, int], ...]
    remedies: tuple[Effect, ...]

    @property
    def error(self) -> Floats:
        """[steps]: (predicted - recorded) / recorded."""
        return self.predicted_s / self.recorded_s - 1.0

    @property
    def slowdown(self) -> float:
        """Mean step time of the replay over that of the ideal replay."""
        return float(self.without_gaps_s.mean() / self.ideal_s.mean())


def ideal_work_s(graph: RecordedGraph) -> Floats:
    """[operations]: what every operation would take if all of its kind took the same."""
    kind = graph.job.kind[graph.row]
    ideal = graph.work_s.copy()
    for number in np.unique(kind):
        same = kind == number
        middle = np.median if KINDS[number] in COMMUNICATION else np.mean
        ideal[same] = middle(graph.work_s[same])
    return ideal


def analyse(graph: RecordedGraph, report: Report = lambda done, total: None) -> Analysis:
    """Replay *graph* as recorded, ideal, and in between; *report* hears (replays done, of how many)."""
    job = graph.job
    ideal = ideal_work_s(graph)
    gaps = host_gaps(graph)
    played = play_operations(graph.replay.graph, graph.work_s, gaps)
    kind = job.kind[graph.row]
    usual = np.where(is_kind(kind, *COMMUNICATION), ideal, graph.work_s)
    closed, with_usual = graph.replay.ends(np.stack([graph.work_s, usual]), gaps)
    without_gaps, ideal_s = graph.step_s(graph.replay.ends(np.stack([graph.work_s, ideal])))

    stage, rank, worker = job.stage[graph.row], job.data_parallel_rank[graph.row], job.worker[graph.row]
    excess = graph.work_s - ideal
    ranks = _candidates(rank, excess, job.data_parallel)
    workers = _candidates(worker, excess, job.workers)
    groups: list[list[tuple[str, Bools]]] = [
        [(name, is_kind(kind, *kinds)) for name, kinds in _kinds_in(kind)],
        [(f"stage {i}", stage == i) for i in range(job.stages)],
        [(f"dp_rank {i}", rank == i) for i in ranks],
        [(f"dp_rank {i // job.stages} stage {i % job.stages}", worker == i) for i in workers],
    ]
    sets = list(chain.from_iterable(groups))
    remedies = _evened(graph)
    works = chain(
        (np.where(members, graph.work_s, ideal) for _, members in sets),
        (np.where(members, ideal, graph.work_s) for _, members in sets),
        (work for _, work in remedies),
    )
    mean_s = iter(_mean_steps(graph, works, len(sets) * 2 + len(remedies), report))
    alone_s, fixed_s = (list(islice(mean_s, len(sets))) for _ in range(2))
    baseline = (float(without_gaps.mean()), float(ideal_s.mean()))
    effects = iter(
        _effect(name, int(members.sum()), alone, fixed, baseline)
        for (name, members), alone, fixed in zip(sets, alone_s, fixed_s, strict=True)
    )
    by_kind, by_stage, by_rank, by_worker = (list(islice(effects, len(group))) for group in groups)
    worst = _worst_first(by_worker)
    compute = int(is_kind(kind, *COMPUTE).sum())
    return Analysis(
        recorded_s=job.step_s(),
        predicted_s=graph.step_s(played)[0],
        usual_transfers_s=graph.step_s(with_usual)[0],
        without_gaps_s=without_gaps,
        ideal_s=ideal_s,
        engine_difference=float(np.max(np.abs(played - closed) / np.maximum(closed, 1e-9))),
        by_kind=tuple(by_kind),
        by_stage=tuple(by_stage),
        by_rank=tuple(by_rank[i] for i in _worst_first(by_rank)),
        by_worker=tuple(by_worker[i] for i in worst),
        worker=tuple(divmod(int(workers[i]), job.stages) for i in worst),
        remedies=tuple(
            _effect(name, compute, None, seconds, baseline)
            for (name, _), seconds in zip(remedies, mean_s, strict=True)
        ),
    )


def _kinds_in(kind: Ints) -> list[tuple[str, tuple[str, ...]]]:
    """The sets of kinds that occur: the two ends of a transfer are one set."""
    ends = {name for names in _TRANSFERS.values() for name in names}
    sets: list[tuple[str, tuple[str, ...]]] = [(name, (name,)) for name in KINDS if name not in ends]
    sets[2:2] = list(_TRANSFERS.items())
    present = {KINDS[number] for number in np.unique(kind)}
    return [(name, kinds) for name, kinds in sets if present & set(kinds)]


def _candidates(owner: Ints, excess_s: Floats, count: int) -> Ints:
    """The owners to replay, ascending: all, or those with the most time above the ideal."""
    if count <= RANKS_REPLAYED:
        return np.arange(count)
    above = np.bincount(owner, np.maximum(excess_s, 0.0), count)
    return np.sort(np.argsort(-above, kind="stable")[:RANKS_REPLAYED])


def _worst_first(effects: Sequence[Effect]) -> list[int]:
    return sorted(range(len(effects)), key=lambda i: -(effects[i].slowdown_alone or 0.0))


def _evened(graph: RecordedGraph) -> list[tuple[str, Floats]]:
    """Changed work: the same computation, spread evenly in one way or another.

    * micro-batches: each computation takes the step's mean of its kind, stage and chunk.
    * ranks: all computations of a data-parallel rank in a step are scaled to the step's mean over the ranks.
    * stages: the computations of a kind on a stage are scaled to the mean over the stages.
    """
    job, work = graph.job, graph.work_s
    compute = np.flatnonzero(is_kind(job.kind[graph.row], *COMPUTE))
    row = graph.row[compute]
    forward = (job.kind[row] == code("forward-compute")).astype(np.int64)
    place = (job.step[row] * (job.stages * job.chunks) + job.virtual_stage[row]) * 2 + forward
    owner = job.step[row] * job.data_parallel + job.data_parallel_rank[row]
    own = work[compute]
    spreads = {
        "micro-batches even": _mean_by(place, own),
        "ranks even": own * _mean_by(job.step[row], own) / _mean_by(owner, own),
        "stages even": own * _mean_by(forward, own) / _mean_by(job.stage[row] * 2 + forward, own),
    }
    changed = []
    for name, seconds in spreads.items():
        new = work.copy()
        new[compute] = seconds
        changed.append((name, new))
    return changed


def _mean_by(key: Ints, value: Floats) -> Floats:
    """For every entry: the mean of *value* over the entries of the same key."""
    mean: Floats = (np.bincount(key, value) / np.maximum(np.bincount(key), 1))[key]
    return np.maximum(mean, np.finfo(np.float64).tiny)  # a divisor: computations may take no time at all


def _mean_steps(graph: RecordedGraph, works: Iterator[Floats], total: int, report: Report) -> list[float]:
    """Mean step time of every variant, as many of *total* at once as memory allows."""
    at_once = max(1, _CELLS // max(1, len(graph.row)))
    means: list[float] = []
    while batch := list(islice(works, at_once)):
        means += graph.step_s(graph.replay.ends(np.stack(batch))).mean(axis=1).tolist()
        report(len(means), total)
    return means


def _effect(
    name: str, operations: int, alone_s: float | None, fixed_s: float, baseline: tuple[float, float]
) -> Effect:
    as_recorded_s, ideal_s = baseline
    lost_s = as_recorded_s - ideal_s
    saved_s = as_recorded_s - fixed_s
    return Effect(
        name=name,
        operations=operations,
        slowdown_alone=None if alone_s is None else alone_s / ideal_s,
        saved_s=saved_s,
        share=saved_s / lost_s if lost_s > 1e-3 * ideal_s else None,
    )
