"""Length distributions given as the share of tokens per length bucket, and traces drawn from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.errors import TraceError
from hdpsim.quoting import LONGEST_NAME, quoted, shortened
from hdpsim.ranges import RANGES
from hdpsim.traces.lengths import LARGEST_LENGTH_TOKENS
from hdpsim.traces.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator


_BLOCK_SEQUENCES = 2**15


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Share of all tokens that sequences of each length bucket hold; log-uniform inside a bucket.

    Bucket i holds the lengths n with edges_tokens[i] < n <= edges_tokens[i + 1], and n is drawn there as
    ceil(x), log x uniform: P(n) = ln(n / (n - 1)) / ln(upper / lower). Token shares are what counts for a simulation
    (they decide the work); how many sequences that takes follows from the mean length inside each bucket:

        sample_share[i] = (token_share[i] / mean[i]) / sum_j (token_share[j] / mean[j])

    Attributes:
        name: short name.
        edges_tokens: increasing bucket edges, one more than there are buckets.
        token_shares: share of tokens per bucket; divided by their sum, so percent will do.
        source: where the shares were published.
        fills_context: every sequence that a batch takes has the length of its context, whatever that is; the buckets
            count only where there is no context (a trace drawn from it).

    Raises:
        TraceError: edges that do not increase from at least 1, or shares that are negative or all zero.
    """

    name: str
    edges_tokens: tuple[int, ...]
    token_shares: tuple[float, ...]
    source: str = ""
    fills_context: bool = False

    def __post_init__(self) -> None:
        edges, shares = self.edges_tokens, self.token_shares
        shown = shortened(str(list(edges)))
        if any(isinstance(edge, bool) or not isinstance(edge, int) for edge in edges):
            raise TraceError(f"edges_tokens must be whole numbers, got {shown}", self.name)
        rising = all(low < high for low, high in pairwise(edges))
        if len(edges) < 2 or not rising or edges[0] < 1 or edges[-1] > LARGEST_LENGTH_TOKENS:
            wanted = f"two or more numbers that increase from at least 1 to at most {LARGEST_LENGTH_TOKENS}"
            raise TraceError(f"edges_tokens must be {wanted}, got {shown}", self.name)
        if len(shares) != len(edges) - 1:
            buckets = f"{len(edges)} edges make {len(edges) - 1} buckets"
            raise TraceError(f"{buckets}, but there are {len(shares)} token shares", self.name)
        total = math.fsum(shares)
        if not all(share >= 0 for share in shares) or not 0 < total < math.inf:
            wrong = shortened(str(list(shares)))
            raise TraceError(f"token shares must be 0 or more and not all 0, got {wrong}", self.name)
        object.__setattr__(self, "token_shares", tuple(share / total for share in shares))

    @property
    def bucket_mean_tokens(self) -> Floats:
        """Mean length inside each bucket.

            mean = sum_{n=a+1..b} n ln(n / (n - 1)) / ln(b / a) = (b ln b - a ln a - ln((b-1)! / (a-1)!)) / ln(b / a)

        by summation by parts; close to (b - a) / ln(b / a) + 1/2.
        """
        return np.array(
            [
                (high * math.log(high) - low * math.log(low) - math.lgamma(high) + math.lgamma(low))
                / math.log(high / low)
                for low, high in pairwise(self.edges_tokens)
            ]
        )

    @property
    def sample_shares(self) -> Floats:
        """Share of all sequences that each bucket holds."""
        sequences_per_token = np.array(self.token_shares) / self.bucket_mean_tokens
        return np.asarray(sequences_per_token / sequences_per_token.sum())

    @property
    def mean_tokens(self) -> float:
        """Mean length of a sequence."""
        return float(1.0 / (np.array(self.token_shares) / self.bucket_mean_tokens).sum())

    def sample(self, count: int, rng: np.random.Generator) -> Ints:
        """Draw *count* independent lengths."""
        return self._lengths_at(rng.random(count), rng.random(count))

    def stratified_sample(self, count: int, rng: np.random.Generator) -> Ints:
        """Draw *count* lengths at evenly spaced quantiles, in random order.

        A set this even has the published shares almost exactly, rare long sequences included, so that a mean over
        its batches needs far fewer batches; a single batch still scatters as it would in an independent draw.
        """
        quantile = (np.arange(count) + rng.random()) / count
        upper = np.cumsum(self.sample_shares)
        lower = np.concatenate(([0.0], upper[:-1]))
        bucket = np.minimum(np.searchsorted(upper, quantile, side="right"), len(upper) - 1)
        inside = np.clip((quantile - lower[bucket]) / (upper[bucket] - lower[bucket]), 0.0, 1.0)
        return rng.permutation(self._lengths_at(quantile, 1.0 - inside))

    def _lengths_at(self, quantile: Floats, position: Floats) -> Ints:
        """Lengths in the bucket at *quantile* of the samples, at 1 - *position* of its logarithmic width."""
        edges = np.array(self.edges_tokens, dtype=np.float64)
        bucket = np.searchsorted(np.cumsum(self.sample_shares)[:-1], quantile, side="right")
        low, high = edges[bucket], edges[bucket + 1]
        # 1 - position lies in (0, 1] for a random() position, so that the lower edge itself is never drawn.
        return np.clip(np.ceil(low * (high / low) ** (1.0 - position)), low + 1, high).astype(np.int64)

    def stream(self, seed: int) -> Iterator[Ints]:
        """Draw lengths without end, in blocks; the same seed gives the same stream."""
        rng = np.random.default_rng(seed)
        while True:
            yield self.sample(_BLOCK_SEQUENCES, rng)


def read_distribution(path: str | Path) -> Distribution:
    """Read a distribution from a YAML file: edges_tokens, token_percent, and perhaps name, source, fills_context."""
    from hdpsim.yaml_loader import YamlError, load_yaml

    where = str(path)
    try:
        content: Any = load_yaml(Path(path))
    except YamlError as error:
        raise TraceError(error.message, where) from None
    keys = {"name", "source", "fills_context", "edges_tokens", "token_percent"}
    if not isinstance(content, dict) or not {"edges_tokens", "token_percent"} <= content.keys() <= keys:
        shown_content = (
            shortened(", ".join(content), LONGEST_NAME) if isinstance(content, dict) else quoted(content)
        )
        raise TraceError(
            "expected the keys edges_tokens and token_percent, and perhaps name, source and fills_context; "
            f"found {shown_content}",
            where,
        )
    edges, percents = content["edges_tokens"], content["token_percent"]
    for key, wanted, fits in (
        ("edges_tokens", "a list of numbers", _are_numbers),
        ("token_percent", "a list of numbers", _are_numbers),
        ("name", "a text", lambda value: isinstance(value, str)),
        ("source", "a text", lambda value: isinstance(value, str)),
        ("fills_context", "true or false", lambda value: isinstance(value, bool)),
    ):
        if key in content and not fits(content[key]):
            raise TraceError(f"{key} must be {wanted}, got {quoted(content[key])}", where)
    return Distribution(
        name=content.get("name", Path(path).stem),
        edges_tokens=tuple(edges),
        token_shares=tuple(map(float, percents)),
        source=content.get("source", ""),
        fills_context=content.get("fills_context", False),
    )


def _are_numbers(values: object) -> bool:
    allowed = RANGES["number"].high
    return isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= allowed
        for value in values
    )


def synthesize(distribution: Distribution, count: int, seed: int = 0) -> Trace:
    """Draw a trace of *count* sequences."""
    allowed = RANGES["drawn_sequences"]
    if not allowed.holds(count):
        raise TraceError(f"the number of sequences {allowed.complaint(count)}", distribution.name)
    lengths = distribution.sample(count, np.random.default_rng(seed))
    return Trace(lengths, distribution.name, f"{count} lengths drawn with seed {seed}; {distribution.source}")


def synthesize_tokens(distribution: Distribution, tokens: int, seed: int = 0) -> Trace:
    """Draw a trace of exactly *tokens* tokens: sequences in turn, the last one cut to fit."""
    allowed, most = RANGES["drawn_tokens"], int(RANGES["drawn_sequences"].high)
    if not allowed.holds(tokens):
        raise TraceError(f"the number of tokens {allowed.complaint(tokens)}", distribution.name)
    if tokens > most * distribution.mean_tokens:
        raise TraceError(
            f"{tokens:,} tokens are about {tokens / distribution.mean_tokens:,.0f} sequences of it; "
            f"at most {most:,} are drawn at once",
            distribution.name,
        )
    blocks, drawn = [], 0
    for block in distribution.stream(seed):
        ends = drawn + np.cumsum(block)
        blocks.append(block[: int(np.searchsorted(ends, tokens)) + 1])
        drawn = int(ends[-1])
        if drawn >= tokens:
            break
    lengths = np.concatenate(blocks)
    lengths[-1] -= int(lengths.sum()) - tokens
    return Trace(lengths, distribution.name, f"{tokens} tokens drawn with seed {seed}; {distribution.source}")
