"""What training costs: time, GPU-hours, money and energy of a number of tokens, and of a million of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.cost_models.hardware.prices import CostOptions, PriceRange, price_list
from hdpsim.cost_models.reading.units import HOUR_S
from hdpsim.experiments.output.amounts import duration, large_amount, with_duration
from hdpsim.experiments.output.json_data import attributes
from hdpsim.experiments.output.statistics import Estimate, estimate_json
from hdpsim.experiments.studies.power import Power, power_of

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.parts import Cluster, Gpu, Node
    from hdpsim.experiments.bands.band import Band
    from hdpsim.experiments.studies.comparing.compare import Outcome

JOULE_PER_KWH = 3.6e6
MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What an hour of one GPU costs.

    Attributes:
        asked: the kind of provider that was asked for.
        range: None where nobody has said.
        listed: the list that says so; empty where the scenario does.
        paid: what else is paid with each GPU that trains, in words.
    """

    gpu: str
    asked: str
    range: PriceRange | None
    listed: str = ""
    paid: str = ""

    @property
    def usd_per_hour(self) -> float | None:
        """The typical price of an hour."""
        return None if self.range is None else self.range.typical_usd

    @property
    def note(self) -> str:
        """A sentence that says where the price is from."""
        if self.range is None:
            return f"Cost: the price of {self.gpu} is unknown; costs.price gives one (such as 3.09USD/h)."
        dollars = f"Cost: GPUs only, {self.range.typical_usd:,.2f} USD an hour for each {self.gpu}{self.paid}"
        if not self.range.source:
            return f"{dollars}, as the scenario says."
        known = self.range
        span = "" if known.low_usd == known.high_usd else f" ({known.low_usd:,.2f} to {known.high_usd:,.2f})"
        other = f"; nothing is known of {self.asked}" if known.provider != self.asked else ""
        return f"{dollars}{span}, {known.provider}{other}; source: {known.source} ({known.date})."

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        known = self.range
        return {
            "gpu": self.gpu,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_hour_range": known and known.usd,
            "provider": known and known.provider,
            "prices": self.listed,
            "date": known.date if known else "",
            "source": known.source if known else "",
        }


def price_of(gpu: Gpu, costs: CostOptions) -> Price:
    """The price of the scenario (costs.price, cluster.node.gpu.price), or else of the list."""
    stated = gpu.usd_per_hour if costs.usd_per_hour is None else costs.usd_per_hour
    if stated is not None:
        return Price(gpu=gpu.name, asked=costs.provider, range=PriceRange.stated(stated))
    prices = price_list(costs.prices)
    return Price(
        gpu=gpu.name, asked=costs.provider, range=prices.of(gpu.prices, costs.provider), listed=prices.name
    )


def mean_price(cluster: Cluster, costs: CostOptions) -> Price:
    """The price of the cluster's GPU, with its part of those that are idle.

    Of several kinds it is the mean over all GPUs, and unknown where one of theirs is.
    """
    prices = [_with_idle(price_of(kind.gpu, costs), kind.node) for kind in cluster.kinds]
    if len(prices) == 1:
        return prices[0]
    known = [price.range for price in prices if price.range is not None]
    mean = None
    if len(known) == len(prices):
        shares = np.bincount(cluster.gpu_kinds, minlength=len(prices)) / cluster.gpus
        by_name = {name: float(shares @ [one.usd[name] for one in known]) for name in known[0].usd}
        mean = PriceRange(
            low_usd=by_name["low"],
            typical_usd=by_name["typical"],
            high_usd=by_name["high"],
            provider=", ".join(dict.fromkeys(one.provider for one in known if one.provider)),
            date=min(one.date for one in known),
            source="; ".join(dict.fromkeys(one.source for one in known if one.source)),
        )
    name = f"GPU (mean of {cluster.gpu_words})"
    return Price(gpu=name, asked=prices[0].asked, range=mean, listed=prices[0].listed)


def _with_idle(price: Price, node: Node) -> Price:
    """Of a GPU that trains, where others of its node train nothing but are paid for."""
    if not node.idle_gpus:
        return price
    paid = f" that trains ({node.gpus + node.idle_gpus} are paid for {node.gpus} that train)"
    return replace(price, range=price.range and price.range.times(node.paid_share), paid=paid)


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


def kwh_words(kwh: float) -> str:
    """An amount of energy.

    >>> kwh_words(1.5), kwh_words(25_000), kwh_words(3.1e6)
    ('1.5 kWh', '25 MWh', '3.1 GWh')
    """
    for scale, unit in ((1e6, "GWh"), (1e3, "MWh")):
        if kwh >= scale:
            return f"{kwh / scale:.3g} {unit}"
    return f"{kwh:.3g} kWh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What tokens cost at a rate: money for the GPUs' time, energy that the data centre buys.

    Attributes:
        price: price of an hour of one GPU.
        power: mean over the time in question; None where no step was simulated.
        gpus: all of them.
        tokens_per_s: their rate.
        co2_kg_per_kwh: None where nobody said.
    """

    price: Price
    power: Power | None
    gpus: int
    tokens_per_s: float
    co2_kg_per_kwh: float | None = None

    def usd(self, tokens: float) -> dict[str, float] | None:
        """Low, typical and high price of so many tokens; None where no price is known.

        USD = price per hour x GPUs x tokens / (tokens per second) / 3600
        """
        if self.price.range is None:
            return None
        gpu_hours = tokens / self.tokens_per_s / HOUR_S * self.gpus
        return {name: usd * gpu_hours for name, usd in self.price.range.usd.items()}

    def kwh(self, tokens: float) -> float | None:
        """Energy that the data centre buys for so many tokens.

        kWh = PUE x (servers + network) x tokens / (tokens per second) / 3.6e6
        """
        if self.power is None:
            return None
        return self.power.facility_w * tokens / self.tokens_per_s / JOULE_PER_KWH

    def target(self, tokens: float, seconds: Estimate, band: Band | None = None) -> Target:
        """The costs of a number of tokens that take a number of seconds; *band* of runs like it."""
        costs = replace(self, tokens_per_s=tokens / seconds.mean)
        between_s = None if band is None else (seconds.mean * band.low, seconds.mean * band.high)
        return Target(tokens=tokens, seconds=seconds, costs=costs, between_s=between_s)

    def co2_kg(self, tokens: float) -> float | None:
        """Emissions of that energy; None where nobody said what a kWh emits."""
        kwh = self.kwh(tokens)
        return None if kwh is None or self.co2_kg_per_kwh is None else kwh * self.co2_kg_per_kwh

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        usd, kwh = self.usd(MILLION), self.kwh(MILLION)
        return {
            "price": self.price.document(),
            "usd_per_million_tokens": usd,
            "tokens_per_usd": usd and MILLION / usd["typical"],
            "power": self.power and self.power.document(),
            "kwh_per_million_tokens": kwh,
            "tokens_per_kwh": kwh and MILLION / kwh,
            "kw_per_node": self.power and self.power.node_w / 1e3,
            "co2_kg_per_million_tokens": self.co2_kg(MILLION),
        }

    @property
    def words(self) -> str:
        """Money and energy of a million tokens in one line."""
        usd, kwh = self.usd(MILLION), self.kwh(MILLION)
        parts = [usd_range_words(usd) or "cost unknown"]
        if kwh is not None:
            parts.append(kwh_words(kwh))
        co2 = self.co2_kg(MILLION)
        if co2 is not None:
            parts.append(f"{co2:.3g} kg CO2")
        return f"{', '.join(parts)} per million tokens"


def usd_range_words(usd: dict[str, float] | None) -> str | None:
    """A typical price, and the range around it where there is one: `1.7 USD (1.15 to 2.88)`."""
    if usd is None:
        return None
    words = f"{usd['typical']:.3g} USD"
    return words if usd["low"] == usd["high"] else f"{words} ({usd['low']:.3g} to {usd['high']:.3g})"


def costs_of(outcome: Outcome, costs: CostOptions) -> Costs:
    """What the tokens of a strategy that ran cost."""
    setup = outcome.setup
    assert setup is not None  # it ran
    return Costs(
        price=mean_price(setup.cluster, costs),
        power=power_of(setup, outcome.results, outcome.account_s(), costs),
        gpus=setup.cluster.gpus,
        tokens_per_s=outcome.tokens_per_s.mean,
        co2_kg_per_kwh=costs.co2_kg_per_kwh,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A number of tokens, the time they take, and what that costs at the mean rate.

    Attributes:
        between_s: P10 and P90 of the time, by how far off predictions of such steps were; None without a prediction.
    """

    tokens: float
    seconds: Estimate
    costs: Costs
    between_s: tuple[float, float] | None = None

    @property
    def range_words(self) -> str | None:
        """The time from P10 to P90 in words."""
        return None if self.between_s is None else " to ".join(map(duration, self.between_s))

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all GPUs over the whole time."""
        return self.seconds.mean / HOUR_S * self.costs.gpus

    @property
    def usd(self) -> float | None:
        """Dollars at the typical price; None where it is unknown."""
        hourly = self.costs.price.usd_per_hour
        return None if hourly is None else self.gpu_hours * hourly

    @property
    def kwh(self) -> float | None:
        """Energy of all tokens; None where no step was simulated."""
        return self.costs.kwh(self.tokens)

    @property
    def words(self) -> str:
        """The whole cost in one line."""
        usd = self.costs.usd(self.tokens)
        cost = "cost unknown" if usd is None or self.usd is None else usd_words(self.usd)
        if usd is not None and usd["low"] < usd["high"]:
            cost += f" ({large_amount(usd['low'])} to {large_amount(usd['high'])})"
        energy = "" if self.kwh is None else f", {kwh_words(self.kwh)}"
        co2 = self.costs.co2_kg(self.tokens)
        emitted = "" if co2 is None else f", {large_amount(co2 / 1e3)} t CO2"
        time, hours = with_duration(self.seconds), large_amount(self.gpu_hours)
        if self.range_words is not None:
            time += f" (P10 to P90: {self.range_words})"
        return f"{time} for {large_amount(self.tokens)} tokens: {hours} GPU-hours, {cost}{energy}{emitted}"

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return {
            "tokens": self.tokens,
            "seconds": estimate_json(self.seconds),
            "seconds_p10": self.between_s and self.between_s[0],
            "seconds_p90": self.between_s and self.between_s[1],
            **attributes(self, "gpu_hours usd"),
            "usd_range": self.costs.usd(self.tokens),
            "kwh": self.kwh,
            "co2_kg": self.costs.co2_kg(self.tokens),
            "price": self.costs.price.document(),
        }
