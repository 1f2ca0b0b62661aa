"""Keys that follow from the fields they become: from annotation, default and the words below."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import get_type_hints

from hdpsim.cost_models.layout.layout import GROUPS
from hdpsim.cost_models.layout.switch_metadata import about
from hdpsim.cost_models.reading.field_docstrings import field_words
from hdpsim.cost_models.reading.values import Parser, or_word, parser_of
from hdpsim.experiments.scenario.values import Key
from hdpsim.simulator.settings import key_name

_TOKENS = "_tokens"
"""How the name of a field ends whose key takes tokens with their unit, and is called without it."""


def layout_keys() -> dict[str, Key]:
    """The keys `layout.*`: of every field of every group of a layout."""
    keys = {}
    for kind in GROUPS.values():
        hints, words = get_type_hints(kind, include_extras=True), field_words(kind)
        for item in fields(kind):  # type: ignore[arg-type]  # every group is a dataclass
            said = about(item)
            name = said.name or item.name
            parse = parser_of(hints[item.name], in_tokens=name.endswith(_TOKENS))
            keys[f"layout.{name.removesuffix(_TOKENS)}"] = Key(
                parse=or_word(said.none, parse) if said.none else parse,
                default=item.default,
                meaning=words[item.name].replace("None =", f"{said.none}:"),
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
    hints, words = get_type_hints(kind, include_extras=True), field_words(kind)
    keys = {}
    for item in fields(kind):
        if item.name not in without:
            parse = (read or {}).get(item.name) or parser_of(hints[item.name])
            meaning = words[item.name].replace("None =", f"{parse.none}:")
            keys[f"{section}.{key_name(item)}"] = Key(
                parse=parse, default=item.default, meaning=meaning, basic=item.name in basic
            )
    return keys
