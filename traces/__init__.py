"""Sequence lengths: read, check, summarise, synthesise, and cut into global batches. Knows no hardware and no time."""

from __future__ import annotations

from hdpsim.traces.batches import GlobalBatch, LongSequencePolicy, global_batches
from hdpsim.traces.catalog import (
    load_distribution,
    load_source,
    load_trace,
    shipped_distributions,
    shipped_traces,
)
from hdpsim.traces.distributions import Distribution, read_distribution, synthesize, synthesize_tokens
from hdpsim.traces.files import iter_lengths, read_trace, write_trace
from hdpsim.traces.lengths import LARGEST_LENGTH_TOKENS
from hdpsim.traces.streaming import LengthStream, open_stream
from hdpsim.traces.summary import LengthBucket, TraceStatistics, bucket_label, statistics
from hdpsim.traces.trace import RepeatedLengths, Trace

__all__ = [
    "LARGEST_LENGTH_TOKENS", "Distribution", "GlobalBatch", "LengthBucket", "LengthStream", "LongSequencePolicy",
    "RepeatedLengths", "Trace", "TraceStatistics", "bucket_label", "global_batches", "iter_lengths",
    "load_distribution", "load_source", "load_trace", "open_stream", "read_distribution", "read_trace",
    "shipped_distributions", "shipped_traces", "statistics", "synthesize", "synthesize_tokens", "write_trace",
]  # fmt: skip
