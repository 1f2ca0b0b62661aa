"""Quantities with units: read from text at the edge, printed for humans. Inside, everything is in base units."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from hdpsim.errors import QuantityError

TERA = 1e12
HOUR_S = 3600.0
DAY_S = 86400.0

_NUMBER = re.compile(r"(\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)\s*(.*)")

_DECIMAL_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_BYTES = {f"{prefix}iB": Decimal(1024) ** power for power, prefix in enumerate("KMGT", 1)}


def _decimal(unit: str, prefixes: str, scale: str = "1") -> dict[str, Decimal]:
    return {p + unit: Decimal(10) ** _DECIMAL_PREFIXES[p] * Decimal(scale) for p in prefixes}


_BITS_PER_BYTE_INVERSE = "0.125"
_SECONDS = {"ns": "1e-9", "us": "1e-6", "ms": "1e-3", "s": "1", "min": "60", "h": "3600", "d": "86400"}
_TOKENS = {"": 1, "K": 1024, "Ki": 1024, "M": 1024**2, "Mi": 1024**2}
_SCALE: dict[str, dict[str, Decimal]] = {
    "bandwidth": _decimal("bps", "MGT", _BITS_PER_BYTE_INVERSE)
    | _decimal("B/s", "KMGT")
    | {unit + "/s": scale for unit, scale in _BINARY_BYTES.items()},
    "bytes": {"B": Decimal(1), **_decimal("B", "KMGT"), **_BINARY_BYTES},
    "flop": _decimal("FLOP", "MGTPE"),
    "flop_rate": _decimal("FLOP/s", "GTPE"),
    "time": {unit: Decimal(seconds) for unit, seconds in _SECONDS.items()},
    "tokens": {unit: Decimal(tokens) for unit, tokens in _TOKENS.items()},
    "count": {"": Decimal(1)},
    "power": {"W": Decimal(1), "kW": Decimal(1000), "MW": Decimal(10**6)},
    "money": {"USD/h": Decimal(1)},
    "emission": {"kg/kWh": Decimal(1), "g/kWh": Decimal("1e-3")},
}
_SPOKEN = {"bytes": "size in bytes", "flop": "amount of FLOP", "flop_rate": "FLOP rate", "time": "duration"}
_SPOKEN |= {"tokens": "number of tokens", "money": "price", "emission": "emission per kWh"}
_WHOLE = frozenset({"tokens", "count"})
"""Dimensions that are counted, not measured: whole numbers, and a bare number is fine."""
_PREFIXES = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3), ("", 1.0))
_SHOWN = {
    "power": (("MW", 1e6), ("kW", 1e3), ("W", 1.0)),
    "bytes": (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)),
} | {
    dimension: tuple((prefix + unit, scale) for prefix, scale in _PREFIXES)
    for dimension, unit in (("bandwidth", "B/s"), ("flop", "FLOP"), ("flop_rate", "FLOP/s"))
}
"""Units in which quantities are printed, the largest first."""
_WRITTEN = {
    "bandwidth": ("GB/s", 9), "flop_rate": ("GFLOP/s", 9), "bytes": ("B", 0), "time": ("s", 0), "power": ("W", 0),
    "money": ("USD/h", 0), "emission": ("kg/kWh", 0), "": ("", 0),
}  # fmt: skip
"""Units in which files have quantities, and the power of ten that each stands for."""
_PLAIN = {"count": "{:,.0f}", "money": "{:,.2f} USD/h", "emission": "{:g} kg/kWh"}


def unit_names(dimension: str) -> tuple[str, ...]:
    """The units of *dimension* as an error message lists them.

    >>> unit_names("tokens")
    ('no unit (a whole number)', 'K or Ki (= 1024 tokens)', 'M or Mi (= 1,048,576 tokens)')
    """
    if dimension == "tokens":
        return ("no unit (a whole number)", "K or Ki (= 1024 tokens)", "M or Mi (= 1,048,576 tokens)")
    if dimension == "count":
        return ("no unit (a whole number)",)
    said = {"Gbps": "Gbps (bits)", "GB/s": "GB/s (bytes)"}
    return tuple(said.get(unit, unit) for unit in _SCALE[dimension])


def parse_quantity(text: str | int | float, dimension: str) -> float:
    """Return *text* ("400Gbps", "80 GiB") in the base unit of *dimension*.

    Scaling is exact (decimal), so "5us" is the float nearest to 5e-06. Decimal prefixes are powers of 1000,
    Ki/Mi/Gi powers of 1024. Tokens are the exception, as everybody who trains language models writes them:
    8K is 8192 tokens and 2M is 2,097,152. Bare numbers are refused wherever a unit could be mistaken.

    >>> parse_quantity("400Gbps", "bandwidth")
    50000000000.0
    >>> parse_quantity("8K", "tokens")
    8192.0

    Raises:
        QuantityError: the text is not a non-negative number with a unit of this dimension.
    """
    scale = _SCALE[dimension]
    error = QuantityError(str(text), _SPOKEN.get(dimension, dimension), unit_names(dimension))
    if isinstance(text, bool):
        raise error
    match = _NUMBER.fullmatch(_plain(text).strip())
    if match is None or match[2] not in scale:
        raise error
    exact = Decimal(match[1].replace("_", "")) * scale[match[2]]
    value = float(exact)
    if math.isinf(value) or (dimension in _WHOLE and exact != exact.to_integral_value()):
        raise error
    return value


def written_quantity(value: Any, dimension: str) -> str:
    """A quantity as `parse_quantity` reads it back exactly, in the unit in which files have it.

    >>> written_quantity(5e10, "bandwidth")
    '50GB/s'
    """
    unit, power = _WRITTEN[dimension]
    return f"{Decimal(repr(float(value))).scaleb(-power).normalize():f}{unit}"


def quantity_pattern(dimension: str) -> str:
    """A regular expression, as JSON Schema has it, of the texts that parse_quantity reads."""
    units = "|".join(map(re.escape, _SCALE[dimension]))
    number = _NUMBER.pattern.partition(r"\s*")[0]
    return rf"{number}\s*({units})"


def _plain(value: str | int | float) -> str:
    """The text of a number as a user would have written it (2.0 and 32e6 are whole)."""
    if isinstance(value, float) and value.is_integer() and not math.isinf(value):
        return str(int(value))
    return str(value)


def format_quantity(value: float, dimension: str) -> str:
    """Return *value* (in base units) with a unit a human likes to read.

    >>> format_quantity(73.1 * 2**30, "bytes")
    '73.1 GiB'
    >>> format_quantity(2097152, "tokens")
    '2M'
    """
    if dimension == "time":
        return _format_time(value)
    if dimension == "tokens":
        return _format_tokens(value)
    if dimension in _PLAIN:
        return _PLAIN[dimension].format(value)
    return _scaled(value, _SHOWN[dimension])


def _scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """Use the largest unit of which there is at least one."""
    unit, scale = next((pair for pair in units if abs(value) >= pair[1]), units[-1])
    return f"{value / scale:.4g} {unit}" if abs(value / scale) < 1000 else f"{value / scale:,.0f} {unit}"


def _format_time(value_s: float) -> str:
    """Seconds with a fitting unit; from two minutes on in whole units, as on a clock."""
    if abs(value_s) < 119.5:
        return _scaled(value_s, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)))
    sign, whole_s = ("-" if value_s < 0 else ""), round(abs(value_s))
    days, rest = divmod(whole_s, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next(i for i, (amount, _) in enumerate(parts) if amount)
    return sign + " ".join(f"{amount} {unit}" for amount, unit in parts[first : first + 2] if amount)


def _format_tokens(value: float) -> str:
    """Exact: 8K and 2M where they are whole and short, else the full number."""
    for unit, scale in (("M", 1024**2), ("K", 1024)):
        if value >= scale and value % scale == 0 and value / scale < 10_000:
            return f"{value / scale:.0f}{unit}"
    return f"{value:,.0f}"
