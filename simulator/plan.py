"""The Plan: who computes what, with whom, in which order. All an executor sees besides the costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats, Ints

HOLE = -1
"""A slot of a rank's order in which it has no micro-batch (only with a pipeline)."""


class Entries(NamedTuple):
    """The entries of the orders of all ranks that are not holes, by rank and slot."""

    order_index: Ints
    """Place in Plan.order."""
    rank: Ints
    slot: Ints
    micro_batch: Ints

    def apart(self, value: Ints) -> Ints:
        """The entries whose *value* is not that of the last entry with the same micro-batch."""
        last = np.zeros(int(self.micro_batch.max(initial=0)) + 1, dtype=np.int64)
        last[self.micro_batch] = value
        return np.flatnonzero(last[self.micro_batch] != value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Micro-batches and per-rank orders as arrays (CSR).

    Micro-batch m holds the segments segment_*[segment_offsets[m]:segment_offsets[m+1]] and is shared by the
    ranks member_ranks[member_offsets[m]:member_offsets[m+1]] (ascending; its dynamic CP group). Rank r runs
    order[order_offsets[r]:order_offsets[r+1]], micro-batch numbers or HOLE; the position in that list is the slot.
    """

    strategy: str
    ranks: int
    capacity_tokens: int
    """C; the largest where ranks differ."""
    segment_tokens: Ints
    segment_sequence: Ints
    """Index of the sequence (in the batch) a segment belongs to."""
    segment_start: Ints
    """Offset of the segment inside its sequence (0 unless a packer splits sequences)."""
    segment_offsets: Ints
    member_ranks: Ints
    member_offsets: Ints
    offload_ratio: Floats
    order: Ints
    order_offsets: Ints
    padding_tokens: Ints | None = None
    """Tokens each micro-batch is filled up with to a fixed shape (None = none); no token of the batch."""
    rank_capacity_tokens: Ints | None = None
    """[ranks]: C of every rank, where they differ (nodes of several kinds); None: capacity_tokens."""
    ideal_s: float = 0.0
    """What plans of this kind (dynamic groups; each long sequence alone in its group, short ones on one rank) take at
    least, pipeline bubbles apart; other kinds may be faster. 0: not planned against one (the static mesh)."""
    makespan_s: float = 0.0
    """The planner's own estimate, to be held against ideal_s: the busiest rank's work. hdp-opt with a
    pipeline: when the last rank ends, less what bubbles add to it in an ideal pipeline (see ideal_step_s)."""
    notes: tuple[str, ...] = field(default=())
    in_step: bool = False
    """All micro-batches hold the same segments, on groups alike whose members run them at the same slots, and there are
    no holes. A planner that knows says so; then nobody looks at every micro-batch again."""

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches."""
        return len(self.offload_ratio)

    @property
    def group_size(self) -> Ints:
        """Ranks that share each micro-batch."""
        return np.diff(self.member_offsets)

    @property
    def tokens(self) -> Ints:
        """Tokens of each micro-batch over all its ranks, padding included."""
        tokens: Ints = np.add.reduceat(self.segment_tokens, self.segment_offsets[:-1])
        return tokens if self.padding_tokens is None else tokens + self.padding_tokens

    @property
    def entries(self) -> Entries:
        """What every rank runs."""
        index = np.flatnonzero(self.order != HOLE)
        rank = np.repeat(np.arange(self.ranks), np.diff(self.order_offsets))[index]
        return Entries(index, rank, index - self.order_offsets[rank], self.order[index])

    @property
    def shares_packs(self) -> bool:
        """Whether several ranks share a micro-batch of several segments."""
        return bool(((self.group_size > 1) & (np.diff(self.segment_offsets) > 1)).any())
