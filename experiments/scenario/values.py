"""What scenarios alone write: their keys, batches, references, intervals, lists of lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hdpsim.cost_models.reading.units import written_quantity
from hdpsim.cost_models.reading.values import (
    TOKENS,
    Parser,
    dump_tokens,
    enum,
    expecting,
    is_text,
    quantity,
    quantity_schema,
    shown,
    text,
    tokens,
)
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
        parse: how its value is read and written.
        default: our value when the key is absent, or REQUIRED.
        said: tells what it means. Asked when somebody wants to know: it may have to read the source of a class.
        basic: whether everybody needs it, not experts alone.
        needs: what of other keys it needs to have an effect.
    """

    parse: Parser
    default: object = REQUIRED
    said: Callable[[], str] = str
    basic: bool = False
    needs: tuple[str, ...] = ()

    @property
    def meaning(self) -> str:
        """What it means."""
        return self.said()

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
        needs = sorted(
            self.needs, key=lambda need: need.startswith("no ")
        )  # "no" is of what follows it alone
        return self.meaning + (f" Needs {', '.join(needs)}." if needs else "")

    def dump(self, value: object) -> object:
        """From our value back to a YAML value that `parse` accepts."""
        return self.parse.dump(value)


reference = expecting(
    "a name, a path or a mapping",
    lambda value: isinstance(value, Mapping) or is_text(value),
    lambda value: dict(value) if isinstance(value, Mapping) else value,
    schema={"anyOf": [text.schema, {"type": "object"}]},
)
"""A catalog name, a path, or an inline mapping; looked up later, where paths are known."""


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
    schema={"type": "string", "pattern": rf"^({TOKENS}|\s*0*[1-9]\d*\s*sequences?\s*)$"},
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
    return value if isinstance(value, str) else written_quantity(value, "time")


interval = Parser(
    read=_interval,
    words="a time (1h), young or daly",
    schema={"anyOf": [enum(("young", "daly")), quantity_schema("time")]},
    dump=_dump_interval,
)
