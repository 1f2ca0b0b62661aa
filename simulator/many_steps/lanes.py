"""What a run did when, lane by lane, for a timeline."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """Somebody did something for a step."""

    lane: str
    name: str
    step: int
    start_s: float
    end_s: float


@dataclass(slots=True)
class Record:
    """Everything that happened, or nothing where nobody asked.

    Attributes:
        kept: whether somebody asked.
        spans: by the time at which they ended.
        counters: name -> (time, value) at every change.
    """

    kept: bool = False
    spans: list[LaneSpan] = field(default_factory=list)
    counters: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def span(self, lane: str, name: str, step: int, start_s: float, end_s: float) -> None:
        """Note a span, unless it has no length."""
        if self.kept and end_s > start_s:
            self.spans.append(LaneSpan(lane, name, step, start_s, end_s))

    def value(self, counter: str, time_s: float, value: float) -> None:
        """Note that a counter has that value from now on."""
        if self.kept:
            self.counters.setdefault(counter, []).append((time_s, value))
