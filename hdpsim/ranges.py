"""What a number may be: the range of every quantity that is read, and the limits of the work one input may ask for.

One table, ranges.toml, for scenario files, `--set`, catalogs, calibrations, configurations of models, records, tables
of kernels, cells, recorded operations and options. Ranges are wide: what lies outside is a slip of the pen, another
unit or a damaged file, and would end in an overflow, in nan or in work without end. Units are those of our fields
(seconds, bytes, tokens, FLOP).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hdpsim.errors import UserInputError
from hdpsim.quoting import quoted


@dataclass(frozen=True, slots=True)
class Range:
    """From *low* to *high*, both allowed; whole numbers where both are written as such.

    Attributes:
        unit: what is counted or measured; empty for a plain number.
        why: why nothing beyond is allowed, where that needs a word.
        words: both ends as a user would write them, where they carry a unit of their own.
    """

    low: float
    high: float
    unit: str = ""
    why: str = ""
    words: str = ""

    @property
    def only_whole(self) -> bool:
        """Whether only whole numbers are allowed."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def holds(self, value: object) -> bool:
        """Whether *value* is such a number; a truth value, a text, nan and infinity are not."""
        kinds = int if self.only_whole else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and self.low <= value <= self.high

    def __str__(self) -> str:
        if self.words:
            return self.words
        low, high = (f"{end:,}" if self.only_whole else f"{end:g}" for end in (self.low, self.high))
        return f"{low} to {high}{f' {self.unit}' if self.unit else ''}"

    def from_least(self, low: float) -> Range:
        """This range with another lower end."""
        return Range(low, self.high, self.unit, self.why)

    def complaint(self, value: object) -> str:
        """What is wrong with *value*, which is not in the range."""
        kind = "a whole number" if self.only_whole else "a number"
        only_a_fraction = isinstance(value, float) and self.low <= value <= self.high
        why = f" ({self.why})" if self.why and not only_a_fraction else ""
        return f"must be {kind} from {self}, got {quoted(value)}{why}"


with Path(__file__).with_name("ranges.toml").open("rb") as _file:
    _TABLES = tomllib.load(_file)

RANGES: Mapping[str, Range] = {name: Range(*row) for name, row in _TABLES["ranges"].items()}
"""The range of every quantity, by its name."""

LIMITS: Mapping[str, tuple[int, str]] = {name: (most, why) for name, (most, why) in _TABLES["limits"].items()}
"""What one input may ask for, and why not more."""


def constant_range(name: str) -> Range:
    """The range of a constant of a calibration.

    >>> constant_range("gemm_efficiency").high
    1.5
    """
    constants = _TABLES["constants"]
    return Range(*constants[max((end for end in constants if name.endswith(end)), key=len)])


def check(kind: str, value: object, name: str = "") -> None:
    """Raise UserInputError unless *value* is in the range of *kind*; *name* is what the message calls it."""
    allowed = RANGES[kind]
    if not allowed.holds(value):
        raise UserInputError(f"{name or kind} {allowed.complaint(value)}")
