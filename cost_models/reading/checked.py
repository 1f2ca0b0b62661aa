"""Values that check what they are made of: every field against its own annotation.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Recompute(Checked):
        kind: RecomputeKind = "none"       # a Literal: one of its members
        share: Share = 0.0                 # a number from 0 to 1
        layers: Count = 1                  # a whole number of at least 1
        products: Share | None = None

What a field may be stands in its annotation and nowhere else, so that whoever builds the value (a scenario file, a
record, a user in Python) is held to the same.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from hdpsim.errors import UserInputError
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.ranges import RANGES, Range, constant_range

Count = Annotated[int, Range(1, 2**53)]
Number = Annotated[int, Range(0, 2**53)]
Share = Annotated[float, RANGES["share"]]
Amount = Annotated[float, Range(0.0, sys.float_info.max)]
Factor = Annotated[float, Range(1.0, sys.float_info.max)]
FlopRate = Annotated[float, RANGES["flop_rate"]]
Bandwidth = Annotated[float, RANGES["bandwidth"]]
Bytes = Annotated[float, RANGES["bytes"]]
Power = Annotated[float, RANGES["power"]]
Ratio = Annotated[float, RANGES["ratio"]]
PositiveShare = Annotated[float, RANGES["positive_share"]]


class Constant:
    """Mark of a constant of a calibration: its range follows from its name (ranges.constant_range)."""


Calibrated = Annotated[float, Constant()]


class Text(NamedTuple):
    """Mark of a text that not everything may be.

    Attributes:
        fits: whether a text is one.
        wanted: what is, in words.
    """

    fits: Callable[[str], bool]
    wanted: str


class Checked:
    """Base of frozen dataclasses whose fields are checked when they are made.

    Counted: Literals, truth values, texts, numbers (never NaN) and their limits, instances of classes, each of them or
        None. Of a container only its own type is looked at.

    Raises:
        UserInputError: every field that is not what its annotation says; then what contradictions() finds.
    """

    __slots__ = ("_known_hash",)
    _known_hash: int

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Before dataclass makes one that walks through all fields every time
        if "__hash__" not in cls.__dict__:
            cls.__hash__ = Checked.__hash__  # type: ignore[method-assign]

    def __hash__(self) -> int:
        """Of all fields that are compared; worked out once, since costs are looked up by model, layout and cluster."""
        try:
            return self._known_hash
        except AttributeError:
            compared = tuple(getattr(self, item.name) for item in fields(self) if item.compare)  # type: ignore[arg-type]
            object.__setattr__(self, "_known_hash", hash(compared))
            return self._known_hash

    def contradictions(self) -> tuple[tuple[str, str], ...]:
        """Fields that do not go together, as (name, what is wrong); looked at when each is fine on its own."""
        return ()

    def __post_init__(self) -> None:
        for rule in _rules(type(self)):
            value = getattr(self, rule.name)
            if type(value) not in rule.types or (rule.fits is not None and not rule.fits(value)):
                _refuse_misfits(self)
                break
        problems = self.contradictions()
        if problems:
            raise ContradictionError(type(self).__name__, problems)


class _FieldsError(UserInputError):
    """Fields of one value that cannot be.

    Attributes:
        kind: name of the value's class.
        problems: (name of the field, what is wrong) pairs.
    """

    between = " "

    def __init__(self, kind: str, problems: tuple[tuple[str, str], ...]) -> None:
        super().__init__(f"{kind}: " + "; ".join(f"{name}{self.between}{text}" for name, text in problems))
        self.kind, self.problems = kind, problems


class ContradictionError(_FieldsError):
    """Fields of one value that do not go together."""


class MisfitError(_FieldsError):
    """Fields of one value that are not what their annotations say."""

    between = ": "


def expect(value: object, kind: type, hint: str = "") -> None:
    """Raise UserInputError unless *value* is of that *kind*; *hint* says how to get one."""
    if not isinstance(value, kind):
        given = type(value).__name__ if not isinstance(value, type) else f"the class {value.__name__}"
        raise UserInputError(f"expected a {kind.__name__}, got a {given}{hint and '; '}{hint}")


class _Rule(NamedTuple):
    """How one field is checked.

    Attributes:
        types: the exact types of values that need no closer look than `fits`.
        fits: whether a value of these types is fine; None = all of them are.
        accepts: the whole check, which takes subclasses and the numbers of numpy, too.
        wanted: what is accepted, in words.
        words: the members of a Literal.
    """

    name: str
    types: frozenset[type]
    fits: Callable[[Any], bool] | None
    accepts: Callable[[Any], bool]
    wanted: str
    words: tuple[str, ...] = ()


def _refuse_misfits(value: Checked) -> None:
    """Look at every field again, closely, and name those that are wrong."""
    problems = []
    for rule in _rules(type(value)):
        given = getattr(value, rule.name)
        if not rule.accepts(given):
            hint = did_you_mean(given, rule.words) if isinstance(given, str) else ""
            problems.append((rule.name, f"expected {rule.wanted}; got {quoted(given)}{hint}"))
    if problems:
        raise MisfitError(type(value).__name__, tuple(problems))


_known_rules: dict[type, tuple[_Rule, ...]] = {}
"""Of every class met before; annotations do not change."""


def _rules(kind: type) -> tuple[_Rule, ...]:
    """The rules of a class of checked values, in the order of its fields."""
    rules = _known_rules.get(kind)
    if rules is None:
        hints = get_type_hints(kind, include_extras=True)
        names = [field.name for field in fields(kind)]
        rules = _known_rules[kind] = tuple(_rule(hints[name], name) for name in names)
    return rules


def _rule(hint: Any, name: str) -> _Rule:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    parts = [_part(option, name) for option in options if option is not NoneType]
    optional = NoneType in options
    if len(parts) == 1 and not optional:
        return parts[0]._replace(name=name)
    types = frozenset(kind for part in parts for kind in part.types)
    return _Rule(
        name=name,
        types=types | {NoneType} if optional else types,
        fits=None
        if all(part.fits is None for part in parts)
        else lambda value: value is None or any(part.accepts(value) for part in parts),
        accepts=lambda value: (optional and value is None) or any(part.accepts(value) for part in parts),
        wanted=" or ".join(part.wanted for part in parts) + (" or None" if optional else ""),
        words=tuple(word for part in parts for word in part.words),
    )


def _part(hint: Any, name: str) -> _Rule:
    """The check of one annotation, which is no union, of the field *name*."""
    limits: Range | None = None
    if get_origin(hint) is Annotated:
        hint, *marks = get_args(hint)
        mark = next((mark for mark in marks if isinstance(mark, Text)), None)
        if mark is not None:
            fits = mark.fits
            return _Rule(
                "", frozenset({str}), fits, lambda value: isinstance(value, str) and fits(value), mark.wanted
            )
        limits = next((mark for mark in marks if isinstance(mark, Range)), None)
        if any(isinstance(mark, Constant) for mark in marks):
            limits = constant_range(name)
    if get_origin(hint) is Literal:
        return _words(get_args(hint))
    if hint in (int, float):
        return _number(hint, limits)
    kind = get_origin(hint) or hint
    if not isinstance(kind, type):
        kind = object  # an annotation that says nothing about types
    wanted = {bool: "True or False", str: "a text"}.get(kind, f"a {kind.__name__}")
    return _Rule("", frozenset({kind}), None, lambda value: isinstance(value, kind), wanted)


def _words(words: tuple[Any, ...]) -> _Rule:
    allowed, types = frozenset(words), frozenset(map(type, words))
    texts = tuple(map(str, words))

    def accepts(value: Any) -> bool:
        return isinstance(value, tuple(types)) and not isinstance(value, bool) and value in allowed

    return _Rule("", types, allowed.__contains__, accepts, f"one of {', '.join(texts)}", texts)


def _number(kind: type, limits: Range | None) -> _Rule:
    least, most = (-math.inf, math.inf) if limits is None else (limits.low, limits.high)
    integral = kind is int

    def fits(value: Any) -> bool:
        return bool(least <= value <= most)  # NaN is not

    def accepts(value: Any) -> bool:
        number = isinstance(value, Integral if integral else Real) and not isinstance(value, bool)
        return number and fits(value)

    wanted = "a whole number" if integral else "a number"
    types = frozenset({int}) if integral else frozenset({int, float})
    return _Rule("", types, fits, accepts, wanted if limits is None else f"{wanted} from {limits}")
