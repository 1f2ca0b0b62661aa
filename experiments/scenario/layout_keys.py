"""The keys `layout.*`: each follows from a field of a group of `Layout`, its annotation and what is said of it."""

from __future__ import annotations

from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hdpsim.cost_models.layout.about_switches import about
from hdpsim.cost_models.layout.layout import GROUPS
from hdpsim.cost_models.reading.checked import Text
from hdpsim.cost_models.reading.words import field_words
from hdpsim.experiments.scenario.values import (
    Key,
    Parser,
    boolean,
    choice,
    integer,
    number,
    one_of,
    or_word,
    text_of,
    tokens,
)

_TOKENS = "_tokens"
"""How the name of a field ends whose key takes tokens with their unit, and is called without it."""


def layout_keys() -> dict[str, Key]:
    """Dotted key -> what it accepts, its default and what it means."""
    keys = {}
    for kind in GROUPS.values():
        hints, words = get_type_hints(kind, include_extras=True), field_words(kind)
        for item in fields(kind):  # type: ignore[arg-type]  # every group is a dataclass
            said = about(item)
            name = said.name or item.name
            parse = parser_of(hints[item.name], in_tokens=name.endswith(_TOKENS))
            if said.none:
                parse = or_word(said.none, parse)
            meaning = words[item.name].replace("None =", f"{said.none}:")
            key = Key(
                parse=parse,
                default=item.default,
                meaning=meaning,
                basic=said.basic,
                needs=tuple(need.words for need in said.needs),
            )
            keys[f"layout.{name.removesuffix(_TOKENS)}"] = key
    return keys


def parser_of(hint: Any, *, in_tokens: bool = False) -> Parser:
    """How a scenario has what an annotation says, but for None."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (option for option in get_args(hint) if option is not NoneType)
    if hint is bool:
        return boolean
    if get_origin(hint) is Literal:
        values = get_args(hint)
        return choice(values) if isinstance(values[0], str) else one_of(values)
    if get_origin(hint) is not Annotated:
        raise TypeError(f"a scenario cannot write {hint}")
    kind, limits = get_args(hint)
    if isinstance(limits, Text):
        return text_of(limits)
    if in_tokens:
        return tokens(limits)
    return integer(limits) if kind is int else number(limits)
