"""Statistics of a trace: who holds the sequences and who holds the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from hdpsim.traces.trace import Trace

PERCENTILES = (50.0, 90.0, 99.0, 99.9)


class BucketRow(TypedDict):
    """A row of the table of buckets; shares are fractions of 1."""

    bucket: str
    upper_edge_tokens: int
    samples: int
    sample_share: float
    tokens: int
    token_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBucket:
    """The sequences with upper_edge_tokens / 2 < length <= upper_edge_tokens, a power of two."""

    upper_edge_tokens: int
    samples: int
    tokens: int

    @property
    def label(self) -> str:
        """The upper edge, short: "512", "8K", "2M"."""
        return bucket_label(self.upper_edge_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStatistics:
    """What a trace looks like.

    Attributes:
        name: name of the trace.
        samples: number of sequences.
        tokens: tokens of all sequences.
        min_tokens: shortest length.
        max_tokens: longest length.
        mean_tokens: mean length of a sequence.
        token_weighted_mean_tokens: mean length of the sequence that a random token belongs to,
            sum(length^2) / sum(length). Attention work per token is proportional to it.
        percentile_tokens: (percent, length) pairs: the shortest length that so many percent do not exceed.
        buckets: power-of-two buckets from the shortest to the longest length, empty ones included.
    """

    name: str
    samples: int
    tokens: int
    min_tokens: int
    max_tokens: int
    mean_tokens: float
    token_weighted_mean_tokens: float
    percentile_tokens: tuple[tuple[float, int], ...]
    buckets: tuple[LengthBucket, ...]

    def rows(self) -> list[BucketRow]:
        """The buckets as rows of a table."""
        return [
            BucketRow(
                bucket=bucket.label,
                upper_edge_tokens=bucket.upper_edge_tokens,
                samples=bucket.samples,
                sample_share=bucket.samples / self.samples,
                tokens=bucket.tokens,
                token_share=bucket.tokens / self.tokens,
            )
            for bucket in self.buckets
        ]

    def summary(self) -> dict[str, str | int | float]:
        """Everything but the buckets, by name."""
        values: dict[str, str | int | float] = {
            "name": self.name,
            "samples": self.samples,
            "tokens": self.tokens,
            "min_tokens": self.min_tokens,
            "mean_tokens": self.mean_tokens,
        }
        for percent, length in self.percentile_tokens:
            values[f"p{percent:g}_tokens"] = length
        values["max_tokens"] = self.max_tokens
        values["token_weighted_mean_tokens"] = self.token_weighted_mean_tokens
        return values


def bucket_label(tokens: int) -> str:
    """Write a power of two as people say it: 512, 8K (8,192), 2M (2,097,152), 1G."""
    for unit, size in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if tokens >= size:
            return f"{tokens // size}{unit}"
    return str(tokens)


def statistics(trace: Trace) -> TraceStatistics:
    """Summarise a trace."""
    lengths: NDArray[np.int64] = trace.lengths.astype(np.int64)
    tokens = trace.tokens
    # frexp(n - 1) gives the number of bits of n - 1, so that 2**k is the last length of bucket k.
    bucket = np.frexp(lengths - 1.0)[1]
    samples = np.bincount(bucket)
    bucket_tokens = np.bincount(bucket, weights=lengths)  # exact: sums stay far below 2**53
    percentiles = np.percentile(lengths, PERCENTILES, method="inverted_cdf")
    first = int(bucket.min())
    return TraceStatistics(
        name=trace.name,
        samples=len(lengths),
        tokens=tokens,
        min_tokens=int(lengths.min()),
        max_tokens=int(lengths.max()),
        mean_tokens=tokens / len(lengths),
        token_weighted_mean_tokens=float(np.square(lengths, dtype=np.float64).sum()) / tokens,
        percentile_tokens=tuple(zip(PERCENTILES, map(int, percentiles), strict=True)),
        buckets=tuple(
            LengthBucket(upper_edge_tokens=2**k, samples=int(samples[k]), tokens=int(bucket_tokens[k]))
            for k in range(first, len(samples))
        ),
    )
