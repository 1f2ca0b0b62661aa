"""What global batches make of their data: how often a trace is gone through, what the context cuts off or apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.experiments.output.amounts import large_amount
from hdpsim.experiments.output.json_data import attributes
from hdpsim.traces import Trace

if TYPE_CHECKING:
    from hdpsim.traces import Distribution, GlobalBatch, LongSequencePolicy, RepeatedLengths

Lengths = NDArray[np.int64]


WORTH_A_WORD = 0.0005
"""Share of the tokens from which what happens to long sequences is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongSequences:
    """Sequences of the source that are longer than the context.

    Attributes:
        tokens: of the source, as far as it was read, in all sequences.
        long_tokens: of these, in sequences longer than the context.
        sequences: how many of them.
    """

    context_tokens: int
    policy: LongSequencePolicy
    tokens: int
    long_tokens: int
    sequences: int

    @classmethod
    def of(
        cls, batches: Iterable[GlobalBatch], context_tokens: int, policy: LongSequencePolicy
    ) -> LongSequences:
        """What became of the sequences that *batches* were made of."""
        counted = cls(context_tokens=context_tokens, policy=policy, tokens=0, long_tokens=0, sequences=0)
        for batch in batches:
            counted = counted.with_batch(batch)
        return counted

    def with_batch(self, batch: GlobalBatch) -> LongSequences:
        """This count with one more batch."""
        lost = batch.dropped_tokens + batch.truncated_tokens
        long = batch.chunked_sequences + batch.truncated_sequences + batch.dropped_sequences
        return replace(
            self,
            tokens=self.tokens + batch.tokens + lost,
            long_tokens=self.long_tokens + batch.long_tokens + lost,
            sequences=self.sequences + long,
        )

    @property
    def share(self) -> float:
        """Share of the tokens in sequences longer than the context."""
        return self.long_tokens / self.tokens if self.tokens else 0.0

    @property
    def line(self) -> str:
        """A sentence, empty when there is nothing to say."""
        if self.share < WORTH_A_WORD:
            return ""
        what = {
            "chunk": "cut into pieces that do not attend to each other",
            "truncate": "of which only the first part is trained on",
            "drop": "which are left out",
        }[self.policy]
        return (
            f"{self.share:.1%} of the tokens are in sequences longer than the context of {self.context_tokens:,} "
            f"tokens ({self.sequences:,} of them), {what} (data.policy: {self.policy})."
        )

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return attributes(self, "policy context_tokens sequences") | {"share_of_tokens": self.share}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataUse:
    """What some global batches made of their source.

    Attributes:
        source: name or path.
        batches: how many.
        tokens: in all of them.
        round_tokens: what a trace gives until it starts again; None of what has no end.
    """

    source: str
    batches: int
    tokens: int
    round_tokens: int | None
    long: LongSequences

    @property
    def rounds(self) -> float:
        """How often all batches together go through the trace."""
        return self.tokens / self.round_tokens if self.round_tokens else 0.0

    @property
    def rounds_per_batch(self) -> float:
        """How often one batch does."""
        return self.rounds / self.batches

    @property
    def repeated(self) -> bool:
        """Whether batches hold sequences more than once: then they are no independent samples."""
        return self.rounds > 1.0

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences for the reader; none when there is nothing to say."""
        repeated = ""
        if self.repeated and self.round_tokens:
            how = f"{self.rounds:.1f} times over {self.batches} batches"
            if self.rounds_per_batch > 1.0:
                how = f"{self.rounds_per_batch:.1f} times per batch"
            repeated = (
                f"Data repeated: {how}: {self.source} holds {large_amount(self.round_tokens)} tokens. Batches share "
                "sequences, so there is no confidence interval; ranges show what the simulated batches span."
            )
        return tuple(filter(None, (repeated, self.long.line)))

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return {
            **attributes(self, "source batches tokens round_tokens repeated"),
            "rounds": None if self.round_tokens is None else self.rounds,
            "rounds_per_batch": None if self.round_tokens is None else self.rounds_per_batch,
            "longer_than_context": self.long.document(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Global batches, and what they make of their source."""

    lengths: tuple[Lengths, ...]
    use: DataUse


def _round_tokens(
    source: Trace | Distribution | RepeatedLengths, context_tokens: int, policy: LongSequencePolicy
) -> int | None:
    """Tokens that one round through a trace gives; None of what has no end."""
    if not isinstance(source, Trace):
        return None
    lengths = source.lengths
    if policy == "drop":
        lengths = lengths[lengths <= context_tokens]
    return int((np.minimum(lengths, context_tokens) if policy == "truncate" else lengths).sum(dtype=np.int64))


def data_use(
    name: str,
    source: Trace | Distribution | RepeatedLengths,
    batches: tuple[GlobalBatch, ...],
    context_tokens: int,
    policy: LongSequencePolicy,
) -> DataUse:
    """What *batches* made of *source*."""
    return DataUse(
        source=name,
        batches=len(batches),
        tokens=sum(batch.tokens for batch in batches),
        round_tokens=_round_tokens(source, context_tokens, policy),
        long=LongSequences.of(batches, context_tokens, policy),
    )
