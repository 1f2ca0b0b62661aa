"""A trace: the lengths of the sequences of a data set, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.errors import TraceError
from hdpsim.traces.lengths import BadValueError, lengths_from_array

if TYPE_CHECKING:
    from collections.abc import Iterator


_BLOCK_SEQUENCES = 2**15


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Sequence lengths with their origin.

    Attributes:
        lengths: tokens of each sequence, one-dimensional and read-only; int32 where all fit, else int64.
        name: short name for tables and plots.
        provenance: where the lengths come from, in a sentence.

    Raises:
        TraceError: there is no length, or one is not a whole number from 1 to 2**31.
    """

    lengths: NDArray[np.int32] | NDArray[np.int64]
    name: str
    provenance: str = ""

    def __post_init__(self) -> None:
        values: NDArray[Any] = np.asarray(self.lengths)
        if values.ndim != 1:
            raise TraceError(f"lengths must be one-dimensional, got {values.ndim} dimensions", self.name)
        if values.size == 0:
            raise TraceError("holds no lengths", self.name)
        try:
            lengths = lengths_from_array(values)
        except BadValueError as error:
            raise TraceError(error.message, self.name, error.index + 1) from None
        stored = lengths.astype(np.int32) if lengths.max() <= np.iinfo(np.int32).max else lengths
        stored.flags.writeable = False
        object.__setattr__(self, "lengths", stored)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """Sum of all lengths."""
        return int(self.lengths.sum(dtype=np.int64))


@dataclass(frozen=True, slots=True)
class RepeatedLengths:
    """The same few lengths again and again, in their order and without end: what a benchmark of equal sequences feeds.

    Attributes:
        lengths_tokens: tokens of each sequence of a round.

    Raises:
        TraceError: there is no length, or one is not a whole number from 1 to 2**31.
    """

    lengths_tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        Trace(np.asarray(self.lengths_tokens), self.name)  # checks them

    @property
    def name(self) -> str:
        """What they are, in words."""
        if len(set(self.lengths_tokens)) == 1:
            return f"sequences of {self.lengths_tokens[0]:,} tokens"
        return f"{len(self.lengths_tokens):,} lengths in turn"

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        rounds = max(1, _BLOCK_SEQUENCES // len(self.lengths_tokens))
        block = np.tile(np.asarray(self.lengths_tokens, dtype=np.int64), rounds)
        while True:
            yield block
