"""Cutting sequences to the context, block by block and vectorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hdpsim.arrays import Bools, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Pieces of sequences, as running sums, so that a batch is a difference of two positions.

    Attributes:
        ends: tokens of the block up to the end of each piece.
        sequence_ends: the same for whole sequences (a chunked one ends with its last piece).
        accounts: [ACCOUNTS, pieces + 1]: each account of a batch (GlobalBatch) before each piece. What was dropped is
            booked on the piece that follows.
        of_long: whether each piece comes from a sequence longer than the context.
        trailing_tokens: tokens dropped after the last piece, to be booked on the next block.
        trailing_sequences: how many sequences that were.
    """

    ACCOUNTS: ClassVar[tuple[str, ...]] = (
        "dropped_tokens", "dropped_sequences", "truncated_tokens", "truncated_sequences", "chunked_sequences",
    )  # fmt: skip

    ends: Ints
    sequence_ends: Ints
    accounts: Ints
    of_long: Bools
    trailing_tokens: int = 0
    trailing_sequences: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all pieces."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @classmethod
    def empty(cls) -> Block:
        """A block without pieces."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(
            ends=nothing,
            sequence_ends=nothing,
            accounts=np.zeros((len(cls.ACCOUNTS), 1), dtype=np.int64),
            of_long=np.zeros(0, dtype=bool),
        )


def cut_block(
    lengths: Ints, context_tokens: int, policy: str, dropped_tokens: int = 0, dropped_sequences: int = 0
) -> Block:
    """Cut the sequences of a block to the context.

    Args:
        lengths: tokens of each sequence.
        context_tokens: the longest piece.
        policy: "chunk", "truncate" or "drop".
        dropped_tokens: tokens dropped before this block and not booked yet.
        dropped_sequences: how many sequences that were.
    """
    too_long = lengths > context_tokens
    any_too_long = bool(too_long.any())
    pieces, last_piece, of_long = lengths, np.arange(len(lengths)), too_long
    kept = np.ones(len(lengths), dtype=bool)
    if policy == "chunk" and any_too_long:
        counts = (lengths - 1) // context_tokens + 1
        last_piece = np.cumsum(counts) - 1
        pieces = np.full(int(last_piece[-1]) + 1, context_tokens)
        pieces[last_piece] = lengths - (counts - 1) * context_tokens
        of_long = np.repeat(too_long, counts)
    elif policy == "truncate":
        pieces = np.minimum(lengths, context_tokens)
    elif policy == "drop" and any_too_long:
        kept = ~too_long
        pieces, of_long = lengths[kept], too_long[kept]
        last_piece = np.arange(len(pieces))

    accounts = np.zeros((len(Block.ACCOUNTS), len(pieces) + 1), dtype=np.int64)
    trailing_tokens, trailing_sequences = dropped_tokens, dropped_sequences
    if policy == "drop" and any_too_long:
        before_tokens = np.cumsum(np.where(too_long, lengths, 0)) + dropped_tokens
        before_sequences = np.cumsum(too_long) + dropped_sequences
        accounts[0, 1:], accounts[1, 1:] = before_tokens[kept], before_sequences[kept]
        trailing_tokens = int(before_tokens[-1] - accounts[0, -1])
        trailing_sequences = int(before_sequences[-1] - accounts[1, -1])
    elif len(pieces):
        accounts[0, 1:], accounts[1, 1:] = dropped_tokens, dropped_sequences
        trailing_tokens = trailing_sequences = 0
    if policy == "truncate":
        np.cumsum(lengths - pieces, out=accounts[2, 1:])
        np.cumsum(too_long, out=accounts[3, 1:])
    elif policy == "chunk" and any_too_long:
        opened = np.zeros(len(pieces), dtype=np.int64)
        opened[last_piece - counts + 1] = too_long
        np.cumsum(opened, out=accounts[4, 1:])
    ends = np.cumsum(pieces)
    return Block(
        ends=ends,
        sequence_ends=ends[last_piece],
        accounts=accounts,
        of_long=of_long,
        trailing_tokens=trailing_tokens,
        trailing_sequences=trailing_sequences,
    )
