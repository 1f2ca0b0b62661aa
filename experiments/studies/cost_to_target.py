"""What it takes to train on so many tokens: time, GPU-hours, money."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.reading.units import HOUR_S
from hdpsim.experiments.output.statistics import Estimate, estimate_json
from hdpsim.experiments.output.words import large_amount, with_duration

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.parts import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What an hour of one GPU costs.

    Attributes:
        usd_per_hour: None where nobody has said.
        source: who says so.
    """

    gpu: str
    usd_per_hour: float | None
    source: str = ""

    @property
    def note(self) -> str:
        """A sentence about it."""
        if self.usd_per_hour is None:
            return f"Cost: the price of {self.gpu} is unknown; cluster.node.gpu.price gives one (such as 3.09USD/h)."
        source = f"; source: {self.source}" if self.source else ""
        return f"Cost: GPUs only, {self.usd_per_hour:,.2f} USD an hour for each {self.gpu}{source}."

    def document(self) -> dict[str, Any]:
        """As JSON data."""
        return {"gpu": self.gpu, "usd_per_hour": self.usd_per_hour, "source": self.source}


def price_of(gpu: Gpu) -> Price:
    """The price of the catalog, or of the scenario."""
    return Price(gpu=gpu.name, usd_per_hour=gpu.usd_per_hour, source=gpu.price_source)


def time_at(tokens: float, tokens_per_s: Estimate) -> Estimate:
    """Seconds that *tokens* take at that rate; the interval is that of the rate, to first order.

    d(tokens / rate) = tokens / rate * d(rate) / rate
    """
    seconds = tokens / tokens_per_s.mean
    relative = None if tokens_per_s.half_width is None else tokens_per_s.half_width / tokens_per_s.mean
    return Estimate(
        mean=seconds,
        half_width=None if relative is None else seconds * relative,
        lowest=tokens / tokens_per_s.highest,
        highest=tokens / tokens_per_s.lowest,
        count=tokens_per_s.count,
    )


def usd_words(usd: float) -> str:
    """An amount of money."""
    return f"{large_amount(usd)} USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A number of tokens, and what they take."""

    tokens: float
    seconds: Estimate
    gpus: int
    price: Price

    @property
    def gpu_hours(self) -> float:
        """All GPUs, all the time."""
        return self.seconds.mean / HOUR_S * self.gpus

    @property
    def usd(self) -> float | None:
        """Their price; None where it is unknown."""
        return None if self.price.usd_per_hour is None else self.gpu_hours * self.price.usd_per_hour

    @property
    def words(self) -> str:
        """All of it in one line."""
        cost = "cost unknown" if self.usd is None else usd_words(self.usd)
        time, hours = with_duration(self.seconds), large_amount(self.gpu_hours)
        return f"{time} for {large_amount(self.tokens)} tokens: {hours} GPU-hours, {cost}"

    def document(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "tokens": self.tokens,
            "seconds": estimate_json(self.seconds),
            "gpu_hours": self.gpu_hours,
            "usd": self.usd,
            "price": self.price.document(),
        }
