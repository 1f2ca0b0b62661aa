"""How single values of a file are read and written back: numbers, words, quantities, tokens.

Scenarios (experiments/scenario) and entries of the catalog (fields.py) are read by the same parsers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hdpsim.cost_models.reading.checked import Text
from hdpsim.cost_models.reading.units import parse_quantity, quantity_pattern, unit_names, written_quantity
from hdpsim.errors import QuantityError, UserInputError
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.ranges import RANGES, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """How one kind of value is read and written.

    Attributes:
        read: from the YAML value to ours; raises ValueError with what is allowed.
        words: what is allowed.
        schema: the same as JSON Schema.
        choices: the values that are allowed, where they can be listed.
        limits: the range of a number.
        none: the word that means None.
        dump: from our value back to a YAML value that `read` accepts.
    """

    read: Callable[[object], Any]
    words: str
    schema: Mapping[str, object]
    choices: tuple[object, ...] = ()
    limits: Range | None = None
    none: str = ""
    dump: Callable[[object], object] = lambda value: value

    def __call__(self, value: object) -> Any:
        """What *value* means; raises ValueError with what is allowed."""
        return self.read(value)


def read_at(where: str, value: object, parse: Callable[[object], Any]) -> Any:
    """What *parse* makes of a value; raises UserInputError that begins with *where* it stands."""
    try:
        return parse(value)
    except ValueError as error:
        raise UserInputError(f"{where}: {error}") from None


def range_schema(allowed: Range) -> dict[str, object]:
    """The numbers of a range as JSON Schema."""
    kind = "integer" if allowed.only_whole else "number"
    return {"type": kind, "minimum": allowed.low, "maximum": allowed.high}


def quantity_schema(dimension: str) -> dict[str, object]:
    """Quantities with their unit as JSON Schema."""
    return {"type": "string", "pattern": rf"^\s*{quantity_pattern(dimension)}\s*$"}


def enum(options: Sequence[object]) -> dict[str, object]:
    """One of some values as JSON Schema."""
    return {"enum": list(options)}


TOKENS = rf"\s*{quantity_pattern('tokens')}\s*(tokens)?\s*"


def _as_list(value: Any) -> object:
    return list(value)


def shown(value: object) -> str:
    """*value* as the user may have written it in YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return quoted(value)


def expecting(
    wanted: str, fits: Callable[[Any], object], read: Callable[[Any], Any] = lambda value: value, **more: Any
) -> Parser:
    """A parser of what *fits*; *wanted* says what that is."""

    def parse(value: object) -> Any:
        if not fits(value):
            raise ValueError(f"expected {wanted}, got {shown(value)}")
        return read(value)

    return Parser(**{"words": wanted, **more}, read=parse)


def is_text(value: object) -> bool:
    """Whether it is a text that says something."""
    return isinstance(value, str) and bool(value.strip())


text = expecting("a text", is_text, schema={"type": "string", "pattern": r"\S"})


def text_of(mark: Text) -> Parser:
    """A text of that kind."""
    return expecting(
        mark.wanted,
        lambda value: isinstance(value, str) and mark.fits(value),
        words="a text",
        schema=text.schema,
    )


texts = expecting(
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    tuple,
    schema={"type": "array", "items": {"type": "string"}},
    dump=_as_list,
)


def some_of(options: tuple[str, ...]) -> Parser:
    """A parser of a list of these words, each at most once."""

    def listed(value: Any) -> tuple[Any, ...]:
        return tuple(value) if isinstance(value, list | tuple) else (value,)

    def fits(value: object) -> bool:
        words = listed(value)
        return all(word in options for word in words) and len(set(map(str, words))) == len(words)

    schema = {"anyOf": [enum(options), {"type": "array", "items": enum(options), "uniqueItems": True}]}
    wanted = f"a list of some of {', '.join(options)}"
    return expecting(wanted, fits, lambda value: tuple(map(str, listed(value))), schema=schema, dump=_as_list)


boolean = expecting(
    "true or false", lambda value: isinstance(value, bool), schema={"type": "boolean"}, choices=(True, False)
)


def integer(allowed: Range) -> Parser:
    """A parser of whole numbers in a range."""

    def parse(value: object) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not value >= allowed.low:
            raise ValueError(f"expected a whole number of at least {allowed.low}, got {shown(value)}")
        if not allowed.holds(value):
            raise ValueError(allowed.complaint(value))
        return value

    return Parser(
        read=parse, words=f"a whole number from {allowed}", schema=range_schema(allowed), limits=allowed
    )


def one_of(values: tuple[int, ...]) -> Parser:
    """A parser of one of these whole numbers."""
    return expecting(
        " or ".join(map(str, values)),
        lambda value: not isinstance(value, bool) and value in values,
        int,
        schema=enum(values),
        choices=values,
    )


def number(allowed: Range) -> Parser:
    """A parser of numbers in a range."""
    return expecting(
        f"a number from {allowed}", allowed.holds, float, schema=range_schema(allowed), limits=allowed
    )


def choice(options: tuple[str, ...]) -> Parser:
    """A parser of one of these words; false is `none` where that is one, as in files from when a key was a switch."""
    off = (False,) if "none" in options else ()

    def parse(value: object) -> str:
        if off and value is False:
            return "none"
        if value in options:
            return str(value)
        hint = did_you_mean(value, options) if isinstance(value, str) else ""
        if value == "fp16" and "bf16" in options:
            hint = " (fp16 takes the time of bf16; Megatron's and DeepSpeed's has layout.gradient_bytes: 2)"
        raise ValueError(f"{shown(value)} is not one of {', '.join(options)}{hint}")

    return Parser(read=parse, words=", ".join(options), schema=enum((*options, *off)), choices=options)


def or_word(word: str, parse: Parser) -> Parser:
    """Like *parse*, but *word* is accepted too and means None."""

    def parse_or_word(value: object) -> object:
        if value == word:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{error}; or {word}") from None

    def dump(value: object) -> object:
        return word if value is None else parse.dump(value)

    words, schema = f"{parse.words}; or {word}", {"anyOf": [{"const": word}, parse.schema]}
    return replace(parse, read=parse_or_word, words=words, schema=schema, none=word, dump=dump)


@cache
def quantity(dimension: str, *, zero: bool = False) -> Parser:
    """A quantity with its unit ("30d", "2TB/s"), in the range of its dimension, or zero too."""
    allowed, (words, example) = RANGES[dimension], QUANTITIES[dimension]

    def parse(value: object) -> float:
        if not isinstance(value, str):
            raise ValueError(f'expected a text with a unit such as "{example}", got {shown(value)}')
        parsed = parse_quantity(value, dimension)
        if not (parsed > 0 or (zero and parsed == 0)):
            raise ValueError(f"must be positive, got {shown(value)}")
        if parsed > 0 and not allowed.holds(parsed):
            raise ValueError(allowed.complaint(value))
        return parsed

    return Parser(
        read=parse,
        words=f"{words} ({example})",
        schema=quantity_schema(dimension),
        limits=allowed,
        dump=partial(written_quantity, dimension=dimension),
    )


QUANTITIES = {
    "time": ("a time", "30d"),
    "bandwidth": ("a bandwidth", "100GB/s"),
    "bytes": ("a size", "0.5GiB"),
    "power": ("a power", "100W"),
    "money": ("a price", "2.50USD/h"),
    "emission": ("an emission", "0.4kg/kWh"),
    "flop_rate": ("a rate of computing", "989TFLOP/s"),
}
"""What quantities of a dimension are, in words, and one of them."""


def dump_tokens(value: object) -> str:
    """Tokens as text."""
    return f"{value} tokens"


def tokens(allowed: Range) -> Parser:
    """A parser of tokens (8192, "8K", "8K tokens") in a range."""

    def parse(value: object) -> int:
        amount = _tokens(value)
        if not allowed.holds(amount):
            raise ValueError(allowed.complaint(value))
        return amount

    schema = {"anyOf": [range_schema(allowed), {"type": "string", "pattern": f"^{TOKENS}$"}]}
    return Parser(read=parse, words="tokens (8192, 8K)", schema=schema, limits=allowed, dump=dump_tokens)


def _tokens(value: object) -> int:
    tokens = 0.0
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        text = value.strip().removesuffix("tokens") if isinstance(value, str) else value
        try:
            tokens = parse_quantity(text, "tokens")
        except QuantityError:
            tokens = 0.0
    if not tokens >= 1:
        allowed = ", ".join(unit_names("tokens"))
        raise ValueError(f"expected a positive number of tokens with one of {allowed}; got {shown(value)}")
    return int(tokens)


def without_none(hint: Any) -> Any:
    """What an annotation says, but for None."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (option for option in get_args(hint) if option is not NoneType)
    return hint


def parser_of(hint: Any, *, in_tokens: bool = False) -> Parser:
    """How a file has what an annotation says, but for None."""
    hint = without_none(hint)
    if hint is bool:
        return boolean
    if get_origin(hint) is Literal:
        values = get_args(hint)
        return choice(values) if isinstance(values[0], str) else one_of(values)
    if get_origin(hint) is not Annotated:
        raise TypeError(f"no file can write {hint}")
    kind, limits = get_args(hint)
    if isinstance(limits, Text):
        return text_of(limits)
    if in_tokens:
        return tokens(limits)
    return integer(limits) if kind is int else number(limits)
