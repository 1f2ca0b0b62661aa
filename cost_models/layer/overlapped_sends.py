"""What a GPU sends to other nodes beside its work, and how soon that is done at which rate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Bools, Floats


class SentTimes(NamedTuple):
    """Transfers of one kind that a layer does `times` over, [n] each.

    seconds = times x max(hidden, fixed + bytes / rate)
    """

    times: Floats
    hidden_s: Floats
    """Work that goes on meanwhile."""
    fixed_s: Floats
    """What does not depend on the rate: latencies, delays."""
    sent_bytes: Floats
    """By the GPU that sends most over the network."""
    bytes_per_s: Floats
    """The rate that its price assumes."""

    @classmethod
    def of_hops(
        cls,
        times: Floats,
        hop_s: Floats,
        work_s: Floats,
        sent_bytes: Floats,
        bytes_per_s: Floats,
        *,
        kept: float,
        launch_s: float = 0.0,
    ) -> SentTimes:
        """Transfers of a ring: they keep so much of their rate beside *work_s*, and all of it later (exposed_s)."""
        rate = np.broadcast_to(bytes_per_s, np.shape(hop_s))
        fixed_s = hop_s + (1.0 - kept) * work_s - sent_bytes / rate
        return cls(times, np.maximum(work_s, launch_s), fixed_s, sent_bytes, rate)

    @classmethod
    def of_collective(
        cls,
        seconds: Floats,
        sent_bytes: Floats,
        bytes_per_s: float | Floats,
        *,
        exposed_s: Floats | None = None,
        hidden_s: Floats | None = None,
        counted: Bools | None = None,
    ) -> SentTimes:
        """Transfers of collectives that take *seconds*: their bytes at that rate, the rest fixed.

        *hidden_s*: work beside them; or what it leaves of them (*exposed_s*). Neither: nothing runs beside them.
        *counted*: those that there are (None: that take time).
        """
        seconds = np.asarray(seconds, dtype=np.float64)
        if hidden_s is None:
            hidden_s = np.zeros_like(seconds) if exposed_s is None else np.maximum(0.0, seconds - exposed_s)
        sent = np.minimum(sent_bytes, seconds * bytes_per_s)  # no price below what the wire takes
        return cls(
            times=(seconds > 0 if counted is None else counted).astype(np.float64),
            hidden_s=hidden_s,
            fixed_s=np.maximum(0.0, seconds - sent / bytes_per_s),
            sent_bytes=sent,
            bytes_per_s=np.full_like(seconds, bytes_per_s),
        )
