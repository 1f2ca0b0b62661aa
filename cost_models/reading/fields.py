"""Strict reading of a mapping into typed values: every problem is collected, none hides another."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Mapping
from functools import cache, partial
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints, overload

from hdpsim.cost_models.reading.units import parse_quantity
from hdpsim.errors import QuantityError, ScenarioError
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.ranges import RANGES

_MISSING: Any = object()
V = TypeVar("V")


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


class Key(NamedTuple):
    """How a field stands in a file.

    Attributes:
        name: the key, where it is not the field's name.
        kind: name of its range in hdpsim.ranges, where that is not the key; for a quantity, its dimension.
        unit: the unit of a quantity, as it is written.
        power: the power of ten that the unit stands for.
    """

    name: str = ""
    kind: str | None = None
    unit: str = ""
    power: int = 0


class Fields:
    """The keys of one mapping, taken one by one; `finish` reports those nobody took.

    A value that is missing or wrong is noted and replaced by a harmless stand-in, so that reading goes on;
    whoever builds something from the values calls `problems.raise_if_any()` first.
    """

    def __init__(self, data: object, problems: Problems, key: str = "") -> None:
        self.problems, self.key = problems, key
        self._noted_before = len(problems.found)
        self._taken: list[str] = []
        self._data: dict[str, Any] = data if isinstance(data, dict) else {}
        self._taken_all = not isinstance(data, dict)
        if self._taken_all:
            problems.add(key, f"must be a mapping (key: value), got {_kind(data)}")

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

    def _refuse(self, name: str, text: str, stand_in: V) -> V:
        """Note what is wrong with a value, and go on with another."""
        self.problems.add(self.dotted(name), text)
        return stand_in

    @overload
    def quantity(self, name: str, dimension: str, *, default: float = ..., zero: bool = ...) -> float: ...

    @overload
    def quantity(self, name: str, dimension: str, *, default: None, zero: bool = ...) -> float | None: ...

    def quantity(
        self, name: str, dimension: str, *, default: float | None = _MISSING, zero: bool = False
    ) -> float | None:
        """A number with a unit, in base units and in the range of its dimension.

        Zero is allowed, too, when *zero* is set. What is absent is the default, None included.
        """
        value = self.raw(name, default)
        if not self.has(name):
            return 1.0 if default is _MISSING else default
        try:
            if not isinstance(value, int | float | str):
                raise QuantityError(_kind(value), dimension, ("its unit",))
            parsed = parse_quantity(value, dimension)
        except QuantityError as error:
            return self._refuse(name, str(error), 1.0)
        if not parsed > 0 and not zero:
            return self._refuse(name, f"must be positive, got {quoted(value)}", 1.0)
        allowed = RANGES[dimension]
        if parsed > 0 and not allowed.low <= parsed <= allowed.high:
            return self._refuse(name, allowed.complaint(value), 1.0)
        return parsed

    def integer(
        self, name: str, *, minimum: int = 1, default: int = _MISSING, kind: str | None = None
    ) -> int:
        """A whole number of at least *minimum* in the range of its *kind* (default: its name)."""
        value, stand_in = self.raw(name, default), max(minimum, 1)
        if value is _MISSING:
            return stand_in
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            text = f"must be a whole number, got {_kind(value)} {quoted(value)}"
            return self._refuse(name, text, stand_in)
        if value < minimum and value is not default:
            return self._refuse(name, f"must be at least {minimum}, got {quoted(value)}", stand_in)
        allowed = RANGES[kind or (name if name in RANGES else "count")]
        if value > allowed.high:
            return self._refuse(name, allowed.from_least(minimum).complaint(value), stand_in)
        return int(value)

    def number(
        self, name: str, *, minimum: float = 0.0, default: float = _MISSING, kind: str | None = None
    ) -> float:
        """A finite number of at least *minimum* in the range of its *kind* (default: its name)."""
        value = self.raw(name, default)
        if value is _MISSING:
            return minimum
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
            return self._refuse(name, f"must be a number, got {_kind(value)} {quoted(value)}", minimum)
        if not value >= minimum:
            return self._refuse(name, f"must be at least {minimum:g}, got {quoted(value)}", minimum)
        allowed = RANGES[kind or (name if name in RANGES else "number")]
        if value is not default and not allowed.low <= value <= allowed.high:
            return self._refuse(name, allowed.complaint(value), minimum)
        return float(value)

    def boolean(self, name: str, *, default: bool = _MISSING) -> bool:
        """`true` or `false`, spelled so."""
        value = self.raw(name, default)
        if isinstance(value, bool) or value is _MISSING:
            return value is True
        return self._refuse(name, f"must be true or false, got {_kind(value)} {quoted(value)}", False)

    def text(self, name: str, *, default: str = _MISSING) -> str:
        """A non-empty text."""
        value = self.raw(name, default)
        if isinstance(value, str) and (value or value is default):
            return value
        if value is _MISSING:
            return ""
        return self._refuse(name, f"must be a text, got {_kind(value)} {quoted(value)}", "")

    def choice(self, name: str, options: Iterable[str], *, default: str = _MISSING) -> str:
        """One of the *options*."""
        allowed = tuple(options)
        value = self.raw(name, default)
        if isinstance(value, str) and value in allowed:
            return value
        if value is _MISSING:
            return allowed[0]
        hint = did_you_mean(str(value), allowed)
        text = f"must be one of {', '.join(allowed)}; got {quoted(value)}{hint}"
        return self._refuse(name, text, allowed[0])

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; absent = empty."""
        value = self.raw(name, [])
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        return self._refuse(name, f"must be a list of texts, got {_kind(value)}", ())

    def mapping(self, name: str) -> Fields:
        """The nested mapping under *name*."""
        return Fields(self.raw(name, {}), self.problems, self.dotted(name))

    def values_of(self, kind: type, keys: Mapping[str, Key], given: Container[str] = ()) -> dict[str, Any]:
        """The values of a dataclass's fields, but of those that are *given*, by their annotations and *keys*."""
        hints = _hints(kind)
        others = (item for item in dataclasses.fields(kind) if item.name not in given)
        return {item.name: self._value(item, hints[item.name], keys.get(item.name, Key())) for item in others}

    def _value(self, item: dataclasses.Field[Any], hint: Any, way: Key) -> Any:
        """The value of one field."""
        name = way.name or item.name
        optional = NoneType in get_args(hint)
        if optional:
            hint = next(option for option in get_args(hint) if option is not NoneType)
        default = {} if item.default in (dataclasses.MISSING, None) else {"default": item.default}
        if get_origin(hint) is Literal:
            return self.choice(name, get_args(hint), **default)
        if hint is bool:
            return self.boolean(name, **default)
        if hint is str:
            return self.text(name, **default)
        number, limits = get_args(hint)
        if way.unit and way.kind is not None:
            default |= {"default": None} if optional else {}
            return self.quantity(name, way.kind, zero=limits.low == 0, **default)
        if optional:  # 0 says that there is none
            default = {"default": 0}
        if number is int:
            value: float = self.integer(name, minimum=limits.low, kind=way.kind, **default)
        else:
            value = self.number(name, kind=way.kind, **default)
        return value or None if optional else value

    def finish(self) -> None:
        """Note every key nobody asked for."""
        if self._taken_all:
            return
        known = sorted(set(self._taken))
        for name in self._data:
            if name not in known:
                text = f"is not a known key{did_you_mean(str(name), known)}; allowed: {', '.join(known)}"
                self.problems.add(self.dotted(str(name)), text)


def _kind(value: object) -> str:
    """What a user would call the type of a YAML value."""
    names = {bool: "true/false", int: "the number", float: "the number", str: "the text", list: "a list"}
    names |= {dict: "a mapping", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)


_hints = cache(partial(get_type_hints, include_extras=True))
