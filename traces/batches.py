"""Global batches: what one training step takes from a trace, a distribution or a stream of lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hdpsim.arrays import Ints
from hdpsim.errors import InfeasibleError, TraceError, UserInputError
from hdpsim.quoting import quoted
from hdpsim.ranges import LIMITS
from hdpsim.traces.cut_to_context import Block, cut_block
from hdpsim.traces.distributions import Distribution
from hdpsim.traces.lengths import BadValueError, lengths_from_array
from hdpsim.traces.trace import Trace

LongSequencePolicy = Literal["chunk", "truncate", "drop"]
"""What becomes of sequences longer than the context; see `global_batches`."""

_BLOCK_SEQUENCES = 2**15
_BLOCK_PIECES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GlobalBatch:
    """The sequences of one training step, none longer than the context.

    Every token of the source is in exactly one account of exactly one batch:
    source tokens = tokens + dropped_tokens + truncated_tokens, summed over all batches.

    Attributes:
        index: number of the batch, from 0.
        lengths: tokens of each sequence (or piece of one), in order; read-only int64.
        dropped_tokens: tokens of the sequences left out because they exceed the context.
        dropped_sequences: how many sequences that were.
        truncated_tokens: tokens cut off the ends of sequences that exceed the context.
        truncated_sequences: how many sequences that were.
        chunked_sequences: sequences cut into pieces because they exceed the context.
        long_tokens: tokens of the batch in sequences that are longer than the context: pieces, or first parts, of them.
        split_tokens: tokens of the last sequence (or piece) that did not fit the budget and open the next batch.
        complete: the batch reached its budget; False only for the last one of a source that ended.
    """

    index: int
    lengths: Ints
    dropped_tokens: int = 0
    dropped_sequences: int = 0
    truncated_tokens: int = 0
    truncated_sequences: int = 0
    chunked_sequences: int = 0
    long_tokens: int = 0
    split_tokens: int = 0
    complete: bool = True

    @property
    def tokens(self) -> int:
        """Tokens to train on."""
        return int(self.lengths.sum())


def global_batches(
    source: Trace | Distribution | Iterable[Ints],
    *,
    context_tokens: int,
    policy: LongSequencePolicy = "chunk",
    budget_tokens: int | None = None,
    sequences: int | None = None,
    seed: int | None = None,
    wrap: bool = True,
) -> Iterator[GlobalBatch]:
    """Cut a source of sequence lengths into global batches.

    A batch of *budget_tokens* holds exactly that many tokens: sequences are taken in order, the one that crosses the
    budget is cut there and its rest opens the next batch. All batches are then equally large, so that steps compare,
    and no token is lost. A batch of *sequences* holds that many sequences of the source, dropped ones not counted.

    Args:
        source: a trace; a distribution, drawn from without end; or an iterable of arrays (such as `iter_lengths`
            gives), played once in its own order.
        context_tokens: the longest sequence the model is trained on.
        policy: what becomes of longer sequences. "chunk": cut into pieces of context_tokens and a rest, all
            independent sequences. "truncate": only the first context_tokens stay. "drop": left out.
        budget_tokens: tokens of a batch; give either this or sequences.
        sequences: source sequences of a batch.
        seed: shuffles a trace (anew each time round); None keeps the order of the file. Seeds a distribution, which
            needs one.
        wrap: start a trace again when it ends, without end. Otherwise the last batch may be incomplete.

    Raises:
        UserInputError: arguments that contradict each other, or no sequence fits the context.
    """
    if policy not in get_args(LongSequencePolicy):
        known = ", ".join(get_args(LongSequencePolicy))
        raise UserInputError(f"policy must be one of {known}, got {quoted(policy)}")
    if (budget_tokens is None) == (sequences is None):
        raise UserInputError("give the size of a global batch either in tokens or in sequences")
    given = {"context_tokens": context_tokens, "budget_tokens": budget_tokens, "sequences": sequences}
    for key, value in given.items():
        if value is not None and value < 1:
            raise UserInputError(f"{key} must be at least 1, got {value}")
    if isinstance(source, Distribution):
        blocks = _distribution_blocks(source, seed, context_tokens)
        shortest = context_tokens if source.fills_context else source.edges_tokens[0] + 1
    elif isinstance(source, Trace):
        blocks, shortest = _trace_blocks(source, seed, wrap), int(source.lengths.min())
    elif seed is not None:
        raise UserInputError("a stream of lengths keeps its own order: seed must be None")
    else:
        blocks, shortest = _small_blocks(source), 1
    if policy == "drop" and shortest > context_tokens:
        raise UserInputError(
            f"no sequence fits the context of {context_tokens} tokens (the shortest has {shortest}) and policy drop "
            "leaves out the others: use chunk or truncate, or a longer context"
        )
    return _batches(_PieceQueue(blocks, context_tokens, policy), budget_tokens, sequences)


def _distribution_blocks(distribution: Distribution, seed: int | None, context_tokens: int) -> Iterator[Ints]:
    if seed is None:
        raise UserInputError(f"distribution {distribution.name} needs a seed to draw sequences")
    if distribution.fills_context:
        return repeat(np.full(_BLOCK_SEQUENCES, context_tokens, dtype=np.int64))
    return distribution.stream(seed)


def _trace_blocks(trace: Trace, seed: int | None, wrap: bool) -> Iterator[Ints]:
    rng = None if seed is None else np.random.default_rng(seed)
    while True:
        lengths = trace.lengths if rng is None else rng.permutation(trace.lengths)
        yield from _small_blocks((lengths,))
        if not wrap:
            return


def _small_blocks(arrays: Iterable[NDArray[np.integer]]) -> Iterator[Ints]:
    """Yield checked int64 arrays small enough that running sums over them stay in the processor's cache."""
    rows = 0
    for array in arrays:
        for start in range(0, len(array), _BLOCK_SEQUENCES):
            block = np.asarray(array[start : start + _BLOCK_SEQUENCES])
            try:
                yield lengths_from_array(block)
            except BadValueError as error:
                raise TraceError(error.message, "stream of lengths", rows + error.index + 1) from None
            rows += len(block)


def _of_few_pieces(blocks: Iterator[Ints], context_tokens: int) -> Iterator[Ints]:
    """Return the same lengths in blocks that the context cuts into not many more than _BLOCK_PIECES pieces.

    Raises:
        InfeasibleError: one sequence alone falls into more pieces than a batch may have.
    """
    most, why = LIMITS["batch_pieces"]
    for block in blocks:
        counts = (block - 1) // context_tokens + 1
        longest = int(counts.max(initial=0))
        if longest > most:
            raise InfeasibleError(
                f"a sequence of {int(block.max()):,} tokens falls into {longest:,} pieces of the context "
                f"({context_tokens:,} tokens); at most {most:,}: {why}"
            )
        parts = (np.cumsum(counts) - 1) // _BLOCK_PIECES
        yield from np.split(block, np.flatnonzero(np.diff(parts)) + 1)


class _PieceQueue:
    """The source as a line of pieces, of which the head block is in memory.

    Attributes:
        block: the block at the head.
        taken_tokens: tokens of the block that are in batches already.
        counted: pieces of the block whose accounts are in batches already.
        trailing_tokens, trailing_sequences: dropped after the last piece of the source; known once it has ended.
    """

    def __init__(self, blocks: Iterator[Ints], context_tokens: int, policy: str) -> None:
        self._blocks = blocks if policy != "chunk" else _of_few_pieces(blocks, context_tokens)
        self._context_tokens, self._policy = context_tokens, policy
        self.block = Block.empty()
        self.taken_tokens = self.counted = 0
        self.trailing_tokens = self.trailing_sequences = 0

    def refill(self) -> bool:
        """Make sure that a token waits at the head; False when the source has ended."""
        while self.taken_tokens == self.block.tokens:
            lengths = next(self._blocks, None)
            if lengths is None:
                return False
            dropped = (self.trailing_tokens, self.trailing_sequences)
            block = cut_block(lengths, self._context_tokens, self._policy, *dropped)
            self.trailing_tokens, self.trailing_sequences = block.trailing_tokens, block.trailing_sequences
            self.block, self.taken_tokens, self.counted = block, 0, 0
        return True

    def take(self, end_token: int) -> tuple[Ints, Ints, int, int]:
        """Take the tokens up to *end_token* of the block.

        Returns:
            lengths, accounts, tokens that come from too long sequences, and how much of the last piece stays.
        """
        ends = self.block.ends
        first = int(np.searchsorted(ends, self.taken_tokens, side="right"))
        last = int(np.searchsorted(ends, end_token, side="left"))
        lengths = np.diff(np.minimum(ends[first : last + 1], end_token), prepend=self.taken_tokens)
        accounts = self.block.accounts[:, last + 1] - self.block.accounts[:, self.counted]
        long_tokens = int(lengths[self.block.of_long[first : last + 1]].sum())
        self.taken_tokens, self.counted = end_token, last + 1
        return lengths, accounts, long_tokens, int(ends[last]) - end_token


def _batches(pieces: _PieceQueue, budget_tokens: int | None, sequences: int | None) -> Iterator[GlobalBatch]:
    index, (most, why) = 0, LIMITS["batch_pieces"]
    while pieces.refill():
        parts: list[Ints] = []
        sequences_read = 0
        accounts = np.zeros(len(Block.ACCOUNTS), dtype=np.int64)
        missing = budget_tokens if budget_tokens is not None else sequences or 0
        split_tokens = long_tokens = 0
        while missing and pieces.refill():
            block = pieces.block
            if budget_tokens is not None:
                end_token = min(pieces.taken_tokens + missing, block.tokens)
                missing -= end_token - pieces.taken_tokens
            else:
                done = int(np.searchsorted(block.sequence_ends, pieces.taken_tokens, side="right"))
                taken = min(missing, len(block.sequence_ends) - done)
                end_token = int(block.sequence_ends[done + taken - 1])
                missing -= taken
            lengths, counts, of_long, split_tokens = pieces.take(end_token)
            sequences_read += len(lengths)
            if sequences_read > most:
                raise InfeasibleError(
                    f"a global batch holds more than {most:,} sequences or pieces of some: {why}; take a smaller "
                    "batch or a longer context"
                )
            parts.append(lengths)
            long_tokens += of_long
            accounts += counts
        if not pieces.refill():
            accounts[0] += pieces.trailing_tokens
            accounts[1] += pieces.trailing_sequences
        joined = np.concatenate(parts)
        joined.flags.writeable = False
        yield GlobalBatch(
            index=index,
            lengths=joined,
            **dict(zip(Block.ACCOUNTS, accounts.tolist(), strict=True)),
            long_tokens=long_tokens,
            split_tokens=split_tokens,
            complete=missing == 0,
        )
        index += 1
    if index == 0:
        raise UserInputError("the source holds no sequence that fits the context")
