"""How single values of a scenario file are read and written back: numbers, words, quantities, tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple

from hdpsim.cost_models.reading.checked import Text
from hdpsim.cost_models.reading.units import parse_quantity, quantity_pattern, unit_names
from hdpsim.errors import QuantityError
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.ranges import RANGES, Range


class _Required:
    """Marks a key without a default."""


REQUIRED = _Required()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Size of a global batch: a token budget or a number of sequences; exactly one is set."""

    tokens: int | None = None
    sequences: int | None = None

    def __str__(self) -> str:
        return f"{self.tokens} tokens" if self.tokens is not None else f"{self.sequences} sequences"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the scenario file.

    Attributes:
        parse: how its value is read and written.
        default: our value when the key is absent, or REQUIRED.
        meaning: what it says.
        basic: whether everybody needs it, not experts alone.
        needs: what of other keys it needs to have an effect.
    """

    parse: Parser
    default: object = REQUIRED
    meaning: str = ""
    basic: bool = False
    needs: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is REQUIRED

    @property
    def usual(self) -> object:
        """The default as a scenario has it; None where nothing is said by default."""
        return None if self.required else self.dump(self.default)

    @property
    def described(self) -> str:
        """What the key means, and what it needs to have an effect."""
        return self.meaning + (f" Needs {', '.join(self.needs)}." if self.needs else "")

    def dump(self, value: object) -> object:
        """From our value back to a YAML value that `parse` accepts."""
        return self.parse.dump(value)


def range_schema(allowed: Range) -> dict[str, object]:
    """The numbers of a range as JSON Schema."""
    kind = "integer" if allowed.only_whole else "number"
    return {"type": kind, "minimum": allowed.low, "maximum": allowed.high}


def quantity_schema(dimension: str) -> dict[str, object]:
    """Quantities with their unit as JSON Schema."""
    return {"type": "string", "pattern": rf"^\s*{quantity_pattern(dimension)}\s*$"}


def _enum(options: Sequence[object]) -> dict[str, object]:
    return {"enum": list(options)}


_TOKENS = rf"\s*{quantity_pattern('tokens')}\s*(tokens)?\s*"


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


def _expecting(
    wanted: str, fits: Callable[[Any], object], read: Callable[[Any], Any] = lambda value: value, **more: Any
) -> Parser:
    """A parser of what *fits*; *wanted* says what that is."""

    def parse(value: object) -> Any:
        if not fits(value):
            raise ValueError(f"expected {wanted}, got {shown(value)}")
        return read(value)

    return Parser(**{"words": wanted, **more}, read=parse)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


text = _expecting("a text", _is_text, schema={"type": "string", "pattern": r"\S"})


def text_of(mark: Text) -> Parser:
    """A text of that kind."""
    return _expecting(
        mark.wanted,
        lambda value: isinstance(value, str) and mark.fits(value),
        words="a text",
        schema=text.schema,
    )


reference = _expecting(
    "a name, a path or a mapping",
    lambda value: isinstance(value, Mapping) or _is_text(value),
    lambda value: dict(value) if isinstance(value, Mapping) else value,
    schema={"anyOf": [text.schema, {"type": "object"}]},
)
"""A catalog name, a path, or an inline mapping; looked up later, where paths are known."""


def some_of(options: tuple[str, ...]) -> Parser:
    """A parser of a list of these words, each at most once."""

    def listed(value: Any) -> tuple[Any, ...]:
        return tuple(value) if isinstance(value, list | tuple) else (value,)

    def fits(value: object) -> bool:
        words = listed(value)
        return all(word in options for word in words) and len(set(map(str, words))) == len(words)

    schema = {"anyOf": [_enum(options), {"type": "array", "items": _enum(options), "uniqueItems": True}]}
    wanted = f"a list of some of {', '.join(options)}"
    return _expecting(
        wanted, fits, lambda value: tuple(map(str, listed(value))), schema=schema, dump=_as_list
    )


boolean = _expecting(
    "true or false", lambda value: isinstance(value, bool), schema={"type": "boolean"}, choices=(True, False)
)


def integer(allowed: Range) -> Parser:
    """A parser of whole numbers in a range."""

    def parse(value: object) -> int:
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
    return _expecting(
        " or ".join(map(str, values)),
        lambda value: not isinstance(value, bool) and value in values,
        int,
        schema=_enum(values),
        choices=values,
    )


def number(allowed: Range) -> Parser:
    """A parser of numbers in a range."""
    return _expecting(
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

    return Parser(read=parse, words=", ".join(options), schema=_enum((*options, *off)), choices=options)


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


def quantity(dimension: str, *, zero: bool = False) -> Parser:
    """A quantity with its unit ("30d", "2TB/s"), in the range of its dimension, or zero too."""
    allowed, written = RANGES[dimension], _QUANTITIES[dimension]

    def parse(value: object) -> float:
        if not isinstance(value, str):
            raise ValueError(f'expected a text with a unit such as "{written.example}", got {shown(value)}')
        parsed = parse_quantity(value, dimension)
        if not (parsed > 0 or (zero and parsed == 0)):
            raise ValueError(f"must be positive, got {shown(value)}")
        if parsed > 0 and not allowed.holds(parsed):
            raise ValueError(allowed.complaint(value))
        return parsed

    words = f"{written.words} ({written.example})"
    return Parser(
        read=parse, words=words, schema=quantity_schema(dimension), limits=allowed, dump=written.dump
    )


def _dump_bandwidth(value: object) -> str:
    return f"{Decimal(repr(value)).scaleb(-9).normalize():f}GB/s"


def plain_number(value: object) -> str:
    """A number as `parse_quantity` reads it back exactly."""
    text = repr(value)
    return text.removesuffix(".0")


def dump_tokens(value: object) -> str:
    """Tokens as text."""
    return f"{value} tokens"


class _Written(NamedTuple):
    """How quantities of a dimension are written."""

    words: str
    example: str
    dump: Callable[[object], str]


def _in(unit: str) -> Callable[[object], str]:
    return lambda value: f"{plain_number(value)}{unit}"


dump_time = _in("s")
"""Seconds as text."""

_QUANTITIES = {
    "time": _Written("a time", "30d", dump_time),
    "bandwidth": _Written("a bandwidth", "100GB/s", _dump_bandwidth),
    "bytes": _Written("a size", "0.5GiB", _in("B")),
    "power": _Written("a power", "100W", _in("W")),
    "money": _Written("a price", "2.50USD/h", _in("USD/h")),
    "emission": _Written("an emission", "0.4kg/kWh", _in("kg/kWh")),
}


def tokens(allowed: Range) -> Parser:
    """A parser of tokens (8192, "8K", "8K tokens") in a range."""

    def parse(value: object) -> int:
        found = _tokens(value)
        if not allowed.holds(found):
            raise ValueError(allowed.complaint(value))
        return found

    schema = {"anyOf": [range_schema(allowed), {"type": "string", "pattern": f"^{_TOKENS}$"}]}
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


def _lengths(value: object) -> tuple[int, ...] | None:
    """Tokens of every sequence, or a list of tokens of the sequences of a round."""
    parse = tokens(RANGES["length_tokens"])
    if not isinstance(value, list | tuple):
        return (parse(value),)
    if not value:
        raise ValueError("expected the tokens of a sequence, or a list of them; got an empty list")
    return tuple(map(parse, value))


def _dump_lengths(value: object) -> object:
    if value is None:
        return None
    several = list(value)  # type: ignore[call-overload]
    return dump_tokens(several[0]) if len(several) == 1 else several


_LENGTH = tokens(RANGES["length_tokens"]).schema
lengths = Parser(
    read=_lengths,
    words="tokens, or a list of them",
    schema={"anyOf": [_LENGTH, {"type": "array", "items": _LENGTH, "minItems": 1}]},
    dump=_dump_lengths,
)


def _batch(value: object) -> Batch:
    """A global batch: "32M tokens" or "512 sequences"."""
    if isinstance(value, str) and value.rstrip().endswith(("sequences", "sequence")):
        number = value.strip().removesuffix("s").removesuffix("sequence").strip()
        if not (number.isascii() and number.isdecimal() and number.strip("0")):
            raise ValueError(
                f'expected a positive whole number of sequences ("512 sequences"), got {quoted(value)}'
            )
        allowed = RANGES["batch_sequences"]
        if len(number) > len(str(allowed.high)) or not allowed.holds(int(number)):
            raise ValueError(allowed.complaint(value))
        return Batch(sequences=int(number))
    if not isinstance(value, str):
        raise ValueError(f'expected "32M tokens" or "512 sequences", got {shown(value)}')
    return Batch(tokens=tokens(RANGES["batch_tokens"])(value))


batch = Parser(
    read=_batch,
    words='tokens ("32M tokens") or sequences ("512 sequences")',
    schema={"type": "string", "pattern": rf"^({_TOKENS}|\s*0*[1-9]\d*\s*sequences?\s*)$"},
    dump=str,
)


def _interval(value: object) -> object:
    """Work between two checkpoints: seconds, or the name of the optimum."""
    if value in ("young", "daly"):
        return value
    try:
        return quantity("time")(value)
    except ValueError as error:
        raise ValueError(f"{error}; or young, daly (the optimum)") from None


def _dump_interval(value: object) -> object:
    return value if isinstance(value, str) else dump_time(value)


interval = Parser(
    read=_interval,
    words="a time (1h), young or daly",
    schema={"anyOf": [_enum(("young", "daly")), quantity_schema("time")]},
    dump=_dump_interval,
)
