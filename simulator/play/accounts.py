"""Where the time of a step went: the same attribution for whoever played the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.step.step_costs import Epilogue, StepCosts
from hdpsim.simulator.plan import HOLE, Entries
from hdpsim.simulator.play.execution import WAITS, Execution, Spans
from hdpsim.simulator.play.meetings import Meetings
from hdpsim.simulator.play.pipeline.durations import Durations
from hdpsim.simulator.play.pipeline.extras import Extras
from hdpsim.simulator.play.pipeline.program import Program
from hdpsim.simulator.play.pipeline.schedules import BACKWARD, BACKWARD_WEIGHT, FORWARD

EPILOGUE = 2
"""op of a span that is neither forward nor backward; its micro_batch is the place in execution.WAITS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """When stages end the step, once all have run their operations.

    Attributes:
        begin_s: [stages]: when the step of a stage begins; 0 unless steps follow each other stage by stage (see
            repeating_steps.py).
        done_s: [stages, ranks]: when each process had finished its own operations.
        sync_start_s: [stages]: when all ranks of a stage had.
        optimizer_start_s: [stages]: when the gradients of all stages, or else of this one, were there.
        step_s: from the begin to the end of the slowest optimizer.
    """

    begin_s: Floats
    done_s: Floats
    sync_start_s: Floats
    optimizer_start_s: Floats
    step_s: float

    @classmethod
    def after(cls, done_s: Floats, epilogue: Epilogue, begin_s: Floats, *, stage_by_stage: bool) -> StepEnd:
        """The end in closed form."""
        sync_start_s = done_s.max(axis=1)
        optimizer_start_s = sync_start_s + epilogue.gradient_sync_s
        if not stage_by_stage:
            optimizer_start_s[:] = optimizer_start_s.max()
        return cls(
            begin_s=begin_s,
            done_s=done_s,
            sync_start_s=sync_start_s,
            optimizer_start_s=optimizer_start_s,
            step_s=float((optimizer_start_s + epilogue.optimizer_s - begin_s).max()),
        )


@dataclass(frozen=True, slots=True)
class Timeline:
    """When everything happened."""

    start_s: Floats
    """When each operation of the program starts."""
    end_s: Floats
    """When each operation of the program ends."""
    step_end: StepEnd
    arrival_s: Floats | None = None
    """When what each operation waits for arrives, where that is not known from the ends."""
    computed_s: Floats | None = None
    """When each operation had been computed, where some end later, together with others; NaN: at its end."""

    @property
    def own_ends_s(self) -> Floats:
        """The ends that operations would have if they did not wait for others to end with them."""
        if self.computed_s is None:
            return self.end_s
        return np.where(np.isnan(self.computed_s), self.end_s, self.computed_s)


def account(
    program: Program,
    timeline: Timeline,
    longer_s: Sequence[tuple[int, Floats]] = (),
    waited_s: Floats | float = 0.0,
) -> Execution:
    """Return the step with every second of every rank and stage in exactly one account.

    Before an operation a process waits for its input (wait_pipeline), then for the other members of the group
    (wait_group). In an operation it spends its own duration in the terms of the costs; what the slowest member, or the
    slowest micro-batch of a meeting, takes longer is wait_group too, and so is waiting for others to end with it. What
    two overlapped operations hide of each other's communication is in no account.

    *longer_s*: of some terms, [stages, ranks]: what processes take beyond the costs.
    *waited_s*: [stages, ranks]: what they wait for their groups meanwhile.
    """
    costs, extras = program.costs, program.extras
    term_s = _term_seconds(program, costs, program.entries, program.times.factors)
    waits = _waits(program, timeline)
    if program.given is not None and costs.overlapped_term is None:
        plan, given, noise = program.given  # of the micro-batches that each rank has in its meetings
        entries = plan.entries
        factors = Durations.of(given, program.chain, entries, program.way, noise).factors
        own_s = _term_seconds(program, given, entries, factors)
        waits = waits[0], waits[1] + (term_s - own_s).sum(axis=0)
        term_s = own_s
    for term, seconds in longer_s:
        term_s[term] += seconds
    if extras is not None and costs.overlapped_term is not None:
        term_s[costs.overlapped_term] -= _by_process(program, extras.hidden_s)
    return book(costs, timeline.step_end, term_s, waits[0], waits[1] + waited_s)


def sum_by_process(program: Program, operation_s: Floats) -> Floats:
    """[stages, ranks]: sum over the operations of each process."""
    return _by_process(program, operation_s[program.part_operation])


def _by_process(program: Program, part_s: Floats) -> Floats:
    """[stages, ranks]: sum over the parts of each process."""
    by_process = np.bincount(program.part_process, part_s, program.processes)
    return by_process.astype(np.float64, copy=False).reshape(program.stages, program.ranks)


def book(
    costs: StepCosts, end: StepEnd, term_s: Floats, wait_pipeline_s: Floats, wait_group_s: Floats | float
) -> Execution:
    """The accounts of a step from the [stages, ranks] seconds in every term and before operations."""
    epilogue, terms = costs.epilogue, len(costs.terms)
    updated_s = end.optimizer_start_s + epilogue.optimizer_s - end.begin_s
    waits: dict[str, Floats | float] = {
        "data": epilogue.data_s - epilogue.planning_s,
        "planning": epilogue.planning_s,
        "parameter_gather": epilogue.parameter_gather_s[:, None],
        "wait_pipeline": wait_pipeline_s,
        "wait_group": wait_group_s,
        "wait_gradients": end.sync_start_s[:, None] - end.done_s,
        "gradient_sync": epilogue.gradient_sync_s[:, None],
        "wait_stages": (end.optimizer_start_s - (end.sync_start_s + epilogue.gradient_sync_s))[:, None],
        "optimizer": epilogue.optimizer_s[:, None],
        "wait_step_end": (end.step_s - updated_s)[:, None],
    }
    account_s = np.empty((terms + len(WAITS), *end.done_s.shape))
    account_s[:terms] = term_s
    for row, name in enumerate(WAITS, start=terms):
        account_s[row] = waits[name]
    return Execution(
        step_s=end.step_s,
        accounts=costs.terms + WAITS,
        account_s=np.ascontiguousarray(account_s.transpose(0, 2, 1)),
    )


def _waits(program: Program, timeline: Timeline) -> tuple[Floats, Floats]:
    """[stages, ranks]: waits for the pipeline and for groups."""
    operation, extras = program.part_operation, program.extras
    free_s = _free_s(program, timeline)
    # Nothing has to arrive for the first link of a chain; for the others the result of the link before it.
    arrival_s = timeline.arrival_s
    if arrival_s is None:
        arrival_s = np.zeros(len(timeline.end_s))
        arrival_s[program.units :] = (timeline.end_s + program.result_delay_s)[: -program.units]
    latest_s = arrival_s[operation]
    if extras is not None:
        feeds = extras.feeds
        np.maximum.at(arrival_s, feeds.after, timeline.end_s[feeds.before] + feeds.delay_s)
        # A transfer that holds the process is waiting too; the weight gradients before it are work.
        latest_s = np.maximum(arrival_s[operation], free_s + extras.part_wait_s)
        free_s += extras.part_work_s
    pipeline_s = np.maximum(latest_s - free_s, 0.0)
    group_s = timeline.start_s[operation] - free_s - pipeline_s
    if timeline.computed_s is not None:
        group_s += (timeline.end_s - timeline.own_ends_s)[operation]
    if program.part_own_s is not None:
        group_s += program.operation_s[operation] - program.part_own_s
    return _by_process(program, pipeline_s), _by_process(program, group_s)


def _free_s(program: Program, timeline: Timeline) -> Floats:
    """By part: the end of its process's operation before it, or when its stage opens."""
    first = program.part_offsets[:-1]
    busy = np.flatnonzero(np.diff(program.part_offsets))
    end_s = timeline.end_s[program.part_operation]
    free_s = np.empty_like(end_s)
    free_s[1:] = end_s[:-1]
    free_s[first[busy]] = np.repeat(program.opening_s + timeline.step_end.begin_s, program.ranks)[busy]
    return free_s


def _sum_by_rank(values: Floats, entries: Entries, ranks: int) -> Floats:
    """Sum the last axis (entries) by rank."""
    total = np.zeros((*values.shape[:-1], ranks))
    if len(entries.rank):
        first = np.flatnonzero(np.diff(entries.rank, prepend=-1))
        total[..., entries.rank[first]] = np.add.reduceat(values, first, axis=-1)
    return total


def _term_seconds(
    program: Program, costs: StepCosts, entries: Entries, factors: tuple[Floats, Floats] | None
) -> Floats:
    """[terms, stages, ranks]: seconds of each term."""
    chain = program.chain
    micro_batch = entries.micro_batch
    if factors is None and program.way is None:
        both_s = (costs.forward_terms_s + costs.backward_terms_s)[:, :, micro_batch]
        by_kind_s = _sum_by_rank(both_s, entries, program.ranks)
        kinds = np.stack([(costs.kind == kind).sum(axis=1) for kind in range(both_s.shape[1])])
        return np.asarray(kinds.T.astype(np.float64) @ by_kind_s)  # [S, K] on each term's [K, R]
    term_s = np.zeros((len(costs.terms), program.stages, program.ranks))
    for way, virtual in np.ndindex(len(chain.stage), chain.virtual_stages):
        stage = chain.stage[way, virtual]
        kind = costs.kind[stage, chain.chunk[way, virtual]]
        forward, backward = (1.0, 1.0) if factors is None else (factor[:, virtual] for factor in factors)
        own_s = costs.forward_terms_s[:, kind, micro_batch] * forward
        own_s += costs.backward_terms_s[:, kind, micro_batch] * backward
        if program.way is not None:
            own_s *= program.way[micro_batch] == way
        term_s[:, stage] += _sum_by_rank(own_s, entries, program.ranks)
    return term_s


def make_spans(program: Program, timeline: Timeline) -> Spans:
    """Return every forward, backward and epilogue part of every rank and stage as columns.

    The forward and the backward on the last virtual stage, and the micro-batches of a merged unit, are listed one
    by one. Forwards and backwards of a group last as long as its slowest member takes.
    """
    played = _unit_spans if program.chain.links == 1 else _operation_spans
    rows = played(program, timeline) + _epilogue_spans(program, timeline)
    groups = [np.broadcast_arrays(*row) for row in rows]
    columns = [np.concatenate(column) for column in zip(*groups, strict=True)]
    if program.met is not None:
        columns = _of_own(columns, program.met)
    rank, stage, *_, start_s, end_s = columns
    order = np.lexsort((end_s, start_s, stage, rank))
    return Spans(*(column[order] for column in columns))


def _of_own(columns: list[Any], met: Meetings) -> list[Any]:
    """The spans of every rank's own micro-batch in a meeting; empty passes have none."""
    rank, _, _, op, micro_batch, *_ = columns
    passes = np.flatnonzero(op != EPILOGUE)
    own = micro_batch.copy()
    own[passes] = met.of_ranks(rank[passes], micro_batch[passes])
    columns[4] = own
    kept = own != HOLE
    return [column[kept] for column in columns]


_Row = tuple[Ints, Ints, Ints | int, Ints | int, Ints | int, Floats, Floats]
"""The columns of Spans in their order, or one value for all."""


def _operation_spans(program: Program, timeline: Timeline) -> list[_Row]:
    chain = program.chain
    stage, rank = np.divmod(program.part_process, program.ranks)
    link, micro_batch = np.divmod(program.part_operation, max(program.units, 1))
    chunk = chain.chunk[0 if program.way is None else program.way[micro_batch], link]
    start_s, end_s = timeline.start_s[program.part_operation], timeline.own_ends_s[program.part_operation]
    op = np.where(chain.forward[link], FORWARD, BACKWARD)
    rows: list[_Row] = [(rank, stage, chunk, op, micro_batch, start_s, end_s)]
    if chain.merged:
        last = chain.virtual_stages - 1
        turn = link == last
        turn_end_s = end_s[turn]
        forward_s = program.times.slowest[0][last, micro_batch[turn]]
        end_s[turn] = np.minimum(start_s[turn] + forward_s, turn_end_s)
        where = (rank[turn], stage[turn], chunk[turn])
        rows.append((*where, BACKWARD, micro_batch[turn], end_s[turn], turn_end_s))
    if program.extras is not None and len(program.extras.weights.entry):
        rows.append(_weight_spans(program, timeline, program.extras))
    return rows


def _weight_spans(program: Program, timeline: Timeline, extras: Extras) -> _Row:
    """Weight gradients follow the end of the operation before them, one after the other."""
    weights = extras.weights
    stage, rank = np.divmod(weights.process, program.ranks)
    until_s = np.concatenate([[0.0], np.cumsum(extras.weight_s)])
    key = weights.before * program.processes + weights.process
    first = np.flatnonzero(np.diff(key, prepend=-1))
    run = np.repeat(first, np.diff(first, append=len(key)))
    number = np.arange(len(key))
    # Input gradients come before weight gradients, so there always is an operation before them.
    free_s = timeline.end_s[program.part_operation[weights.before - 1]]
    start_s, end_s = free_s + (until_s[number] - until_s[run]), free_s + (until_s[number + 1] - until_s[run])
    micro_batch = program.entries.micro_batch[weights.entry]
    return rank, stage, weights.chunk, BACKWARD_WEIGHT, micro_batch, start_s, end_s


def _unit_spans(program: Program, timeline: Timeline) -> list[_Row]:
    """Without a pipeline: the micro-batches of a unit follow each other from the unit's start."""
    entries, first = program.entries, program.unit_entries
    micro_batch = entries.micro_batch
    forward_s, backward_s, _ = program.times.slowest
    # One row per entry, its forward and its backward; a unit's entries follow each other.
    duration_s = np.stack([forward_s[0, micro_batch], backward_s[0, micro_batch]], axis=1)
    until_s = np.concatenate([[0.0], np.cumsum(duration_s)])
    unit = np.repeat(np.arange(len(first)), np.diff(first, append=len(micro_batch)))
    operation = program.part_operation[unit]
    # The same arithmetic for an end and the start after it, and never beyond the unit: spans must not overlap.
    shift_s, limit_s = until_s[2 * first[unit]], timeline.end_s[operation]
    start_s, middle_s, end_s = (
        np.minimum(timeline.start_s[operation] + (until_s[i : i + 2 * len(unit) : 2] - shift_s), limit_s)
        for i in range(3)
    )
    stage = np.zeros_like(micro_batch)
    return [
        (entries.rank, stage, 0, FORWARD, micro_batch, start_s, middle_s),
        (entries.rank, stage, 0, BACKWARD, micro_batch, middle_s, end_s),
    ]


def _epilogue_spans(program: Program, timeline: Timeline) -> list[_Row]:
    epilogue, end = program.costs.epilogue, timeline.step_end
    every_stage = np.ones(program.stages)
    loading_s = epilogue.data_s - epilogue.planning_s
    parts = {
        "data": (end.begin_s, loading_s * every_stage),
        "planning": (end.begin_s + loading_s, epilogue.planning_s * every_stage),
        "parameter_gather": (end.begin_s + epilogue.data_s, epilogue.parameter_gather_s),
        "gradient_sync": (end.sync_start_s, epilogue.gradient_sync_s),
        "optimizer": (end.optimizer_start_s, epilogue.optimizer_s),
    }
    rows: list[_Row] = []
    for name, (start_s, duration_s) in parts.items():
        stages = np.flatnonzero(duration_s > 0)
        stage = np.repeat(stages, program.ranks)
        rank = np.tile(np.arange(program.ranks), len(stages))
        end_s = (start_s + duration_s)[stage]
        rows.append((rank, stage, 0, EPILOGUE, WAITS.index(name), start_s[stage], end_s))
    return rows
