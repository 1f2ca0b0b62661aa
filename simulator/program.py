"""A plan and its costs as flat arrays of operations: what both executors play.

Operations of a unit form a chain: forwards on virtual stages 0 .. K-2, then forward and backward on the last one
(K-1; one operation, because every schedule runs them back to back), then backwards on K-2 .. 0. A unit is a
micro-batch. Without a pipeline (K = 1) neighbouring micro-batches of a rank that nobody shares form one unit, named
after the first of them: no other rank can observe what happens between them.

A *process* is one pipeline stage of one rank, number stage * ranks + rank. The part a process takes in an operation
is one entry of the part_* arrays; the members of a dynamic group take part in the same operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cost_models.micro_batch import StepCosts
from simulator.execution import Noise
from simulator.plan import HOLE, Plan
from simulator.schedules import BACKWARD, FORWARD, operation_order

__all__ = ["Entries", "Program", "compile_program", "plan_entries", "ranges"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Entries(NamedTuple):
    """The entries of plan.order that are not holes, by rank and slot."""

    order_index: Ints
    """Place in plan.order."""
    rank: Ints
    slot: Ints
    micro_batch: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Operations, who takes part in them and in which order. Operation c * units + u is link c of unit u's chain."""

    ranks: int
    stages: int
    virtual_stages: int
    units: int
    operation_s: Floats
    """Duration of each operation, the slowest member's."""
    parties: Ints
    """What each operation waits for: its members, and one for its predecessor in the chain."""
    transfer_s: Floats
    """[units]: from the end of an operation to the arrival of its result at the next one of the chain."""
    opening_s: Floats
    """[stages]: when the processes of a stage can start their first operation."""
    part_operation: Ints
    """Operations by process, in the order in which the process runs them."""
    part_offsets: Ints
    """[processes + 1]: where each process starts in the part_* arrays."""
    part_own_s: Floats | None
    """The duration each part would have without slower members; None = operation_s."""
    member_ranks: Ints
    member_offsets: Ints
    """Ranks of each unit (CSR), as in the plan."""
    entries: Entries
    unit_entries: Ints
    """Without a pipeline: the entry at which each part of part_operation starts; else empty."""
    factors: tuple[Floats, Floats] | None
    """Noise of each entry's forward and backward, [entries, K]; None = no noise."""
    forward_s: Floats
    """[K, micro-batches]: duration for the group, noise included."""
    backward_s: Floats
    """[K, micro-batches]"""

    @property
    def processes(self) -> int:
        """Number of processes."""
        return len(self.part_offsets) - 1

    @property
    def chain_stage(self) -> Ints:
        """The stage that runs each link of the chain."""
        last = self.virtual_stages - 1
        virtual = last - np.abs(np.arange(2 * last + 1) - last)
        return virtual % self.stages

    @property
    def part_process(self) -> Ints:
        """The process of each part."""
        return np.repeat(np.arange(self.processes), np.diff(self.part_offsets))


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """Return the numbers starts[i] .. starts[i] + lengths[i] - 1 for every i, one after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(starts - ends + lengths, lengths)


def plan_entries(plan: Plan) -> Entries:
    """Return the entries of the plan's order that hold a micro-batch."""
    slots = np.diff(plan.order_offsets)
    index = np.flatnonzero(plan.order != HOLE)
    rank = np.repeat(np.arange(plan.ranks), slots)[index]
    return Entries(index, rank, index - plan.order_offsets[rank], plan.order[index])


def compile_program(plan: Plan, costs: StepCosts, noise: Noise | None = None) -> Program:
    """Return the operations of *plan* with their durations."""
    stages, chunks, count = costs.stages, costs.chunks, plan.micro_batches
    virtual_stages = stages * chunks
    entries = plan_entries(plan)
    kinds = costs.kind.T.ravel()
    own_forward_s, own_backward_s = costs.forward_s[kinds], costs.backward_s[kinds]
    factors = _entry_factors(entries, noise, stages, chunks)
    if factors is None:
        forward_s, backward_s = own_forward_s, own_backward_s
    else:
        forward_s = own_forward_s * _slowest_member(entries.micro_batch, factors[0], count)
        backward_s = own_backward_s * _slowest_member(entries.micro_batch, factors[1], count)

    if virtual_stages == 1:
        unit_entries = _merge_unshared(plan.group_size, entries)
        part_operation = entries.micro_batch[unit_entries]
        part_offsets = _offsets(np.bincount(entries.rank[unit_entries], minlength=plan.ranks))
        operation_s = np.zeros(count)
        both_s = forward_s[0] + backward_s[0]
        operation_s[part_operation] = _add_runs(both_s[entries.micro_batch], unit_entries)
    else:
        unit_entries = np.zeros(0, dtype=np.int64)
        part_operation, part_offsets, part_entry = _pipeline_parts(plan, entries, stages, chunks)
        operation_s = _chain(forward_s, backward_s).ravel()

    part_own_s = None
    if factors is not None:
        own_s = _chain(
            own_forward_s[:, entries.micro_batch] * factors[0].T,
            own_backward_s[:, entries.micro_batch] * factors[1].T,
        )
        if virtual_stages == 1:
            part_own_s = _add_runs(own_s[0], unit_entries)
        else:
            part_own_s = own_s[part_operation // count, part_entry]

    links = 2 * virtual_stages - 1
    has_input = np.arange(links) > 0
    return Program(
        ranks=plan.ranks,
        stages=stages,
        virtual_stages=virtual_stages,
        units=count,
        operation_s=operation_s,
        parties=(plan.group_size + has_input[:, None]).ravel(),
        transfer_s=costs.transfer_s if stages > 1 else np.zeros(count),
        opening_s=costs.epilogue.data_s + costs.epilogue.parameter_gather_s,
        part_operation=part_operation,
        part_offsets=part_offsets,
        part_own_s=part_own_s,
        member_ranks=plan.member_ranks,
        member_offsets=plan.member_offsets,
        entries=entries,
        unit_entries=unit_entries,
        factors=factors,
        forward_s=forward_s,
        backward_s=backward_s,
    )


def _offsets(counts: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])


def _chain(forward_s: Floats, backward_s: Floats) -> Floats:
    """Return the durations along the chain, from those of the virtual stages (axis 0)."""
    return np.concatenate([forward_s[:-1], forward_s[-1:] + backward_s[-1:], backward_s[:-1][::-1]])


def _add_runs(values: Floats, starts: Ints) -> Floats:
    return np.add.reduceat(values, starts) if len(starts) else values[:0]


def _merge_unshared(group_size: Ints, entries: Entries) -> Ints:
    """Return the entries at which a unit starts: shared ones, those after a shared one, and a rank's first."""
    shared = group_size[entries.micro_batch] > 1
    starts = shared.copy()
    starts[:1] = True
    starts[1:] |= shared[:-1] | (entries.rank[1:] != entries.rank[:-1])
    return np.flatnonzero(starts)


def _pipeline_parts(plan: Plan, entries: Entries, stages: int, chunks: int) -> tuple[Ints, Ints, Ints]:
    """Return the operation and entry of each part by process, and the offsets of the processes."""
    slots = int(np.diff(plan.order_offsets).max(initial=0))
    last = stages * chunks - 1
    place = np.full((plan.ranks, slots), HOLE, dtype=np.int64)
    place[entries.rank, entries.slot] = np.arange(len(entries.rank))
    operations, entry_numbers, counts = [], [], []
    for stage in range(stages):
        op, chunk, slot = operation_order(stages, chunks, stage, slots)
        virtual = chunk * stages + stage
        # The backward on the last virtual stage is part of the forward just before it.
        kept = (op == FORWARD) | (virtual != last)
        link = np.where(op == BACKWARD, 2 * last - virtual, virtual)[kept]
        entry = place[:, slot[kept]]
        there = entry != HOLE
        counts.append(there.sum(axis=1))
        entry_numbers.append(entry[there])
        link_of_part = np.broadcast_to(link, entry.shape)[there]
        operations.append(link_of_part * plan.micro_batches + entries.micro_batch[entry_numbers[-1]])
    return np.concatenate(operations), _offsets(np.concatenate(counts)), np.concatenate(entry_numbers)


def _entry_factors(
    entries: Entries, noise: Noise | None, stages: int, chunks: int
) -> tuple[Floats, Floats] | None:
    """Return the factors of every entry's forward and backward, [entries, virtual stages]."""
    if noise is None or (noise.rank_stage is None and noise.forward is None and noise.backward is None):
        return None
    factors = []
    for drawn in (noise.forward, noise.backward):
        factor = np.ones((len(entries.order_index), chunks, stages))
        if noise.rank_stage is not None:
            factor *= noise.rank_stage[entries.rank, None, :]
        if drawn is not None:
            factor *= drawn[entries.order_index].transpose(0, 2, 1)
        factors.append(factor.reshape(len(entries.order_index), stages * chunks))
    return factors[0], factors[1]


def _slowest_member(micro_batch: Ints, factor: Floats, count: int) -> Floats:
    """Return the largest factor among the entries of each micro-batch, [virtual stages, micro-batches]."""
    slowest = np.zeros((count, factor.shape[1]))
    if len(micro_batch):
        order = np.argsort(micro_batch, kind="stable")
        by_micro_batch = micro_batch[order]
        first = np.flatnonzero(np.diff(by_micro_batch, prepend=-1))
        slowest[by_micro_batch[first]] = np.maximum.reduceat(factor[order], first, axis=0)
    return slowest.T
