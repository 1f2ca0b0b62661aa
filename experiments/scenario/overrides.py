"""`--set key=value`: change single keys of a scenario document before it is checked."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import CatalogError, ScenarioError
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.quoting import quoted
from hdpsim.yaml_loader import YamlError, load_yaml

_NAMED = dict.fromkeys(("model", "cluster", "cluster.node", "cluster.node.gpu"), "like") | {
    "data.trace": "file"
}
"""Keys whose text stands for a whole mapping: setting a key below them refines the named thing."""

_SAME_THING = (
    ("data.trace", "data.distribution", "data.lengths"),
    ("gpus", "cluster.gpus", "cluster.nodes"),
)
RIVALS: Mapping[str, tuple[str, ...]] = {
    key: tuple(other for other in keys if other != key) for keys in _SAME_THING for key in keys
}
"""Keys that say the same thing in different ways: setting one replaces the others."""


_KEY = re.compile(r"\s*[\w.-]+\s*=")

GivenOverrides = str | Mapping[str, object] | Iterable[str]
"""Changes of keys as people give them: `{"layout.tp": 4}`, or texts `layout.tp=4`."""


def override_texts(given: GivenOverrides) -> tuple[str, ...]:
    """Changes as ``key=value`` texts, whose values YAML reads as what was given.

    >>> override_texts({"layout.tp": 4, "data.context": "1M tokens", "layout.padding": True, "name": "4"})
    ('layout.tp=4', 'data.context=1M tokens', 'layout.padding=true', 'name="4"')

    Raises:
        ScenarioError: a value that is none of text, number, truth value and nothing.
    """
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Mapping):
        return tuple(given)
    return tuple(f"{key}={_value_text(str(key), value)}" for key, value in given.items())


def _value_text(key: str, value: object) -> str:
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None:
        return "none"  # the word of scenarios for it
    if not isinstance(plain, str | int | float):
        text = f"expected one value, got {quoted(repr(value))}; set its keys one by one"
        raise _wrong(key, text, "overrides")
    text = plain if isinstance(plain, str) else json.dumps(plain)
    with contextlib.suppress(YamlError):
        read = _scalar(text)
        if type(read) is type(plain) and read == plain:
            return text
    return json.dumps(plain)


def _wrong(key: str, text: str, where: str = "--set") -> ScenarioError:
    return ScenarioError(((key, text),), where)


def parse_override(text: str) -> tuple[str, object]:
    """Split ``key=value``; the value is read as a YAML scalar.

    >>> parse_override("layout.tp=4")
    ('layout.tp', 4)
    >>> parse_override("data.context=1M tokens")
    ('data.context', '1M tokens')

    Raises:
        ScenarioError: no ``=``, an empty part of the key, or a value that is not a scalar.
    """
    key, equals, value_text = text.partition("=")
    key = key.strip()
    if not equals or not all(part.strip() for part in key.split(".")):
        raise _wrong("", f"expected key=value with a dotted key, got {quoted(text)}")
    try:
        value = _scalar(value_text)
    except YamlError:
        raise _wrong(key, f"{quoted(value_text)} is not a YAML scalar; quote it") from None
    if isinstance(value, Mapping | list):
        raise _wrong(key, f"expected one value, got {quoted(value_text)}; set its keys one by one")
    return key, value


def split_group(text: str) -> tuple[str, ...]:
    """The changes of a group: a comma begins the next one where a key and `=` follow it, outside quotes and brackets.

    >>> split_group("layout.tp=4,layout.rank_capacity=8K")
    ('layout.tp=4', 'layout.rank_capacity=8K')
    >>> split_group("description='a,b=c', layout.tp=4")
    ("description='a,b=c'", 'layout.tp=4')
    """
    parts, begin, depth, quote = [], 0, 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in ")}]":
            depth -= 1
        elif letter == "," and depth == 0 and _KEY.match(text, place + 1):
            parts.append(text[begin:place].strip())
            begin = place + 1
    return (*parts, text[begin:].strip())


@lru_cache(maxsize=4096)
def _scalar(text: str) -> object:
    """What YAML reads in it; a sweep or search sets the same few values again and again."""
    value: object = load_yaml(text)
    return value


def apply_overrides(document: Mapping[str, object], overrides: Iterable[str]) -> dict[str, object]:
    """Return a copy of *document* with every ``key=value`` applied (see apply_values)."""
    return apply_values(document, map(parse_override, overrides))


def apply_values(document: Mapping[str, object], values: Iterable[tuple[str, object]]) -> dict[str, object]:
    """A copy of *document* with every pair of a dotted key and a scalar applied.

    A key comes before the keys below it (`cluster` before `cluster.node.nic`, which refines it), whatever their order;
    of one key given twice the last value counts. Unknown keys are put in as they are; the check of the whole
    document names them.

    Raises:
        ScenarioError: two of the keys replace each other, or a key below a plain value.
    """
    changes = sorted(values, key=lambda change: change[0].count("."))
    _refuse_rivals(changes)
    result: dict[str, object] = copy.deepcopy(dict(document))
    for key, value in changes:
        if key == "software":
            _leave_defaults_to_software(result)
        for rival in rivals(key, value):
            _remove(result, rival)
        _set_key(result, key, value)
    return result


def rivals(key: str, value: object = None) -> tuple[str, ...]:
    """The keys that *key* replaces when it is set to *value*."""
    if key == "gpus" and value == "auto":
        return ()  # the cluster's own size: nothing is replaced
    return RIVALS.get("data.trace" if key.startswith("data.trace.") else key, ())


def _leave_defaults_to_software(document: dict[str, object]) -> None:
    """Take every switch of layout and memory that stands at its default out: another stack decides it.

    Files with all defaults filled in would leave a stack nothing to say otherwise.
    """
    for section in ("layout", "memory"):
        inner = document.get(section)
        if not isinstance(inner, dict):
            continue
        for name, value in list(inner.items()):
            key = KEYS.get(f"{section}.{name}")
            with contextlib.suppress(ValueError):
                if key is not None and key.parse(value) == key.default:
                    del inner[name]


def _refuse_rivals(changes: Iterable[tuple[str, object]]) -> None:
    homes: dict[str, str] = {}
    for key, value in changes:
        other = homes.get(key)
        if other is not None:
            first, second = sorted((key, other))
            raise _wrong(first, f"contradicts {second}, which is set too; set one of them")
        homes |= dict.fromkeys(rivals(key, value), key)


def _set_key(document: dict[str, object], key: str, value: object) -> None:
    *path, leaf = key.split(".")
    keys = document
    for depth, part in enumerate(path, start=1):
        dotted = ".".join(path[:depth])
        inner = keys.get(part)
        if inner is None:
            inner = _inherited(dotted, keys)
        below: dict[str, object] = {}
        if isinstance(inner, dict):
            below = inner
        elif isinstance(inner, str) and dotted in _NAMED:
            below = {_NAMED[dotted]: inner}
        elif inner is not None:
            raise _wrong(key, f"{dotted} is {quoted(inner)}; it has no keys of its own")
        keys[part] = below
        keys = below
    keys[leaf] = value


def _inherited(dotted: str, parent: Mapping[str, object]) -> str | None:
    """The catalog name that *parent* takes over for this part from the entry it is `like`."""
    like = parent.get("like")
    try:
        if dotted == "cluster.node" and isinstance(like, str):
            return catalog.cluster(like).node.name
        if dotted == "cluster.node.gpu" and isinstance(like, str):
            return catalog.node(like).gpu.name
    except CatalogError:
        return None  # the check of the document says what is wrong with the name
    return None


def _remove(document: dict[str, object], key: str) -> None:
    section, dot, leaf = key.rpartition(".")
    inner = document.get(section) if dot else document
    if isinstance(inner, dict) and not isinstance(
        inner.get(leaf), list
    ):  # a list of nodes is more than a size
        inner.pop(leaf, None)
