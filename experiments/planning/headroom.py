"""Memory that a plan leaves free: how much more than predicted a run may need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from hdpsim.errors import UserInputError
from hdpsim.experiments.bands.memory_fit import margins
from hdpsim.quoting import quoted


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


def parse_headroom(text: str) -> float:
    """The share of `3%` or `0.03`.

    >>> parse_headroom("3%"), parse_headroom("0")
    (0.03, 0.0)

    Raises:
        UserInputError: no share from 0 to 100 %.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    share = float(match[1]) / (100.0 if match[2] else 1.0) if match else 1.0
    if share >= 1.0:
        raise UserInputError(
            f"--headroom: expected a share from 0 to below 100 %, such as 3%, got {quoted(text)}"
        )
    return share
