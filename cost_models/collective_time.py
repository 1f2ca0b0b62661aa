"""Seconds of a collective as a function of its bytes: most algorithms have the same few terms."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["CollectiveTime", "fill_s"]

Floats = NDArray[np.float64]


def fill_s(wire_s: Floats, limit_s: ArrayLike) -> Floats:
    """Start-up and drain of a pipelined transfer that takes *wire_s* on the wire: t = w f / (w + f).

    The buffers' worth of time (f) for long transfers, all of the wire time again for short ones.
    """
    limit = np.asarray(limit_s)
    fill: Floats = wire_s * limit / np.maximum(wire_s + limit, 1e-12)
    return fill


class CollectiveTime(NamedTuple):
    """t = latency + w + fill(w) + bytes / ranks / copy rate [+ long, of long messages],   w = bytes x wire share / rate

    Of one algorithm on some wires; stacked, of several at once, [algorithms, 1] each.
    """

    latency_s: float | Floats
    wire_share: float | Floats
    wire_bytes_per_s: float | Floats
    fill_limit_s: float | Floats = 0.0
    """See fill_s; 0 = not pipelined."""
    ranks: float | Floats = 1.0
    copy_bytes_per_s: float | Floats = math.inf
    """Copying the own shard into the result; infinite = there is nothing to copy."""
    long_s: float | Floats = 0.0
    """What a message of *long_bytes* or more takes besides."""
    long_bytes: float | Floats = 0.0

    @classmethod
    def stacked(cls, times: Iterable[CollectiveTime]) -> CollectiveTime:
        """Several algorithms, one per row."""
        rows = list(times)
        several = cls(*np.array(rows, dtype=np.float64).T[:, :, None])
        copied = any(row.copy_bytes_per_s != math.inf for row in rows)
        return several if copied else several._replace(copy_bytes_per_s=math.inf)

    def seconds(self, bytes_total: Floats) -> Floats:
        """Seconds of each size; with stacked algorithms [algorithms, sizes]."""
        wire_s = bytes_total * self.wire_share / self.wire_bytes_per_s
        copy_s = bytes_total / self.ranks / self.copy_bytes_per_s
        long_s = self.long_s * (bytes_total >= self.long_bytes)
        time_s: Floats = self.latency_s + long_s + wire_s + fill_s(wire_s, self.fill_limit_s) + copy_s
        return time_s
