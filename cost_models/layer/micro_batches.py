"""Micro-batches of segments as arrays, and the groups of ranks that share them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints


class Groups(NamedTuple):
    """Groups of ranks that share sequences, [n] each or to be broadcast against each other."""

    tokens: Floats
    """Tokens of a rank: what it merges and sends on, padding included."""
    size: Floats
    tier: Ints
    """Tier of the slowest hop of the group's ring."""
    crossing: Floats | None = None
    """See MicroBatches."""

    @property
    def far(self) -> Bools:
        """Whether they are on several nodes."""
        return np.asarray((self.size > 1.0) & (self.tier > 0))

    def kinds(self) -> Iterator[tuple[Bools, int, int]]:
        """Which groups of several ranks are alike, their size and their tier."""
        sizes, tiers = np.broadcast_arrays(self.size, self.tier)
        for size, tier in {(int(d), int(t)) for d, t in zip(sizes.flat, tiers.flat, strict=True) if d > 1}:
            yield (sizes == size) & (tiers == tier), size, tier


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatches:
    """Many micro-batches as arrays (CSR): segment i of micro-batch m is segment_tokens[offsets[m] + i].

    A segment is one (piece of a) sequence; attention never crosses segments. A micro-batch is shared by
    group_size ranks, each holding total tokens / group_size, split zig-zag.
    """

    segment_tokens: Ints
    segment_offsets: Ints
    group_size: Ints
    tier: Ints
    """Fabric tier of the slowest hop of the group's ring (0 = one rank or inside one node)."""
    offload_ratio: Floats
    padding_tokens: Ints | None = None
    """Tokens that fill a micro-batch up to a fixed shape (None = none): they cost what tokens cost, attention apart."""
    copies: int = 1
    """A single micro-batch may stand for so many equal ones."""
    crossing: Floats | None = None
    """[n, 2]: share of the flows of a group's ring that leave their block, and their pod (FabricModel.ring_crossing).
    None: groups are of neighbours."""
    routed_tokens: Floats | None = None
    """[n]: tokens of a rank in the mean over those that share its experts, in the same slot. None: its own."""

    @property
    def tokens(self) -> Ints:
        """[n]: tokens of each micro-batch over all its ranks, padding included."""
        totals: Ints = np.add.reduceat(self.segment_tokens, self.segment_offsets[:-1])
        return totals if self.padding_tokens is None else totals + self.padding_tokens

    @property
    def tokens_per_rank(self) -> Floats:
        """[n]: tokens of each micro-batch on one of its ranks."""
        return np.asarray(self.tokens / self.group_size)

    @property
    def groups(self) -> Groups:
        """The groups that share them."""
        return Groups(self.tokens_per_rank, self.group_size.astype(np.float64), self.tier, self.crossing)

    @property
    def count(self) -> int:
        """Number of micro-batches."""
        return len(self.group_size)

    @property
    def alike(self) -> bool:
        """Whether all micro-batches hold the same segments in the same kind of group."""
        if self.count == 1:
            return True
        segments, left_over = divmod(len(self.segment_tokens), max(1, self.count))
        held = self.segment_offsets[1:] - self.segment_offsets[:-1]
        if left_over or not self.count or (held != segments).any():
            return False
        by_micro_batch = self.segment_tokens.reshape(self.count, segments)
        # Equal segments have equal tokens, so that only the padding is left to compare.
        columns = [by_micro_batch, self.group_size, self.tier, self.offload_ratio]
        columns += [column for column in (self.padding_tokens, self.crossing) if column is not None]
        return not any((column != column[0]).any() for column in columns)

    def same_as(self, other: MicroBatches) -> bool:
        """Do both hold the same micro-batches, in the same order?"""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return all((one is None) == (two is None) and np.array_equal(one, two) for one, two in pairs)

    @classmethod
    def single(cls, tokens: Ints) -> MicroBatches:
        """Micro-batches of one sequence on one rank each."""
        count = len(tokens)
        return cls(
            segment_tokens=tokens,
            segment_offsets=np.arange(count + 1, dtype=np.int64),
            group_size=np.ones(count, dtype=np.int64),
            tier=np.zeros(count, dtype=np.int64),
            offload_ratio=np.zeros(count),
        )

    @classmethod
    def one(cls, tokens: Sequence[int], ranks: int, tier: int) -> MicroBatches:
        """A single micro-batch of such sequences on so many ranks."""
        return cls(
            segment_tokens=np.array(tokens, dtype=np.int64),
            segment_offsets=np.array([0, len(tokens)]),
            group_size=np.array([ranks]),
            tier=np.array([tier]),
            offload_ratio=np.zeros(1),
        )

    @property
    def first(self) -> MicroBatches:
        """The first micro-batch on its own."""
        return self.only(np.arange(self.count) == 0)

    def only(self, chosen: Bools) -> MicroBatches:
        """Return the chosen micro-batches alone, in the same order."""
        segments = np.diff(self.segment_offsets)
        padding, crossing, routed = self.padding_tokens, self.crossing, self.routed_tokens
        return MicroBatches(
            segment_tokens=self.segment_tokens[np.repeat(chosen, segments)],
            segment_offsets=np.append(0, np.cumsum(segments[chosen])),
            group_size=self.group_size[chosen],
            tier=self.tier[chosen],
            offload_ratio=self.offload_ratio[chosen],
            padding_tokens=None if padding is None else padding[chosen],
            crossing=None if crossing is None else crossing[chosen],
            routed_tokens=None if routed is None else routed[chosen],
        )
