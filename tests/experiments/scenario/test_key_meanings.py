"""A switch of a layout is written in one place: its field makes the key of scenarios, the check and the words."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import pytest

from hdpsim.cost_models.layout import layout as layouts
from hdpsim.cost_models.layout.layout import GROUPS, SWITCHES, Layout
from hdpsim.cost_models.layout.switch_metadata import Need, about, switch
from hdpsim.cost_models.layout.switches import Group
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reading.field_docstrings import field_words
from hdpsim.experiments.scenario.keys import layout_keys, parser_of
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.scenario.values import Key
from hdpsim.ranges import Range
from hdpsim.simulator.settings import FIELDS
from hdpsim.simulator.without_effect import without_effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Pumps(Group):
    """A group that nobody knows yet."""

    speed_tokens: Annotated[int, Range(1, 10)] | None = switch(
        None, name="pump_tokens", none="auto", basic=True
    )
    """How fast pumps turn;
    None = as fast as they can."""
    kind: Literal["warm", "cold"] = switch(
        "warm", needs=(Need("tp > 2", "tp is {tp}", lambda layout: False),)
    )
    """What they move."""


def test_a_new_field_is_a_key_with_a_check_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GROUPS, "pumps", Pumps)  # type: ignore[arg-type]
    keys = layout_keys()
    pump, kind = keys["layout.pump"], keys["layout.kind"]
    assert (pump.default, pump.basic, pump.dump(None), pump.dump(3)) == (None, True, "auto", "3 tokens")
    assert pump.meaning == "How fast pumps turn; auto: as fast as they can."
    assert [pump.parse(value) for value in ("auto", "3 tokens", 7)] == [None, 3, 7]
    with pytest.raises(ValueError, match="must be a whole number from 1 to 10, got 11; or auto"):
        pump.parse(11)
    assert (kind.default, kind.basic, kind.meaning) == ("warm", False, "What they move.")
    assert kind.needs == ("tp > 2",)
    with pytest.raises(ValueError, match=r"'wram' is not one of warm, cold \(did you mean 'warm'\?\)"):
        kind.parse("wram")
    assert layouts._switches()["pump_tokens"][:3] == ("pump_tokens", "pumps", "speed_tokens")


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_every_key_says_what_it_takes_and_means(key: Key) -> None:
    parse = key.parse
    assert parse.words
    assert key.meaning.endswith(".") and "None =" not in key.meaning  # noqa: PT018
    assert len(key.meaning) < 400
    if key.usual is not None and key.usual != "":
        assert key.dump(parse(key.usual)) == key.usual
    for value in parse.choices:
        assert parse(value) == value
    if parse.choices and key.usual is not None:
        assert key.usual in (*parse.choices, parse.none)


def test_every_switch_of_a_layout_has_its_key() -> None:
    of_layout = [key.removeprefix("layout.") for key in KEYS if key.startswith("layout.")]
    assert [FIELDS.get(leaf, leaf) for leaf in of_layout] == list(SWITCHES)
    for group, kind in GROUPS.items():
        for item in fields(kind):  # type: ignore[arg-type]
            assert item.name in field_words(kind), f"{group}.{item.name}: no words below it"
            assert (item.default is None) == bool(about(item).none), f"{group}.{item.name}: a word for None"


def test_what_a_key_accepts_a_layout_accepts() -> None:
    for name, found in SWITCHES.items():
        key = KEYS[f"layout.{name.removesuffix('_tokens')}"].parse
        ends = () if key.limits is None else (key.limits.low, key.limits.high)
        for value in (*key.choices, *ends):
            assert Layout(**{name: value}).switch(found.name) == value


def test_a_switch_whose_needs_are_not_met_is_named() -> None:
    """Of every need: a layout that lacks it alone is told so, in the words of the need."""
    setup = load_scenario("quickstart-8gpu").setup("static")
    for name, found in SWITCHES.items():
        values = [
            value
            for value in KEYS[f"layout.{name.removesuffix('_tokens')}"].parse.choices
            if value is not None
        ]
        for need in found.about.needs:
            changed = [setup.layout.changed(**{name: value}) for value in values]
            lacking = [layout for layout in changed if layout != setup.layout and not need.met(layout)]
            for layout in lacking:
                said = [
                    n
                    for n in without_effect(replace(setup, layout=layout))
                    if n.startswith(f"layout.{name} =")
                ]
                assert len(said) == (layout.switch(name) != Layout().switch(name)), name


@pytest.mark.parametrize("hint", [str, int, list[int]])
def test_an_annotation_that_says_too_little_is_refused(hint: Any) -> None:
    with pytest.raises(TypeError, match="no file can write"):
        parser_of(hint)


def test_words_below_a_field_and_in_a_docstring_are_found() -> None:
    assert field_words(MemoryOverheads)["bucket_bytes"].startswith(
        "bytes per parameter of the buckets in which"
    )
    assert field_words(MemoryOverheads)["selective_share"].endswith("so that time and memory agree.")
