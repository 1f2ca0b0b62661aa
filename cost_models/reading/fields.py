"""Strict reading of a mapping into typed values: every problem is collected, none hides another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from hdpsim.cost_models.reading.values import (
    QUANTITIES,
    Parser,
    boolean,
    choice,
    integer,
    number,
    parser_of,
    quantity,
    shown,
    text,
    texts,
    without_none,
)
from hdpsim.errors import ScenarioError
from hdpsim.quoting import did_you_mean
from hdpsim.ranges import RANGES

_MISSING: Any = dataclasses.MISSING


class Problems:
    """Collects (dotted key, text) pairs; raises them together."""

    def __init__(self, source: str, where: Callable[[str], str] | None = None) -> None:
        """*where* gives `file:line` of a dotted key; without it problems carry their key alone."""
        self.found: list[tuple[str, str]] = []
        self._source, self._where = source, where

    def add(self, key: str, text: str) -> None:
        """Note one problem."""
        place = self._where(key) if self._where else ""
        line = place.rpartition(":")[2] if ":" in place else ""
        self.found.append((key, f"{text} (line {line})" if line.isdigit() else text))

    def raise_if_any(self) -> None:
        """Raise one ScenarioError with everything noted so far."""
        if self.found:
            raise ScenarioError(tuple(self.found), source=self._source)


class FieldKey(NamedTuple):
    """How a field stands in a file.

    Attributes:
        name: the key, where it is not the field's name.
        kind: name of its range in hdpsim.ranges, where that is not the key; for a quantity, its dimension.
    """

    name: str = ""
    kind: str | None = None


def field_parser(hint: Any, way: FieldKey, field: str) -> Parser:
    """How the value of a *field* with that annotation is read."""
    hint = without_none(hint)
    if get_origin(hint) is not Annotated:
        return text if hint is str else parser_of(hint)
    kind, limits = get_args(hint)
    if way.kind in QUANTITIES:
        return quantity(way.kind, zero=limits.low == 0)
    allowed = RANGES.get(way.kind or way.name or field, limits)
    return integer(allowed.from_least(limits.low)) if kind is int else number(allowed)


class Fields:
    """The keys of one mapping, taken one by one; `finish` reports those nobody took.

    A value that is missing or wrong is noted and replaced by a harmless stand-in, so that reading goes on;
    whoever builds something from the values calls `problems.raise_if_any()` first.
    """

    def __init__(self, data: object, problems: Problems, key: str = "") -> None:
        self.problems, self.key = problems, key
        self._noted_before = len(problems.found)
        self._taken: list[str] = []
        self._data: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
        self._taken_all = not isinstance(data, Mapping)
        if self._taken_all:
            problems.add(key, f"must be a mapping (key: value), got {shown(data)}")

    @property
    def sound(self) -> bool:
        """Whether nothing has been noted since the reading of this mapping began."""
        return len(self.problems.found) == self._noted_before

    def dotted(self, name: str) -> str:
        """The full key of *name*."""
        return f"{self.key}.{name}" if self.key else name

    @property
    def given(self) -> tuple[str, ...]:
        """The keys that are there, in their order."""
        return tuple(map(str, self._data))

    def has(self, name: str) -> bool:
        """Whether the key was given and is not null."""
        return self._data.get(name) is not None

    def raw(self, name: str, default: Any = _MISSING) -> Any:
        """The value as read; _MISSING (and a note) when a required key is absent."""
        self._taken.append(name)
        value = self._data.get(name)
        if value is not None:
            return value
        if default is _MISSING and not self._taken_all:
            self.problems.add(self.dotted(name), "is required")
        return default

    def take(self, *names: str) -> None:
        """Mark these keys as known, whatever they hold."""
        self._taken += names

    def value(self, name: str, parse: Parser, default: Any = _MISSING, *, or_default: bool = False) -> Any:
        """What *parse* makes of a value; what is absent is the default, None included.

        *or_default*: the default may be given, too, whatever *parse* says of it.
        """
        value = self.raw(name, default)
        if not self.has(name):
            return _stand_in(parse) if default is _MISSING else default
        if or_default and value == default and not isinstance(value, bool):
            return default
        try:
            return parse(value)
        except ValueError as error:
            self.problems.add(self.dotted(name), str(error))
            return _stand_in(parse)

    def quantity(self, name: str, dimension: str, *, default: Any = _MISSING, zero: bool = False) -> Any:
        """A number with a unit, in base units and in the range of its dimension, or *zero*."""
        return self.value(name, quantity(dimension, zero=zero), default)

    def integer(
        self, name: str, *, minimum: int = 1, default: int = _MISSING, kind: str | None = None
    ) -> int:
        """A whole number of at least *minimum* in the range of its *kind* (default: its name), or the default."""
        allowed = RANGES[kind or (name if name in RANGES else "count")].from_least(minimum)
        return int(self.value(name, integer(allowed), default, or_default=True))

    def number(self, name: str, *, default: float = _MISSING, kind: str | None = None) -> float:
        """A number in the range of its *kind* (default: its name), or the default."""
        allowed = RANGES[kind or (name if name in RANGES else "number")]
        return float(self.value(name, number(allowed), default, or_default=True))

    def boolean(self, name: str, *, default: bool = _MISSING) -> bool:
        """`true` or `false`, spelled so."""
        return bool(self.value(name, boolean, default))

    def text(self, name: str, *, default: str = _MISSING) -> str:
        """A text; the default may be empty."""
        return str(self.value(name, text, default, or_default=True))

    def choice(self, name: str, options: tuple[str, ...], *, default: str = _MISSING) -> str:
        """One of the *options*."""
        return str(self.value(name, choice(options), default))

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; absent = empty."""
        return tuple(self.value(name, texts, ()))

    def mapping(self, name: str) -> Fields:
        """The nested mapping under *name*."""
        return Fields(self.raw(name, {}), self.problems, self.dotted(name))

    def values_of(
        self, kind: type, keys: Mapping[str, FieldKey], given: Container[str] = ()
    ) -> dict[str, Any]:
        """The values of a dataclass's fields, but of those that are *given*, by their annotations and *keys*."""
        hints = _hints(kind)
        others = (item for item in dataclasses.fields(kind) if item.name not in given)
        return {
            item.name: self._value(item, hints[item.name], keys.get(item.name, FieldKey())) for item in others
        }

    def _value(self, item: dataclasses.Field[Any], hint: Any, way: FieldKey) -> Any:
        """The value of one field; where there may be none, 0 says so."""
        name, parse = way.name or item.name, field_parser(hint, way, item.name)
        if NoneType not in get_args(hint):
            return self.value(name, parse, item.default, or_default=way.kind not in QUANTITIES)
        if way.kind in QUANTITIES:
            return self.value(name, parse, None)
        return self.value(name, parse, 0, or_default=True) or None

    def finish(self) -> None:
        """Note every key nobody asked for."""
        if self._taken_all:
            return
        known = sorted(set(self._taken))
        for name in self._data:
            if name not in known:
                text = f"is not a known key{did_you_mean(str(name), known)}; allowed: {', '.join(known)}"
                self.problems.add(self.dotted(str(name)), text)


def _stand_in(parse: Parser) -> Any:
    """Something harmless in place of a value that is missing or wrong."""
    if parse.choices:
        return parse.choices[0]
    return max(parse.limits.low, 1) if parse.limits is not None else ""


_hints = cache(partial(get_type_hints, include_extras=True))
