"""Where the time of a step went: the same attribution for whoever played the program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.step.micro_batch import StepCosts
from hdpsim.simulator.play.execution import WAITS, Execution, Spans
from hdpsim.simulator.play.extras import Extras
from hdpsim.simulator.play.parts import Entries
from hdpsim.simulator.play.program import Program
from hdpsim.simulator.play.schedules import BACKWARD, BACKWARD_WEIGHT, FORWARD

EPILOGUE = 2
"""op of a span that is neither forward nor backward; its micro_batch is the place in execution.WAITS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When everything happened.

    Attributes:
        start_s: of each operation of the program.
        end_s: of each operation of the program.
        begin_s: [stages]: when the step of a stage begins; 0 unless steps follow each other stage by stage (see
            simulator.repetition).
        sync_start_s: [stages]: when all ranks of a stage had finished their operations.
        optimizer_start_s: [stages]: when the gradients of all stages, or else of this one, were there.
        step_s: from the begin to the end of the slowest optimizer.
    """

    start_s: Floats
    end_s: Floats
    begin_s: Floats
    sync_start_s: Floats
    optimizer_start_s: Floats
    step_s: float


def account(program: Program, costs: StepCosts, timeline: Timeline) -> Execution:
    """Return the step with every second of every rank and stage in exactly one account.

    Before an operation a process waits for its input (wait_pipeline), then for the other members of the group
    (wait_group). In an operation it spends its own duration in the terms of the costs; what the slowest member
    takes longer is wait_group too. What two overlapped operations hide of each other's communication is in no account.
    """
    S, R, terms = program.stages, program.ranks, len(costs.terms)
    accounts = costs.terms + WAITS
    account_s = np.zeros((len(accounts), S, R))
    account_s[:terms] = _term_seconds(program, costs)
    if program.extras is not None and costs.overlapped_term is not None:
        hidden_s = np.bincount(program.part_process, program.extras.hidden_s, program.processes)
        account_s[costs.overlapped_term] -= hidden_s.reshape(S, R)
    waits = dict(zip(WAITS, account_s[terms:], strict=True))

    done_s, wait_pipeline_s, wait_group_s = _waits(program, timeline)
    epilogue = costs.epilogue
    waits["data"][:] = epilogue.data_s - epilogue.planning_s
    waits["planning"][:] = epilogue.planning_s
    waits["parameter_gather"][:] = epilogue.parameter_gather_s[:, None]
    waits["wait_pipeline"][:] = wait_pipeline_s.reshape(S, R)
    waits["wait_group"][:] = wait_group_s.reshape(S, R)
    waits["wait_gradients"][:] = timeline.sync_start_s[:, None] - done_s.reshape(S, R)
    waits["gradient_sync"][:] = epilogue.gradient_sync_s[:, None]
    synced_s = timeline.sync_start_s + epilogue.gradient_sync_s
    waits["wait_stages"][:] = (timeline.optimizer_start_s - synced_s)[:, None]
    waits["optimizer"][:] = epilogue.optimizer_s[:, None]
    updated_s = timeline.optimizer_start_s + epilogue.optimizer_s - timeline.begin_s
    waits["wait_step_end"][:] = (timeline.step_s - updated_s)[:, None]
    return Execution(
        step_s=timeline.step_s,
        accounts=accounts,
        account_s=np.ascontiguousarray(account_s.transpose(0, 2, 1)),
    )


def _waits(program: Program, timeline: Timeline) -> tuple[Floats, Floats, Floats]:
    """Return per process: when its last operation ended, and its waits for the pipeline and for groups."""
    operation, extras = program.part_operation, program.extras
    opening_s = np.repeat(program.opening_s + timeline.begin_s, program.ranks)
    end_s = timeline.end_s[operation]
    free_s, done_s = _free_s(program, end_s, opening_s)
    # Nothing has to arrive for the first link of a chain; for the others the end of the link before it.
    links, units = program.chain.links, program.units
    arrivals_s = np.zeros((links, units))
    result_s = timeline.end_s if extras is None else timeline.end_s + extras.late_s
    arrivals_s[1:] = result_s.reshape(links, units)[:-1] + program.chain.sends[:-1, None] * program.transfer_s
    arrival_s = arrivals_s.ravel()
    latest_s = arrival_s[operation]
    if extras is not None:
        feeds = extras.feeds
        np.maximum.at(arrival_s, feeds.after, timeline.end_s[feeds.before] + feeds.delay_s)
        # A transfer that holds the process is waiting too; the weight gradients before it are work.
        latest_s = np.maximum(arrival_s[operation], free_s + extras.part_wait_s)
        free_s += extras.part_work_s
        done_s += extras.tail_s
    pipeline_s = np.maximum(latest_s - free_s, 0.0)
    group_s = timeline.start_s[operation] - free_s - pipeline_s
    if program.part_own_s is not None:
        group_s += program.operation_s[operation] - program.part_own_s
    process = program.part_process
    wait_pipeline_s = np.bincount(process, pipeline_s, program.processes).astype(np.float64, copy=False)
    wait_group_s = np.bincount(process, group_s, program.processes).astype(np.float64, copy=False)
    return done_s, wait_pipeline_s, wait_group_s


def _free_s(program: Program, end_s: Floats, opening_s: Floats) -> tuple[Floats, Floats]:
    """By part: the end of its process's operation before it; by process: the end of the last one."""
    offsets = program.part_offsets
    busy = np.flatnonzero(np.diff(offsets))
    free_s = np.empty_like(end_s)
    free_s[1:] = end_s[:-1]
    free_s[offsets[busy]] = opening_s[busy]
    done_s = opening_s.copy()
    done_s[busy] = end_s[offsets[busy + 1] - 1]
    return free_s, done_s


def _sum_by_rank(values: Floats, entries: Entries, ranks: int) -> Floats:
    """Sum the last axis (entries) by rank."""
    total = np.zeros((*values.shape[:-1], ranks))
    if len(entries.rank):
        first = np.flatnonzero(np.diff(entries.rank, prepend=-1))
        total[..., entries.rank[first]] = np.add.reduceat(values, first, axis=-1)
    return total


def _term_seconds(program: Program, costs: StepCosts) -> Floats:
    """Return the seconds of each term, [terms, stages, ranks]."""
    entries, factors, chain = program.entries, program.factors, program.chain
    micro_batch = entries.micro_batch
    if factors is None and program.way is None:
        both_s = (costs.forward_terms_s + costs.backward_terms_s)[:, :, micro_batch]
        by_kind_s = _sum_by_rank(both_s, entries, program.ranks)
        kinds = np.stack([(costs.kind == kind).sum(axis=1) for kind in range(both_s.shape[1])])
        term_s: Floats = kinds.T.astype(np.float64) @ by_kind_s  # [S, K] on each term's [K, R]
        return term_s
    term_s = np.zeros((len(costs.terms), program.stages, program.ranks))
    for way, virtual in np.ndindex(len(chain.stage), chain.virtual_stages):
        stage, kind = (
            chain.stage[way, virtual],
            costs.kind[chain.stage[way, virtual], chain.chunk[way, virtual]],
        )
        own_s = costs.forward_terms_s[:, kind, micro_batch] * (
            1.0 if factors is None else factors[0][:, virtual]
        )
        own_s += costs.backward_terms_s[:, kind, micro_batch] * (
            1.0 if factors is None else factors[1][:, virtual]
        )
        if program.way is not None:
            own_s *= program.way[micro_batch] == way
        term_s[:, stage] += _sum_by_rank(own_s, entries, program.ranks)
    return term_s


def make_spans(program: Program, costs: StepCosts, timeline: Timeline) -> Spans:
    """Return every forward, backward and epilogue part of every rank and stage as columns.

    The forward and the backward on the last virtual stage, and the micro-batches of a merged unit, are listed one
    by one. Forwards and backwards of a group last as long as its slowest member takes.
    """
    columns = (
        _operation_columns(program, timeline)
        if program.virtual_stages > 1
        else _unit_columns(program, timeline)
    )
    columns += _epilogue_columns(program, costs, timeline)
    rank, stage, chunk, op, micro_batch, start_s, end_s = (
        np.concatenate(c) for c in zip(*columns, strict=True)
    )
    order = np.lexsort((end_s, start_s, stage, rank))
    return Spans(
        rank=rank[order],
        stage=stage[order],
        chunk=chunk[order],
        op=op[order],
        micro_batch=micro_batch[order],
        start_s=start_s[order],
        end_s=end_s[order],
    )


_Columns = tuple[Ints, Ints, Ints, Ints, Ints, Floats, Floats]


def _operation_columns(program: Program, timeline: Timeline) -> list[_Columns]:
    chain = program.chain
    stage, rank = np.divmod(program.part_process, program.ranks)
    link, micro_batch = np.divmod(program.part_operation, max(program.units, 1))
    chunk = chain.chunk[0 if program.way is None else program.way[micro_batch], link]
    start_s, end_s = timeline.start_s[program.part_operation], timeline.end_s[program.part_operation]
    op = np.where(chain.forward[link], FORWARD, BACKWARD)
    columns = [(rank, stage, chunk, op, micro_batch, start_s, end_s)]
    if chain.merged:
        last = program.virtual_stages - 1
        turn = link == last
        turn_end_s = end_s[turn]
        end_s[turn] = np.minimum(start_s[turn] + program.forward_s[last, micro_batch[turn]], turn_end_s)
        back = np.full(len(turn_end_s), BACKWARD)
        columns.append(
            (rank[turn], stage[turn], chunk[turn], back, micro_batch[turn], end_s[turn], turn_end_s)
        )
    if program.extras is not None and len(program.extras.weights.entry):
        columns.append(_weight_columns(program, timeline, program.extras))
    return columns


def _weight_columns(program: Program, timeline: Timeline, extras: Extras) -> _Columns:
    """Weight gradients follow the end of the operation before them, one after the other."""
    weights, seconds = extras.weights, extras.weight_s
    ends_s = timeline.end_s[program.part_operation]
    stage, rank = np.divmod(weights.process, program.ranks)
    # Input gradients come before weight gradients, so there always is an operation before them.
    until_s = np.concatenate([[0.0], np.cumsum(seconds)])
    key = weights.before * program.processes + weights.process
    first = np.flatnonzero(np.diff(key, prepend=-1))
    run = np.repeat(first, np.diff(first, append=len(key)))
    number = np.arange(len(key))
    free_s = ends_s[weights.before - 1]
    start_s, end_s = free_s + (until_s[number] - until_s[run]), free_s + (until_s[number + 1] - until_s[run])
    op = np.full(len(key), BACKWARD_WEIGHT)
    return rank, stage, weights.chunk, op, program.entries.micro_batch[weights.entry], start_s, end_s


def _unit_columns(program: Program, timeline: Timeline) -> list[_Columns]:
    """Without a pipeline: the micro-batches of a unit follow each other from the unit's start."""
    entries, first = program.entries, program.unit_entries
    micro_batch = entries.micro_batch
    # One row per entry, its forward and its backward; a unit's entries follow each other.
    duration_s = np.stack([program.forward_s[0, micro_batch], program.backward_s[0, micro_batch]], axis=1)
    until_s = np.concatenate([[0.0], np.cumsum(duration_s)])
    unit = np.repeat(np.arange(len(first)), np.diff(first, append=len(micro_batch)))
    operation = program.part_operation[unit]
    # The same arithmetic for an end and the start after it, and never beyond the unit: spans must not overlap.
    shift_s, limit_s = until_s[2 * first[unit]], timeline.end_s[operation]
    start_s, middle_s, end_s = (
        np.minimum(timeline.start_s[operation] + (until_s[i : i + 2 * len(unit) : 2] - shift_s), limit_s)
        for i in range(3)
    )
    zeros = np.zeros_like(micro_batch)
    return [
        (entries.rank, zeros, zeros, zeros + FORWARD, micro_batch, start_s, middle_s),
        (entries.rank, zeros, zeros, zeros + BACKWARD, micro_batch, middle_s, end_s),
    ]


def _epilogue_columns(program: Program, costs: StepCosts, timeline: Timeline) -> list[_Columns]:
    epilogue, zeros = costs.epilogue, np.zeros(program.stages)
    parts = {
        "data": (timeline.begin_s, zeros + epilogue.data_s - epilogue.planning_s),
        "planning": (timeline.begin_s + epilogue.data_s - epilogue.planning_s, zeros + epilogue.planning_s),
        "parameter_gather": (timeline.begin_s + epilogue.data_s, epilogue.parameter_gather_s),
        "gradient_sync": (timeline.sync_start_s, epilogue.gradient_sync_s),
        "optimizer": (timeline.optimizer_start_s, epilogue.optimizer_s),
    }
    columns: list[_Columns] = []
    for name, (start_s, duration_s) in parts.items():
        stages = np.flatnonzero(duration_s > 0)
        stage = np.repeat(stages, program.ranks)
        rank = np.tile(np.arange(program.ranks), len(stages))
        op, number = np.full_like(stage, EPILOGUE), np.full_like(stage, WAITS.index(name))
        columns.append(
            (rank, stage, np.zeros_like(stage), op, number, start_s[stage], (start_s + duration_s)[stage])
        )
    return columns
