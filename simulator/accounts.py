"""Where the time of a step went: the same attribution for whoever played the program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.micro_batch import StepCosts
from simulator.execution import WAITS, Execution, Spans
from simulator.program import Entries, Program
from simulator.schedules import BACKWARD, FORWARD

__all__ = ["EPILOGUE", "Timeline", "account", "make_spans"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EPILOGUE = 2
"""op of a span that is neither forward nor backward; its micro_batch is the place in execution.WAITS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When everything happened.

    Attributes:
        start_s: of each operation of the program.
        end_s: of each operation of the program.
        sync_start_s: [stages]: when all ranks of a stage had finished their operations.
        optimizer_start_s: when the gradients of all stages were there.
        step_s: when the slowest optimizer had finished.
    """

    start_s: Floats
    end_s: Floats
    sync_start_s: Floats
    optimizer_start_s: float
    step_s: float


def account(program: Program, costs: StepCosts, timeline: Timeline) -> Execution:
    """Return the step with every second of every rank and stage in exactly one account.

    Before an operation a process waits for its input (wait_pipeline), then for the other members of the group
    (wait_group). In an operation it spends its own duration in the terms of the costs; what the slowest member
    takes longer is wait_group too.
    """
    S, R, terms = program.stages, program.ranks, len(costs.terms)
    accounts = costs.terms + WAITS
    account_s = np.zeros((len(accounts), S, R))
    account_s[:terms] = _term_seconds(program, costs)
    waits = dict(zip(WAITS, account_s[terms:], strict=True))

    done_s, wait_pipeline_s, wait_group_s = _waits(program, timeline)
    epilogue = costs.epilogue
    waits["data"][:] = epilogue.data_s
    waits["parameter_gather"][:] = epilogue.parameter_gather_s[:, None]
    waits["wait_pipeline"][:] = wait_pipeline_s.reshape(S, R)
    waits["wait_group"][:] = wait_group_s.reshape(S, R)
    waits["wait_gradients"][:] = timeline.sync_start_s[:, None] - done_s.reshape(S, R)
    waits["gradient_sync"][:] = epilogue.gradient_sync_s[:, None]
    synced_s = timeline.sync_start_s + epilogue.gradient_sync_s
    waits["wait_stages"][:] = (timeline.optimizer_start_s - synced_s)[:, None]
    waits["optimizer"][:] = epilogue.optimizer_s[:, None]
    updated_s = timeline.optimizer_start_s + epilogue.optimizer_s
    waits["wait_step_end"][:] = (timeline.step_s - updated_s)[:, None]
    return Execution(
        step_s=timeline.step_s,
        accounts=accounts,
        account_s=np.ascontiguousarray(account_s.transpose(0, 2, 1)),
    )


def _waits(program: Program, timeline: Timeline) -> tuple[Floats, Floats, Floats]:
    """Return per process: when its last operation ended, and its waits for the pipeline and for groups."""
    operation, offsets = program.part_operation, program.part_offsets
    opening_s = np.repeat(program.opening_s, program.ranks)
    busy = np.flatnonzero(np.diff(offsets))
    end_s = timeline.end_s[operation]
    free_s = np.empty_like(end_s)
    free_s[1:] = end_s[:-1]
    free_s[offsets[busy]] = opening_s[busy]
    done_s = opening_s.copy()
    done_s[busy] = end_s[offsets[busy + 1] - 1]

    # Nothing has to arrive for the first link of a chain; for the others the end of the link before it.
    links = 2 * program.virtual_stages - 1
    arrival_s = np.zeros((links, program.units))
    arrival_s[1:] = timeline.end_s.reshape(links, program.units)[:-1] + program.transfer_s
    pipeline_s = np.maximum(arrival_s.ravel()[operation] - free_s, 0.0)
    group_s = timeline.start_s[operation] - free_s - pipeline_s
    if program.part_own_s is not None:
        group_s += program.operation_s[operation] - program.part_own_s
    process = program.part_process
    wait_pipeline_s = np.bincount(process, pipeline_s, program.processes).astype(np.float64, copy=False)
    wait_group_s = np.bincount(process, group_s, program.processes).astype(np.float64, copy=False)
    return done_s, wait_pipeline_s, wait_group_s


def _sum_by_rank(values: Floats, entries: Entries, ranks: int) -> Floats:
    """Sum the last axis (entries) by rank."""
    total = np.zeros((*values.shape[:-1], ranks))
    if len(entries.rank):
        first = np.flatnonzero(np.diff(entries.rank, prepend=-1))
        total[..., entries.rank[first]] = np.add.reduceat(values, first, axis=-1)
    return total


def _term_seconds(program: Program, costs: StepCosts) -> Floats:
    """Return the seconds of each term, [terms, stages, ranks]."""
    entries, factors = program.entries, program.factors
    micro_batch = entries.micro_batch
    if factors is None:
        both_s = (costs.forward_terms_s + costs.backward_terms_s)[:, :, micro_batch]
        by_kind_s = _sum_by_rank(both_s, entries, program.ranks)
        kinds = np.stack([(costs.kind == kind).sum(axis=1) for kind in range(both_s.shape[1])])
        term_s: Floats = np.einsum("tkr,ks->tsr", by_kind_s, kinds.astype(np.float64), optimize=True)
        return term_s
    term_s = np.zeros((len(costs.terms), program.stages, program.ranks))
    for virtual in range(program.virtual_stages):
        chunk, stage = divmod(virtual, program.stages)
        kind = costs.kind[stage, chunk]
        own_s = costs.forward_terms_s[:, kind, micro_batch] * factors[0][:, virtual]
        own_s += costs.backward_terms_s[:, kind, micro_batch] * factors[1][:, virtual]
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
    stage, rank = np.divmod(program.part_process, program.ranks)
    link, micro_batch = np.divmod(program.part_operation, max(program.units, 1))
    last = program.virtual_stages - 1
    chunk = (last - np.abs(link - last)) // program.stages
    start_s, end_s = timeline.start_s[program.part_operation], timeline.end_s[program.part_operation]
    turn = link == last
    middle_s = np.minimum(start_s[turn] + program.forward_s[last, micro_batch[turn]], end_s[turn])
    op = np.where(link <= last, FORWARD, BACKWARD)
    back = np.full(len(middle_s), BACKWARD)
    turn_end_s = end_s[turn]
    end_s[turn] = middle_s
    return [
        (rank, stage, chunk, op, micro_batch, start_s, end_s),
        (rank[turn], stage[turn], chunk[turn], back, micro_batch[turn], middle_s, turn_end_s),
    ]


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
        "data": (zeros, zeros + epilogue.data_s),
        "parameter_gather": (zeros + epilogue.data_s, epilogue.parameter_gather_s),
        "gradient_sync": (timeline.sync_start_s, epilogue.gradient_sync_s),
        "optimizer": (zeros + timeline.optimizer_start_s, epilogue.optimizer_s),
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
