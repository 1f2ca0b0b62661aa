"""An activity: flows that start together and wait for each other; and one that runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from hdpsim.arrays import Floats
from hdpsim.cost_models.network.links import Links, Pattern


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Activity:
    """Flows that advance together.

    Attributes:
        pattern: flows on every link.
        volume_bytes: what the largest flow moves.
        alone_s: seconds while nobody else is on its links.
        label: what it is, for the record ("ring", "gradient sum").
        who: which one of those ("ring of ranks 0 to 7"); empty: nobody asks.
        limit: its own fastest rate, bytes per second of its largest flow; 0: it moves nothing.
        wanted: bytes per second on each of its links at that rate.
    """

    pattern: Pattern
    volume_bytes: float
    alone_s: float
    label: str = ""
    who: str = ""
    limit: float = field(init=False)
    wanted: Floats = field(init=False)

    def __post_init__(self) -> None:
        pattern = self.pattern
        moves = self.volume_bytes > 0 and self.alone_s > 0 and len(pattern.links) > 0
        limit = self.volume_bytes / self.alone_s if moves else 0.0
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "wanted", pattern.flows * limit)

    @classmethod
    def of(
        cls,
        links: Links,
        pattern: Pattern,
        volume_bytes: float,
        *,
        rest_s: float = 0.0,
        hidden_s: float = 0.0,
        label: str = "",
    ) -> Activity:
        """An activity whose time alone follows from its links.

            alone = rest + max(hidden, volume / burst rate)

        Args:
            links: the cluster's links.
            pattern: flows on every link.
            volume_bytes: what the largest flow moves.
            rest_s: time during which it moves nothing: latencies, compute that nothing hides behind.
            hidden_s: compute that goes on meanwhile: a limit to its rate.
            label: see the class.
        """
        wire_s = volume_bytes / pattern.burst_bytes_per_s(links) if volume_bytes else 0.0
        alone_s = rest_s + max(hidden_s, wire_s)
        return cls(pattern=pattern, volume_bytes=volume_bytes, alone_s=alone_s, label=label)


class Running:
    """An activity that runs. Plain numbers: most are touched twice, when they start and when they end.

    Attributes:
        activity: what runs.
        ended: told at its end the seconds it took.
        number: how many were started before it.
        limit: its activity's own fastest rate.
        rate: the one it has.
        left_bytes: what its largest flow had left to move at since_s.
        start_s: when it started.
        since_s: since when it has its rate.
        end_s: when it ends at that rate.
        stopped_by: the link that keeps it from being faster; -1: none.
        alarm: the event that looks whether it has ended; None: there is none.
        alarm_s: when that comes.
    """

    __slots__ = (
        "activity", "alarm", "alarm_s", "end_s", "ended", "left_bytes", "limit", "number", "rate", "since_s",
        "start_s", "stopped_by",
    )  # fmt: skip

    def __init__(
        self, activity: Activity, ended: Callable[[float], object], number: int, now_s: float
    ) -> None:
        self.activity, self.ended, self.number = activity, ended, number
        self.limit = self.rate = activity.limit
        self.left_bytes = activity.volume_bytes
        self.start_s = self.since_s = now_s
        self.end_s = now_s + activity.alone_s
        self.stopped_by = -1
        self.alarm: simpy.Event | None = None
        self.alarm_s = math.inf

    def set_rate(self, rate: float, now_s: float) -> None:
        """Change its rate from now on."""
        self.left_bytes = max(0.0, self.left_bytes - self.rate * (now_s - self.since_s))
        self.since_s, self.rate = now_s, rate
        self.end_s = now_s + self.left_bytes / rate if rate > 0 else math.inf
