"""How sure it is that a run fits into memory, and what a plan leaves free: what measured runs say of memory.

    P(fits) = lapses / 2 + (1 - lapses) x Phi((middle - ln(predicted / capacity)) / spread)

Phi is the normal distribution: the peak that a run really needs lies about the predicted one by a log-normal factor.
`lapses` is the share of runs of which the prediction says nothing (a setting that nobody wrote down, another process);
half of those fit. The three numbers are in `data/memory_margin.yaml`; `tools/memory_fit.py` fits them. Runs that
ran and runs that did not weigh the same there, so a half means that the evidence says neither.

Counted: GPU memory. Ignored: host memory, whose verdict is yes or no.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import erfc, log, sqrt
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.yaml_loader import load_yaml

if TYPE_CHECKING:
    from hdpsim.cost_models.memory.report import MemoryReport

_MARGINS = "experiments/data/memory_margin.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """What verdicts of memory were worth.

    Attributes:
        middle: logarithm of predicted over capacity at which half of the runs without a lapse fit.
        spread: standard deviation of the logarithm of needed over predicted.
        lapses: share of runs that fit or not whatever is predicted.
        ran, out_of_memory: how many runs the three numbers were fitted on.
    """

    middle: float
    spread: float
    lapses: float
    ran: int
    out_of_memory: int

    def probability(self, predicted_over_capacity: float) -> float:
        """That a run fits which is predicted to need so much of what the GPU has.

        >>> fit = MemoryFit(middle=0.0, spread=0.1, lapses=0.02, ran=1, out_of_memory=1)
        >>> fit.probability(1.0), round(fit.probability(0.5), 2), round(fit.probability(2.0), 2)
        (0.5, 0.99, 0.01)
        """
        if predicted_over_capacity <= 0.0:
            return 1.0 - 0.5 * self.lapses
        away = (self.middle - log(predicted_over_capacity)) / self.spread
        return 0.5 * self.lapses + (1.0 - self.lapses) * 0.5 * erfc(-away / sqrt(2.0))


@cache
def margins() -> dict[str, Any]:
    """What measured memory says, by question: `peaks` and `fits`."""
    by_question: dict[str, Any] = load_yaml(shipped(_MARGINS))
    return by_question


@cache
def shipped_fit() -> MemoryFit:
    """The fit to published runs and to a grid of runs of which many ran out of memory."""
    return MemoryFit(**margins()["fits"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """How much more than predicted a run may need: what validated peaks say.

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
        """Memory beyond the predicted one, as a share of that."""
        return self.measured_over_predicted - 1.0


@cache
def shipped_margin() -> Margin:
    """Of the published runs; experiments/data/memory_margin.yaml says how it was found."""
    return Margin(**margins()["peaks"])


def fits_probability(report: MemoryReport) -> float:
    """That what the report predicts fits into the memory of its GPU; none where host memory does not suffice."""
    if report.host_bytes > report.host_capacity_bytes:
        return 0.0
    return shipped_fit().probability(report.total_bytes / report.capacity_bytes)


def fits_words(report: MemoryReport) -> str:
    """`fits with 96 %`."""
    return f"fits with {100.0 * fits_probability(report):.0f} %"
