"""How amounts read: durations, tokens, money, the memory of a GPU. Documents keep base units; this is for people."""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING

from hdpsim.cost_models.reading.units import parse_quantity
from hdpsim.errors import QuantityError, UserInputError
from hdpsim.experiments.output.statistics import Estimate, with_interval

if TYPE_CHECKING:
    from hdpsim.cost_models.memory.report import MemoryReport


LARGEST_TARGET_TOKENS = 1e18

_CLOCK = (("d", 86400.0, 2.0), ("h", 3600.0, 2.0), ("min", 60.0, 2.0))
"""Unit, its seconds, and how many of it there must be before it is used."""

_LETTERS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_TARGET = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([BT])\s*(?:tokens)?\s*")
_GIB = 2.0**30

LARGEST_USD = 1e12
_USD = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMB]?)\s*USD\s*")


def _unit(seconds: float) -> tuple[str, float]:
    return next(((unit, size) for unit, size, least in _CLOCK if abs(seconds) >= least * size), ("s", 1.0))


def duration(seconds: float) -> str:
    """A long time, with the two digits that matter.

    >>> duration(379_296), duration(290), duration(40_000), duration(5.25), duration(0.04)
    ('4.4 d', '4.8 min', '11 h', '5.2 s', '0.04 s')
    """
    unit, size = _unit(seconds)
    value = seconds / size
    if unit == "s" and abs(value) < 1.0:
        return f"{value:.2g} s"
    return (
        f"{value:,.{1 if abs(value) < 9.95 else 0}f} {unit}"  # two significant digits; more have no decimals
    )


def with_duration(value: Estimate) -> str:
    """The same of an estimate, one digit more: `4.39 ± 0.07 d`, or `4.39 d (4.30 to 4.48)`."""
    unit, size = _unit(value.mean)
    digits = 2 if value.mean / size < 9.95 else 1
    text = with_interval(value, 1.0 / size, digits)
    mean, bracket, rest = text.partition(" (")
    return f"{mean} {unit}{bracket}{rest}"


def span(seconds: float) -> str:
    """A wait as a clock shows it.

    >>> span(0.4), span(75), span(4000), span(200_000)
    ('1 s', '1 min 15 s', '1 h 6 min', '2 d 7 h')
    """
    rounded_s = max(1, round(seconds))
    for (unit, size), (smaller, part) in pairwise((("d", 86400), ("h", 3600), ("min", 60), ("s", 1))):
        if rounded_s >= size:
            rest = rounded_s % size // part
            return f"{rounded_s // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{rounded_s} s"


def large_amount(value: float) -> str:
    """Three digits and a decimal letter: thousands, millions, billions, trillions.

    >>> large_amount(108_123), large_amount(1.5e12), large_amount(999_999), large_amount(12), large_amount(1e15)
    ('108K', '1.5T', '1M', '12', '1,000T')
    """
    rounded = float(f"{value:.3g}")
    for scale, letter in _LETTERS:
        if abs(rounded) >= scale:
            return f"{rounded / scale:,.9g}{letter}"
    return f"{rounded:g}"


def tokens_with_interval(value: Estimate) -> str:
    """`299.9 ± 0.7 B`, or trillions where there are as many.

    >>> tokens_with_interval(Estimate(mean=3e11, half_width=5e8, lowest=3e11, highest=3e11, count=8))
    '300.0 ± 0.5 B'
    """
    scale, letter = next((pair for pair in _LETTERS[:2] if value.mean >= pair[0]), _LETTERS[1])
    digits = 3 if letter == "T" or value.mean < 1e10 else 1
    return f"{with_interval(value, 1 / scale, digits)} {letter}"


def parse_target(text: str, option: str = "--tokens") -> float:
    """The tokens of `300B`, `1.5T` or a whole number (K and M as everywhere: 1024 and 1,048,576).

    >>> parse_target("300B"), parse_target("1.5T tokens"), parse_target("8K")
    (300000000000.0, 1500000000000.0, 8192.0)

    Raises:
        UserInputError: not a number of tokens, none, or more than anybody has.
    """
    match = _TARGET.fullmatch(text)
    if match:
        tokens = float(Decimal(match[1]) * (10**9 if match[2] == "B" else 10**12))
    else:
        try:
            tokens = parse_quantity(text.strip().removesuffix("tokens").strip(), "tokens")
        except QuantityError:
            raise UserInputError(
                f"{option}: expected a number of tokens such as 300B or 1.5T (B = 10^9, T = 10^12), got {text[:80]!r}"
            ) from None
    if not 1 <= tokens <= LARGEST_TARGET_TOKENS:
        raise UserInputError(f"{option}: expected from 1 to 1,000,000T tokens, got {text[:80]!r}")
    return tokens


def parse_usd(text: str, option: str) -> float:
    """The dollars of `20M USD`, `500K USD` or `1,250,000 USD`.

    >>> parse_usd("20M USD", "--target"), parse_usd("1.5B USD", "--target"), parse_usd("1,250 USD", "--target")
    (20000000.0, 1500000000.0, 1250.0)

    Raises:
        UserInputError: not an amount of USD, none, or more than anybody has.
    """
    match = _USD.fullmatch(text.replace(",", ""))
    usd = float(Decimal(match[1]) * {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}[match[2]]) if match else 0.0
    if not 0.0 < usd <= LARGEST_USD:
        raise UserInputError(
            f"{option}: expected an amount of money such as 20M USD (K = 10^3, M = 10^6, B = 10^9; "
            f"at most 1,000B USD), got {text[:80]!r}"
        )
    return usd


def memory_of(report: MemoryReport) -> str:
    """Peak over what there is: `60.4 of 79.2 GiB`."""
    return f"{report.total_bytes / _GIB:.1f} of {report.capacity_bytes / _GIB:.1f} GiB"
