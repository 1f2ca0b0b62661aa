"""How single values of a scenario file are read and written back: numbers, words, quantities, tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from hdpsim.cost_models.reading.fields import did_you_mean
from hdpsim.cost_models.reading.units import parse_quantity, unit_names
from hdpsim.errors import QuantityError
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES


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
class Key:
    """One key of the scenario file.

    Attributes:
        parse: from the YAML value to ours; raises ValueError with what is allowed.
        default: our value when the key is absent, or REQUIRED.
        dump: from our value back to a YAML value that `parse` accepts.
    """

    parse: Callable[[object], object]
    default: object = REQUIRED
    dump: Callable[[object], object] = lambda value: value


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


def text(value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text, got {shown(value)}")
    return value


def reference(value: object) -> object:
    """A catalog name, a path, or an inline mapping; looked up later, where paths are known."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError(f"expected a name, a path or a mapping, got {shown(value)}")


def some_of(options: tuple[str, ...]) -> Callable[[object], tuple[str, ...]]:
    """A parser of a list of these words, each at most once."""

    def parse(value: object) -> tuple[str, ...]:
        words = value if isinstance(value, list | tuple) else [value]
        if any(word not in options for word in words) or len(set(map(str, words))) < len(words):
            raise ValueError(f"expected a list of some of {', '.join(options)}, got {shown(value)}")
        return tuple(map(str, words))

    return parse


def boolean(value: object) -> bool:
    """`true` or `false`."""
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {shown(value)}")
    return value


def integer(kind: str, minimum: int | None = None) -> Callable[[object], int]:
    """A parser of whole numbers in the range of that *kind* (see `hdpsim.ranges`), with another lower end if given."""
    allowed = RANGES[kind] if minimum is None else RANGES[kind].from_least(minimum)

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not value >= allowed.low:
            raise ValueError(f"expected a whole number of at least {allowed.low}, got {shown(value)}")
        if not allowed.holds(value):
            raise ValueError(allowed.complaint(value))
        return value

    return parse


def one_of(*values: int) -> Callable[[object], int]:
    """A parser of one of these whole numbers."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or value not in values:
            raise ValueError(f"expected {' or '.join(map(str, values))}, got {shown(value)}")
        return int(value)

    return parse


def number(kind: str) -> Callable[[object], float]:
    """A parser of numbers in the range of that *kind*."""
    allowed = RANGES[kind]

    def parse(value: object) -> float:
        if not allowed.holds(value):
            raise ValueError(f"expected a number from {allowed}, got {shown(value)}")
        return float(value)  # type: ignore[arg-type]  # checked in the line above

    return parse


def choice(options: tuple[str, ...]) -> Callable[[object], str]:
    """A parser of one of these words."""

    def parse(value: object) -> str:
        if value in options:
            return str(value)
        hint = did_you_mean(value, options) if isinstance(value, str) else ""
        raise ValueError(f"{shown(value)} is not one of {', '.join(options)}{hint}")

    return parse


def or_word(word: str, parse: Callable[[object], object]) -> Callable[[object], object]:
    """Like *parse*, but *word* is accepted too and means None."""

    def parse_or_word(value: object) -> object:
        if value == word:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{error}; or {word}") from None

    return parse_or_word


def word_or(word: str, dump: Callable[[object], object] = lambda value: value) -> Callable[[object], object]:
    """Like *dump*, but None becomes *word*: what `or_word` reads back."""
    return lambda value: word if value is None else dump(value)


def quantity(dimension: str, *, zero: bool = False) -> Callable[[object], float]:
    """A quantity with its unit ("30d", "2TB/s"), in the range of its dimension, or zero too."""
    allowed = RANGES[dimension]

    def parse(value: object) -> float:
        if not isinstance(value, str):
            example = {"time": "30d", "bandwidth": "100GB/s", "bytes": "0.5GiB"}[dimension]
            raise ValueError(f'expected a text with a unit such as "{example}", got {shown(value)}')
        parsed = parse_quantity(value, dimension)
        if not (parsed > 0 or (zero and parsed == 0)):
            raise ValueError(f"must be positive, got {shown(value)}")
        if parsed > 0 and not allowed.holds(parsed):
            raise ValueError(allowed.complaint(value))
        return parsed

    return parse


def dump_time(value: object) -> str:
    """Seconds as text."""
    return f"{plain_number(value)}s"


def dump_bandwidth(value: object) -> str:
    """Bytes per second as text."""
    return f"{Decimal(repr(value)).scaleb(-9).normalize():f}GB/s"


def dump_bytes(value: object) -> str:
    """Bytes as text."""
    return f"{plain_number(value)}B"


def plain_number(value: object) -> str:
    """A number as `parse_quantity` reads it back exactly."""
    text = repr(value)
    return text.removesuffix(".0")


def tokens(kind: str) -> Callable[[object], int]:
    """A parser of tokens (8192, "8K", "8K tokens") in the range of that *kind*."""

    def parse(value: object) -> int:
        found = _tokens(value)
        if not RANGES[kind].holds(found):
            raise ValueError(RANGES[kind].complaint(value))
        return found

    return parse


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


def lengths(value: object) -> tuple[int, ...] | None:
    """Tokens of every sequence, or a list of tokens of the sequences of a round."""
    parse = tokens("length_tokens")
    if not isinstance(value, list | tuple):
        return (parse(value),)
    if not value:
        raise ValueError("expected the tokens of a sequence, or a list of them; got an empty list")
    return tuple(map(parse, value))


def dump_lengths(value: object) -> object:
    """What `lengths` reads back."""
    if value is None:
        return None
    several = list(value)  # type: ignore[call-overload]
    return dump_tokens(several[0]) if len(several) == 1 else several


def dump_tokens(value: object) -> str:
    """Tokens as text."""
    return f"{value} tokens"


def batch(value: object) -> Batch:
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
    return Batch(tokens=tokens("batch_tokens")(value))


def time_key(default_s: float, *, zero: bool = False) -> Key:
    """A key that holds a duration."""
    return Key(parse=quantity("time", zero=zero), default=default_s, dump=dump_time)


def auto_time_key(*, zero: bool = False) -> Key:
    """A key that holds a duration or `auto`."""
    parse = or_word("auto", quantity("time", zero=zero))
    return Key(parse=parse, default=None, dump=word_or("auto", dump_time))


def interval(value: object) -> object:
    """Work between two checkpoints: seconds, or the name of the optimum."""
    if value in ("young", "daly"):
        return value
    try:
        return quantity("time")(value)
    except ValueError as error:
        raise ValueError(f"{error}; or young, daly (the optimum)") from None


def dump_interval(value: object) -> object:
    """What `interval` reads back."""
    return value if isinstance(value, str) else dump_time(value)
