"""Memory that a plan leaves free: how much more than predicted a run may need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from hdpsim.experiments.bands.memory_fit import margins


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """What validated peaks say.

    Attributes:
        quantile: share of the records that needed no more.
        records: how many there were.
        sources: which published them.
        measured_over_predicted: at that quantile.
    """

    quantile: float
    records: int
    sources: list[str]
    measured_over_predicted: float

    @property
    def headroom(self) -> float:
        """Over what is predicted, a share of it."""
        return self.measured_over_predicted - 1.0


@cache
def shipped_margin() -> Margin:
    """Of the published runs; experiments/data/memory_margin.yaml says how it was found."""
    return Margin(**margins()["peaks"])
