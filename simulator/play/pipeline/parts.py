"""Which process takes part in which operation of a pipeline, and in which order.

Weight gradients are no operations: no other process can observe them, so a process runs them on its way to its next
operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Bools, Ints, offsets_of
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.transformer.stages import virtual_stage_table
from hdpsim.simulator.plan import HOLE, Entries, Plan

from .chain import Chain
from .schedules import BACKWARD, BACKWARD_WEIGHT, stage_order


class WeightGradients(NamedTuple):
    """Weight gradients by process, in the order in which it runs them."""

    before: Ints
    """The part each one comes before; that of the next process if it is behind the last part of its own."""
    process: Ints
    entry: Ints
    chunk: Ints
    virtual: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts that processes take in operations, by process and in order. Operation c * units + u."""

    operation: Ints
    offsets: Ints
    entry: Ints
    unsplit: Bools
    """Backwards whose weight gradient is part of them."""
    paired: Bools
    """A forward and the backward after it that overlap."""
    batch: Ints
    """Parts of a process with the same number have no blocking transfer between them."""
    weights: WeightGradients


def pipeline_parts(
    plan: Plan,
    entries: Entries,
    chain: Chain,
    schedule: Schedule,
    stages: int,
    chunks: int,
    drains_every: int,
) -> Parts:
    """Return the parts of all processes of a pipeline."""
    slots = int(np.diff(plan.order_offsets).max(initial=0))
    entry_at = np.full((plan.ranks, slots), HOLE, dtype=np.int64)
    entry_at[entries.rank, entries.slot] = np.arange(len(entries.rank))
    virtual_stages = np.array(virtual_stage_table(schedule, stages, chunks))
    none = np.zeros(0, dtype=np.int64)
    parts: list[tuple[Ints, Ints, Ints, Bools, Bools, Ints]] = []
    weights: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
    parts_before = 0
    for stage in range(stages):
        order = stage_order(schedule, stages, chunks, stage, slots, drains_every)
        virtual = virtual_stages[stage, order.chunk]
        is_weight = order.op == BACKWARD_WEIGHT
        is_part = chain.has_link(order.op, virtual) & ~is_weight
        column = np.flatnonzero(is_part)
        entry = entry_at[:, order.slot[column]]  # [ranks, columns]
        exists = entry != HOLE
        counts = exists.sum(axis=1)
        column, entry = np.broadcast_to(column, entry.shape)[exists], entry[exists]
        link = chain.link_of(order.op, virtual)[column]
        operation = link * plan.micro_batches + entries.micro_batch[entry]
        unsplit = order.op[column] == BACKWARD
        parts.append((operation, entry, counts, unsplit, order.paired[column], order.batch[column]))
        if is_weight.any():
            column = np.flatnonzero(is_weight)
            entry = entry_at[:, order.slot[column]]
            rank, at = np.nonzero(entry != HOLE)
            # How many parts of its process come before each weight gradient.
            passed = np.insert(np.cumsum(exists, axis=1), 0, 0, axis=1)
            before = passed[:, np.cumsum(is_part)[column]] + (parts_before + offsets_of(counts)[:-1])[:, None]
            own = column[at]
            process = stage * plan.ranks + rank
            weights.append((before[rank, at], process, entry[rank, at], order.chunk[own], virtual[own]))
        parts_before += len(operation)
    operation, entry, counts, unsplit, paired, batch = (np.concatenate(c) for c in zip(*parts, strict=True))
    return Parts(
        operation=operation,
        offsets=offsets_of(counts),
        entry=entry,
        unsplit=unsplit,
        paired=paired,
        batch=batch,
        weights=WeightGradients(*(np.concatenate(c) for c in zip((none,) * 5, *weights, strict=True))),
    )
