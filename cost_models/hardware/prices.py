"""What an hour of a GPU costs to rent: dated lists by GPU and kind of provider, with the source of every figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from hdpsim.cost_models.reading.checked import Amount, Checked
from hdpsim.cost_models.reading.fields import Fields, Problems
from hdpsim.cost_models.reading.shipped import known_file, names_in, shipped
from hdpsim.ranges import RANGES
from hdpsim.yaml_loader import load_document

Provider = Literal["on-demand", "reserved", "marketplace", "hyperscaler"]
"""Kinds of providers, in the order in which a missing price is replaced by that of another kind."""

NEWEST = "newest"
"""The name that stands for the list of the latest date."""

_FOLDER = shipped("cost_models/data/prices")
_ENDINGS = (".yaml", ".yml")

DEFAULT_PUE = 1.54
"""Power of a data centre over that of its computers. Source: mean of the Uptime Institute's survey of 2025."""

SWITCH_W_PER_GPU = 116.0
"""Switches and optics between the nodes, per GPU.

Source: SMC's MLPerf Training v4.0 power results, 0.93 kW for a node of 8 H100 in the largest job.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRange:
    """What providers of one kind take for an hour of a GPU.

    Attributes:
        provider: the kind; empty where the scenario states the price.
        date: when that was published.
        source: by whom; empty where the scenario states the price.
    """

    low_usd: float
    typical_usd: float
    high_usd: float
    provider: str = ""
    date: str = ""
    source: str = ""

    @classmethod
    def stated(cls, usd: float) -> PriceRange:
        """A single price that the user gives."""
        return cls(low_usd=usd, typical_usd=usd, high_usd=usd)

    def times(self, factor: float) -> PriceRange:
        """The same of so many times as many GPUs."""
        return replace(
            self,
            low_usd=self.low_usd * factor,
            typical_usd=self.typical_usd * factor,
            high_usd=self.high_usd * factor,
        )

    @property
    def usd(self) -> dict[str, float]:
        """The three prices by their names."""
        return {"low": self.low_usd, "typical": self.typical_usd, "high": self.high_usd}


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Prices of a day."""

    name: str
    date: str
    prices: Mapping[str, Mapping[Provider, PriceRange]]
    """GPU -> kind of provider -> price."""

    def of(self, gpu: str, provider: Provider) -> PriceRange | None:
        """The price of such a provider, or of another kind where the list has none; None: of no provider."""
        known = self.prices.get(gpu, {})
        return next((known[kind] for kind in (provider, *get_args(Provider)) if kind in known), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions(Checked):
    """What turns GPU-hours and watts into money, energy bought and emissions."""

    prices: str = NEWEST
    """A dated list of prices: its name or its file; newest: the latest that is shipped."""
    provider: Provider = "on-demand"
    """From whom GPUs are rented; where the list has no such price, that of another kind is taken and named."""
    usd_per_hour: Annotated[float, RANGES["money"]] | None = None
    """Price of an hour of one GPU;
    None = cluster.node.gpu.price, or else of the list."""
    pue: Annotated[float, RANGES["pue"]] = DEFAULT_PUE
    """Power of the data centre over that of its computers."""
    network_w: Amount = SWITCH_W_PER_GPU
    """Power of switches and optics between the nodes, for each GPU."""
    co2_kg_per_kwh: Annotated[float, RANGES["emission"]] | None = None
    """Emissions of a kWh;
    None = nobody knows, none are shown."""


def price_list_names() -> tuple[str, ...]:
    """The shipped lists, the oldest first."""
    return names_in(_FOLDER)


def price_list(name: str) -> PriceList:
    """The list of that name or in that file; raises CatalogError, YamlError or ScenarioError."""
    return _loaded(Path(name) if name.lower().endswith(_ENDINGS) else _shipped(name))


def _shipped(name: str) -> Path:
    name = price_list_names()[-1] if name == NEWEST else name
    return known_file(name, _FOLDER, "list of prices", NEWEST)


@cache
def _loaded(path: Path) -> PriceList:
    document = load_document(path)
    problems = Problems(str(path), document.where)
    fields = Fields(document.data, problems)
    date = fields.text("date")
    gpus = fields.mapping("gpus")
    prices = {name: _by_provider(gpus.mapping(name)) for name in gpus.given}
    fields.finish()
    problems.raise_if_any()
    return PriceList(name=path.stem, date=date, prices=prices)


def _by_provider(fields: Fields) -> dict[Provider, PriceRange]:
    providers: tuple[Provider, ...] = get_args(Provider)
    ranges = {name: _range(fields.mapping(name), name) for name in providers if fields.has(name)}
    fields.take(*providers)
    fields.finish()
    return ranges


def _range(fields: Fields, provider: Provider) -> PriceRange:
    low, typical, high = (fields.quantity(name, "money") for name in ("low", "typical", "high"))
    if not low <= typical <= high:
        fields.problems.add(fields.dotted("typical"), "must lie between low and high")
    price_range = PriceRange(
        low_usd=low,
        typical_usd=typical,
        high_usd=high,
        provider=provider,
        date=fields.text("date"),
        source=fields.text("source"),
    )
    fields.finish()
    return price_range
