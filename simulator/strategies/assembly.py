"""Turning a strategy's decisions into a Plan: arrays of micro-batches and per-rank orders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.plan import HOLE, Plan

__all__ = ["Pieces", "assemble", "ranges"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Concatenation of arange(start, start + count) for every pair, without a Python loop."""
    total = int(counts.sum())
    ends = np.cumsum(counts)
    numbers: Ints = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - counts), counts)
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Segments with the micro-batch each one went to (micro-batches numbered from 0, none empty)."""

    tokens: Ints
    sequence: Ints
    start: Ints
    micro_batch: Ints

    def at(self, places: Ints) -> Pieces:
        """The pieces at these places."""
        return Pieces(
            tokens=self.tokens[places],
            sequence=self.sequence[places],
            start=self.start[places],
            micro_batch=self.micro_batch[places],
        )


def assemble(
    *,
    strategy: str,
    ranks: int,
    capacity_tokens: int,
    pieces: Pieces,
    member_ranks: Ints,
    member_offsets: Ints,
    slot: Ints,
    offload_ratio: Floats,
    keep_holes: bool,
    ideal_s: float,
    makespan_s: float,
    notes: tuple[str, ...] = (),
    padding_tokens: Ints | None = None,
) -> Plan:
    """Build the Plan.

    Args:
        strategy: name the plan carries.
        ranks: HDP ranks.
        capacity_tokens: C.
        pieces: segments and their micro-batches.
        member_ranks: CSR values of each micro-batch's group, ascending inside a group.
        member_offsets: CSR offsets of the groups.
        slot: for every entry of member_ranks the slot at which that rank runs the micro-batch.
        offload_ratio: per micro-batch.
        keep_holes: keep slot numbers as they are (pipelines need equal slots in a group); otherwise a rank's
            micro-batches only keep their order.
        ideal_s: see Plan.
        makespan_s: see Plan.
        notes: remarks for the reader of the result.
        padding_tokens: per micro-batch, see Plan.
    """
    by_batch = np.argsort(pieces.micro_batch, kind="stable")
    counts = np.bincount(pieces.micro_batch, minlength=len(offload_ratio))
    entry_batch = np.repeat(np.arange(len(offload_ratio), dtype=np.int64), np.diff(member_offsets))
    in_order = np.lexsort((slot, member_ranks))
    rank_of, slot_of, batch_of = member_ranks[in_order], slot[in_order], entry_batch[in_order]
    per_rank = np.bincount(rank_of, minlength=ranks)
    if keep_holes:
        last = np.full(ranks, -1, dtype=np.int64)
        np.maximum.at(last, rank_of, slot_of)
        order_offsets = np.concatenate(([0], np.cumsum(last + 1)))
        order = np.full(int(order_offsets[-1]), HOLE, dtype=np.int64)
        order[order_offsets[rank_of] + slot_of] = batch_of
    else:
        order_offsets = np.concatenate(([0], np.cumsum(per_rank)))
        order = batch_of
    return Plan(
        strategy=strategy,
        ranks=ranks,
        capacity_tokens=capacity_tokens,
        segment_tokens=pieces.tokens[by_batch],
        segment_sequence=pieces.sequence[by_batch],
        segment_start=pieces.start[by_batch],
        segment_offsets=np.concatenate(([0], np.cumsum(counts))),
        member_ranks=member_ranks,
        member_offsets=member_offsets,
        offload_ratio=offload_ratio,
        order=order,
        order_offsets=order_offsets,
        padding_tokens=padding_tokens,
        ideal_s=ideal_s,
        makespan_s=makespan_s,
        notes=notes,
    )
