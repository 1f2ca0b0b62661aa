"""The keys of a scenario: those that follow from the fields they become, and those that become no field of a setup.

A field gives its key annotation, default and the words below it. The others stand in data/keys_without_field.yaml: what
each takes, its default and its meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import cache, partial
from typing import Any, get_args, get_type_hints

from hdpsim.cost_models.layout.layout import GROUPS
from hdpsim.cost_models.layout.switch_metadata import about
from hdpsim.cost_models.reading.field_docstrings import field_words
from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.cost_models.reading.values import (
    Parser,
    boolean,
    choice,
    integer,
    number,
    or_word,
    parser_of,
    quantity,
    some_of,
    text,
    tokens,
)
from hdpsim.cost_models.reliability.checkpoint import Readers
from hdpsim.cost_models.reliability.startup import StartupMethod
from hdpsim.experiments.scenario.values import REQUIRED, Key, batch, interval, lengths, reference
from hdpsim.ranges import RANGES
from hdpsim.simulator.campaign.diagnosis import TESTS
from hdpsim.simulator.settings import key_name
from hdpsim.traces import LongSequencePolicy
from hdpsim.yaml_loader import load_yaml

_TOKENS = "_tokens"
"""How the name of a field ends whose key takes tokens with their unit, and is called without it."""


def layout_keys() -> dict[str, Key]:
    """The keys `layout.*`: of every field of every group of a layout."""
    keys = {}
    for kind in GROUPS.values():
        hints = get_type_hints(kind, include_extras=True)
        for item in fields(kind):  # type: ignore[arg-type]  # every group is a dataclass
            said = about(item)
            name = said.name or item.name
            parse = parser_of(hints[item.name], in_tokens=name.endswith(_TOKENS))
            keys[f"layout.{name.removesuffix(_TOKENS)}"] = Key(
                parse=or_word(said.none, parse) if said.none else parse,
                default=item.default,
                said=partial(_meaning, kind, item.name, said.none),
                basic=said.basic,
                needs=tuple(need.words for need in said.needs),
            )
    return keys


def keys_of(
    section: str,
    kind: type,
    read: Mapping[str, Parser] | None = None,
    without: Collection[str] = (),
    basic: Collection[str] = (),
) -> dict[str, Key]:
    """The keys of a section that become the fields of *kind*.

    Args:
        section: of the scenario file.
        kind: a dataclass whose fields say what they mean.
        read: how a field is read that scenarios write otherwise than its annotation says: with a unit, or a word.
        without: fields that are no keys of this section.
        basic: fields that everybody needs.
    """
    hints = get_type_hints(kind, include_extras=True)
    keys = {}
    for item in fields(kind):
        if item.name not in without:
            parse = (read or {}).get(item.name) or parser_of(hints[item.name])
            keys[f"{section}.{key_name(item)}"] = Key(
                parse=parse,
                default=item.default,
                said=partial(_meaning, kind, item.name, parse.none),
                basic=item.name in basic,
            )
    return keys


def _meaning(kind: type, field: str, none: str) -> str:
    """What is said of a field, with the word that a scenario has for None."""
    return field_words(kind)[field].replace("None =", f"{none}:")


_KINDS: Mapping[str, Parser] = {
    "text": text,
    "reference": reference,
    "lengths": lengths,
    "batch": batch,
    "true or false": boolean,
    "interval": interval,
    "time": quantity("time"),
    "time or zero": quantity("time", zero=True),
    "bandwidth": quantity("bandwidth"),
    "policy": choice(get_args(LongSequencePolicy)),
    "startup": choice(get_args(StartupMethod)),
    "readers": choice(get_args(Readers)),
    "tests": some_of(TESTS),
}
_NUMBERS = {"whole": integer, "number": number, "tokens": tokens}
"""Kinds that go on with the name of a range."""


def keys_without_field(part: str) -> dict[str, Key]:
    """The keys of a part of the file, in its order."""
    return {name: _key(row) for name, row in _rows()[part].items()}


@cache
def _rows() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]] = load_yaml(
        shipped("experiments/scenario/data/keys_without_field.yaml")
    )
    return rows


def _key(row: Mapping[str, Any]) -> Key:
    kind, _, limits = row["takes"].partition(" ")
    if kind in _NUMBERS:
        allowed = RANGES[limits]
        parse = _NUMBERS[kind](allowed.from_least(row.get("least", allowed.low)))
    else:
        parse = _KINDS[row["takes"]]
    if "or" in row:
        parse = or_word(row["or"], parse)
    default = row.get("default")
    if default:
        default = parse(default)
    return Key(
        parse=parse,
        default=REQUIRED if row.get("required") else default,
        said=partial(str, row["means"]),
        basic=row.get("basic", False),
    )
