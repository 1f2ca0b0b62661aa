"""Lists of prices: every figure has a source, another kind of provider stands in, files of users are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.prices import CostOptions, price_list, price_list_names
from hdpsim.errors import CatalogError, ScenarioError, UserInputError


@pytest.mark.parametrize("name", price_list_names())
def test_every_price_has_a_date_a_source_and_its_order(name: str) -> None:
    found = price_list(name)
    assert found.date >= "2026"
    gpus = {catalog.gpu(gpu).prices for gpu in catalog.names("gpu")} - {""}
    assert gpus == set(found.prices)
    for by_provider in found.prices.values():
        for price in by_provider.values():
            assert 0 < price.low_usd <= price.typical_usd <= price.high_usd
            assert price.source
            assert price.date


def test_another_kind_of_provider_stands_in_and_is_named() -> None:
    found = price_list("newest")
    asked = found.of("h800-80gb", "on-demand")
    assert asked is not None
    assert (asked.provider, asked.typical_usd) == ("reserved", 2.0)
    assert found.of("of nobody", "on-demand") is None


LIST = """
date: 2027-01-01
gpus:
  mine:
    reserved: {{low: {low}, typical: 2USD/h, high: 3USD/h, date: today, source: an offer}}
"""


def test_a_list_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(LIST.format(low="1USD/h"))
    price = price_list(str(path)).of("mine", "hyperscaler")
    assert price is not None
    assert price.usd == {"low": 1.0, "typical": 2.0, "high": 3.0}


@pytest.mark.parametrize(
    ("low", "words"), [("2.5USD/h", "must lie between low and high"), ("1", "USD/h"), ("0USD/h", "positive")]
)
def test_a_list_that_cannot_be(tmp_path: Path, low: str, words: str) -> None:
    path = tmp_path / f"bad{len(words)}.yaml"
    path.write_text(LIST.format(low=low))
    with pytest.raises(ScenarioError, match=words):
        price_list(str(path))


def test_an_unknown_list_names_those_there_are() -> None:
    with pytest.raises(CatalogError, match=r"no list of prices '2026-5'.*known: newest, 2026-05"):
        price_list("2026-5")


def test_options_check_themselves() -> None:
    with pytest.raises(UserInputError, match="pue"):
        CostOptions(pue=0.9)
